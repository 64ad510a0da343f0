"""What is more than one program: trials that choose a block's scale, and transforms of whole rows."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import kvformat as kvf
from kvformat.fuzz import strategies
from kvformat.recipes import exact, rows
from kvformat.recipes.catalogue import recipe as find
from kvformat.recipes.entry import parse_recipe
from tests.elements.compare import assert_same_codes, assert_same_values
from tests.recipes import adversarial

F = np.float32
TE = "transformer-engine-d0067d0d/reference-4over6-{}/nvfp4"


def _e2m1fn(q):
    codes = q.astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    return np.where(q == 0, np.uint8(0), codes)


def _four_over_six(x, error):
    """TransformerEngine's 4over6 once more, in NumPy float32, from the description of it."""
    blocks = x.reshape(-1, 16)
    amax = np.abs(x).max()
    enc = F(2688) / amax
    tried = []
    for factor in (F(1), F(1.5)):
        bs = np.clip(np.abs(blocks).max(1) / F(6) * enc * factor, -448, 448).astype(ml_dtypes.float8_e4m3fn)
        wide = bs.astype(F)[:, None]
        q = np.clip(blocks * np.minimum(F(1) / (wide * (F(1) / enc)), np.finfo(F).max), -6, 6)
        codes = _e2m1fn(q)
        value = codes.view(ml_dtypes.float4_e2m1fn).astype(F) * wide * amax / F(2688)
        total = np.zeros(len(blocks), F)
        for i in range(16):
            total = total + error(value[:, i] - blocks[:, i])
        tried.append((total, codes, bs.view(np.uint8)))
    (e6, c6, s6), (e4, c4, s4) = tried
    four = e4 < e6
    return np.where(four[:, None], c4, c6), np.where(four, s4, s6), four


@pytest.mark.slow  # two kernels of 4 s
@pytest.mark.parametrize("mode, error", [("mae", np.abs), ("mse", np.square)])
def test_four_over_six_is_what_it_says(mode, error):
    x = np.random.default_rng(2).standard_normal((64, 2, 128)).astype(F)
    codes, scales, four = _four_over_six(x, error)
    found = kvf.quantize(x, TE.format(mode))
    assert_same_codes(found.codes, codes.reshape(x.shape), x)
    assert_same_codes(found.scales.reshape(-1), scales)
    assert 0.2 < four.mean() < 0.8  # both are chosen


@pytest.mark.slow
def test_of_equal_trials_the_first_is_kept():
    x = np.zeros((1, 1, 16), F)
    x[0, 0, 0] = 6  # 6 * 1 and 4 * 1.5: both exact
    assert kvf.quantize(x, TE.format("mse"), scale=2688.0).scales[0, 0, 0] == 0x38


@pytest.mark.slow
def test_a_trial_that_is_strictly_better_is_taken():
    x = np.zeros((1, 1, 16), F)
    x[0, 0, :2] = 6, 4.5  # 6 * 1 and 4 * 1 or 6 * 1; 4 * 1.5 and 3 * 1.5
    found = kvf.quantize(x, TE.format("mse"), scale=2688.0)
    assert (found.scales[0, 0, 0], *found.codes[0, 0, :2]) == (0x3C, 6, 5)


def _trial_recipe(**scale):
    return {
        "name": "test/trials", "mode": "nvfp4", "element": "e2m1fn", "source": "tests",
        "code": "c = encode(div(x, bs), e2m1fn)", "value": "v = mul(c, bs)",
        "scales": [{"name": "bs", "granularity": "per_block", "store": "e4m3fn", "program": "bs = div(amax(x), trial)",
                    "trials": ["6", "4"], "error": "e = add(e, abs(sub(mul(c, bs), x)))", **scale}],
    }  # fmt: skip


@pytest.mark.parametrize(
    "scale, said",
    [
        ({"error": "t = mul(c, bs)"}, "must add to 'e'"),
        ({"error": ""}, "must add to 'e'"),
        ({"trials": ["6", "four"]}, "trials are numbers; got 6, four"),
        ({"granularity": "per_tensor", "store": "float32"}, "trials are for a scale within a row"),
        ({"program": "bs = div(smallest(x), trial)", "granularity": "per_head", "trials": []}, "smallest needs a row"),
    ],
)
def test_trials_that_cannot_run_are_refused(scale, said):
    with pytest.raises(kvf.InputError) as error:
        parse_recipe(_trial_recipe(**scale))
    assert said in str(error.value)


@pytest.mark.slow  # a kernel for each
@pytest.mark.parametrize("count", [2, 3, 4])
def test_any_number_of_trials_is_the_exact_twins(count):
    recipe = parse_recipe(_trial_recipe(trials=["6", "4", "3", "2"][:count]))
    x = adversarial.ordinary()[:2]
    codes, scales, _ = exact.quantize(x, recipe)
    found = kvf.quantize(x, recipe)
    assert_same_codes(found.codes, codes, x)
    assert_same_codes(found.scales, scales)


# --- rows ----------------------------------------------------------------------------------------------------------

INT4 = "vllm-0.33/triton/int4_per_token_head"
SEED = 0x9E3779B9
#: torch 2.13: 2 * torch.bernoulli(torch.full((32,), 0.5), generator=torch.Generator().manual_seed(0x9E3779B9)) - 1
SIGNS = "+-++----+--++-+-++--+++-+-+--++-"


def test_signs_are_those_of_torch():
    torch = pytest.importorskip("torch", reason="torch is not in the test extra; CI installs it first")
    for count in (1, 64, 128, 512):
        generator = torch.Generator(device="cpu").manual_seed(SEED)
        expected = 2 * torch.bernoulli(torch.full((count,), 0.5), generator=generator) - 1
        np.testing.assert_array_equal(rows.signs(SEED, count), expected.numpy())


def test_signs_are_pinned():
    assert "".join("+" if sign > 0 else "-" for sign in rows.signs(SEED, 32)) == SIGNS


@pytest.mark.parametrize("dims", [1, 16, 48, 96, 128])
def test_hadamard_of_integers_is_the_product_with_its_matrix(dims):
    block = dims & -dims
    matrix = np.array([[(-1) ** (i & j).bit_count() for j in range(block)] for i in range(block)])
    x = np.random.default_rng(3).integers(-50, 50, (5, dims))
    expected = (x.reshape(5, -1, block) @ matrix).reshape(5, dims)  # the matrix is symmetric
    steps = rows.parse_rows("x = hadamard(x)", "test")
    np.testing.assert_array_equal(rows.prepared(steps, x.astype(F)), expected.astype(F))
    np.testing.assert_array_equal(rows.restored(steps, expected.astype(F)), x.astype(F))


@pytest.mark.slow  # a kernel for each
@pytest.mark.parametrize("dtype", strategies.DTYPES, ids=strategies.DTYPE_IDS)
def test_int4_is_its_exact_twin_in_every_dtype(dtype):
    for x in (adversarial.finite(dtype), adversarial.ordinary(dtype)):
        codes, scales, _ = exact.quantize(x, find(INT4))
        found = kvf.quantize(x, INT4)
        assert_same_codes(found.codes, codes, x)
        assert_same_values(found.scales, scales)


def test_int4_hides_its_zero_point_in_the_scale_and_reads_the_scale_without_it():
    x = strategies.cast(np.random.default_rng(8).standard_normal((4, 2, 128)) + 0.5, np.dtype(ml_dtypes.bfloat16))
    found = kvf.quantize(x, INT4)
    signs = rows.signs(SEED, 128)
    matrix = np.array([[(-1) ** (i & j).bit_count() for j in range(128)] for i in range(128)], F)
    rotated = (x.astype(F) * signs) @ matrix  # not bit for bit: an accumulation in another order
    low, high = rotated.min(-1), rotated.max(-1)
    pattern = found.scales.view(np.uint32)
    np.testing.assert_array_equal(pattern & 15, np.clip(np.rint(-low / ((high - low) / 15)), 0, 15).astype(np.uint32))
    assert found.codes.dtype == np.int8
    nibbles = found.codes & 15
    truncated = (pattern & ~np.uint32(15)).view(F)
    values = (nibbles.astype(F) - (pattern & 15).astype(F)[..., None]) * truncated[..., None]
    steps = find(INT4).for_input("bfloat16").prepare
    assert_same_values(found.dequantize(), rows.restored(steps, values))
    # half a step of every rotated number, and the rounding to bfloat16 before it
    step = ((high - low) / 15)[..., None]
    error = np.linalg.norm(found.dequantize() - x.astype(F), axis=-1, keepdims=True)
    assert (error <= 0.51 * step + np.abs(rotated).max(-1, keepdims=True) * 2.0**-8).all()


@pytest.mark.parametrize(
    "prepare, said",
    [
        ("x = hadamard(x)", "the last thing done to a row is"),
        ("x = rotate(x)\nx = to(x, input)", "unknown word in recipe 'test/trials', prepare: 'rotate'"),
        ("y = hadamard(x)", "is not of the form 'x = word(x, argument)'"),
        ("x = flip_signs(x, seven)\nx = to(x, input)", "flip_signs cannot take that argument"),
        ("x = to(x, float8)", "to cannot take that argument"),
    ],
)
def test_rows_that_cannot_be_prepared_are_refused(prepare, said):
    with pytest.raises(kvf.InputError) as error:
        parse_recipe({**_trial_recipe(), "prepare": prepare})
    assert said in str(error.value)

"""The kernels, interpreted, write and read the bytes of the golden engine in all modes and layouts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import kvformat as kvf
from kvformat import arrays
from kvformat.fuzz import strategies
from kvformat.layouts import LAYOUTS
from kvformat.modes import MODES
from kvformat.torch import launch
from tests.paged import BLOCK_SIZE, BLOCKS, CONFIGS, HEADS, SLOTS, VLLM, case
from tests.recipes import adversarial

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter computes on NumPy arrays

CANARY = 0xA5


def sized(mode, order, size, **how):
    made = case(VLLM, mode, order, **how)
    return type(made)(**{**made.__dict__, "head_size": size, "head_size_v": size})


#: head sizes that are no power of two
RAGGED = [
    *(sized(mode, "NHD", size) for mode in ("fp8_per_token_head", "int8_per_token_head", "fp8_per_tensor") for size in
      (80, 96, 112)),
    *(sized("nvfp4", "HND", size, v_scales="linear") for size in (80, 96, 112)),
    *(sized("none", "HND", size, dtype="bfloat16") for size in (80, 96, 112)),
]  # fmt: skip
ALL = CONFIGS + RAGGED
every_config = pytest.mark.parametrize("config", ALL, ids=str)


def given_scale(config, recipe, number):
    return np.float32(number) if any(level.may_be_given for level in kvf.recipe(recipe or config.mode).levels) else None


def written(config, key, value, slots, recipe=None, scale=None):
    """Pages by the golden engine, and by the kernel; both began as canaries."""
    made = kvf.layout(config.name, **config.arguments)
    how = kvf.recipe(recipe or config.mode)
    cache = kvf.PagedCache(made, BLOCKS)
    cache.pages[...] = CANARY
    cache.write(*map(arrays.array, (key, value)), slots, recipe=how, k_scale=scale, v_scale=scale)
    pages = torch.full((BLOCKS, made.page_bytes), CANARY, dtype=torch.uint8)
    errors = torch.zeros(1, dtype=torch.int64)
    tensor = None if scale is None else torch.tensor([float(scale)])
    for side, x in (("k", key), ("v", value)):
        launch.write(made, x, side, pages, torch.from_numpy(slots), how, tensor, errors)
    assert not errors.item()
    return cache, pages


def assert_same_bytes(config, expected, found):
    """Byte for byte; NaN among stored floats compare as a class, as their payload is no part of any contract."""
    wrong = np.argwhere(expected.pages != found.numpy())
    made = expected.layout
    if config.mode == "none" and len(wrong):
        dtype = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}[made.dtype]
        views = [
            torch.from_numpy(p[:, : made.natural_bytes].copy()).view(dtype) for p in (expected.pages, found.numpy())
        ]
        wrong = wrong[:0] if torch.equal(*(view.float().nan_to_num(1e38) for view in views)) else wrong
    told = [f"block {block} byte {byte}: {made.explain(byte=int(byte))}" for block, byte in wrong[:3]]
    assert not len(wrong), told


def assert_same_values(cache, pages):
    table = np.array([2, 0, 1])
    for dtype in (np.float32, np.float16):
        sides = cache.gather(table, SLOTS - 1, dtype)
        scales = (cache.k_scale, cache.v_scale)
        for side, wanted, scale in zip("kv", sides, scales, strict=True):
            tensor = None if scale is None else torch.tensor([float(scale)])
            errors = torch.zeros(1, dtype=torch.int64)
            out = launch.gather(
                cache.layout, pages, side, torch.from_numpy(table), SLOTS - 1, cache.recipe, tensor, errors,
                torch.float32 if dtype == np.float32 else torch.float16,
            )  # fmt: skip
            np.testing.assert_array_equal(out.numpy(), wanted)


@every_config
def test_adversarial_rows(config):
    rows = [adversarial.anything()[..., : config.head_size], adversarial.anything()[..., : config.head_size_v]]
    slots = np.array([7, -1, 2])
    cache, pages = written(config, *map(torch.from_numpy, rows), slots)
    assert_same_bytes(config, cache, pages)
    assert_same_values(cache, pages)


@pytest.mark.parametrize("dtype", strategies.DTYPES, ids=strategies.DTYPE_IDS)
@pytest.mark.parametrize(
    "recipe",
    [
        "vllm-0.33/triton/int8_per_token_head",
        "vllm-0.33/triton-nofusion/int8_per_token_head",
        "vllm-0.33/triton/fp8_per_token_head",
        "vllm-0.33/csrc/fp8_per_tensor",
        "vllm-0.33/csrc/nvfp4",
        "exact/nvfp4",
        "transformer-engine-d0067d0d/reference-4over6-mse/nvfp4",
    ],
)
def test_recipes_of_engines(recipe, dtype):
    mode = kvf.recipe(recipe).mode
    config = next(each for each in CONFIGS if each.mode == mode and each.name == VLLM)
    key = arrays.tensor(adversarial.anything(dtype)[..., : config.head_size].copy())
    cache, pages = written(config, key, key.flip(0), np.array([0, 5, 11]), recipe, given_scale(config, recipe, 0.0625))
    assert_same_bytes(config, cache, pages)


@st.composite
def writes(draw):
    config = draw(st.sampled_from(ALL))
    tokens, dtype = draw(st.integers(1, 5)), draw(strategies.dtypes)
    sides = [
        draw(strategies.kv_tensors(config.mode, tokens=tokens, heads=HEADS, head_dim=size, dtype=dtype))
        for size in (config.head_size, config.head_size_v)
    ]
    slots = draw(strategies.slot_mappings(tokens, SLOTS))
    strided = draw(st.sampled_from(("contiguous", "fused", "heads first", "every second")))
    scale = given_scale(config, None, draw(strategies.scales())) if draw(st.booleans()) else None
    return config, sides, slots, strided, scale


def laid_out(x, how):
    """The same tensor with other strides."""
    tokens, heads, dims = x.shape
    if how == "fused":  # K or V as a slice of a fused QKV projection
        whole = x.new_zeros(tokens, 3 * heads + 1, dims)
        whole[:, heads : 2 * heads] = x
        return whole[:, heads : 2 * heads]
    if how == "heads first":
        return x.transpose(0, 1).contiguous().transpose(0, 1)
    if how == "every second":
        whole = x.new_zeros(tokens, heads, 2 * dims)
        whole[..., ::2] = x
        return whole[..., ::2]
    return x


SINK = np.ones((2, HEADS, 64), np.float32)
SINK[0] *= 1000


@settings(max_examples=60)
@given(writes())
@example((CONFIGS[4], [SINK, SINK / 4], np.array([3, 0]), "fused", None))
def test_any_write_gives_the_golden_bytes(write):
    config, sides, slots, strided, scale = write
    key, value = (laid_out(arrays.tensor(side), strided) for side in sides)
    cache, pages = written(config, key, value, slots, scale=scale)
    assert_same_bytes(config, cache, pages)


@every_config
def test_a_slot_past_the_end_writes_nothing_and_raises_the_flag(config):
    made = kvf.layout(config.name, **config.arguments)
    pages = torch.full((BLOCKS, made.page_bytes), CANARY, dtype=torch.uint8)
    errors = torch.zeros(1, dtype=torch.int64)
    x = torch.ones(3, HEADS, config.head_size)
    scale = torch.ones(1) if kvf.recipe(config.mode).outer else None
    slots = torch.tensor([SLOTS, -1, SLOTS + 7])
    launch.write(made, x, "k", pages, slots, kvf.recipe(config.mode), scale, errors)
    assert errors.item() == 3
    assert (pages == CANARY).all()


def test_a_block_past_the_end_reads_as_zeros_and_raises_the_flag():
    config = CONFIGS[2]
    made = kvf.layout(config.name, **config.arguments)
    pages = torch.full((BLOCKS, made.page_bytes), 1, dtype=torch.uint8)
    errors = torch.zeros(1, dtype=torch.int64)
    blocks = torch.tensor([0, BLOCKS, -1])
    out = launch.gather(made, pages, "k", blocks, 3 * BLOCK_SIZE, kvf.recipe(config.mode), None, errors, torch.float32)
    assert errors.item() == 3 * BLOCK_SIZE
    assert not out[BLOCK_SIZE:].any()
    assert out[:BLOCK_SIZE].all()


def test_padding_of_a_longer_page_and_other_blocks_stay_as_they_are():
    config = next(each for each in CONFIGS if each.padding)
    key = torch.ones(1, HEADS, config.head_size)
    cache, pages = written(config, key, key, np.array([1]))
    assert_same_bytes(config, cache, pages)
    made = cache.layout
    assert (pages[:, made.natural_bytes :] == CANARY).all()
    assert (pages[1:] == CANARY).all()


def test_layouts_that_kernels_do_not_know_are_refused_in_one_line():
    """Every layout is either written as the golden engine writes it, or refused before a byte changes."""
    known = 0
    for name, entry in LAYOUTS.items():
        for mode, _ in entry.modes:
            try:
                made = kvf.layout(name, mode=mode, block_size=8, num_kv_heads=HEADS, head_size=64, order="HND")
            except kvf.InputError:
                continue  # a record with sizes of its own
            if mode not in MODES or not made.uniform:
                continue
            cache = kvf.PagedCache(made, BLOCKS)
            x = adversarial.finite()[..., :64].copy()
            slots = np.array([3, -1, 9])
            cache.write(x, x, slots)
            pages, errors = torch.zeros(BLOCKS, made.page_bytes, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64)
            try:
                for side in "kv":
                    launch.write(
                        made, torch.from_numpy(x), side, pages, torch.from_numpy(slots), kvf.recipe(mode), None, errors
                    )
            except kvf.InputError:
                assert not pages.any()
                continue
            np.testing.assert_array_equal(pages.numpy(), cache.pages, err_msg=f"{name} {mode}")
            known += 1
    assert known > 10


@pytest.mark.parametrize("config", [CONFIGS[2], CONFIGS[6], CONFIGS[13]], ids=str)
@pytest.mark.parametrize("start", [1, 2, 4, 8])
def test_pages_at_an_address_that_is_no_multiple_of_a_store_are_stored_narrower(config, start):
    made = kvf.layout(config.name, **config.arguments)
    memory = torch.zeros(16 + BLOCKS * made.page_bytes, dtype=torch.uint8)
    assert memory.data_ptr() % 16 == 0
    pages = memory[start : start + BLOCKS * made.page_bytes].view(BLOCKS, made.page_bytes)
    codes, scales = launch.places(made, "k", pages)
    for place in filter(None, (codes, scales)):
        assert start % place.word.size == 0
        assert start % place.width == 0
    x, slots = torch.ones(1, HEADS, config.head_size), torch.tensor([5])
    scale = torch.ones(1) if kvf.recipe(config.mode).outer else None
    errors = torch.zeros(1, dtype=torch.int64)
    launch.write(made, x, "k", pages, slots, kvf.recipe(config.mode), scale, errors)
    plain = torch.zeros(BLOCKS, made.page_bytes, dtype=torch.uint8)
    launch.write(made, x, "k", plain, slots, kvf.recipe(config.mode), scale, errors)
    assert torch.equal(pages, plain)
    assert plain.any()


def test_heads_that_lie_2_to_the_26_elements_apart_are_read_where_they_are():
    heads, stride = 34, 1 << 26
    storage = torch.empty((heads - 1) * stride + 128, dtype=torch.bfloat16)  # 4.4 GB of addresses, 34 pages touched
    x = storage.as_strided((1, heads, 128), (128, stride, 1))
    x.copy_(torch.from_numpy(np.random.default_rng(0).standard_normal((1, heads, 128)).astype(np.float32)))
    codes, scales, _ = launch.quantize(x, kvf.recipe("int8_per_token_head"), None)
    wanted = kvf.quantize(arrays.array(x), "int8_per_token_head")
    np.testing.assert_array_equal(codes.numpy().view(np.int8), wanted.codes)
    np.testing.assert_array_equal(scales.numpy(), wanted.scales)

"""Who stores what where libraries differ: a table made by running or reading them, reproduced by the recipes.

Every row is one block of 16 whose remaining elements are 0, with all global scales 1 (an amax of 2688). Codes are hex
digits in the order of the elements; where a row says fewer than 16, the rest of the block is not compared.
Two rows of the table do not list their elements; the ones here give every code that it lists.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import kvformat as kvf
from kvformat.recipes.catalogue import recipe as find
from tests.recipes.adversarial import TIES

pytestmark = pytest.mark.slow  # a kernel is compiled for each of some thirty recipes

TE = "transformer-engine-d0067d0d/reference/nvfp4"
TRACE = "flashinfer-0.7/trace-reference/nvfp4"
VLLM = "vllm-0.33/emulation/nvfp4"
TORCHAO = "torchao-0.18/nvfp4"
CT = "compressed-tensors-0.20/nvfp4"
MODELOPT = "modelopt-0.47/nvfp4"
# the table ran these kernels in exact arithmetic, which is what quantize gives for approximate words
APPEND = ("flashinfer-0.7/append/nvfp4", "flashinfer-0.7/append-precise/nvfp4", "flashinfer-0.7/append-mla/nvfp4")
CVT = ("flashinfer-0.7/kv-quantize/nvfp4", "tensorrt-llm-snapshot/cvt-warp/nvfp4")
KERNELS = APPEND + CVT
ALL = (TE, TRACE, VLLM, TORCHAO, CT, MODELOPT, *KERNELS)


def _but(*names):
    return tuple(name for name in ALL if name not in names)


_LOST = np.array([1, 0.5, -1, 1 / 6, 1 / 4]) * 6 * 2.0**-10
_INF = float("inf")

TABLE = [
    # all +0
    ([0.0] * 16, "00", "0" * 16, (TE, TRACE, VLLM, *KERNELS)),
    ([0.0] * 16, "08", "0" * 16, (TORCHAO,)),
    ([0.0] * 16, "20", "0" * 16, (CT,)),
    ([0.0] * 16, "38", "0" * 16, (MODELOPT,)),
    # all -0
    ([-0.0] * 16, "00", "0" * 16, (TE, TRACE, VLLM)),
    ([-0.0] * 16, "00", "8" * 16, KERNELS),
    ([-0.0] * 16, "08", "8" * 16, (TORCHAO,)),
    ([-0.0] * 16, "20", "0" * 16, (CT,)),
    ([-0.0] * 16, "38", "0" * 16, (MODELOPT,)),
    # ties of e2m1fn, scale 1
    (TIES, "38", "082a2a4c4c6e6e78", (TORCHAO, *KERNELS)),
    (TIES, "38", "082a2a4c4c6e6e70", (TE, CT, MODELOPT, VLLM)),
    (TIES, "38", "08192a3b4c5d6e70", (TRACE,)),
    # the block scale is a tie between 0 and 2^-9
    (_LOST, "00", "0080", (TRACE, VLLM, *KERNELS)),
    (_LOST, "00", "77f77", (TE,)),
    (_LOST, "01", "53d12", (MODELOPT,)),
    (_LOST, "08", "109", (TORCHAO,)),
    (_LOST, "20", "008", (CT,)),
    # the block scale 0.75 * 2^-9 rounds to 2^-9 (elements chosen here)
    (np.array([4.5, 2, -4.5, 1]) * 2.0**-9, "01", "64e2", _but(TORCHAO)),
    (np.array([4.5, 2, -4.5, 1]) * 2.0**-9, "08", "1090", (TORCHAO,)),
    # the block scale 2^-7 is subnormal in e4m3fn (elements chosen here)
    (np.array([6, 3, -1, 0.5, 0.5]) * 2.0**-7, "04", "75a11", _but(TORCHAO)),
    (np.array([6, 3, -1, 0.5, 0.5]) * 2.0**-7, "08", "5390", (TORCHAO,)),
    # far below every block scale
    ([1e-6, -1e-6, 5e-7], "00", "080", (TRACE, VLLM, *KERNELS)),
    ([1e-6, -1e-6, 5e-7], "00", "7f7", (TE,)),
    ([1e-6, -1e-6, 5e-7], "08", "080", (TORCHAO,)),
    ([1e-6, -1e-6, 5e-7], "20", "080", (CT,)),
    ([1e-6, -1e-6, 5e-7], "01", "080", (MODELOPT,)),
    # subnormal in binary32; the kernels that flush it keep its sign too
    ([1e-40, -1e-40], "00", "08", (TE, TRACE, *KERNELS)),
    ([1e-40, -1e-40], "00", "00", (VLLM,)),
    ([1e-40, -1e-40], "08", "08", (TORCHAO,)),
    ([1e-40, -1e-40], "20", "08", (CT,)),
    ([1e-40, -1e-40], "01", "08", (MODELOPT,)),
    # an outlier
    ([1e4, 1, -1, 100, -500, 2688, 3000, 0.5], "7e", "7080a77", ALL),
    # the block scale is a tie: 1.0625, 1.1875
    ([6.375, -6.375, 1, -1], "38", "7f2a", ALL),
    ([7.125, -7.125, 1, -1], "3a", "7f2a", ALL),
    # signs of what rounds to zero
    ([6, -0.1, -0.2, -0.0, 0.1, -1e-30], "38", "788008", (TE, CT, MODELOPT, TRACE, VLLM)),
    ([6, -0.1, -0.2, -0.0, 0.1, -1e-30], "38", "788808", (TORCHAO, *KERNELS)),
    # NaN
    ([np.nan, 1, -2, 6], "7f", "0000", (TE, CT, VLLM)),
    ([np.nan, 1, -2, 6], "7f", "4444", (TORCHAO,)),
    ([np.nan, 1, -2, 6], "7f", "7777", (MODELOPT,)),
    ([np.nan, 1, -2, 6], "7f", "02c7", (TRACE,)),
    ([np.nan, 1, -2, 6], "38", "72c7", CVT),
    ([np.nan, 1, -2, 6], "38", "02c7", APPEND),
    # Inf
    ([_INF, 1, -2, 6], "7e", "708", _but(TRACE)),
    ([_INF, 1, -2, 6], "7e", "008", (TRACE,)),
    ([-_INF, 1, -2, 6], "7e", "f08", _but(TRACE)),
    ([-_INF, 1, -2, 6], "7e", "808", (TRACE,)),
]  # fmt: skip


def stored(values, name, scale):
    """The scale byte and the codes of the first block, in hex."""
    recipe = find(name)
    dims = recipe.inner.granularity.dims
    x = np.zeros((1, 1, dims), np.float32)
    x[0, 0, : len(values)] = values
    found = kvf.quantize(x, recipe, scale=scale)
    return f"{found.scales[0, 0, 0]:02x}", "".join(f"{code:x}" for code in found.codes[0, 0])


def _unit(name):
    return 2688.0 if name.startswith("transformer-engine") else 1.0


@pytest.mark.parametrize("values, scale, codes, who", TABLE)
def test_the_disagreements_of_nine_libraries(values, scale, codes, who):
    for name in who:
        found_scale, found_codes = stored(values, name, _unit(name))
        assert (found_scale, found_codes[: len(codes)]) == (scale, codes), name


def test_every_row_of_the_table_is_claimed_once_by_every_library():
    rows = {}
    for values, _, _, who in TABLE:
        rows.setdefault(np.array(values, np.float32).tobytes(), []).extend(who)
    assert all(sorted(who) == sorted(ALL) for who in rows.values())


@pytest.mark.parametrize(
    "name, codes",
    [
        ("sglang-0.5/triton-group/fp8_per_tile", [0xFE, 0x76]),  # the bounds of the clamp are given at run time
        ("sglang-0.5/triton-group-colmajor/fp8_per_tile", [0xFE, 0x76]),
        ("sglang-0.5/dsa/fp8_per_tile", [0x7E, 0x76]),  # constant bounds, min.xorsign.abs
        ("sglang-0.5/mxfp8-store/mxfp8", [0x7E, 0x70]),
        ("sglang-0.5/triton-group/int8_per_tile", [0x80, 63]),
        ("sglang-0.5/dsv4-indexer/mxfp4", [7, 4]),
    ],
)
def test_where_sglang_clamps_a_nan_to(name, codes):
    # another element makes the scale: 2 of 4, so the second code is half of the largest
    dims = find(name).inner.granularity.dims
    x = np.zeros((1, 1, dims), np.float32)
    x[0, 0, :3] = [np.nan, 2, 4]
    assert kvf.quantize(x, name).codes[0, 0, :2].astype(np.uint8).tolist() == codes


def test_a_zero_tile_of_sglang_dsa_holds_the_largest_value_and_the_scale_zero():
    found = kvf.quantize(np.zeros((1, 1, 128), np.float32), "sglang-0.5/dsa/fp8_per_tile")
    assert (set(found.codes[0, 0].tolist()), float(found.scales[0, 0, 0])) == ({0x7E}, 0.0)


@pytest.mark.parametrize("dtype, code", [("bfloat16", 0x00), ("float16", 0x01)])
def test_sglang_commit_rounds_the_quotient_to_the_dtype_of_the_input(dtype, code):
    # 2^-10 / 0.999 is above the tie between 0 and 2^-9; rounded to bfloat16 it is that tie
    x = np.full((1, 1, 1), 2.0**-10, np.float16 if dtype == "float16" else ml_dtypes.bfloat16)
    for path in ("commit", "commit-host-scalar"):
        assert kvf.quantize(x, f"sglang-0.5/{path}/fp8_per_tensor", scale=0.999).codes.item() == code


@pytest.mark.parametrize("name", ["flashinfer-0.7/kv-quantize/nvfp4", "vllm-0.33/csrc/nvfp4"])
def test_a_block_of_nan_alone_stores_a_nan_scale(name):
    # a chain of maxima that starts from the first element; one that starts from 0, as in append, stores 0x00
    assert stored([np.nan] * 16, name, 1.0) == ("7f", "7" * 16)
    assert stored([np.nan] * 16, APPEND[0], 1.0)[0] == "00"


# --- MXFP4 and MXFP8, section 3 ------------------------------------------------------------------------------------

MX = [
    ([0.0], "00", "0" * 16, ("floor", "rceil", "ceil", "even")),
    (TIES, "7f", "082a2a4c4c6e6e", ("floor", "rceil", "even")),
    (TIES, "80", "0819192a2a4c4c", ("ceil",)),
    ([7, 6.5, -7, 1, 0.25], "80", "65e10", ("rceil", "ceil", "even")),
    ([7, 6.5, -7, 1, 0.25], "7f", "77f20", ("floor",)),
    ([6.0000005, 3], "7f", "75", ("floor", "even")),
    ([6.0000005, 3], "80", "53", ("rceil", "ceil")),
    ([2.0**-126, -(2.0**-127)], "00", "4a", ("floor", "rceil", "ceil", "even")),  # facts: CT, trace ref, MSMX
]


@pytest.mark.parametrize("values, scale, codes, rules", MX)
def test_the_disagreements_about_the_exponent_of_mxfp4(values, scale, codes, rules):
    for rule in rules:
        found_scale, found_codes = stored(values, f"ocp-mx-1.0/{rule}/mxfp4", None)
        assert (found_scale, found_codes[: len(codes)]) == (scale, codes), rule


@pytest.mark.parametrize(
    "amax, above",
    [(0.0, ()), (448.0, ("ceil",)), (449.0, ("ceil", "rceil")), (512.0, ("floor", "ceil", "rceil", "even"))],
)
def test_the_disagreements_about_the_exponent_of_mxfp8(amax, above):
    for rule in ("floor", "ceil", "rceil", "even"):
        expected = 0 if amax == 0 else 128 if rule in above else 127
        assert stored([amax], f"ocp-mx-1.0/{rule}/mxfp8", None)[0] == f"{expected:02x}", rule


@pytest.mark.parametrize(
    "values, scale, codes",
    [
        ([0.0], 94, "0" * 16),
        (TIES, 127, "192a3b4c5d6e7f70"),
        ([7, 6.5, -7, 1, 0.25], 128, "65e10"),
        ([6.0000005, 3], 128, "53"),
        ([np.nan, 1, -2], 0, "000"),
        ([_INF, 1, -2], 0, "000"),
    ],
)
def test_the_block_16_hybrid_of_sglang_rounds_ties_away_from_zero(values, scale, codes):
    found_scale, found_codes = stored(values, "sglang-0.5/fp4-kv/fp4_mx_block16", None)
    assert (int(found_scale, 16), found_codes[: len(codes)]) == (scale, codes)


def test_a_zero_block_of_sglangs_mxfp8_store_has_the_scale_19():
    assert int(stored([0.0], "sglang-0.5/mxfp8-store/mxfp8", None)[0], 16) == 19


# --- INT8, section 5 -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, codes",
    [
        ("sglang-0.5/triton/int8_per_token_head", [1, -1, 2, -2, 3, -3, 127]),
        ("sglang-0.5/triton-group/int8_per_tile", [0, 0, 1, -1, 2, -2, 126]),
        ("modelopt-0.47/int8_per_token_head", [0, 0, 2, -2, 2, -2, 126]),
        ("compressed-tensors-0.20/int8_per_token_head", [1, -1, 2, -2, 3, -3, 127]),
    ],
)
def test_ties_of_int8_with_an_amax_of_127(name, codes):
    x = np.zeros((1, 1, 128), np.float32)
    x[0, 0, :8] = [0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 126.5, 127]
    np.testing.assert_array_equal(kvf.quantize(x, name).codes[0, 0, :7], codes)

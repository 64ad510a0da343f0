"""Inputs that tell the orders of operations apart, found by exhaustive enumeration.

The scale of a block comes from its amax in one of six ways (A..F), a code from x, the block scale and the global scale
in one of seven. dec = amax / 2688 and enc = 2688 / amax, each rounded once to binary32.
"""

from __future__ import annotations

import numpy as np
import pytest

import kvformat as kvf
from kvformat.recipes.catalogue import recipe as find
from kvformat.recipes.entry import parse_recipe

pytestmark = pytest.mark.slow  # a kernel for each form

TE = "transformer-engine-d0067d0d/reference/nvfp4"
TE_EXACT = "tensorrt-llm-snapshot/cvt-warp-exact/nvfp4"
CVT_WARP = "tensorrt-llm-snapshot/cvt-warp/nvfp4"
VLLM = "vllm-0.33/emulation/nvfp4"
TRACE = "flashinfer-0.7/trace-reference/nvfp4"
CT = "compressed-tensors-0.20/nvfp4"
MODELOPT = "modelopt-0.47/nvfp4"
APPEND = ("flashinfer-0.7/append/nvfp4", "flashinfer-0.7/append-precise/nvfp4")
KV_QUANTIZE = "flashinfer-0.7/kv-quantize/nvfp4"
TORCHAO = "torchao-0.18/nvfp4"

#: how a block scale arises, and who computes it so
SCALE_FORMS = {
    "A": (TE, TE_EXACT),  # amax * (enc * (1/6))
    "B": (CVT_WARP, VLLM),  # enc * (amax * (1/6))
    "C": (TRACE, CT),  # (amax / 6) * enc
    "D": (MODELOPT, *APPEND),  # amax / (6 * dec)
    "E": (TORCHAO,),  # (amax / 6) / dec
    "F": (KV_QUANTIZE,),  # (1 / dec) * (amax * (1/6))
}


def _form(name, code):
    """A recipe of nobody: a form that no library has in a recipe that rounds ties to even."""
    return parse_recipe({
        "name": f"test/{name}",
        "mode": "nvfp4",
        "element": "e2m1fn",
        "scales": [
            {"name": "g", "granularity": "per_tensor", "program": "g = amax(x)", "may_be_given": True,
             "multiplier": "encode"},
            {"name": "bs", "granularity": "per_block", "store": "e4m3fn", "program": "bs = mul(div(amax(x), 6), g)"},
        ],
        "code": f"c = encode({code}, e2m1fn)",
        "value": "v = mul(mul(c, bs), div(1, g))",
        "source": "a test",
    })  # fmt: skip


#: how a code arises, and who computes it so
CODE_FORMS = (
    (MODELOPT,),  # x / (bs * dec)
    (APPEND[1], APPEND[0], KV_QUANTIZE),  # x * (1 / (bs * dec))
    (TE, TE_EXACT, CVT_WARP, VLLM),  # x * (1 / (bs * (1 / enc)))
    (TORCHAO,),  # x * ((1 / dec) / bs)
    (_form("ratio", "div(mul(x, g), bs)"),),  # (x * enc) / bs: FlashInfer's trace reference, whose ties go toward zero
    (CT,),  # x / (bs / enc)
    (_form("folded", "mul(x, mul(g, div(1, bs)))"),),  # x * (enc * (1 / bs)): nobody
)


def _given(recipe, amax):
    scales = {
        "decode": np.float32(amax) / np.float32(2688),
        "encode": np.float32(2688) / np.float32(amax),
        "amax": amax,
    }
    return scales[recipe.outer[0].multiplier]


def _quantized(name, amax, values, scale=None):
    recipe = find(name)
    x = np.zeros((1, 1, 16), np.float32)
    x[0, 0, : len(values)] = values
    return kvf.quantize(x, recipe, scale=_given(recipe, amax) if scale is None else scale)


@pytest.mark.parametrize(
    "amax, block, expected",
    [
        (65, 0.0029754638671875, {"A": 0x0B, "B": 0x0A, "C": 0x0A, "D": 0x0A, "E": 0x0A}),
        (70, 0.001983642578125, {"A": 7, "B": 7, "C": 6, "D": 6, "E": 6, "F": 7}),
        # The table that these rows come from says 0b for A, B and C. The exact quotient is the tie 10.5 * 2^-9, whose
        # even neighbour is 0a; in binary32 five forms give exactly that and D one ulp less, so nothing rounds to 0b and
        # the probe separates no two forms. The last row does what it was meant for (found by enumerating that grid).
        (69, 0.0031585693359375, dict.fromkeys("ABCDEF", 0x0A)),
        (70, 0.003814697265625, {"D": 0x0C, "E": 0x0D}),
        (98, 0.002777099609375, {"A": 7, "B": 6, "C": 6, "D": 6, "E": 7, "F": 6}),
        (85.5, 0.00130462646484375, {"A": 4, "B": 4, "C": 4, "D": 3, "E": 3, "F": 3}),
    ],
)
def test_block_scales_tell_the_forms_apart(amax, block, expected):
    for form, byte in expected.items():
        for name in SCALE_FORMS[form]:
            # torchao stores nothing below 2^-6, byte 8, so form E is not visible in the smaller bytes
            wanted = max(byte, 8) if name == TORCHAO else byte
            assert _quantized(name, amax, [block]).scales[0, 0, 0] == wanted, (form, name)


def _code(name, amax, bs, x, scale=None):
    # the second element makes the block scale: bs * 6 * amax / 2688 divided by that again lies next to bs
    found = _quantized(name, amax, [x, bs * 6 * amax / 2688], scale)
    assert float(kvf.decode(found.scales, "e4m3fn")[0, 0, 0]) == bs
    return int(found.codes[0, 0, 0])


@pytest.mark.parametrize(
    "amax, bs, x, codes",
    [
        (64, 0.046875, 0.00390625, (5, 5, 5, 6, 6, 5, 6)),
        (65, 0.046875, 0.00396728515625, (5, 5, 6, 5, 6, 6, 6)),
        (84, 0.029296875, 0.00457763671875, (6, 7, 7, 7, 6, 6, 7)),
    ],
)
def test_three_codes_tell_all_seven_forms_apart(amax, bs, x, codes):
    for names, code in zip(CODE_FORMS, codes, strict=True):
        for name in names:
            assert _code(name, amax, bs, x) == code, name


@pytest.mark.parametrize(
    "amax, bs, x, expected",
    [
        (93.5, 1.5, 0.09130859375, {MODELOPT: 3, APPEND[1]: 4}),
        (96, 11, 0.6875, {MODELOPT: 3, TE: 4}),
        (99, 448, 4.125, {APPEND[1]: 0, TE: 1}),
        (96.5, 6, 0.75390625, {TE: 5, TORCHAO: 6}),
        (91, 10, 0.25390625, {TE: 1, CT: 2}),
        (93, 448, 19.375, {TORCHAO: 3, TRACE: 2}),
    ],
)
def test_codes_tell_two_libraries_apart(amax, bs, x, expected):
    assert {name: _code(name, amax, bs, x) for name in expected} == expected


def test_one_witness_of_the_facts_holds_for_another_encode_scale():
    # (94, 14, 0.3671875): modelopt 2, compressed-tensors 1. With enc = 2688 / amax rounded once, bs / enc is exact
    # enough for x / (bs / enc) to be the tie 0.75, code 2; with enc = 1 / dec, rounded twice, it is 1 ulp less, code 1.
    dec, enc = np.float32(94) / np.float32(2688), np.float32(2688) / np.float32(94)
    assert np.float32(1) / dec != enc
    assert _code(MODELOPT, 94, 14, 0.3671875, dec) == 2
    assert _code(CT, 94, 14, 0.3671875, enc) == 2
    assert _code(CT, 94, 14, 0.3671875, np.float32(1) / dec) == 1


def test_three_block_scales_tell_all_six_forms_apart():
    probes = ((70, 0.001983642578125), (98, 0.002777099609375), (85.5, 0.00130462646484375))
    seen = {
        form: tuple(int(_quantized(names[0], *(amax, [block])).scales[0, 0, 0]) for amax, block in probes)
        for form, names in SCALE_FORMS.items()
        if names != (TORCHAO,)  # which stores 8 in all of them
    }
    assert len(set(seen.values())) == len(seen) == 5

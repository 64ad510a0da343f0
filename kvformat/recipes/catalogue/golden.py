"""The yardstick: `golden/<mode>` in IEEE binary32, and `exact/<mode>`, which shows what binary32 itself costs.

golden: round to nearest even after each written operation, no fused multiply-add, no flush to zero. amax is taken over
the finite elements; Inf takes the largest code; a NaN is stored as NaN, in the element where the format has one, else
in the scale that covers it. exact: the scales s and g are golden's, everything after them is a real number until it is
rounded once, into the stored block scale or the code.
"""

from __future__ import annotations

from kvformat.recipes.program import Level, Program, Recipe, Status, granularity

_SOURCE = "kvformat specification, spec/recipes"

_PER_TENSOR, _PER_TOKEN_HEAD, _PER_BLOCK = map(granularity, ("per_tensor", "per_token_head", "per_block"))


def _fp8_scale(name: str, may_be_given: bool) -> Level:
    # 448 is the largest e4m3fn value; a scale of 0 (all zeros, or an amax below 448 * 2^-150) would divide 0 by 0
    program = Program.parse("""
        s = div(amax_finite(x), 448)
        s = select(s == 0, 1, s)
    """)
    return Level("s", granularity(name), program, "float32", may_be_given)


#: e2m1fn has no NaN, so a NaN spoils its block scale, and nothing else
_NVFP4_GLOBAL = Level(
    "g",
    _PER_TENSOR,
    Program.parse("""
        g = div(amax_finite(x), 2688)
        g = select(g == 0, 1, g)
    """),  # 2688 = 6 * 448: the largest block gets the largest block scale
    "float32",
    may_be_given=True,
)

_NVFP4_BLOCK = """
    bs = div(amax_finite(x), mul(6, g))
    bs = select(any_nan(x), nan, bs)
"""

_NVFP4_CODE = """
    d = mul(bs, g)
    q = div(x, d)
    q = select(d == 0, copysign(0, x), q)
    q = select(isnan(d), 0, q)
    c = encode(q, e2m1fn)
"""

_FP8_CODE = "c = encode(div(x, s), e4m3fn)"

_INT8_SCALE = Level(
    "s",
    _PER_TOKEN_HEAD,
    Program.parse("""
        s = div(amax_finite(x), 127)
        s = select(s == 0, 1, s)
        s = select(any_nan(x), nan, s)
    """),  # int8 has no NaN: the scale of the row carries it
    "float32",
)

_INT8_CODE = """
    q = round(div(x, s), half_even)
    c = encode(clamp(q, -127, 127), int8)
"""

_SCALED = Program.parse("v = mul(c, s)")
_SCALED_TWICE = Program.parse("v = mul(mul(c, bs), g)")
_NOTHING = Program(())


def _family(prefix: str, precision: str) -> tuple[Recipe, ...]:
    status: Status = "golden" if prefix == "golden" else "exact"
    block = Level("bs", _PER_BLOCK, Program.parse(_NVFP4_BLOCK, precision), "e4m3fn")
    fp8_code, int8_code, nvfp4_code = (Program.parse(text, precision) for text in (_FP8_CODE, _INT8_CODE, _NVFP4_CODE))
    rows = (
        ("none", None, (), _NOTHING, _NOTHING),
        ("fp8_per_tensor", "e4m3fn", (_fp8_scale("per_tensor", may_be_given=True),), fp8_code, _SCALED),
        ("fp8_per_token_head", "e4m3fn", (_fp8_scale("per_token_head", may_be_given=False),), fp8_code, _SCALED),
        ("int8_per_token_head", "int8", (_INT8_SCALE,), int8_code, _SCALED),
        ("nvfp4", "e2m1fn", (_NVFP4_GLOBAL, block), nvfp4_code, _SCALED_TWICE),
    )
    return tuple(
        Recipe(f"{prefix}/{mode}", mode, element, levels, code, value, _SOURCE, status)
        for mode, element, levels, code, value in rows
    )


RECIPES = (*_family("golden", "float32"), *_family("exact", "real"))

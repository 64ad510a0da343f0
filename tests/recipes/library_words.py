"""One line for each word, attribute and policy that only the recipes of libraries use; results are named after them."""

from __future__ import annotations

from kvformat.recipes import Program

PARTS = (
    """
    fma = fma(a, b, d)
    to_float16 = to(a, float16)
    to_bfloat16 = to(a, bfloat16)
    to_float32 = to(a, float32)
    pow2_down = pow2(a, down)
    pow2_up = pow2(a, up)
    pow2_approx = pow2_approx(a, up)
    pow2_approx_bfloat16 = pow2_approx(a, up, bfloat16)
    pow2_approx_float16 = pow2_approx(a, up, float16)
    flush = flush(a)
    """,
    """
    rcp_approx = rcp_approx(a)
    rcp_approx_ftz = rcp_approx(a, ftz)
    div_approx = div_approx(a, b)
    div_approx_ftz = div_approx(a, b, ftz)
    div_full = div_full(a, b)
    div_full_ftz = div_full(a, b, ftz)
    """,
    """
    splice_1 = splice(a, b, 1)
    splice_4 = splice(a, b, 4)
    splice_22 = splice(a, b, 22)
    low_bits_1 = low_bits(a, 1)
    low_bits_4 = low_bits(a, 4)
    low_bits_22 = low_bits(a, 22)
    """,
    """
    e2m1fn_away = encode(a, e2m1fn, nearest_away)
    e2m1fn_toward_zero = encode(a, e2m1fn, nearest_toward_zero)
    e4m3fn_away = encode(a, e4m3fn, ieee, nearest_away)
    e4m3fn_toward_zero = encode(a, e4m3fn, nearest_toward_zero)
    int8_away = encode(a, int8, nearest_away)
    int8_toward_zero = encode(a, int8, nearest_toward_zero)
    """,
)
LINES = Program.parse("\n".join(PARTS)).operations

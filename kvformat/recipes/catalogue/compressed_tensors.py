"""compressed-tensors 0.20.1: compressed_tensors/quantization and compressed_tensors/compressors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_HELPERS = "compressed-tensors 0.20.1, quantization/utils/helpers.py L49-194"
_VERIFIED = "verified against the library"

_FP8_SCALE = "s = to(div(amax(x), 448), input)\ns = select(s == 0, eps, s)"
_FP8_CODE = "c = encode(clamp(to(div(x, s), input), -448, 448), e4m3fn)"


def _mx(mode: str, element: str, largest_power: str, code: str, notes: str) -> Mapping[str, Any]:
    return {
        "name": f"compressed-tensors-0.20/{mode}",
        "mode": mode,
        "element": element,
        "scales": [
            {
                "name": "s",
                "granularity": "per_block_32",
                "store": "e8m0fnu down",
                "precision": "float64",
                # 1.75: the mantissa from which e2m1's own would round up to the next power of two
                "program": f"""
                    a = amax(x)
                    p = pow2(a, down)
                    p = select(le(mul(p, 1.75), a), mul(p, 2), p)
                    d = select(le(p, 1.7014118346046923e+38), mul(p, {largest_power}), inf)
                    d = max(select(isnan(a), 0, d), 5.877471754111438e-39)
                    s = select(isinf(d), 1, d)
                """,
            }
        ],
        "code": code,
        "value": "v = mul(c, s)",
        "source": "compressed-tensors 0.20.1, quantization/utils/mxfp_utils.py L170-249, compressors/mx_utils.py",
        "status": _VERIFIED,
        "notes": "An amax of 1.75 * 2^127 or more, or Inf: codes of zero and the scale byte 127, which torch's cast of "
        "Inf to int32 gives on x86. NaN: the scale byte 0 (torch's vectorized amax fills a NaN with ones, and adding "
        f"to its bits wraps; the scalar code gives 127). float32 and bfloat16 only. {notes}".strip(),
    }


ENTRIES: tuple[Mapping[str, Any], ...] = (
    {
        "name": "compressed-tensors-0.20/nvfp4",
        "mode": "nvfp4",
        "element": "e2m1fn",
        "scales": [
            {
                "name": "g",
                "granularity": "per_tensor",
                "program": """
                    g = to(mul(to(rcp(amax(x)), input), 2688), input)
                    g = select(isinf(g), 1, g)
                    g = select(isnan(g), 1, g)
                """,
                "may_be_given": True,
                "multiplier": "encode",
            },
            {
                "name": "bs",
                "granularity": "per_block",
                "store": "e4m3fn",
                "program": """
                    b = mul(g, to(div(amax(x), 6), input))
                    bs = clamp(b, -448, 448)
                    bs = select(le(bs, 0.0009765625), 0.125, bs)
                """,
            },
        ],
        "code": """
            q = clamp(div(x, div(bs, g)), -6, 6)
            q = select(isnan(q), 0, q)
            c = encode(select(q == 0, 0, q), e2m1fn)
        """,
        "value": "v = mul(c, div(bs, g))",
        "source": f"{_HELPERS}, L324-353, compressors/nvfp4/helpers.py",
        "status": _VERIFIED,
        "notes": "A block scale that rounds to 0 becomes 0.125. The global scale is the encode multiplier 2688 / amax, "
        "which torch computes as the reciprocal times 2688 (a Python number), each rounded to the input's dtype.",
    },
    {
        "name": "compressed-tensors-0.20/fp8_per_tensor",
        "mode": "fp8_per_tensor",
        "element": "e4m3fn",
        "scales": [{"name": "s", "granularity": "per_tensor", "program": _FP8_SCALE, "may_be_given": True}],
        "code": _FP8_CODE,
        "value": "v = mul(c, s)",
        "source": _HELPERS,
        "status": _VERIFIED,
        "notes": "Scale and quotient are in the input's own dtype: bfloat16 input rounds twice.",
    },
    {
        "name": "compressed-tensors-0.20/fp8_per_token_head",
        "mode": "fp8_per_token_head",
        "element": "e4m3fn",
        "scales": [{"name": "s", "granularity": "per_token_head", "program": _FP8_SCALE}],
        "code": _FP8_CODE,
        "value": "v = mul(c, s)",
        "source": _HELPERS,
        "status": _VERIFIED,
        "notes": "The per-token strategy on one head's row.",
    },
    {
        "name": "compressed-tensors-0.20/int8_per_token_head",
        "mode": "int8_per_token_head",
        "element": "int8",
        "scales": [
            {
                "name": "s",
                "granularity": "per_token_head",
                "program": "s = to(div(amax(x), 127.5), input)\ns = select(s == 0, eps, s)",
            }
        ],
        "code": "c = encode(clamp(round(to(div(x, s), input), half_even), -128, 127), int8)",
        "value": "v = mul(c, s)",
        "source": _HELPERS,
        "status": _VERIFIED,
        "notes": "The divisor is (127 + 128) / 2, and -128 is used.",
    },
    _mx(
        "mxfp4",
        "e2m1fn",
        "0.25",
        """
            q = clamp(to(div(x, d), input), -6, 6)
            q = select(isnan(q), 0, q)
            c = encode(select(q == 0, 0, q), e2m1fn)
        """,
        "",
    ),
    _mx(
        "mxfp8",
        "e4m3fn",
        "0.00390625",
        "c = encode(clamp(to(div(x, d), input), -448, 448), e4m3fn)",
        "e2m1's 1.75 decides for e4m3 elements too, so an amax of 448 takes twice the scale it needs.",
    ),
)

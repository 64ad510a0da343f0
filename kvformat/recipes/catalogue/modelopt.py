"""NVIDIA Model Optimizer 0.47.0: modelopt/torch/quantization/qtensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_QTENSOR = "nvidia-modelopt 0.47.0, modelopt/torch/quantization/qtensor"
_VERIFIED = "verified against the library"


def _scaled(mode: str, element: str, program: str, code: str, file: str, notes: str) -> Mapping[str, Any]:
    per_tensor = mode.endswith("per_tensor")
    return {
        "name": f"modelopt-0.47/{mode}",
        "mode": mode,
        "element": element,
        "scales": [
            {
                "name": "s",
                "granularity": "per_tensor" if per_tensor else "per_token_head",
                "program": program,
                "may_be_given": per_tensor,
            }
        ],
        "code": code,
        "value": "v = mul(c, s)",
        "source": f"{_QTENSOR}/{file}",
        "status": _VERIFIED,
        "notes": notes,
    }


def _fp8(mode: str) -> Mapping[str, Any]:
    return _scaled(
        mode,
        "e4m3fn",
        "s = to(div(amax(x), 448), input)",
        "c = encode(to(div(x, s), input), e4m3fn)",
        "fp8_tensor.py L42-117",
        "Scale and quotient are in the input's dtype. No clamp: overflow is what torch's cast does, saturation since "
        "torch 2.12. All zeros give 0 / 0, NaN.",
    )


ENTRIES: tuple[Mapping[str, Any], ...] = (
    {
        "name": "modelopt-0.47/nvfp4",
        "mode": "nvfp4",
        "element": "e2m1fn",
        "scales": [
            {"name": "g", "granularity": "per_tensor", "program": "g = div(amax(x), 2688)", "may_be_given": True},
            {
                "name": "bs",
                "granularity": "per_block",
                "store": "e4m3fn",
                "program": """
                    b = div(amax(x), mul(6, g))
                    b = select(b == 0, 1, b)
                    bs = clamp(b, 0.001953125, 448)
                """,
            },
        ],
        "code": "q = div(x, mul(bs, g))\nc = encode(select(q == 0, 0, q), e2m1fn)",
        "value": "v = mul(c, mul(bs, g))",
        "source": f"{_QTENSOR}/nvfp4_tensor.py L170-343",
        "status": _VERIFIED,
        "notes": "An all-zero block stores 1.0 (0x38); others at least 2^-9 (0x01). -0 becomes +0.",
    },
    _fp8("fp8_per_tensor"),
    _fp8("fp8_per_token_head"),
    _scaled(
        "int8_per_token_head",
        "int8",
        "s = to(div(amax(x), 127), input)",
        "c = encode(clamp(round(to(div(x, s), input), half_even), -128, 127), int8)",
        "int8_tensor.py L34-91",
        "Scale and quotient are in the input's dtype. A row of zeros has scale 0.",
    ),
    {
        "name": "modelopt-0.47/mxfp4",
        "mode": "mxfp4",
        "element": "e2m1fn",
        "scales": [
            {
                "name": "s",
                "granularity": "per_block_32",
                "store": "e8m0fnu down",
                "program": """
                    d = max(pow2_approx(div(amax(x), 6), up), 5.877471754111438e-39)
                    s = select(le(d, 1.7014118346046923e+38), d, 0)
                """,
            }
        ],
        "code": """
            q = div(x, d)
            q = select(isnan(q), 0, q)
            c = encode(select(q == 0, neg(0), q), e2m1fn, nearest_toward_zero)
        """,
        "value": "v = mul(c, s)",
        "source": f"{_QTENSOR}/mxfp4_tensor.py L38-81",
        "status": _VERIFIED,
        "notes": "Ties go toward zero, and every zero is -0 (0x8). A block with Inf or NaN stores the scale byte 0, "
        "which torch's cast of a float that is no uint8 gives on x86, and -0 everywhere.",
    },
    {
        "name": "modelopt-0.47/mxfp8",
        "mode": "mxfp8",
        "element": "e4m3fn",
        "scales": [
            {
                "name": "s",
                "granularity": "per_block_32",
                "store": "e8m0fnu down",
                "program": """
                    d = pow2_approx(div(amax(x), 448), up)
                    s = select(isnan(d), 0, min(d, 1.7014118346046923e+38))
                """,
            }
        ],
        "code": "c = encode(clamp(mul(x, div(1, s)), -448, 448), e4m3fn)",
        "value": "v = mul(c, s)",
        "source": f"{_QTENSOR}/mxfp8_tensor.py L42-181",
        "status": _VERIFIED,
        "notes": "A block with a NaN gets the scale byte 0, so that its other elements saturate.",
    },
)

"""NVIDIA Model Optimizer 0.47.0: modelopt/torch/quantization/qtensor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
        "source": "nvidia-modelopt 0.47.0, modelopt/torch/quantization/qtensor/nvfp4_tensor.py L170-343",
        "notes": "An all-zero block stores 1.0 (0x38); others at least 2^-9 (0x01). -0 becomes +0.",
    },
    {
        "name": "modelopt-0.47/fp8_per_tensor",
        "mode": "fp8_per_tensor",
        "element": "e4m3fn",
        "scales": [
            {
                "name": "s",
                "granularity": "per_tensor",
                "program": "s = to(div(amax(x), 448), input)",
                "may_be_given": True,
            }
        ],
        "code": "c = encode(to(div(x, s), input), e4m3fn)",
        "value": "v = mul(c, s)",
        "source": "nvidia-modelopt 0.47.0, modelopt/torch/quantization/qtensor/fp8_tensor.py",
        "notes": "No clamp: overflow is what torch's cast does, saturation since torch 2.12. All zeros give 0 / 0, NaN.",
    },
    {
        "name": "modelopt-0.47/int8_per_token_head",
        "mode": "int8_per_token_head",
        "element": "int8",
        "scales": [
            {"name": "s", "granularity": "per_token_head", "program": "s = to(div(amax(x), 127), input)"}
        ],
        "code": "c = encode(clamp(round(to(div(x, s), input), half_even), -128, 127), int8)",
        "value": "v = mul(c, s)",
        "source": "nvidia-modelopt 0.47.0, modelopt/torch/quantization/qtensor/int8_tensor.py",
        "notes": "A row of zeros has scale 0.",
    },
)

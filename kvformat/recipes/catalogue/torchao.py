"""torchao 0.18.0: torchao/prototype/mx_formats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# f32_to_f4_unpacked turns a NaN into the code of 2 with the NaN's sign
_CODE = """
    q = clamp(q, -6, 6)
    q = select(isnan(q), copysign(2, q), q)
    c = encode(q, e2m1fn)
"""

ENTRIES: tuple[Mapping[str, Any], ...] = (
    {
        "name": "torchao-0.18/nvfp4",
        "mode": "nvfp4",
        "element": "e2m1fn",
        "scales": [
            {"name": "g", "granularity": "per_tensor", "program": "g = div(amax(x), 2688)", "may_be_given": True},
            {
                "name": "bs",
                "granularity": "per_block",
                "store": "e4m3fn",
                "program": "bs = clamp(div(div(amax(x), 6), g), 0.015625, 448)",
            },
        ],
        "code": f"q = mul(x, div(div(1, g), bs)){_CODE}",
        "value": "v = mul(c, mul(g, bs))",
        "source": "torchao 0.18.0, torchao/prototype/mx_formats/nvfp4_tensor.py L772-867",
        "notes": "Block scales are at least 2^-6, the smallest normal: never subnormal, never 0.",
    },
    {
        "name": "torchao-0.18/nvfp4_single_level",
        "mode": "nvfp4",
        "element": "e2m1fn",
        "scales": [
            {
                "name": "bs",
                "granularity": "per_block",
                "store": "e4m3fn",
                "program": "bs = clamp(div(amax(x), 6), 0.015625, 448)",
            },
        ],
        "code": f"q = mul(x, div(1, bs)){_CODE}",
        "value": "v = mul(c, bs)",
        "source": "torchao 0.18.0, torchao/prototype/mx_formats/nvfp4_tensor.py L810-822",
        "notes": "Without a per-tensor scale.",
    },
)

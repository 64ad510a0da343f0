"""compressed-tensors 0.20.1: compressed_tensors/quantization."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
                    m = max_number(amax(x), 1.1754943508222875e-38)
                    g = to(div(2688, m), input)
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
                    small = le(bs, 0.0009765625)
                    bs = select(small, 0.125, bs)
                """,
            },
        ],
        "code": """
            q = clamp(div(x, div(bs, g)), -6, 6)
            q = select(isnan(q), 0, q)
            c = encode(select(q == 0, 0, q), e2m1fn)
        """,
        "value": "v = mul(c, div(bs, g))",
        "source": "compressed-tensors 0.20.1, quantization/utils/helpers.py L52-140, L324-353",
        "notes": "A block scale that rounds to 0 becomes 0.125. The global scale is the encode multiplier.",
    },
    {
        "name": "compressed-tensors-0.20/fp8_per_tensor",
        "mode": "fp8_per_tensor",
        "element": "e4m3fn",
        "scales": [
            {
                "name": "s",
                "granularity": "per_tensor",
                "program": "s = to(div(amax(x), 448), input)\ns = select(s == 0, eps, s)",
                "may_be_given": True,
            }
        ],
        "code": "c = encode(clamp(to(div(x, s), input), -448, 448), e4m3fn)",
        "value": "v = mul(c, s)",
        "source": "compressed-tensors 0.20.1, quantization/utils/helpers.py L84-127",
        "notes": "Scale and quotient are in the input's own dtype: bfloat16 input rounds twice.",
    },
    {
        "name": "compressed-tensors-0.20/fp8_per_token_head",
        "mode": "fp8_per_token_head",
        "element": "e4m3fn",
        "scales": [
            {
                "name": "s",
                "granularity": "per_token_head",
                "program": "s = to(div(amax(x), 448), input)\ns = select(s == 0, eps, s)",
            }
        ],
        "code": "c = encode(clamp(to(div(x, s), input), -448, 448), e4m3fn)",
        "value": "v = mul(c, s)",
        "source": "compressed-tensors 0.20.1, quantization/utils/helpers.py L84-127",
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
        "source": "compressed-tensors 0.20.1, quantization/utils/helpers.py L84-127",
        "notes": "The divisor is (127 + 128) / 2, and -128 is used.",
    },
)

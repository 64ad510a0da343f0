"""TensorRT-LLM: its FP4 quantizer as FlashInfer 0.7.4 bundles it, and its 8-bit KV cache, read from snapshots.

Not a pinned release: FlashInfer 0.7.4 bundles one copy, and the guard against a zero block scale differs between
vintages of the same file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PREFIX = "tensorrt-llm-snapshot"


# qkv_scale_orig_quant[1], [2] is 1 / kv_scale; the KV cache takes amax / 448 and not / 2688, so that the product of a
# code and its block scale fits e4m3fn inside the attention kernel
def _encode_scale(name: str) -> Mapping[str, Any]:
    return {
        "name": name,
        "granularity": "per_tensor",
        "program": f"{name} = div(1, div(amax_finite(x), 448))\n{name} = select(isinf({name}), 1, {name})",
        "may_be_given": True,
        "multiplier": "encode",
    }


def _nvfp4(path: str, block: str, code: str, notes: str, **more: Any) -> Mapping[str, Any]:
    return {
        "name": f"{_PREFIX}/{path}/nvfp4",
        "mode": "nvfp4",
        "element": "e2m1fn",
        "scales": [
            _encode_scale("g"),
            {"name": "bs", "granularity": "per_block", "store": "e4m3fn", "program": block},
        ],
        "code": code,
        "value": "v = mul(mul(c, bs), div(1, g))",
        "source": "flashinfer 0.7.4, data/csrc/nv_internal/tensorrt_llm/kernels/quantization_utils.cuh L437-720",
        "notes": notes,
        **more,
    }


ENTRIES: tuple[Mapping[str, Any], ...] = (
    _nvfp4(
        "cvt-warp",
        "bs = mul(g, mul(amax_number(x), rcp_approx(6, ftz)))",
        """
            d = rcp_approx(mul(bs, rcp_approx(g, ftz)), ftz)
            c = encode(mul(x, select(bs == 0, 0, d)), e2m1fn)
        """,
        "cvt_warp_fp16_to_fp4, the default. The guard tests the stored block scale; other vintages of the file test "
        "the amax. A NaN is not in the amax and becomes +6.",
        status="admissible only",
    ),
    _nvfp4(
        "cvt-warp-exact",
        """
            a = amax_number(x)
            bs = select(a == 0, 0, mul(a, mul(g, div(1, 6))))
        """,
        """
            d = min_number(div(1, mul(bs, div(1, g))), 3.4028234663852886e+38)
            c = encode(mul(x, select(a == 0, 0, d)), e2m1fn)
        """,
        "The branch for DISABLE_FP4_QUANT_FAST_MATH=1 (FLASHINFER_DISABLE_FP4_QUANT_FAST_MATH), which follows "
        "TransformerEngine: where the block scale underflows to 0 all elements but zeros become +-6.",
    ),
    {
        "name": f"{_PREFIX}/kv/fp8_per_tensor",
        "mode": "fp8_per_tensor",
        "element": "e4m3fn",
        "scales": [_encode_scale("s")],
        "code": "c = encode(mul(x, s), e4m3fn)",
        "value": "v = mul(c, div(1, s))",
        "source": "TensorRT-LLM, KV cache kernels (snapshots)",
        "notes": "Multiplies by qkv_scale_orig_quant[0], which q, k and v share, and converts with saturation. The "
        "scale is first cast to the type of the computation; here that is binary32.",
    },
)

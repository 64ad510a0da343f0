"""vLLM's page layouts as data."""

from __future__ import annotations

from collections.abc import Mapping

# K and V of one (head, slot) lie in one cell: vllm/v1/kv_cache_interface.py L552-602, flash_attn.py L1446-1448
_CELL = {"per": "cell", "record": ["k.code", "v.code"]}

# [K | K scale | V | V scale], 264 bytes for head_size 128: vllm/v1/attention/backends/triton_attn.py L308-319, L414-475
_SCALED_CELL = {"per": "cell", "record": ["k.code", "k.scale", "v.code", "v.scale"]}

# one page after the other of four tensors: csrc/nvfp4_kv_cache_kernels.cu L339-370
_FOUR_TENSORS = {"per": "page", "record": ["k.code", "k.scale", "v.code", "v.scale"]}

# The scale views need offsets that are multiples of 4 (triton_attn.py L445), and the V scale is sought at
# half the cell + head_size (L457), which is behind V only where K is as long as V.
_INLINE = {"sections": [_SCALED_CELL], "head_size_multiple": 4, "head_sizes": "equal"}

ENTRIES: tuple[Mapping[str, object], ...] = (
    {
        "name": "vllm-0.33",
        "source": "vLLM 0.33.0, vllm/v1/kv_cache_interface.py and csrc/nvfp4_kv_cache_kernels.cu",
        "modes": {
            "none": {"recipe": "golden/none", "sections": [_CELL]},
            "fp8_per_tensor": {"recipe": "vllm-0.33/csrc/fp8_per_tensor", "sections": [_CELL]},
            "fp8_per_token_head": {"recipe": "vllm-0.33/triton/fp8_per_token_head", **_INLINE},
            "int8_per_token_head": {"recipe": "vllm-0.33/triton/int8_per_token_head", **_INLINE},
            "nvfp4": {
                "recipe": "vllm-0.33/csrc/nvfp4",
                "sections": [_FOUR_TENSORS],
                # SM100's writer swizzles; SM80/90/120 write through FlashInfer, linear
                "v_scales": {"swizzled": "4-token", "linear": "linear"},
            },
        },
    },
)

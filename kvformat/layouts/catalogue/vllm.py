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
_INLINE_INT4 = {**_INLINE, "head_size_multiple": 8}

# SM100's writer swizzles; SM80/90/120 write through FlashInfer, linear
_V_SCALES = {"swizzled": "4-token", "linear": "linear"}

_FP8 = "vllm-0.33/csrc/fp8_per_tensor"
_FP8_HEADS = "vllm-0.33/triton/fp8_per_token_head"
_INT8_HEADS = "vllm-0.33/triton/int8_per_token_head"
_INT4_HEADS = "vllm-0.33/triton/int4_per_token_head"

# slot 2 * head + side, each [block_size][64] codes, then [block_size][8] scales; K scales linear, V scales swizzled:
# csrc/fused_minimax_m3_qknorm_rope_kv_insert_kernel.cu L313-330
_MINIMAX = {
    "per": "head",
    "record": ["k.code", "k.scale", "v.code", {"part": "v.scale", "swizzle": "4-token"}],
}

# kv_cache (num_blocks, 2, block_size, num_kv_heads, head_size), the scale behind each row of a head
_K_THEN_V = [{"per": "page", "record": ["k.code"]}, {"per": "page", "record": ["v.code"]}]
_SCALED_K_THEN_V = [
    {"per": "cell", "record": ["k.code", "k.scale"]},
    {"per": "cell", "record": ["v.code", "v.scale"]},
]

# what the writer takes: key_cache, value_cache, and k_scale_cache, v_scale_cache (num_blocks, block_size, num_kv_heads)
_SPLIT = [
    {"per": "page", "record": ["k.code"], "tensor": "key_cache"},
    {"per": "page", "record": ["v.code"], "tensor": "value_cache"},
]
_SPLIT_SCALES = [
    *_SPLIT,
    {"per": "page", "record": ["k.scale"], "tensor": "k_scale_cache", "order": "NHD"},
    {"per": "page", "record": ["v.scale"], "tensor": "v_scale_cache", "order": "NHD"},
]

# (num_blocks, num_kv_heads, 2 * block_size, head_size), cut in two: K [head_size][slots], V [slots][head_size]
_CPU_PLANES = {"per": "head", "record": [{"part": "k.code", "swizzle": "transposed"}, "v.code"]}


def _cpu(version: str) -> Mapping[str, object]:
    """The pages of the CPU backend without AMX, whose writer is of that version."""
    page = {"sections": [_CPU_PLANES], "order": "HND", "head_sizes": "equal"}
    return {
        "name": f"vllm-{version}-cpu",
        "source": f"vLLM {version}.0, csrc/cpu/cpu_attn_vec.hpp, cpu_attn_fp8.hpp; v1/attention/backends/cpu_attn.py",
        "modes": {
            "none": {"recipe": "golden/none", **page},
            "fp8_per_tensor": {"recipe": f"vllm-{version}/cpu/fp8_per_tensor", **page},
        },
    }


ENTRIES: tuple[Mapping[str, object], ...] = (
    {
        "name": "vllm-0.33",
        "source": "vLLM 0.33.0, vllm/v1/kv_cache_interface.py and csrc/nvfp4_kv_cache_kernels.cu",
        "modes": {
            "none": {"recipe": "golden/none", "sections": [_CELL]},
            "fp8_per_tensor": {"recipe": _FP8, "sections": [_CELL]},
            "fp8_per_token_head": {"recipe": _FP8_HEADS, **_INLINE},
            "int8_per_token_head": {"recipe": _INT8_HEADS, **_INLINE},
            "int4_per_token_head": {"recipe": _INT4_HEADS, **_INLINE_INT4},
            "nvfp4": {"recipe": "vllm-0.33/csrc/nvfp4", "sections": [_FOUR_TENSORS], "v_scales": _V_SCALES},
        },
    },
    {
        "name": "vllm-0.33-minimax-m3",
        "source": "vLLM 0.33.0, csrc/fused_minimax_m3_qknorm_rope_kv_insert_kernel.cu",
        "modes": {
            "nvfp4": {
                "recipe": "vllm-0.33/minimax-m3/nvfp4",
                "sections": [_MINIMAX],
                "head_size": 128,
                "head_sizes": "equal",
                "order": "HND",
            },
        },
    },
    {
        "name": "vllm-unfused",
        "source": "vLLM before K and V shared a cell, vllm/v1/attention/backends/triton_attn.py",
        "modes": {
            "none": {"recipe": "golden/none", "sections": _K_THEN_V},
            "fp8_per_tensor": {"recipe": _FP8, "sections": _K_THEN_V},
            "fp8_per_token_head": {"recipe": _FP8_HEADS, "sections": _SCALED_K_THEN_V, "head_size_multiple": 4},
            "int8_per_token_head": {"recipe": _INT8_HEADS, "sections": _SCALED_K_THEN_V, "head_size_multiple": 4},
            "int4_per_token_head": {"recipe": _INT4_HEADS, "sections": _SCALED_K_THEN_V, "head_size_multiple": 8},
        },
    },
    {
        "name": "vllm-split",
        "source": "vLLM, vllm/v1/attention/ops/triton_reshape_and_cache_flash.py and "
        "tests/quantization/test_per_token_kv_cache.py",
        "modes": {
            "none": {"recipe": "golden/none", "sections": _SPLIT},
            "fp8_per_tensor": {"recipe": _FP8, "sections": _SPLIT},
            "fp8_per_token_head": {"recipe": _FP8_HEADS, "sections": _SPLIT_SCALES},
            "int8_per_token_head": {"recipe": _INT8_HEADS, "sections": _SPLIT_SCALES},
            "int4_per_token_head": {"recipe": _INT4_HEADS, "sections": _SPLIT_SCALES},
        },
    },
    _cpu("0.32"),
    _cpu("0.33"),
)

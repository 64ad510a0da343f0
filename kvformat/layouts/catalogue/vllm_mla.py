"""vLLM's pages of latent attention and of its indexer as data: one head, no V, rows of several parts."""

from __future__ import annotations

from collections.abc import Mapping

_LATENT = {"num_kv_heads": 1, "head_size": 576}
_DIMS_512 = {"num_kv_heads": 1, "head_size": 512}
_INDEXER = {"num_kv_heads": 1, "head_size": 128}

_ROW = [{"per": "cell", "record": ["k.code"]}]

# the RoPE dims are copied, or cast without a scale
_ROPE = {"part": "k.code", "name": "K rope", "columns": 64, "dtype": "bfloat16", "recipe": "golden/none"}
_ROPE_FP8 = {
    "part": "k.code",
    "name": "K rope",
    "columns": 64,
    "bits": 8,
    "recipe": "sglang-0.5/mla-store/fp8_unscaled",
}

# 512 e4m3fn | 4 float32 @512 | 64 bfloat16 @528: csrc/cache_kernels.cu L530-635
_FP8_656 = [
    {"part": "k.code", "columns": 512},
    {"part": "k.scale", "columns": 4},
    {**_ROPE, "first_dim": 512},
]

# 256 bytes of e2m1fn | 64 e4m3fn @256 | 32 e4m3fn scales @320: csrc/nvfp4_ds_mla_cache_kernels.cu L36-69
_NVFP4_352 = [
    {"part": "k.code", "columns": 512},
    {**_ROPE_FP8, "first_dim": 512},
    {"part": "k.scale", "columns": 32, "swizzle": "4-column"},
]

# block_size rows of 448 e4m3fn | 64 bfloat16, then block_size times 7 e8m0fnu and a zero byte, rounded up to
# a multiple of 576: csrc/fused_deepseek_v4_qnorm_rope_kv_insert_kernel.cu L360-424, kv_cache_interface.py L719-726
_V4_584 = [
    {"per": "cell", "record": [{"part": "k.code", "columns": 448}, {**_ROPE, "first_dim": 448}]},
    {
        "per": "cell",
        "record": [{"part": "k.scale", "columns": 7, "bits": 8, "dims_per_entry": 64}],
        "record_align": 8,
        "align": 576,
    },
]

# the scales follow each token: vllm/models/deepseek_v41/common/ops/cache_utils.py L224-229,
# fused_compress_quant_cache.py L481-538
_SCALED_ROW = [{"per": "cell", "record": ["k.code", "k.scale"]}]

# all codes of the page, then all scales: csrc/cache_kernels.cu L687-703; for mxfp4
# vllm/models/deepseek_v4/common/ops/fused_compress_quant_cache.py
_CODES_THEN_SCALES = [{"per": "page", "record": ["k.code", "k.scale"]}]
# the exponent byte four times in a uint32: csrc/cache_kernels.cu L697-700
_FOUR_COPIES = [{"per": "page", "record": ["k.code", {"part": "k.scale", "copies": 4}]}]

ENTRIES: tuple[Mapping[str, object], ...] = (
    {
        "name": "vllm-0.33-mla",
        "source": "vLLM 0.33.0, csrc/cache_kernels.cu and csrc/nvfp4_ds_mla_cache_kernels.cu",
        "modes": {
            "none": {"recipe": "golden/none", "sections": _ROW, **_LATENT},
            # latent and RoPE dims share one scale
            "fp8_per_tensor": {"recipe": "vllm-0.33/csrc/fp8_per_tensor", "sections": _ROW, **_LATENT},
            "fp8_ds_mla": {
                "recipe": "vllm-0.33/csrc/fp8_ds_mla",
                "sections": [{"per": "cell", "record": _FP8_656}],
                **_LATENT,
            },
            "nvfp4_ds_mla": {
                "recipe": "vllm-0.33/csrc/nvfp4_ds_mla",
                "sections": [{"per": "cell", "record": _NVFP4_352}],
                **_LATENT,
            },
        },
    },
    {
        "name": "vllm-0.33-deepseek-v4",
        "source": "vLLM 0.33.0, csrc/fused_deepseek_v4_qnorm_rope_kv_insert_kernel.cu",
        "modes": {"fp8_ds_mla": {"recipe": "vllm-0.33/csrc-v4/fp8_ds_mla", "sections": _V4_584, **_DIMS_512}},
    },
    {
        "name": "vllm-0.33-deepseek-v41",
        "source": "vLLM 0.33.0, vllm/models/deepseek_v41/common/ops",
        "modes": {
            "mxfp8": {"recipe": "vllm-0.33/csrc-v41/mxfp8", "sections": _SCALED_ROW, **_DIMS_512},
            "nvfp4_ds_mla": {"recipe": "vllm-0.33/triton-v41/nvfp4_ds_mla", "sections": _SCALED_ROW, **_DIMS_512},
        },
    },
    {
        "name": "vllm-0.33-indexer",
        "source": "vLLM 0.33.0, csrc/cache_kernels.cu L638-705",
        "modes": {
            "indexer_k": {"recipe": "vllm-0.33/csrc/indexer_k", "sections": _CODES_THEN_SCALES, **_INDEXER},
            "indexer_k_ue8m0": {"recipe": "vllm-0.33/csrc/indexer_k_ue8m0", "sections": _CODES_THEN_SCALES, **_INDEXER},
            "indexer_k_mxfp8": {"recipe": "vllm-0.33/csrc/indexer_k_mxfp8", "sections": _FOUR_COPIES, **_INDEXER},
            "indexer_k_mxfp4": {
                "recipe": "vllm-0.33/triton-v4/indexer_k_mxfp4",
                "sections": _CODES_THEN_SCALES,
                **_INDEXER,
            },
        },
    },
)

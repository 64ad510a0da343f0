"""SGLang's buffers as data: what they hold of one page and one layer, codes always token before head."""

from __future__ import annotations

from collections.abc import Mapping

# k_buffer, v_buffer (slots, heads, dims): srt/mem_cache/memory_pool.py
_BUFFERS = [
    {"per": "page", "record": ["k.code"], "tensor": "k_buffer"},
    {"per": "page", "record": ["v.code"], "tensor": "v_buffer"},
]


def _scales(order: str = "", k: str = "linear", v: str = "linear") -> list[Mapping[str, object]]:
    """The two scale buffers, in that order of slots and heads and with those swizzles."""
    return [
        {"per": "page", "record": [{"part": f"{side}.scale", "swizzle": swizzle}], "tensor": f"{side}_scale_buffer",
         "order": order}
        for side, swizzle in (("k", k), ("v", v))
    ]  # fmt: skip


# 512 e4m3fn | 4 float32 | 64 bfloat16, 656 bytes: dsa_quant_k_cache.py L6-10
_DSA_656 = [
    {"part": "k.code", "columns": 512},
    {"part": "k.scale", "columns": 4},
    {
        "part": "k.code",
        "name": "K rope",
        "columns": 64,
        "first_dim": 512,
        "dtype": "bfloat16",
        "recipe": "golden/none",
    },
]
_LATENT = {"num_kv_heads": 1, "head_size": 576}
_ROW = [{"per": "cell", "record": ["k.code"]}]

# one row per (layer, page): K, K scales, V, V scales, each padded to 128 bytes: minimax_m3_nvfp4_pool.py L36-62
_MINIMAX = [{"per": "page", "record": [part], "align": 128} for part in ("k.code", "k.scale", "v.code", "v.scale")]

# on SM100 and SM120 the pool calls FlashInfer's quantizer
_NVFP4 = "flashinfer-0.7/kv-quantize/nvfp4"

ENTRIES: tuple[Mapping[str, object], ...] = (
    {
        "name": "sglang",
        "source": "SGLang 0.5.23, srt/mem_cache/memory_pool.py",
        "modes": {
            "none": {"recipe": "golden/none", "sections": _BUFFERS, "order": "NHD"},
            "fp8_per_tensor": {"recipe": "sglang-0.5/pool/fp8_per_tensor", "sections": _BUFFERS, "order": "NHD"},
            # what FlashInfer's prefill reads
            "nvfp4": {"recipe": _NVFP4, "sections": [*_BUFFERS, *_scales()], "order": "NHD"},
            "fp4_mx_block16": {
                "recipe": "sglang-0.5/fp4-kv/fp4_mx_block16",
                "sections": [*_BUFFERS, *_scales()],
                "order": "NHD",
            },
            # kernels/ops/kvcache/mxfp8_quant_store_kv.py
            "mxfp8": {
                "recipe": "sglang-0.5/mxfp8-store/mxfp8",
                "sections": [*_BUFFERS, *_scales("HND", "32-row", "32-row")],
                "order": "NHD",
            },
        },
    },
    {
        "name": "sglang-native",
        "source": "SGLang 0.5.23, srt/layers/quantization/nvfp4_kv_cache.py L33-53",
        "modes": {
            # what the trtllm_mha decode reads: scales (pages, heads, slots, groups), those of V interleaved
            "nvfp4": {"recipe": _NVFP4, "sections": [*_BUFFERS, *_scales("HND", v="4-token")], "order": "NHD"},
        },
    },
    {
        "name": "sglang-minimax-m3",
        "source": "SGLang 0.5.23, srt/mem_cache/minimax_m3_nvfp4_pool.py L36-62",
        "modes": {
            "nvfp4": {
                "recipe": _NVFP4,
                "sections": _MINIMAX,
                "order": "HND",
                "v_scales": {"linear": "linear", "swizzled": "4-token"},
            },
        },
    },
    {
        "name": "sglang-mla",
        "source": "SGLang 0.5.23, srt/mem_cache/memory_pool.py and dsa_quant_k_cache.py",
        "modes": {
            "none": {"recipe": "golden/none", "sections": _ROW, **_LATENT},
            "fp8_unscaled": {"recipe": "sglang-0.5/mla-store/fp8_unscaled", "sections": _ROW, **_LATENT},
            "fp8_per_tile": {
                "recipe": "sglang-0.5/dsa/fp8_per_tile",
                "sections": [{"per": "cell", "record": _DSA_656}],
                **_LATENT,
            },
        },
    },
)

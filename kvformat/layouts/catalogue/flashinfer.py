"""FlashInfer's page layouts as data."""

from __future__ import annotations

from collections.abc import Mapping

# one page of the stacked 5-D tensor, K = 0 and V = 1 on dim 1: flashinfer/page.py L587
_STACKED = {"per": "page", "record": ["k.code", "v.code"], "tensor": "paged_kv_cache"}

# behind it one page of the stacked scale tensor, paged the same way, all linear: flashinfer/page.py L716-760
_STACKED_SCALES = {"per": "page", "record": ["k.scale", "v.scale"], "tensor": "kv_cache_sf"}

# the same as a tuple of K and V: flashinfer/page.py L431-433
_SPLIT = [
    {"per": "page", "record": ["k.code"], "tensor": "paged_k_cache"},
    {"per": "page", "record": ["v.code"], "tensor": "paged_v_cache"},
]
_SPLIT_SCALES = [
    {"per": "page", "record": ["k.scale"], "tensor": "k_cache_sf"},
    {"per": "page", "record": ["v.scale"], "tensor": "v_cache_sf"},
]

# ckv_cache (pages, page_size, 512) and kpe_cache (pages, page_size, 64): flashinfer/page.py L352-395
_CKV = {"per": "page", "record": [{"part": "k.code", "columns": 512}], "tensor": "ckv_cache"}
_KPE = {
    "per": "page",
    "record": [{"part": "k.code", "name": "K rope", "columns": 64, "first_dim": 512}],
    "tensor": "kpe_cache",
}
# packed codes (pages, page_size, 256), scales (.., 32), RoPE dims as e4m3fn with a scale of their own (.., 64):
# include/flashinfer/page.cuh L965-1003
_CKV_SCALES = {"per": "page", "record": [{"part": "k.scale", "columns": 32}], "tensor": "ckv_sf_cache"}
_KPE_FP8 = {
    "per": "page",
    "record": [
        {
            "part": "k.code",
            "name": "K rope",
            "columns": 64,
            "first_dim": 512,
            "bits": 8,
            "recipe": "sglang-0.5/mla-store/fp8_unscaled",
        }
    ],
    "tensor": "kpe_cache",
}
_LATENT = {"num_kv_heads": 1, "head_size": 576}

# append_paged_kv_cache stores the FP8 it is given: whoever calls it has quantized
_GIVEN_FP8 = "golden/fp8_per_tensor"
_NVFP4 = "flashinfer-0.7/append/nvfp4"

ENTRIES: tuple[Mapping[str, object], ...] = (
    {
        "name": "flashinfer",
        "source": "FlashInfer flashinfer/page.py",
        "modes": {
            "none": {"recipe": "golden/none", "sections": [_STACKED]},
            "fp8_per_tensor": {"recipe": _GIVEN_FP8, "sections": [_STACKED]},
            "nvfp4": {"recipe": _NVFP4, "sections": [_STACKED, _STACKED_SCALES]},
        },
    },
    {
        "name": "flashinfer-split",
        "source": "FlashInfer flashinfer/page.py",
        "modes": {
            "none": {"recipe": "golden/none", "sections": _SPLIT},
            "fp8_per_tensor": {"recipe": _GIVEN_FP8, "sections": _SPLIT},
            "nvfp4": {"recipe": _NVFP4, "sections": [*_SPLIT, *_SPLIT_SCALES]},
        },
    },
    {
        "name": "flashinfer-mla",
        "source": "FlashInfer flashinfer/page.py and include/flashinfer/page.cuh",
        "modes": {
            "none": {"recipe": "golden/none", "sections": [_CKV, _KPE], **_LATENT},
            "fp8_per_tensor": {"recipe": _GIVEN_FP8, "sections": [_CKV, _KPE], **_LATENT},
            "nvfp4": {
                "recipe": "flashinfer-0.7/append-mla/nvfp4",
                "sections": [_CKV, _CKV_SCALES, _KPE_FP8],
                **_LATENT,
            },
        },
    },
)

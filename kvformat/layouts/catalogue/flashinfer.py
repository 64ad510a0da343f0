"""FlashInfer's page layouts as data."""

from __future__ import annotations

from collections.abc import Mapping

# one page of the stacked 5-D tensor, K = 0 and V = 1 on dim 1: flashinfer/page.py L587
_STACKED = {"per": "page", "record": ["k.code", "v.code"]}

# behind it one page of the stacked scale tensor, paged the same way, all linear: flashinfer/page.py L716-760
_STACKED_SCALES = {"per": "page", "record": ["k.scale", "v.scale"]}

ENTRIES: tuple[Mapping[str, object], ...] = (
    {
        "name": "flashinfer",
        "source": "FlashInfer flashinfer/page.py",
        "modes": {
            "none": {"recipe": "golden/none", "sections": [_STACKED]},
            # append_paged_kv_cache stores the FP8 it is given: whoever calls it has quantized
            "fp8_per_tensor": {"recipe": "golden/fp8_per_tensor", "sections": [_STACKED]},
            "nvfp4": {"recipe": "flashinfer-0.7/append/nvfp4", "sections": [_STACKED, _STACKED_SCALES]},
        },
    },
)

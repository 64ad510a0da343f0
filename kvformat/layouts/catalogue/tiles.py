"""Scales in the tiles of block-scaled matrix products as data: each head's (slots, groups) plane is one matrix."""

from __future__ import annotations

from collections.abc import Mapping


def _tiled(swizzle: str) -> list[Mapping[str, object]]:
    scales = [{"part": f"{side}.scale", "swizzle": swizzle} for side in "kv"]
    return [
        {"per": "page", "record": ["k.code", "v.code"], "tensor": "data"},
        {"per": "page", "record": scales, "tensor": "scales"},
    ]


def _modes(swizzle: str, nvfp4: str, mxfp8: str, mxfp4: str) -> Mapping[str, object]:
    recipes = {"nvfp4": nvfp4, "mxfp8": mxfp8, "mxfp4": mxfp4}
    return {mode: {"recipe": recipe, "sections": _tiled(swizzle), "order": "HND"} for mode, recipe in recipes.items()}


ENTRIES: tuple[Mapping[str, object], ...] = (
    {
        "name": "tiles-128x4",
        "source": "cuBLAS block-scaling factors layout; torchao 0.18 to_blocked, FlashInfer, TransformerEngine",
        "modes": _modes("128x4", "torchao-0.18/nvfp4", "torchao-0.18/rceil/mxfp8", "torchao-0.18/rceil/mxfp4"),
    },
    {
        "name": "tiles-8x4",
        "source": "FlashInfer and TensorRT-LLM, SfLayout 8x4",
        "modes": _modes(
            "8x4", "tensorrt-llm-snapshot/cvt-warp/nvfp4", "torchao-0.18/rceil/mxfp8", "torchao-0.18/rceil/mxfp4"
        ),
    },
)

"""TensorRT-LLM's pools as data: what they hold of one block and one layer."""

from __future__ import annotations

from collections.abc import Mapping

# pool (blocks, layers, 2, heads * slots * dims), heads before slots: kvCacheManager.cpp allocatePools
_POOL = {"per": "page", "record": ["k.code", "v.code"], "tensor": "pool"}

# a second pool with the same block ids, containsBlockScales, one sixteenth the entries: createBlockScalePools.
# quantizeAndWriteFP4KVCache interleaves the V scales of four tokens; K scales are linear.
_SCALES = {
    "per": "page",
    "record": ["k.scale", {"part": "v.scale", "swizzle": "4-token"}],
    "tensor": "block_scale_pool",
}

ENTRIES: tuple[Mapping[str, object], ...] = (
    {
        "name": "tensorrt-llm",
        "source": "TensorRT-LLM (snapshot), cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp",
        "modes": {
            "none": {"recipe": "golden/none", "sections": [_POOL], "order": "HND"},
            "fp8_per_tensor": {
                "recipe": "tensorrt-llm-snapshot/kv/fp8_per_tensor",
                "sections": [_POOL],
                "order": "HND",
            },
            "nvfp4": {"recipe": "tensorrt-llm-snapshot/cvt-warp/nvfp4", "sections": [_POOL, _SCALES], "order": "HND"},
        },
    },
)

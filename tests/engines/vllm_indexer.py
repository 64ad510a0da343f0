"""vLLM 0.33's CUDA writer of indexer keys with exponent bytes for scales, compiled by nvcc, executed as PTX."""

from __future__ import annotations

from collections.abc import Iterator

import kvformat as kvf
from tests.engines import inputs, sources
from tests.engines.judging import Pages
from tests.engines.vllm import BLOCK_SIZE, canaries, module, scattered

SOURCE = sources.VLLM
_KERNEL = "indexer_k_quant_and_cache_kernelI13__nv_bfloat16hLNS_18Fp8KVCacheDataTypeE1E"


def answers() -> Iterator[Pages]:
    """scale_fmt mxfp8, bfloat16: an Inf in a row stores 0xFF and codes of NaN."""
    x = inputs.shaped(inputs.hard("e4m3fn", "bfloat16", 128, (448.0, 1.75, 7.0), 1500), 1, 128)
    layout = kvf.layout("vllm-0.33-indexer", mode="indexer_k_mxfp8", block_size=BLOCK_SIZE)
    for arch in ("sm_80", "sm_90", "sm_100a"):
        slots, blocks = scattered(len(x))
        before = canaries(blocks, layout.page_bytes)
        pages = before.copy()
        module("cache_kernels.cu", arch)[_KERNEL].launch(
            (len(slots), 1), (32, 4),
            [x, pages.reshape(-1), slots, 128, 128, BLOCK_SIZE, layout.page_bytes, True, True],
        )  # fmt: skip
        yield Pages(
            "vllm-0.33/csrc/indexer_k_mxfp8", f"PTX, {arch}", "indexer_k_quant_and_cache_kernel<bfloat16>, mxfp8",
            layout, x, None, slots, pages, before,
        )  # fmt: skip

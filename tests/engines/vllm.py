"""What the adapters of vLLM 0.33 share: its CUDA files as PTX, slots, and pages nobody has written yet."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from kvformat import ptx
from tests.engines import nvcc, sources

SOURCE = sources.VLLM
_DEFINE: dict[str, str | int | None] = {
    "USE_CUDA": None,
    "TORCH_TARGET_VERSION": "0x020B000000000000ULL",
    "ENABLE_FP8": None,
    "ENABLE_NVFP4_SM100": 1,
}
BLOCK_SIZE = 16


@cache
def module(file: str, arch: str) -> ptx.Module:
    """One of vLLM's CUDA files, compiled as its build does: no fast math."""
    csrc = next(sources.fetch(SOURCE).glob("vllm-*")) / "csrc"
    include = [nvcc.stubs(), csrc, *nvcc.torch_headers()]
    options = ["-std=c++20", "-O3", "--expt-relaxed-constexpr"]
    return nvcc.compiled(csrc / file, arch, include=include, define=_DEFINE, options=options)


def scattered(tokens: int) -> tuple[NDArray[np.int64], int]:
    """Slots in a scattered order, every ninth token padding, and the number of blocks."""
    blocks = -(-tokens // BLOCK_SIZE) + 1
    slots = np.random.default_rng(tokens).permutation(blocks * BLOCK_SIZE)[:tokens].astype(np.int64)
    slots[::9] = -1
    return slots, blocks


def canaries(blocks: int, page_bytes: int) -> NDArray[np.uint8]:
    """Pages that nobody has written yet."""
    return np.random.default_rng(page_bytes).integers(0, 256, (blocks, page_bytes), np.uint8)

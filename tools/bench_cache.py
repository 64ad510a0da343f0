"""Times the paged cache and the verdict on it against the quantizer alone, which does the same arithmetic."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from bench_rates import Contest, Row
from numpy.typing import NDArray

import kvformat as kvf

#: (tokens, heads, head_dim) of K and of V
SHAPE, BLOCK_SIZE = (32768, 8, 128), 16
MODES = ("fp8_per_tensor", "fp8_per_token_head", "int8_per_token_head", "nvfp4")


def cache_rates() -> Iterator[Row]:
    """Writing, reading and judging the pages of K and V in each mode; all cores."""
    key, value = (
        np.random.default_rng(seed).standard_normal(SHAPE, np.float32).astype(ml_dtypes.bfloat16) for seed in (0, 1)
    )
    for mode in MODES:
        yield from _mode(mode, key, value)

    def usual() -> None:
        kvf.quantize(key, "fp8_per_token_head")

    made = {mode: kvf.quantize(key, mode) for mode in ("fp8_per_token_head", "nvfp4")}
    name = "quantize fp8_per_token_head"
    yield Contest("quantize nvfp4", key.size, lambda: kvf.quantize(key, "nvfp4")).against(name, usual, at_least=0.4)
    for mode, quantized in made.items():
        contest = Contest(f"dequantize {mode} to bf16", key.size, lambda q=quantized: q.dequantize(ml_dtypes.bfloat16))
        yield contest.against(name, usual, at_least=0.6 if mode != "nvfp4" else None)


def _mode(mode: str, key: NDArray[Any], value: NDArray[Any]) -> Iterator[Row]:
    tokens, heads, dims = SHAPE
    layout = kvf.layout("vllm-0.33", mode=mode, block_size=BLOCK_SIZE, num_kv_heads=heads, head_size=dims)
    given = mode in ("fp8_per_tensor", "nvfp4")
    # the amax of what is written, over the largest code and, for nvfp4, over the largest scale
    scale = float(np.abs(key.astype(np.float32)).max()) / (448 * (6 if mode == "nvfp4" else 1)) if given else None
    cache = kvf.PagedCache(layout, tokens // BLOCK_SIZE, k_scale=scale, v_scale=scale)
    slots, table, size = np.arange(tokens), np.arange(tokens // BLOCK_SIZE), 2 * key.size
    cache.write(key, value, slots)
    dump = kvf.Dump.from_arrays(
        key, value, cache.pages, slots, layout=layout, recipe=f"golden/{mode}", k_scale=scale, v_scale=scale
    )

    def quantize() -> None:
        for x in (key, value):
            kvf.quantize(x, mode, scale=scale)

    def judge(judged: kvf.Dump) -> None:
        assert kvf.check(judged).ok

    name = f"quantize {mode}"
    yield Contest(f"PagedCache.write {mode}", size, lambda: cache.write(key, value, slots)).against(
        name, quantize, at_least=0.8
    )
    yield Contest(f"gather {mode} to bf16", size, lambda: cache.gather(table, tokens, ml_dtypes.bfloat16)).against(
        name, quantize, at_least=0.5 if mode == "fp8_per_token_head" else None
    )
    yield Contest(f"check {mode}, in memory", size, lambda: judge(dump)).against(name, quantize, at_least=0.5)
    with tempfile.TemporaryDirectory(prefix="kvformat-bench-") as folder:
        path = Path(folder) / "dump.safetensors"
        dump.save(path)
        yield Contest(f"check {mode}, from a file", size, lambda: judge(kvf.Dump.load(path))).against(
            name, quantize, at_least=0.35
        )

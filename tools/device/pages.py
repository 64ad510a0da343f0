"""(b) Every kernel against the CPU engine: all modes, layouts, dtypes, head sizes and block sizes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import torch

import kvformat as kvf
from kvformat.torch import launch
from kvformat.torch import ops as operators
from kvformat.torch.aot import compile_for
from tools.device.run import Run

MODES = ("none", "fp8_per_tensor", "fp8_per_token_head", "int8_per_token_head", "nvfp4")
LAYOUTS = {mode: ("vllm-0.33", "flashinfer") if "token_head" not in mode else ("vllm-0.33",) for mode in MODES}


def check_bytes(run: Run) -> None:
    """Write and gather in every mode, layout, order, dtype, head size and block size, on nasty and random rows."""
    wanted = list(enumerate(_configurations()))
    if run.dry:
        for _, (made, dtype) in wanted:
            if (made.head_size, made.block_size) == (64, 16):
                run.add("bytes", _named(made, dtype), compiled=_compiled(made, dtype))
        return
    compared = missed = 0
    # nearly all of the time goes into compiling: one process per core, each with a share of the configurations
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        tasks = [pool.submit(_bytes, index, run.device, run.deadline) for index, _ in wanted]
        for (_, (made, dtype)), task in zip(wanted, tasks, strict=True):
            result = task.result()
            missed += result is None
            compared += result["compared"] if result else 0
            if result is None or result["wrong"]:
                run.add("bytes", _named(made, dtype), **(result or {"result": "not run: no time left"}))
    run.add("bytes", f"{len(wanted) - missed} of {len(wanted)} configurations run", bytes_and_values=compared)


def _named(made: kvf.Layout, dtype: str) -> str:
    how = f" {made.v_scales}" if made.v_scales else ""
    return f"{made.name} {made.mode}{how} {made.order}, {dtype}, head size {made.head_size}, block {made.block_size}"


def _configurations() -> Iterator[tuple[kvf.Layout, str]]:
    dtypes = ("bfloat16", "float16", "float32")
    index = 0
    for head_size in (128, 64, 256):
        for block_size in (16, 32, 64):
            for mode in MODES:
                for name in LAYOUTS[mode]:
                    choices = ("swizzled", "linear") if mode == "nvfp4" and name == "vllm-0.33" else (None,)
                    for v_scales in choices:
                        for order in ("HND", "NHD"):
                            made = kvf.layout(
                                name, mode=mode, order=order, block_size=block_size, num_kv_heads=4,
                                head_size=head_size, v_scales=v_scales,
                            )  # fmt: skip
                            # all dtypes at head size 128; elsewhere they take turns, since they share all but the load
                            index += 1
                            for dtype in dtypes if head_size == 128 else (dtypes[index % 3],):
                                yield made, dtype


def rows(tokens: int, heads: int, dims: int, dtype: str, seed: int) -> torch.Tensor:
    """Rows that hurt: random ones of all sizes, ties, zeros of both signs, subnormals, outliers, Inf and NaN."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((tokens, heads, dims)) * 2.0 ** rng.integers(-30, 30, (tokens, heads, 1))
    x[0] *= 100
    x[1] = rng.integers(-254, 255, (heads, dims)) / 2  # multiples of half a step: ties where the scale is exact
    x[1, :, 0] = 127
    x[2] = rng.choice([0.0, -0.0], (heads, dims))
    x[3] = rng.integers(-3000, 3000, (heads, dims)) * 2.0**-149
    x[4, :, ::5], x[4, :, 3] = np.inf, -np.inf
    x[5, :, 7] = np.nan
    with np.errstate(over="ignore", invalid="ignore"):
        return torch.from_numpy(x.astype(np.float32)).to(getattr(torch, dtype))


def _bytes(index: int, device: str, deadline: float) -> dict[str, int] | None:
    """Compare one configuration on the device with the CPU engine; None if the time is up."""
    if time.monotonic() > deadline:
        return None
    os.environ["KVFORMAT_NUM_THREADS"] = "1"
    made, dtype = list(_configurations())[index]
    tokens, blocks = 200, 200 // made.block_size + 2
    sides = [rows(tokens, made.num_kv_heads, made.head_size, dtype, seed) for seed in (1, 2)]
    slots = torch.randperm(blocks * made.block_size, generator=torch.Generator().manual_seed(3))[:tokens]
    slots[7] = -1
    names = (made.name, made.mode, made.order, made.block_size)
    scale = torch.tensor([0.0625]) if kvf.recipe(made.mode).outer else None
    last = (made.v_scales or "", made.dtype or "")
    pages = [torch.full((blocks, made.page_bytes), 0xA5, dtype=torch.uint8, device=each) for each in ("cpu", device)]
    values = []
    for each in pages:
        key, value = (side.to(each.device) for side in sides)
        fused = torch.cat([value, key, value], 1)[:, made.num_kv_heads : 2 * made.num_kv_heads]  # strided, as vLLM's
        given = None if scale is None else scale.to(each.device)
        operators.write_pages(
            fused, value, each, slots.to(each.device), given, given, *names, made.head_size, made.mode, *last
        )
        table = torch.arange(blocks, device=each.device)
        values += operators.gather_pages(
            pages[0].to(each.device), table, blocks * made.block_size, given, given, *names, made.num_kv_heads,
            made.head_size, made.mode, 0, *last, getattr(torch, dtype),
        )  # fmt: skip
    operators.check_errors()
    wrong = _different(pages[0], pages[1].cpu(), made, dtype)
    for cpu, gpu in zip(values[:2], values[2:], strict=True):
        wrong += int(((cpu != gpu.cpu()) & ~(cpu.isnan() & gpu.cpu().isnan())).sum())
    return {"compared": pages[0].numel() + 2 * values[0].numel(), "wrong": wrong}


def _different(cpu: torch.Tensor, gpu: torch.Tensor, made: kvf.Layout, dtype: str) -> int:
    """Bytes that differ; of stored floats that another dtype was rounded to, the NaN compare as a class."""
    if made.mode != "none" or dtype == made.dtype:
        return int((cpu != gpu).sum())
    stored = getattr(torch, str(made.dtype))
    one, other = (pages[:, : made.natural_bytes].contiguous().view(stored) for pages in (cpu, gpu))
    return int(((one != other) & ~(one.isnan() & other.isnan())).sum())


def _compiled(made: kvf.Layout, dtype: str) -> int:
    x = rows(32, made.num_kv_heads, made.head_size, dtype, 1)
    pages, errors = torch.zeros((4, made.page_bytes), dtype=torch.uint8), torch.zeros(1, dtype=torch.int64)
    how = kvf.recipe(made.mode)
    scale = torch.ones(1) if how.outer else None
    with launch.recorded() as launches:
        launch.write(made, x, "k", pages, torch.arange(32), how, scale, errors)
        launch.gather(made, pages, "k", torch.arange(2), 32, how, scale, errors, x.dtype)
    for each in launches:
        compile_for(each, "sm_90")
    return len(launches)

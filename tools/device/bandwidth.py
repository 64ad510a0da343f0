"""(c) Bandwidth of write and gather beside a copy, torch eager and one program per token and head."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import kvformat as kvf
from kvformat.torch import launch
from kvformat.torch.aot import compile_for
from tools.device.kernels import write_row_by_row
from tools.device.run import Run

HEADS, DIMS, BLOCK_SIZE = 8, 128, 16


def check_bandwidth(run: Run) -> None:
    """Write and gather against a copy that moves as many bytes; beside eager and one program per token and head."""
    for mode in ("int8_per_token_head", "fp8_per_token_head", "fp8_per_tensor", "nvfp4", "none"):
        for tokens in (8192, 65536):
            if run.dry:
                _dry_bandwidth(run, mode, tokens)
            elif run.late(25):
                run.add("bandwidth", f"{mode} {tokens} tokens", result="not run: no time left")
            else:
                _bandwidth(run, mode, tokens)


def _arguments(mode: str, tokens: int, device: str) -> dict[str, Any]:
    made = kvf.layout("vllm-0.33", mode=mode, block_size=BLOCK_SIZE, num_kv_heads=HEADS, head_size=DIMS, order="HND")
    x = torch.randn(2, tokens, HEADS, DIMS, device=device, dtype=torch.bfloat16)
    blocks = tokens // BLOCK_SIZE
    how = kvf.recipe(mode)
    return {
        "layout": made, "x": x, "recipe": how, "scale": torch.full((1,), 0.01, device=device) if how.outer else None,
        "pages": torch.zeros((blocks, made.page_bytes), dtype=torch.uint8, device=device),
        "slots": torch.arange(tokens, device=device), "table": torch.randperm(blocks, device=device),
        "errors": torch.zeros(1, dtype=torch.int64, device=device),
    }  # fmt: skip


def _write(a: dict[str, Any], *, hardware: bool = False) -> None:
    for index, side in enumerate("kv"):
        launch.write(a["layout"], a["x"][index], side, a["pages"], a["slots"], a["recipe"], a["scale"], a["errors"],
                     hardware=hardware)  # fmt: skip


def _gather(a: dict[str, Any]) -> None:
    for side in "kv":
        launch.gather(a["layout"], a["pages"], side, a["table"], len(a["slots"]), a["recipe"], a["scale"],
                      a["errors"], torch.bfloat16)  # fmt: skip


def _eager(a: dict[str, Any]) -> None:
    """Quantize per token and head in torch, to codes and scales that are not yet placed; int8 and fp8 only."""
    top = 127.0 if a["layout"].mode.startswith("int8") else 448.0
    x = a["x"].float()
    scale = x.abs().amax(-1, keepdim=True) / top
    quotient = x / torch.where(scale == 0, 1.0, scale)
    quotient.round().clamp(-127, 127).to(torch.int8) if top == 127 else quotient.to(torch.float8_e4m3fn)


def _row_by_row(a: dict[str, Any]) -> None:
    made, tokens = a["layout"], a["x"].shape[1]
    top = 127.0 if made.mode.startswith("int8") else 448.0
    cell = made.page_bytes // BLOCK_SIZE // HEADS
    for index in range(2):
        start = index * cell // 2
        launch.start(
            write_row_by_row, (tokens, HEADS),
            (a["x"][index].view(torch.int16), a["slots"], a["pages"], made.page_bytes, cell, top),
            {"BLOCK_SIZE": BLOCK_SIZE, "HEADS": HEADS, "DIMS": DIMS, "START": start, "INTEGER": top == 127},
        )  # fmt: skip


def _bandwidth(run: Run, mode: str, tokens: int) -> None:
    a = _arguments(mode, tokens, run.device)
    moved = a["x"].numel() * 2 + a["layout"].natural_bytes * len(a["pages"])
    half = torch.empty(moved // 2, dtype=torch.uint8, device=run.device)
    other = torch.empty_like(half)
    jobs: dict[str, Callable[[], Any]] = {
        "copy": lambda: other.copy_(half), "write": lambda: _write(a), "gather": lambda: _gather(a)
    }  # fmt: skip
    if "token_head" in mode:
        jobs |= {"eager": lambda: _eager(a), "row by row": lambda: _row_by_row(a)}
    if mode.startswith("fp8") and torch.cuda.get_device_capability() >= (8, 9):
        jobs["write, instruction"] = lambda: _write(a, hardware=True)
    times = {name: _median(run, job) for name, job in jobs.items()}
    figures = {f"{name} us": round(1e6 * seconds, 1) for name, seconds in times.items()}
    for name in ("write", "gather", "write, instruction"):
        if name in times:
            figures[f"{name} of copy"] = round(times["copy"] / times[name], 3)
    for name in ("eager", "row by row"):
        if name in times:
            figures[f"write over {name}"] = round(times[name] / times["write"], 2)
    run.add("bandwidth", f"{mode} {tokens} tokens x {HEADS} x {DIMS}", MB=moved >> 20, **figures)


def _median(run: Run, job: Callable[[], Any], repeats: int = 50) -> float:
    """Seconds of a job under a CUDA graph, L2 flushed before each run: the median."""
    flush = torch.empty(256 << 20, dtype=torch.uint8, device=run.device)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        job()
        job()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        job()
    taken = []
    for _ in range(repeats):
        flush.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        taken.append(begin.elapsed_time(end) / 1e3)
    return float(np.median(taken))


def _dry_bandwidth(run: Run, mode: str, tokens: int) -> None:
    if tokens != 8192:
        return
    a = _arguments(mode, 256, "cpu")
    with launch.recorded() as launches:
        _write(a)
        _gather(a)
        if mode.startswith("fp8"):
            _write(a, hardware=True)
        if "token_head" in mode:
            _row_by_row(a)
    for each in launches:
        compile_for(each, "sm_90")
    if "token_head" in mode:
        _eager(a)
    run.add("bandwidth", f"{mode}", compiled=len(launches))

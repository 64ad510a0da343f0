"""Checks the kernels on a GPU: codecs, bytes, bandwidth, approximate instructions. One table, one JSON.

    PYTHONPATH=. python tools/device_check.py OUT [--only codec,bytes,bandwidth,instructions] [--dry-run]

OUT is a folder: device_check.json holds every figure with the GPU and the versions, approximations.npz what the
approximate instructions gave, both small enough to carry. Exit status 1 if something differed. Made for six minutes on
one H100 or H200; a part for which no time is left is named as not run, never as passed. `--dry-run` needs no GPU: it
builds the inputs of every part and compiles every kernel for sm_90, and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton

import kvformat as kvf
from kvformat.elements.codec import conversion
from kvformat.elements.exact import encode as encode_exactly
from kvformat.elements.exact import magnitudes
from kvformat.torch import codec, launch
from kvformat.torch import ops as operators
from kvformat.torch.aot import compile_for

sys.path.insert(0, str(Path(__file__).parents[1]))
from tools.device_kernels import (
    approximate_quotients,
    approximate_reciprocals,
    encode_patterns,
    full_quotients,
    write_row_by_row,
)

MODES = ("none", "fp8_per_tensor", "fp8_per_token_head", "int8_per_token_head", "nvfp4")
LAYOUTS = {mode: ("vllm-0.33", "flashinfer") if "token_head" not in mode else ("vllm-0.33",) for mode in MODES}
CHUNK = 1 << 26
HEADS, DIMS, BLOCK_SIZE = 8, 128, 16


@dataclass
class Run:
    """What is known so far; a dry run compiles instead of running."""

    dry: bool
    deadline: float
    device: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    def add(self, part: str, what: str, **figures: Any) -> None:
        """A line of the table."""
        self.rows.append({"part": part, "what": what, **figures})
        shown = "  ".join(f"{name} {value}" for name, value in figures.items())
        print(f"{part:<13} {what:<58} {shown}", flush=True)

    def late(self, seconds: float) -> bool:
        """Whether a part that takes so long would end behind the deadline."""
        return not self.dry and time.monotonic() + seconds > self.deadline


# --- (a) both encode paths on every float32 ------------------------------------------------------------------------


def borders(name: str) -> np.ndarray:
    """The first float32 pattern of each code's magnitude, in order: int64 (codes,). From exact fractions, by search."""
    steps = magnitudes(kvf.element(name))
    found = [0]
    for code in range(1, len(steps) - 1):
        low, high = found[-1], 0x7F80_0000
        while low < high:
            middle = (low + high) // 2
            value = np.uint32(middle).view(np.float32)
            reached = bool(np.isinf(value)) or encode_exactly(float(value), name) >= code
            low, high = (low, middle) if reached else (middle + 1, high)
        found.append(low)
    return np.array(found, np.int64)


def check_codecs(run: Run) -> None:
    """Every float32 pattern through the integer path and the instruction, against borders from exact arithmetic."""
    for name in ("e4m3fn", "e2m1fn", "int8", "e5m2"):
        how = codec.encoding(conversion(name), "float32")
        paths = [("integer", 0)]
        major = 0 if run.dry else torch.cuda.get_device_capability()[0]
        if (name == "e4m3fn" and (run.dry or torch.cuda.get_device_capability() >= (8, 9))) or (
            name == "e2m1fn" and major in (10, 12)
        ):
            paths.append(("instruction", 1))
        edges = torch.from_numpy(borders(name)).to(run.device)
        for path, hardware in paths:
            if run.late(10):
                run.add("codec", f"{name} {path}", result="not run: no time left")
                continue
            wrong = sum(_wrong_codes(run, name, how, edges, hardware, start) for start in range(0, 1 << 32, CHUNK))
            if not run.dry:
                run.add("codec", f"{name} {path}", inputs=1 << 32, wrong=wrong)


def _wrong_codes(run: Run, name: str, how: Any, edges: torch.Tensor, hardware: int, start: int) -> int:
    fmt = kvf.element(name)
    if run.dry:
        if start == 0:
            codes = torch.empty(1024, dtype=torch.uint8)
            with launch.recorded() as launches:
                launch.start(encode_patterns, (1,), (codes, 0), {"HOW": how, "HARDWARE": hardware, "TILE": 1024})
            compile_for(launches[0], "sm_90")
            run.add("codec", f"{name} {'instruction' if hardware else 'integer'}", result="compiled", codes=len(edges))
        return 0
    codes = torch.empty(CHUNK, dtype=torch.uint8, device=run.device)
    first = start - (1 << 32) if start >= 1 << 31 else start  # as the int32 that the kernel counts from
    constants = {"HOW": how, "HARDWARE": hardware, "TILE": 1024}
    launch.start(encode_patterns, (CHUNK // 1024,), (codes, first), constants)
    pattern = torch.arange(start & 0x7FFF_FFFF, (start & 0x7FFF_FFFF) + CHUNK, device=run.device)
    code = torch.searchsorted(edges, pattern, right=True) - 1
    if start >= 1 << 31:
        if fmt.kind == "integer":
            code = (-torch.clamp(code + (pattern >= _negative_edge(name)).long(), max=fmt.max_code + 1)) % fmt.codes
        else:
            code = code | fmt.sign_bit
    code = torch.where(pattern > 0x7F80_0000, fmt.nan_input_code, code)
    return int((code != codes.long()).sum())


def _negative_edge(name: str) -> int:
    """Integers reach one further below zero: the pattern from which the magnitude rounds to max + 1."""
    top = kvf.element(name).max_code
    return int(np.float32(top + 0.5).view(np.uint32))


# --- (b) every kernel against the CPU engine -----------------------------------------------------------------------


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


# --- (c) bandwidth -------------------------------------------------------------------------------------------------


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


# --- (d) approximate instructions ----------------------------------------------------------------------------------


def record_instructions(run: Run) -> None:
    """What rcp.approx.ftz, div.full and div.approx give, as the distance in ulp from the correctly rounded result."""
    count = 1 << 23
    jobs = [("rcp.approx.ftz", approximate_reciprocals, 127)]
    jobs += [("div.full 1/m", full_quotients, exponent) for exponent in (1, 64, 127, 190, 252)]
    for name, kernel, exponent in jobs:
        if run.dry:
            with launch.recorded() as launches:
                launch.start(kernel, (1,), (torch.empty(1024, dtype=torch.int32), exponent), {"TILE": 1024})
            compile_for(launches[0], "sm_90")
            run.add("instructions", f"{name}, exponent {exponent}", result="compiled")
            continue
        found = torch.empty(count, dtype=torch.int32, device=run.device)
        launch.start(kernel, (count // 1024,), (found, exponent), {"TILE": 1024})
        bits = (np.arange(count, dtype=np.uint32) | np.uint32(exponent << 23)).view(np.float32)
        exact = (np.float32(1) / bits).view(np.int32)
        off = found.cpu().numpy() - exact
        key = f"{name}, exponent {exponent}"
        small = np.abs(off).max() < 128
        run.arrays[key.replace("/", " by ")] = off.astype(np.int8 if small else np.int32)
        counts = {str(ulp): int(number) for ulp, number in zip(*np.unique(off, return_counts=True), strict=True)}
        run.add("instructions", key, ulps=dict(list(counts.items())[:9]))
    constants = np.array([127, 448, 224, 6], np.float32)
    if run.dry:
        with launch.recorded() as launches:
            launch.start(approximate_quotients, (1,), (torch.empty(4), torch.from_numpy(constants)), {"TILE": 4})
        compile_for(launches[0], "sm_90")
        run.add("instructions", "div.approx(1, c)", result="compiled")
        return
    found = torch.empty(4, device=run.device)
    launch.start(approximate_quotients, (1,), (found, torch.from_numpy(constants).to(run.device)), {"TILE": 4})
    given = found.cpu().numpy().view(np.uint32)
    wanted = (np.float32(1) / constants).view(np.uint32)
    patterns = {f"1/{c:g}": f"{a:#010x} (rounded {b:#010x})" for c, a, b in zip(constants, given, wanted, strict=True)}
    run.add("instructions", "div.approx(1, c)", **patterns)


# --- all of it -----------------------------------------------------------------------------------------------------

PARTS = {
    "codec": check_codecs,
    "bytes": check_bytes,
    "bandwidth": check_bandwidth,
    "instructions": record_instructions,
}


def _about(run: Run) -> dict[str, Any]:
    name = "no GPU: a dry run" if run.dry else torch.cuda.get_device_name()
    return {
        "gpu": name,
        "capability": None if run.dry else list(torch.cuda.get_device_capability()),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "kvformat": kvf.__version__,
    }


def main() -> int:
    """Run the parts, print the table, write the files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", default=",".join(PARTS), help="parts, comma-separated")
    parser.add_argument("--seconds", type=float, default=330, help="after which no new part begins")
    parser.add_argument("--dry-run", action="store_true")
    given = parser.parse_args()
    unknown = [part for part in given.only.split(",") if part not in PARTS]
    if unknown:
        parser.error(f"unknown part {unknown[0]!r}; there are {', '.join(PARTS)}")
    if not given.dry_run and not torch.cuda.is_available():
        print("device_check: torch sees no GPU; --dry-run shows what would be run", file=sys.stderr)
        return 2
    run = Run(given.dry_run, time.monotonic() + given.seconds, "cpu" if given.dry_run else "cuda")
    about = _about(run)
    print("  ".join(f"{name} {value}" for name, value in about.items()))
    began = time.monotonic()
    for part in given.only.split(","):
        PARTS[part](run)
    wrong = sum(row.get("wrong", 0) for row in run.rows)
    missed = sum(str(row.get("result", "")).startswith("not run") for row in run.rows)
    verdict = "dry run: nothing was measured" if run.dry else f"{wrong} wrong, {missed} not run for want of time"
    print(f"{verdict}; {time.monotonic() - began:.0f} s")
    if not run.dry:
        given.out.mkdir(parents=True, exist_ok=True)
        document = {"about": about, "wrong": wrong, "not_run": missed, "rows": run.rows}
        (given.out / "device_check.json").write_text(json.dumps(document, indent=1) + "\n")
        if run.arrays:
            np.savez_compressed(given.out / "approximations.npz", **run.arrays)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())

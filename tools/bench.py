"""Measures what kvformat promises about speed, as ratios from one run: python tools/bench.py [SECTION ...] [--json].

Exit status 0 if all that is needed holds, 1 if something misses. A section whose reference library is not installed
says so in one line. On a shared machine rates wander; the ratio is the median over interleaved pairs, its quartiles
stand by it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # this checkout, whatever is installed
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # torch's large outputs then ask for huge pages, as NumPy's do

import ml_dtypes
import numpy as np
from bench_cache import cache_rates
from bench_commands import commands, importing
from bench_model import model_rates
from bench_parallel import parallel
from bench_ptx import emulation
from bench_rates import Contest, Differs, Row, table
from bench_references import Streaming, torch_golden
from numpy.typing import NDArray

import kvformat as kvf
from kvformat.elements import threads

#: elements of the arrays that element formats are timed on: what the figures are about (4 MiB of float32, in the
#: cache), and an array from memory beside it
SIZES = (1 << 20, 1 << 24)
#: (tokens, heads, head_dim) that quantizers are timed on: 2^25 elements
SHAPE = (32768, 8, 128)

#: seconds of rest between the timings of work on all cores
REST = 0.05

NOTES = f"""\
- Rates are 10^9 elements per second. Both sides allocate their output, in every call, inside the timing; timings are
  interleaved, A B A B, and the ratio is the median over the pairs.
- Element formats: one thread, {" and ".join(f"2^{size.bit_length() - 1}" for size in SIZES)} float32 elements, normally
  distributed; decoding reads the codes of those. The smaller size is what the figure is about.
- Quantizers: {threads.count()} threads, bfloat16 {SHAPE}, normally distributed. "Streams the same bytes" reads each
  input once and writes as many bytes as codes and scales have, into NumPy arrays, as kvformat does. From 4 MiB on NumPy
  asks for huge pages, so both sides pay for the same page faults, zeroing included. Numba's own allocator does not ask
  and pays for 4 KiB pages: it is shown beside it, as is the loop without an allocation.
- {1000 * REST:.0f} ms of rest before each timing of a quantizer: OpenMP threads of torch and Numba spin after their
  work, on cores that the other side needs.
- torch.compile and kvformat give the same bytes (checked before timing); torch's outputs may use huge pages too
  (THP_MEM_ALLOC_ENABLE={os.environ["THP_MEM_ALLOC_ENABLE"]}). torchao gets g for nothing and packs its codes; kvformat
  computes g in a pass over x and writes a byte per code.\
"""

_skipped: list[str] = []


def skip(line: str) -> None:
    """Say, now and in the report, what is not measured and why."""
    _skipped.append(line)
    print(f"skipped: {line}", file=sys.stderr)


def optional(name: str, what: str) -> Any:
    """A reference library, or None where it is not installed."""
    try:
        return import_module(name)
    except ImportError:
        skip(f"{what}: {name.partition('.')[0]} is not installed")
        return None


@contextmanager
def one_thread() -> Iterator[None]:
    """Let kvformat use one thread."""
    before = os.environ.get("KVFORMAT_NUM_THREADS")
    os.environ["KVFORMAT_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        del os.environ["KVFORMAT_NUM_THREADS"]
        if before is not None:
            os.environ["KVFORMAT_NUM_THREADS"] = before


def same(ours: NDArray[Any], theirs: NDArray[Any], what: str) -> None:
    """Make sure that both sides do the same work. Raises Differs."""
    if ours.tobytes() != theirs.tobytes():
        raise Differs(f"{what}: kvformat and the reference give different bytes")


def elements() -> Iterator[Row]:
    """Element formats: encode and decode on one thread."""
    with one_thread():
        for size in SIZES:
            x = (8 * np.random.default_rng(0).standard_normal(size)).astype(np.float32)
            yield from encode_rows(x, needed=size == SIZES[0])
            yield decode_row(x, needed=size == SIZES[0])


def encode_rows(x: NDArray[Any], *, needed: bool) -> Iterator[Row]:
    """Encoding x, against ml_dtypes and torch."""
    torch = optional("torch", "encode against torch")
    references = (("e4m3fn", ml_dtypes.float8_e4m3fn, 10), ("e2m1fn", ml_dtypes.float4_e2m1fn, 8))
    for fmt, dtype, factor in references:
        work = f"fp32 -> {fmt} encode, one thread, 2^{x.size.bit_length() - 1}"
        contest = Contest(work, x.size, lambda fmt=fmt: kvf.encode(x, fmt))
        same(contest.ours(), x.astype(dtype).view(np.uint8), work)
        yield contest.against(
            "ml_dtypes astype", lambda dtype=dtype: x.astype(dtype), at_least=factor if needed else None
        )
        if fmt == "e4m3fn" and torch is not None:
            torch.set_num_threads(1)
            tensor = torch.from_numpy(x)
            same(contest.ours(), tensor.to(torch.float8_e4m3fn).view(torch.uint8).numpy(), work)
            yield contest.against(
                "torch .to", lambda tensor=tensor: tensor.to(torch.float8_e4m3fn), at_least=2 if needed else None
            )


def decode_row(x: NDArray[Any], *, needed: bool) -> Row:
    """Decoding the codes of x, against ml_dtypes."""
    codes = kvf.encode(x, "e4m3fn")
    typed = codes.view(ml_dtypes.float8_e4m3fn)
    work = f"e4m3fn -> fp32 decode, one thread, 2^{x.size.bit_length() - 1}"
    contest = Contest(work, x.size, lambda: kvf.decode(codes, "e4m3fn"))
    same(contest.ours(), typed.astype(np.float32), work)
    return contest.against("ml_dtypes astype", lambda: typed.astype(np.float32), at_least=10 if needed else None)


def per_token_head() -> Iterator[Row]:
    """The per-token-head quantizers on all cores, against the memory and against torch.compile."""
    x = keys()
    streaming = Streaming(x, 1, np.float32)
    torch = optional("torch", "quantize against torch.compile")
    for mode in ("fp8_per_token_head", "int8_per_token_head"):
        contest = Contest(f"quantize bf16 -> {mode}", x.size, lambda mode=mode: kvf.quantize(x, mode), REST)
        yield from against_memory(contest, streaming, 0.4)
        if torch is not None:
            yield against_compiled(contest, torch, x, mode)


def nvfp4() -> Iterator[Row]:
    """The nvfp4 quantizer on all cores, against the memory and against torchao."""
    x = keys()
    contest = Contest("quantize bf16 -> nvfp4", x.size, lambda: kvf.quantize(x, "nvfp4"), REST)
    yield from against_memory(contest, Streaming(x, x.shape[-1] // 16, np.uint8), 0.2)
    torchao = optional("torchao.prototype.mx_formats.nvfp4_tensor", "quantize against torchao")
    if torchao is None:
        return
    import torch

    torch.set_num_threads(threads.count())
    tensor = torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    shared = torchao.per_tensor_amax_to_scale(tensor.abs().amax())
    yield contest.against("torchao", lambda: torchao.nvfp4_quantize(tensor, 16, shared), at_least=20)


def keys() -> NDArray[Any]:
    """The bfloat16 input of the quantizers."""
    return np.random.default_rng(0).standard_normal(SHAPE, np.float32).astype(ml_dtypes.bfloat16)


def against_memory(contest: Contest, streaming: Streaming, needed: float) -> Iterator[Row]:
    """A quantizer against the loop that only moves its bytes; needed where both allocate alike."""
    import numba

    numba.set_num_threads(min(threads.count(), numba.config.NUMBA_NUM_THREADS))
    yield contest.against("streams the same bytes", streaming, at_least=needed)
    yield contest.against("streams, Numba allocates", streaming.by_numba)
    yield contest.against("streams, no allocation", streaming.into_memory_that_is_there)


def against_compiled(contest: Contest, torch: Any, x: NDArray[Any], mode: str) -> Row:
    """A quantizer against torch.compile of the same arithmetic, after a look at the bytes."""
    torch.set_num_threads(threads.count())
    tensor = torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    quantize = torch.compile(torch_golden(torch, mode), fullgraph=True)
    codes, scales = quantize(tensor)
    ours = contest.ours()
    same(ours.codes, codes.view(torch.uint8).numpy(), contest.work)
    same(ours.scales, scales.numpy(), contest.work)
    return contest.against("torch.compile", lambda: quantize(tensor), at_least=3)


#: the most that `diagnose` may take in units of `check` of the same dump: of a right one, and with a wrong byte
DIAGNOSES = {"int8_per_token_head": (277, 590), "fp8_per_token_head": (213, 734), "nvfp4": (699, 945)}


def diagnosing() -> Iterator[Row]:
    """`diagnose` of 64 tokens, 4 heads of 128, in units of `check` of the same dump: right, and with a wrong byte."""
    for mode, limits in DIAGNOSES.items():
        layout = kvf.layout("vllm-0.33", mode=mode, block_size=16, num_kv_heads=4, head_size=128)
        key, value = np.random.default_rng(0).normal(size=(2, 64, 4, 128)).astype(ml_dtypes.bfloat16)
        cache = kvf.PagedCache(layout, 5)
        cache.write(key, value, np.arange(64))
        for what, limit in zip(("right", "one wrong byte"), limits, strict=True):
            dump = kvf.Dump.from_arrays(
                key, value, cache.pages, np.arange(64), layout=layout, recipe=f"golden/{mode}",
                k_scale=cache.k_scale, v_scale=cache.v_scale,
            )  # fmt: skip
            contest = Contest(f"diagnose {mode}, {what}", key.size, lambda dump=dump: kvf.check(dump))
            row = contest.against("", lambda dump=dump: kvf.diagnose(dump))
            assert row.ratio is not None
            yield Row(contest.work, row.ratio, "checks", below=limit)
            cache.pages[2, 77] ^= 4


SECTIONS: dict[str, Callable[[], Iterator[Row]]] = {
    "elements": elements,
    "per_token_head": per_token_head,
    "nvfp4": nvfp4,
    "cache": cache_rates,
    "diagnose": diagnosing,
    "import": lambda: importing(ROOT),
    "commands": lambda: commands(ROOT, skip),
    "parallel": lambda: parallel(skip),
    "model": lambda: model_rates(skip),
    "ptx": lambda: emulation(ROOT, skip),
}


def machine() -> dict[str, str]:
    """What the rates depend on."""
    facts = {"cpu": _cpu(), "cores": str(threads.count()), "python": sys.version.split()[0]}
    for package in ("numpy", "numba", "ml_dtypes", "torch", "torchao"):
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            facts[package] = "absent"
    huge = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    facts["huge pages"] = huge.read_text().partition("[")[2].partition("]")[0] if huge.exists() else "unknown"
    facts["load"] = " ".join(f"{load:.1f}" for load in os.getloadavg()) if hasattr(os, "getloadavg") else "unknown"
    return facts


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or "unknown"


def as_json(rows: list[Row], facts: dict[str, str], differences: list[str], *, ok: bool) -> str:
    """The whole measurement as one JSON document."""
    measured = [{**asdict(row), "holds": row.holds} for row in rows]
    document = {"ok": ok, "machine": facts, "rows": measured, "skipped": _skipped, "differences": differences}
    return json.dumps(document, indent=2)


def as_text(rows: list[Row], facts: dict[str, str], differences: list[str], *, ok: bool) -> str:
    """The whole measurement as markdown: the machine, the table, how it was measured, what is missing."""
    faults = [
        f"{row.reference}: {row.faults[0]} / {row.faults[1]}" for row in rows if row.faults and "quant" in row.work
    ]
    parts = ["- " + ", ".join(f"{name} {fact}" for name, fact in facts.items()), table(rows), NOTES]
    if faults:
        parts.append("- Page faults per call, kvformat / reference: " + "; ".join(faults))
    parts += [f"- skipped: {line}" for line in _skipped]
    parts += [f"- MISSED: {line}" for line in differences]
    parts.append("All that is needed holds." if ok else "Something that is needed does not hold.")
    return "\n\n".join(parts)


def main() -> int:
    """Measure the sections that are asked for, print the table, say whether all that is needed holds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"{', '.join(SECTIONS)}; all without one")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of the table")
    asked = parser.parse_args()
    unknown = set(asked.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    rows: list[Row] = []
    differences: list[str] = []
    for name in asked.sections or SECTIONS:
        try:
            for row in SECTIONS[name]():
                print(" | ".join(row.cells()), file=sys.stderr)  # progress: the whole takes minutes
                rows.append(row)
        except Differs as error:
            differences.append(str(error))
    ok = all(row.holds for row in rows) and not differences and bool(rows)
    facts = machine()
    print(as_json(rows, facts, differences, ok=ok) if asked.json else as_text(rows, facts, differences, ok=ok))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())

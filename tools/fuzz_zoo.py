"""Measure the search of `kvformat fuzz` on the zoo, and write what spec/fuzz.md is made from.

    python tools/fuzz_zoo.py broken --seeds 5     every broken kernel with five seeds
    python tools/fuzz_zoo.py right                no right kernel may be accused: 20,000 examples each
    python tools/fuzz_zoo.py normal               the same kernels on numpy.random.normal data, same budget

Each writes spec/evidence/fuzz-<what>.txt, line by line as it goes, and fuzz-<what>.json at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from kvformat.fuzz.candidate import recognise
from kvformat.fuzz.case import Case
from kvformat.fuzz.judge import Judge
from kvformat.fuzz.plan import Plan, make
from kvformat.fuzz.strategies import DTYPES, cast
from kvformat.fuzz.zoo import scoreboard
from kvformat.fuzz.zoo.catalogue import kernels
from kvformat.fuzz.zoo.entry import Kernel

EVIDENCE = ROOT / "spec" / "evidence"
#: examples of a right kernel: in NumPy or torch, and where Triton's interpreter runs it
RIGHT, RIGHT_SLOW = 20_000, 1_000
#: seconds that random data has for each kernel
NORMAL_BUDGET = 3.0


class Log:
    """Lines on stdout and in a file."""

    def __init__(self, path: Path, title: str) -> None:
        path.parent.mkdir(exist_ok=True)
        self._file = path.open("w", encoding="utf-8")
        packages = ", ".join(f"{name} {version(name)}" for name in ("numpy", "ml_dtypes", "numba", "hypothesis"))
        when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
        self(f"{title}\n{when} UTC, Python {platform.python_version()}, {packages}, {os.cpu_count()} cores, shared\n")

    def __call__(self, line: str) -> None:
        """Write one line."""
        print(line, flush=True)
        self._file.write(f"{line}\n")
        self._file.flush()


def broken(log: Log, seeds: int, only: str | None) -> dict[str, Any]:
    """Every broken kernel, once with each seed."""

    def done(row: scoreboard.Row) -> None:
        seconds = " ".join(f"{each:.2f}" for each in row.seconds)
        log(f"{row.caught:>4}  {row.name}, {row.kind}, {row.mode}: {seconds} s; {row.size}")

    chosen = [kernel for kernel in kernels() if kernel.fault is not None and _wanted(kernel, only)]
    board = scoreboard.run(tuple(range(seeds)), chosen=chosen, done=done)
    log(f"\n{board.verdict}")
    return board.to_json()


def right(log: Log, examples: int | None, only: str | None) -> dict[str, Any]:
    """Every right kernel, 20,000 examples each."""

    def done(row: scoreboard.Row) -> None:
        log(f"{row.caught}  {row.name}, {row.kind}, {row.mode}: {row.examples:,} examples, {row.slowest:.0f} s")

    rows: list[scoreboard.Row] = []
    chosen = [kernel for kernel in kernels() if kernel.fault is None and _wanted(kernel, only)]
    for kernel in sorted(chosen, key=lambda kernel: kernel.kind):
        count = examples or (RIGHT_SLOW if kernel.slow else RIGHT)
        rows += scoreboard.run((0,), chosen=[kernel], examples=count, done=done).rows
    board = scoreboard.Scoreboard(tuple(rows), (0,))
    log(f"\n{board.verdict}")
    return board.to_json()


def normal(log: Log, only: str | None) -> dict[str, Any]:
    """Every broken kernel on plain random data, and by the search, with the same budget."""
    rows = []
    for kernel in (kernel for kernel in kernels() if kernel.fault is not None and _wanted(kernel, only)):
        target = recognise(kernel.function, kind=kernel.kind, device=kernel.options.get("torch"))
        head_dims = kernel.options.get("head_dims")
        plan = make(target, mode=kernel.mode, head_sizes=head_dims)
        found, tried = _random_search(plan, NORMAL_BUDGET)
        (row,) = scoreboard.run((0,), chosen=[kernel], budget=NORMAL_BUDGET).rows
        both = {"name": kernel.name, "kind": kernel.kind, "mode": kernel.mode, "fault": kernel.fault}
        rows.append({**both, "random": found, "examples": tried, "search": bool(row.found)})
        log(f"{'found' if found else '-----':>5}  {kernel.name}, {kernel.kind}, {kernel.mode}: {tried} examples")
    counted = {what: sum(row[what] for row in rows) for what in ("random", "search")}
    found = f"random data {counted['random']}, the search {counted['search']}"
    log(f"\nof {len(rows)} broken kernels, in {NORMAL_BUDGET:g} s each: {found}")
    return {"budget": NORMAL_BUDGET, **counted, "of": len(rows), "kernels": rows}


def _random_search(plan: Plan, budget: float) -> tuple[bool, int]:
    """Whether standard normal K and V in pages of an ordinary shape show the fault: what a kernel's test often is."""
    generator, judge = np.random.default_rng(0), Judge(plan.candidate, plan.recipe, 60.0)
    judge.judge(_random_case(plan, generator, 0))
    start, number = time.monotonic(), 0
    while time.monotonic() - start < budget:
        number += 1
        if judge.judge(_random_case(plan, generator, number)) is not None:
            return True, number
    return False, number


def _random_case(plan: Plan, generator: np.random.Generator, number: int) -> Case:
    dtype = DTYPES[number % len(DTYPES)]
    size = 64 if 64 in plan.head_sizes else plan.head_sizes[0]
    key, value = (cast(generator.standard_normal((16, 2, size)), dtype) for _ in "kv")
    if plan.candidate.kind == "quantizer":
        return plan.quantizer_case(key, 0.02 if plan.scale_given[0] else None)
    choices = {name: values[number % len(values)] for name, values in plan.choices.items()}
    where = plan.layout_of(block_size=16, num_kv_heads=2, head_size=size, **choices)
    scales = [
        np.float32(np.abs(side.astype(np.float32)).max() / 448) if plan.scale_given[0] else None
        for side in (key, value)
    ]
    more: dict[str, Any] = {"num_blocks": 4, "k_scale": scales[0], "v_scale": scales[1], "fill": 0}
    if plan.candidate.kind == "reader":
        return plan.reader_case(key, value, where, generator.permutation(4), **more)
    return Case(key, value, generator.permutation(64)[:16].astype(np.int64), where, **more)


def _wanted(kernel: Kernel, only: str | None) -> bool:
    return only is None or only in f"{kernel.name} {kernel.kind} {kernel.mode} {kernel.fault}"


def main() -> int:
    """Run one command line and return its exit status."""
    parser = argparse.ArgumentParser(description="Measure the search on the zoo.")
    parser.add_argument("what", choices=("broken", "right", "normal"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--examples", type=int, help="of a right kernel")
    parser.add_argument("--only", help="kernels whose name, kind, mode or fault contains this")
    parser.add_argument("--output", type=Path, default=EVIDENCE, metavar="DIR")
    given = parser.parse_args()
    title = f"python tools/fuzz_zoo.py {' '.join(sys.argv[1:])}"
    log = Log(given.output / f"fuzz-{given.what}.txt", title)
    measured = {
        "broken": lambda: broken(log, given.seeds, given.only),
        "right": lambda: right(log, given.examples, given.only),
        "normal": lambda: normal(log, given.only),
    }[given.what]()
    (given.output / f"fuzz-{given.what}.json").write_text(lined(measured), encoding="utf-8")
    return 0


def lined(measured: dict[str, Any]) -> str:
    """JSON with a line for each kernel, so that a change shows as one."""
    rows = measured.pop("kernels")
    head = json.dumps(measured)[:-1]
    return f'{head}, "kernels": [\n' + ",\n".join(map(json.dumps, rows)) + "\n]}\n"


if __name__ == "__main__":
    sys.exit(main())

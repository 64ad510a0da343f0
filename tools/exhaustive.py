"""Runs the sweep over all 2^32 float32 inputs outside pytest and writes its log.

    python tools/exhaustive.py                      every format, log to spec/evidence/exhaustive.txt
    python tools/exhaustive.py e4m3 uint4 --log FILE     some; those without a third party against the exact table
    python tools/exhaustive.py e4m3fn --stop 0x1000000 --log -     a slice, to the terminal only

Needs the `test` extra and g++. Exit status 0: no mismatch; 1: some.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from kvformat.elements import sweep as exact_table
from kvformat.elements.formats import ELEMENTS
from tests.exhaustive.sweep import ALL, CASES, HEADINGS, cuda_version, lines, sweep


def cpu_model() -> str:
    """The processor's own name where the system tells it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def header() -> list[str]:
    """Who compared what with whom, on what."""
    names = ("kvformat", "numpy", "ml_dtypes", "numba", "llvmlite", "nvidia-cuda-runtime")
    versions = []
    for name in names:
        try:
            versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            versions.append(f"{name} (from the source tree)")
    return [
        "kvformat.encode on all 2^32 float32 inputs. Regenerate with: python tools/exhaustive.py",
        "Numbers are compared bit for bit. A NaN input must give kvformat's one canonical code; where the authority",
        "gives another NaN code (or, ml_dtypes into e2m1fn, a zero) that is counted, not judged. Not judged either:",
        "zeros, subnormal inputs and ties of e8m0fnu under nearest_even, where ml_dtypes follows another policy;",
        "`kvformat sweep e8m0fnu` compares those with an exact table. Formats that no third party has are compared",
        "with that table alone: it is made by exact fractions, border by border.",
        "",
        f"date      {datetime.now(UTC):%Y-%m-%d}",
        f"python    {platform.python_version()} on {platform.system()} {platform.machine()}",
        f"packages  {', '.join(versions)}",
        f"CUDA      headers {cuda_version()}",
        f"cpu       {cpu_model()}, {os.cpu_count()} cores",
        "",
        *HEADINGS,
    ]


def main() -> int:
    """Sweep, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("formats", nargs="*", metavar="FORMAT", help=f"of {', '.join(ELEMENTS)}; default all")
    parser.add_argument("--start", type=lambda text: int(text, 0), default=0, help="first input, as its bits")
    parser.add_argument("--stop", type=lambda text: int(text, 0), default=ALL, help="one past the last input")
    parser.add_argument("--workers", type=int, default=None, help="processes; default: the cores there are")
    parser.add_argument("--log", default=str(ROOT / "spec" / "evidence" / "exhaustive.txt"), help="file, or -")
    options = parser.parse_args()
    if unknown := sorted(set(options.formats) - set(ELEMENTS)):
        parser.error(f"unknown format {', '.join(unknown)}; known: {', '.join(ELEMENTS)}")
    if not 0 <= options.start < options.stop <= ALL:
        parser.error("inputs are 0 <= start < stop <= 2**32")

    began = time.perf_counter()
    text, wrong = header(), 0
    print("\n".join(text), flush=True)
    chosen = options.formats or list(ELEMENTS)
    for name in (each for each in chosen if each in CASES):
        counts = sweep(name, start=options.start, stop=options.stop, workers=options.workers, log=progress)
        for line in lines(counts):
            print(line, flush=True)
            text.append(line)
        wrong += sum(count.mismatches + count.nan_mismatches for count in counts.values())
    whole = (options.start, options.stop) == (0, ALL)
    for name in (each for each in chosen if each not in CASES and whole):
        report = exact_table.run(name)
        print(report, flush=True)
        text.append(str(report))
        wrong += report.mismatches
    text += ["", f"{wrong} mismatches in all; {time.perf_counter() - began:.0f} s"]
    print(text[-1])
    if options.log != "-":
        log = Path(options.log)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("\n".join(text) + "\n")
    return 1 if wrong else 0


def progress(line: str) -> None:
    """Where the sweep is, for whoever watches; no part of the log."""
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

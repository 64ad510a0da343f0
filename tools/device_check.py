"""Checks the kernels on a GPU: codecs, bytes, attention, bandwidth, single instructions. One table, one JSON.

    PYTHONPATH=. python tools/device_check.py OUT [--only codec,bytes,operators,attention,bandwidth,instructions,table]
        [--dry-run]

OUT is a folder: device_check.json holds every figure with the GPU and the versions, approximations.npz what the
approximate instructions gave, both small enough to carry. Exit status 1 if something differed. Made for six minutes on
one H100 or H200; a part for which no time is left is named as not run, never as passed. `--dry-run` needs no GPU: it
builds the inputs of every part and compiles every kernel for sm_90, and measures nothing.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton

sys.path.insert(0, str(Path(__file__).parents[1]))

import kvformat as kvf
from tools.device.attention import check_attention
from tools.device.bandwidth import check_bandwidth
from tools.device.codecs import check_codecs
from tools.device.instructions import record_instructions
from tools.device.operators import check_operators
from tools.device.pages import check_bytes
from tools.device.run import Run
from tools.device.table import check_table

PARTS = {
    "codec": check_codecs,
    "bytes": check_bytes,
    "operators": check_operators,
    "attention": check_attention,
    "bandwidth": check_bandwidth,
    "instructions": record_instructions,
    "table": check_table,
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

"""Run adapters: execute the engines' code, compare, write logs, vectors and what the package says of them.

    python -m tests.engines [ADAPTER ...]

Status 1 where a recipe differs from the code that it describes.
"""

from __future__ import annotations

import datetime as dt
import importlib
import sys
import time
from importlib import metadata
from typing import Any

from kvformat.ptx import toolchain
from tests.engines import record
from tests.engines.judging import Outcome, judge

ADAPTERS = (
    "vllm_csrc",
    "vllm_latent",
    "vllm_indexer",
    "vllm_nvfp4",
    "vllm_triton",
    "vllm_torch",
    "vllm_cpu",
    "vllm_cpu_32",
    "lmcache",
    "transformer_engine",
    "torchao",
    "modelopt",
    "compressed_tensors",
    "ocp",
    "sglang_torch",
    "sglang_pool",
    "sglang_triton",
    "ggml",
    "flashinfer",
    "flashinfer_trace",
    "vllm_fused",
)


def say(line: str) -> None:
    """One line, at once: a run takes minutes."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(wanted: list[str]) -> int:
    """Run the adapters that are named, or all."""
    unknown = sorted(set(wanted) - set(ADAPTERS))
    if unknown:
        say(f"no adapter {unknown[0]}; there are {', '.join(ADAPTERS)}")
        return 2
    differing = 0
    for name in wanted or ADAPTERS:
        differing += run(name)
    record.collect()
    say(f"==> {differing} comparisons differ" if differing else "==> every comparison holds")
    return 1 if differing else 0


def run(name: str) -> int:
    """Run one adapter; the number of comparisons that differ."""
    adapter = importlib.import_module(f"tests.engines.{name}")
    say(f"==> {name}: {adapter.SOURCE.requirement}")
    outcomes: list[Outcome] = []
    start = time.monotonic()
    for answer in adapter.answers():
        outcome = judge(answer)
        outcomes.append(outcome)
        verdict = f"{outcome.differ:,} DIFFER: {outcome.first}" if outcome.differ else "equal"
        say(
            f"[{time.monotonic() - start:5.0f}s] {outcome.recipe} {outcome.how}, {outcome.function}, {outcome.dtype}"
            f"{', ' + outcome.layout if outcome.layout else ''}: {outcome.compared:,} {verdict}",
        )
    record.write(name, _head(adapter), outcomes)
    return sum(each.differ > 0 for each in outcomes)


def _head(adapter: Any) -> dict[str, Any]:
    source = adapter.SOURCE
    tools = {name: metadata.version(name) for name in ("kvformat", "numpy", "torch", "triton")}
    compiler = toolchain.run([toolchain.nvcc(), "--version"], limit=60).stdout.strip().splitlines()[-1]
    return {
        "engine": source.engine,
        "version": source.version,
        "file": source.file,
        "sha256": source.sha256,
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "tools": {**tools, "nvcc": compiler},
    }


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

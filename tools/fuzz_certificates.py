"""Fuzz the certificates of kvformat/simulate/certificates.py and print how close each one comes to its bound.

    python tools/fuzz_certificates.py [--examples 100000] [--log spec/evidence/certificates.txt]

Status 1 if one is violated: a ratio above 1. Hypothesis draws the cases from a fixed seed and is told to come close.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import hypothesis
import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings, target

import kvformat
from tests.simulate import certified


class Tightest:
    """The largest ratio by certificate, and how many cases were judged."""

    def __init__(self) -> None:
        self.cases = 0
        self.ratios: dict[str, float] = {}

    def add(self, ratios: Mapping[str, float]) -> None:
        """Take one case in."""
        self.cases += 1
        for name, ratio in ratios.items():
            self.ratios[name] = max(ratio, self.ratios.get(name, 0.0))
            target(ratio, label=name)


def fuzz(examples: int, strategy: object, judge: Callable[..., Mapping[str, float]]) -> Tightest:
    """Run that many cases."""
    tightest = Tightest()

    @seed(0)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.target),
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def judged(case: object) -> None:
        tightest.add(judge(case))

    judged()
    return tightest


def main() -> int:
    """Run one command line and return its exit status."""
    parser = argparse.ArgumentParser(description="Fuzz the certificates.")
    parser.add_argument("--examples", type=int, default=100_000)
    parser.add_argument("--log", type=Path, help="write the lines to this file as well")
    arguments = parser.parse_args()
    recipes = certified.certified_recipes()
    began = time.monotonic()
    runs = {
        "from page codes and scales": fuzz(arguments.examples, certified.cases(recipes), certified.ratios),
        "from logit errors alone": fuzz(
            arguments.examples, certified.perturbations(), lambda pair: certified.softmax_ratios(*pair)
        ),
        "eviction": fuzz(arguments.examples, certified.evictions(), lambda case: certified.eviction_ratios(*case)),
    }
    lines = [
        f"tools/fuzz_certificates.py --examples {arguments.examples}",
        (
            f"kvformat {kvformat.__version__}, python {platform.python_version()}, numpy {np.__version__},"
            f" hypothesis {hypothesis.__version__}, {time.monotonic() - began:.0f} s, {len(recipes)} recipes"
        ),
    ]
    for title, run in runs.items():
        lines += ["", f"{title}: {run.cases:,} cases"]
        lines += [f"  {name:<30} largest value / bound {ratio:.6f}" for name, ratio in run.ratios.items()]
    violated = [name for run in runs.values() for name, ratio in run.ratios.items() if ratio > 1]
    lines += ["", f"VIOLATED: {', '.join(violated)}" if violated else "none violated"]
    print("\n".join(lines))
    if arguments.log:
        arguments.log.write_text("\n".join(lines) + "\n")
    return bool(violated)


if __name__ == "__main__":
    sys.exit(main())

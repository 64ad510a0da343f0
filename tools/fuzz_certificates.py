"""Fuzz the certificates and the bound that judges outputs, and print how close each one comes to its bound.

    python tools/fuzz_certificates.py [--cases 100000] [--log spec/evidence/certificates.txt]

Status 1 if one is violated: a ratio above 1. Hypothesis draws examples from a fixed seed, and is told which ones came
close; each example is judged in ten variants. All recipes of the catalogue that have a certificate take part, with
scales computed and, where a recipe takes one, given.
"""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import hypothesis
import numpy as np
from hypothesis import HealthCheck, Phase, given, seed, settings, target

import kvformat
from tests.attention import certified, rounded

KINDS = ("from page codes and scales", "from logit errors alone", "eviction", "the worst kernels of the model")


class Tightest:
    """The largest ratio by certificate, and how many cases were judged."""

    def __init__(self) -> None:
        self.cases = 0
        self.ratios: dict[str, float] = {}

    def add(self, all_ratios: Sequence[Mapping[str, float]]) -> None:
        """Take the cases of one example in."""
        self.cases += len(all_ratios)
        for name in all_ratios[0]:
            largest = max(ratios[name] for ratios in all_ratios)
            self.ratios[name] = max(largest, self.ratios.get(name, 0.0))
            target(largest, label=name)

    def lines(self, title: str) -> list[str]:
        """What is printed of it."""
        found = [f"  {name:<36} largest value / bound {ratio:.6f}" for name, ratio in self.ratios.items()]
        return ["", f"{title}: {self.cases:,} cases", *found]


def fuzz(examples: int, strategy: object, judge: Callable[..., Sequence[Mapping[str, float]]]) -> Tightest:
    """Run that many examples."""
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
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--kind", action="append", choices=KINDS, help="only this kind; may be repeated")
    parser.add_argument("--log", type=Path, help="append the lines to this file as well")
    arguments = parser.parse_args()
    recipes = certified.certified_recipes()
    judged = {
        KINDS[0]: (
            certified.cases(recipes),
            lambda case: [certified.ratios(each) for each in certified.case_variants(case)],
        ),
        KINDS[1]: (
            certified.perturbations(),
            lambda pair: [certified.softmax_ratios(*each) for each in certified.error_variants(*pair)],
        ),
        KINDS[2]: (
            certified.evictions(),
            lambda case: [certified.eviction_ratios(*each) for each in certified.error_variants(*case)],
        ),
        KINDS[3]: (
            rounded.cases(),
            lambda case: [rounded.ratios(each) for each in rounded.case_variants(case)],
        ),
    }
    kinds = arguments.kind or KINDS
    lines = [
        " ".join(["tools/fuzz_certificates.py --cases", str(arguments.cases), *(f"--kind {kind!r}" for kind in kinds)]),
        (
            f"kvformat {kvformat.__version__}, python {platform.python_version()}, numpy {np.__version__}, "
            f"hypothesis {hypothesis.__version__}, {len(recipes)} recipes, {certified.VARIANTS} cases per example"
        ),
    ]
    violated = []
    for title in kinds:
        strategy, judge = judged[title]
        run = fuzz(-(-arguments.cases // certified.VARIANTS), strategy, judge)
        lines += run.lines(title)
        violated += [name for name, ratio in run.ratios.items() if ratio > 1]
        print("\n".join(lines[-len(run.ratios) - 2 :]), flush=True)
    lines += ["", f"VIOLATED: {', '.join(violated)}" if violated else "none violated"]
    print(lines[-1])
    if arguments.log:
        with arguments.log.open("a", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n\n")
    return bool(violated)


if __name__ == "__main__":
    sys.exit(main())

"""Times two ways of doing the same work against each other, and holds what came out as rows of a table."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median, quantiles
from typing import Any

try:
    import resource
except ImportError:  # not on Windows: page faults are then not counted
    resource = None  # type: ignore[assignment]

Call = Callable[[], Any]

#: seconds that one comparison may take, and how many pairs it takes at least and at most
BUDGET = 5.0
FEWEST, MOST = 9, 201


class Differs(Exception):  # noqa: N818 it is an answer: the two do not do the same work
    """The two sides of a comparison give different bytes."""


@dataclass(frozen=True)
class Row:
    """One line of the table: a measurement of kvformat, one of a reference, their ratio and what it must be."""

    work: str
    rate: float
    unit: str
    reference: str = ""
    reference_rate: float | None = None
    ratio: float | None = None
    #: the quartiles of the ratio over all pairs
    spread: tuple[float, float] | None = None
    #: the ratio needed; None: reported only
    at_least: float | None = None
    #: the time needed, of what has no reference
    below: float | None = None
    #: first-touched pages per call, kvformat and reference
    faults: tuple[int, int] | None = None

    @property
    def holds(self) -> bool:
        """What is needed is reached; true of what is reported only."""
        if self.at_least is not None:
            return self.ratio is not None and self.ratio >= self.at_least
        return self.below is None or self.rate < self.below

    def cells(self) -> list[str]:
        """The row as the table prints it."""
        ratio = "" if self.ratio is None else f"{self.ratio:.2f}"
        if self.spread is not None:
            ratio += f" ({self.spread[0]:.2f} .. {self.spread[1]:.2f})"
        needed = "-" if self.below is None else f"< {self.below:g} {self.unit}"
        needed = needed if self.at_least is None else f">= {self.at_least:g}"
        reference = "" if self.reference_rate is None else f"{self.reference_rate:.3f} {self.unit}"
        verdict = "" if self.holds else " **missed**"
        return [self.work, f"{self.rate:.3f} {self.unit}", self.reference, reference, ratio, needed + verdict]


@dataclass(frozen=True)
class Contest:
    """Work that kvformat and references do: its name, the number of elements, and kvformat's way of doing it."""

    work: str
    elements: int
    ours: Call
    #: seconds of rest before each timing: the OpenMP threads of torch and of Numba's loops spin on a core for up to
    #: tens of milliseconds after their work, inside what would be timed next
    rest: float = 0.0

    def against(self, reference: str, theirs: Call, *, at_least: float | None = None) -> Row:
        """Time both in turn, A B A B, each with its own output; the ratio is the median over the pairs."""
        pairs = self._pairs(theirs)
        times = [(self._seconds(self.ours), self._seconds(theirs)) for _ in range(pairs)]
        ratios = [their_time / our_time for our_time, their_time in times]
        low, _, high = quantiles(ratios, n=4)
        return Row(
            work=self.work,
            rate=self.elements / median(ours for ours, _ in times) / 1e9,
            unit="G/s",
            reference=reference,
            reference_rate=self.elements / median(theirs for _, theirs in times) / 1e9,
            ratio=median(ratios),
            spread=(low, high),
            at_least=at_least,
            faults=(_faults(self.ours), _faults(theirs)),
        )

    def _seconds(self, call: Call) -> float:
        time.sleep(self.rest)
        start = time.perf_counter()
        result = call()
        elapsed = time.perf_counter() - start
        del result  # giving the memory back is not part of either side
        return elapsed

    def _pairs(self, theirs: Call) -> int:
        """Warm both up (compilation, thread pools, the allocator) and see how many pairs the budget allows."""
        for call in (self.ours, theirs):
            call()
        pair = self._seconds(self.ours) + self._seconds(theirs) + 2 * self.rest
        return max(FEWEST, min(MOST, int(BUDGET / pair)))


def _faults(call: Call) -> int:
    if resource is None:
        return -1
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    result = call()
    after = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    del result
    return after - before


HEADER = ["work", "kvformat", "reference", "reference's", "ratio (quartiles)", "needed"]


def table(rows: list[Row]) -> str:
    """The rows as a markdown table."""
    lines = [HEADER, *(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADER))]
    padded = [" | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    rule = " | ".join("-" * width for width in widths)
    return "\n".join(f"| {line} |" for line in (padded[0], rule, *padded[1:]))

"""Tries the search on the zoo: which faults it catches, how fast and how small, and that it accuses no right kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any

from kvformat.fuzz.report import FuzzReport
from kvformat.fuzz.runner import fuzz
from kvformat.fuzz.zoo.catalogue import kernels
from kvformat.fuzz.zoo.entry import Kernel
from kvformat.tasks import Journal
from kvformat.tasks import run as tasks_run
from kvformat.tasks.runner import Task, Watch

#: seconds in which a fault must be caught
BUDGET = 20.0
#: examples of a right kernel, where nothing is said; the interpreter is slow
RIGHT_EXAMPLES, SLOW_EXAMPLES = 500, 50

#: what no fault of the zoo shows as
_NO_FAULT = ("no answer", "wrong answer")


@dataclass(frozen=True)
class Row:
    """What became of one kernel, over all seeds."""

    name: str
    kind: str
    mode: str
    fault: str | None
    source: str
    meaning: str
    seeds: int
    #: seeds whose search failed on it
    found: int
    #: seconds until the first failure, or of the whole search, by seed
    seconds: tuple[float, ...]
    #: the most that one search tried
    examples: int
    #: of the first seed's counterexample, in words, and its tokens, heads and elements that are not zero
    size: str
    tokens: int
    heads: int
    nonzero: int
    message: str
    #: differences that the exact twin denied, over all seeds: a fault of kvformat
    unconfirmed: int = 0

    @property
    def ok(self) -> bool:
        """Every search caught the fault; or none accused a right kernel. The twin denied nothing."""
        return self.found == (0 if self.fault is None else self.seeds) and not self.unconfirmed

    @property
    def slowest(self) -> float:
        """Seconds of the slowest search."""
        return max(self.seconds)

    @property
    def caught(self) -> str:
        """In words."""
        denied = f"DENIED {self.unconfirmed}" if self.unconfirmed else ""
        if self.fault is None and not self.found:
            return denied or "right"
        found = f"{self.found}/{self.seeds}"
        return " ".join(filter(None, ("" if self.fault else "ACCUSED", found, denied)))


@dataclass(frozen=True)
class Scoreboard:
    """The rows of all kernels."""

    rows: tuple[Row, ...]
    seeds: tuple[int, ...]

    @property
    def ok(self) -> bool:
        """All faults caught, no right kernel accused, nothing denied by the twin, and at least one kernel tried."""
        return bool(self.rows) and all(row.ok for row in self.rows)

    @property
    def verdict(self) -> str:
        """One sentence."""
        broken, right = self.broken, [row for row in self.rows if row.fault is None]
        caught, accused = sum(row.found == row.seeds for row in broken), sum(row.found > 0 for row in right)
        parts = []
        if broken:
            times = [seconds for row in broken for seconds in row.seconds]
            faults = len({row.fault for row in broken})
            parts.append(
                f"{caught} of {len(broken)} broken kernels ({faults} faults) caught with each of"
                f" {len(self.seeds)} seeds, median {median(times):.2f} s, slowest {max(times):.1f} s"
            )
        if right:
            tried = sum(row.examples for row in right)
            parts.append(f"{accused} of {len(right)} right kernels accused in {tried:,} examples a seed")
        denied = sum(row.unconfirmed for row in self.rows)
        if denied:
            parts.append(f"{denied:,} differences that the exact twin denies")
        return "; ".join(parts)

    @property
    def broken(self) -> list[Row]:
        """The rows of kernels with a fault."""
        return [row for row in self.rows if row.fault is not None]

    def to_json(self) -> dict[str, Any]:
        """The rows as plain data."""
        return {"seeds": list(self.seeds), "verdict": self.verdict, "kernels": [asdict(row) for row in self.rows]}


def run(
    seeds: tuple[int, ...] = (0,),
    *,
    only: str | None = None,
    chosen: Sequence[Kernel] | None = None,
    budget: float | None = None,
    examples: int | None = None,
    journal: Journal | None = None,
    watch: Watch | None = None,
    done: Callable[[Row], None] | None = None,
) -> Scoreboard:
    """Search every kernel of the zoo whose name, kind, mode or fault contains `only`, or `chosen`, once with each seed.

    budget: seconds for a broken kernel, three times as many where an interpreter runs it. examples: of a right one.
    journal, watch: of `kvformat.tasks.run`; a task is a kernel with all seeds. done: told each row.
    """
    every = kernels() if chosen is None else tuple(chosen)
    wanted = [place for place, kernel in enumerate(every) if only is None or only in _label(kernel)]
    search = partial(_row_at, chosen=chosen, seeds=seeds, budget=budget or BUDGET, examples=examples)
    about = f"{seeds} {budget} {examples}"
    tasks = [Task(f"zoo {place} {_label(every[place])} {about}", place, every[place].name) for place in wanted]
    rows = []
    for each in tasks_run(search, tasks, journal, watch=watch):
        rows.append(Row(**{**each, "seconds": tuple(each["seconds"])}))
        if done is not None:
            done(rows[-1])
    return Scoreboard(tuple(rows), seeds)


def _row_at(
    place: int, chosen: Sequence[Kernel] | None, seeds: tuple[int, ...], budget: float, examples: int | None
) -> dict[str, Any]:
    """The row of one kernel as plain data: of the zoo, or of `chosen`."""
    kernel = (kernels() if chosen is None else chosen)[place]
    return asdict(_row(kernel, seeds, budget, examples))


def _label(kernel: Kernel) -> str:
    return f"{kernel.name} {kernel.kind} {kernel.mode} {kernel.fault or 'right'}"


def _row(kernel: Kernel, seeds: tuple[int, ...], budget: float, examples: int | None) -> Row:
    reports = [_search(kernel, seed, budget, examples) for seed in seeds]
    found = [report for report in reports if report.finding is not None]
    if kernel.fault is not None:  # a kernel that raises is no kernel with that fault
        found = [report for report in found if report.finding and report.finding.fault not in _NO_FAULT]
    first = found[0] if found else reports[0]
    case = first.finding.case if first.finding else None
    return Row(
        kernel.name,
        kernel.kind,
        kernel.mode,
        kernel.fault,
        kernel.source,
        kernel.meaning,
        len(seeds),
        len(found),
        tuple(round(report.seconds_to_first, 3) for report in reports),
        max(report.examples for report in reports),
        first.size,
        case.key.shape[0] if case else 0,
        case.key.shape[1] if case else 0,
        case.nonzero if case else 0,
        first.finding.message if first.finding else "",
        sum(report.unconfirmed for report in reports),
    )


def _search(kernel: Kernel, seed: int, budget: float, examples: int | None) -> FuzzReport:
    limits: dict[str, Any] = {"budget": 3 * budget if kernel.slow else budget}
    if kernel.fault is None:
        limits = {"examples": examples or (SLOW_EXAMPLES if kernel.slow else RIGHT_EXAMPLES)}
    options = {"isolated": False, **kernel.options}  # these do not crash, and a call in a thread takes half the time
    return fuzz(kernel.function, mode=kernel.mode, kind=kernel.kind, seed=seed, **limits, **options)

"""What long commands share: --workers, --scheduler and --resume, progress, and what a stopped run says."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Annotated

import typer

from kvformat.cli import console
from kvformat.cli.outcome import complain, printable
from kvformat.errors import InputError
from kvformat.tasks.journal import Journal
from kvformat.tasks.runner import Watch
from kvformat.tasks.team import parallel, scheduler

Workers = Annotated[int | None, typer.Option(metavar="N", help="Processes that work; default: one for each core.")]
Scheduler = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="A Dask scheduler of yours, tcp://host:8786, in their place.")
]
Resume = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Results are kept there; a run that was stopped goes on.")
]

#: seconds after which a run that nobody watches says on stderr how far it is, and the slowest tasks are of interest
_LONG = 30.0
_SLOW = 10.0
_MANY = 8


@dataclass(frozen=True)
class Crew:
    """Who works on one command, as its options say."""

    workers: int | None = None
    scheduler: str | None = None
    resume: Path | None = None

    @contextmanager
    def at_work(self, what: str) -> Iterator[tuple[Journal, Watch]]:
        """A journal, and somebody who shows how far the run is. what: names the run: all that results depend on."""
        if self.workers is not None and self.scheduler is not None:
            raise InputError("--scheduler has workers of its own; leave --workers out")
        team = parallel(workers=self.workers) if self.scheduler is None else scheduler(self.scheduler)
        if self.workers == 1:
            team = _alone()
        journal: Journal | None = None
        start = monotonic()
        try:
            with Journal.opened(self.resume, what) as journal, team, _shown(what.partition(" ")[0]) as watch:
                yield journal, watch
        except BaseException:
            if journal is not None and journal.resumable is not None:
                complain(
                    f"{len(journal):,} results are kept; the same command with --resume {journal.resumable} goes on"
                )
            raise
        if monotonic() - start >= _SLOW and watch.total >= _MANY:
            slowest = ", ".join(f"{printable(label)} {seconds:.1f} s" for seconds, label in sorted(watch.slowest)[::-1])
            _tell(f"slowest: {slowest}" if slowest else "")


@contextmanager
def _alone() -> Iterator[None]:
    """This process does all of it, on one core."""
    from kvformat.tasks.runner import in_task

    token = in_task.set(True)
    try:
        yield
    finally:
        in_task.reset(token)


@contextmanager
def _shown(title: str) -> Iterator[Watch]:
    """A bar for a person, with the task that takes longest; a line now and then for a log."""
    if not sys.stderr.isatty():
        last = monotonic()

        def line(watch: Watch) -> None:
            nonlocal last
            if monotonic() - last >= _LONG:
                last = monotonic()
                _tell(f"{title}: {watch.done:,} of {watch.total:,} done{_longest(watch)}")

        yield Watch(line)
        return
    with console.progress(title) as advance:

        def move(watch: Watch) -> None:
            if advance is not None:
                advance(watch.done, watch.total, f"{title}{_longest(watch)}")

        yield Watch(move)


def _longest(watch: Watch) -> str:
    """The task that is out for the longest time, if it is long."""
    label, since = min(watch.running.items(), key=lambda item: item[1], default=("", monotonic()))
    seconds = monotonic() - since
    return f", {printable(os.path.basename(label))} for {seconds:.0f} s" if seconds >= 5 else ""  # noqa: PTH119 any label


def _tell(text: str) -> None:
    """A line for those who watch: on stderr, which no answer is on."""
    if text:
        complain(text)

"""Where text goes: rich on stdout, colours and progress bars only where a person watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

#: width of a pipe, which has none: tables are as wide as they need
_PIPE_WIDTH = 1000

#: told the pieces done and in all, and what the bar's title is from now on
Advance = Callable[..., None]


class _Console(Console):
    """A console that leaves it to the command line what the end of a pipe's reader means: rich's status 1 says more."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def stdout() -> Console:
    """A console that takes text as it is. Without a terminal, or with NO_COLOR, it prints no colours."""
    return _Console(markup=False, highlight=False, emoji=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)


def grid(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """An empty table with these columns; those in `right` hold numbers. Cells fold, nothing is cut off."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


@contextmanager
def progress(title: str) -> Iterator[Advance | None]:
    """A function (done, total) that moves a bar on stderr; None where no person watches stderr."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)

        def advance(done: int, total: int, title: str = title) -> None:
            bar.update(task, completed=done, total=total, description=title)

        yield advance

"""Conformance vectors with somebody's function, a task for each file."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict
from functools import partial
from pathlib import Path

from kvformat.fuzz.candidate import load
from kvformat.tasks import Journal
from kvformat.tasks import run as tasks_run
from kvformat.tasks.runner import Task, Watch
from kvformat.vectors.runs import Choice, Outcome, run
from kvformat.vectors.vectors import VectorSet


def run_files(
    vectors: VectorSet,
    names: Sequence[str],
    against: str,
    choice: Choice,
    journal: Journal | None = None,
    watch: Watch | None = None,
) -> Iterator[Outcome]:
    """The outcomes of all files, in order. against: MODULE:FUNCTION or FILE.py:FUNCTION, imported where it runs."""
    work = partial(_outcomes, folder=vectors.folder, against=against, choice=choice)
    entries = [vectors.find(name) for name in names]
    tasks = [Task(f"vectors {entry.path} {entry.sha256}", entry.path, entry.path) for entry in entries]
    for found in tasks_run(work, tasks, journal, watch=watch):
        yield from (Outcome(**each) for each in found)


def _outcomes(path: str, folder: Path, against: str, choice: Choice) -> list[dict[str, object]]:
    vectors = VectorSet.load(folder)
    with redirect_stdout(sys.stderr):  # what the function prints is no part of the answer
        return [asdict(each) for each in run(vectors, vectors.find(path), load(against), choice)]

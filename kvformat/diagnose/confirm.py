"""Confirms hypotheses that a sample brought up on all tokens of a dump, chunk by chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvformat.diagnose.bench import Bench
from kvformat.diagnose.judge import Candidate, Judge, Verdict
from kvformat.diagnose.remaps import SIDES, Frame, right_places
from kvformat.diagnose.sheet import Arithmetic, Choice, Geometry, Sheet
from kvformat.elements import threads

#: elements of a side that are looked at together; a hypothesis keeps some ten arrays of them
_CHUNK = 1 << 18


class Counts(NamedTuple):
    """What a hypothesis explains, in bytes."""

    explained: int
    total: int
    only: int
    wrong: int
    open: int
    allowance: int


def counted(verdicts: Sequence[Verdict]) -> list[Counts]:
    """The counts of verdicts on the same bytes; `only`: what none of the others explains."""
    explainers = np.zeros(verdicts[0].explained.shape, np.int64)
    for verdict in verdicts:
        explainers += verdict.explained
    return [
        Counts(
            explained=int(np.count_nonzero(each.explained)),
            total=each.explained.size,
            only=int(np.count_nonzero(each.explained & (explainers == 1))),
            wrong=each.wrong,
            open=each.open,
            allowance=each.allowance,
        )
        for each in verdicts
    ]


def confirm(
    sheet: Sheet, verdicts: Sequence[Verdict], slots: NDArray[np.int64], progress: Callable[[int, int], None] | None
) -> list[Counts]:
    """The counts of hypotheses of a sheet on the tokens `slots` of its dump."""
    settled = [_settled(sheet, verdict.candidate) for verdict in verdicts]
    totals = [Counts(0, 0, 0, 0, 0, 0)] * len(verdicts)
    dump = sheet.bench.dump
    step = max(1, _CHUNK // (dump.layout.num_kv_heads * max(dump.layout.head_size, dump.layout.head_size_v)))
    chunks = [slots[start : start + step] for start in range(0, len(slots), step)]
    done = 0
    with ThreadPoolExecutor(threads.count()) as pool:
        results = pool.map(lambda chunk: _on(sheet.bench, settled, chunk), chunks)
        for chunk, counts in zip(chunks, results, strict=True):
            totals = [Counts(*map(sum, zip(*pair, strict=True))) for pair in zip(totals, counts, strict=True)]
            done += len(chunk)
            if progress is not None:
                progress(done, len(slots))
    return totals


class _Settled(NamedTuple):
    """A hypothesis by what it is made of, side by side."""

    arithmetics: tuple[Arithmetic, Arithmetic]
    geometries: tuple[Geometry, Geometry]


def _settled(sheet: Sheet, candidate: Candidate) -> _Settled:
    choices = [candidate.choices[side] for side in SIDES]
    first, second = (sheet.settled(side, choice) for side, choice in zip(SIDES, choices, strict=True))
    return _Settled((first, second), (sheet.geometries[choices[0].geometry], sheet.geometries[choices[1].geometry]))


def _on(bench: Bench, settled: Sequence[_Settled], tokens: NDArray[np.int64]) -> list[Counts]:
    """The counts on some tokens."""
    dump = bench.dump
    frame = Frame(dump.layout, dump.slot_mapping[tokens], len(dump.pages))
    verdicts = []
    own = bench.on(tokens)
    for each in settled:
        sheet = Sheet(own, list(_geometries(each.geometries, frame)))
        for arithmetic in each.arithmetics:
            sheet.take(arithmetic)
        judge = Judge(sheet, dump.layout.order)
        candidate = Candidate({side: Choice(i, i) for i, side in enumerate(SIDES)}, 0, 0)
        verdicts.append(judge.verdict(candidate, bounds=judge.is_approximate(candidate)))
    return counted(verdicts)


def _geometries(wanted: Sequence[Geometry], frame: Frame) -> Iterator[Geometry]:
    for each in wanted:
        remap = each.variant.remap
        places = right_places(frame) if remap is None else remap.places(frame)
        assert places is not None
        yield each.at(places)

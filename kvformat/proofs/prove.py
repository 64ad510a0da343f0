"""`prove`: run two recipes on a complete domain, task by task, and count what differs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvformat.proofs.borders import between_borders
from kvformat.proofs.domains import GLOBAL_SCALES, LIFT, Domain, Rows, Stretch, domain, rows_of
from kvformat.proofs.found import Found, Pair, total
from kvformat.recipes.catalogue import recipe as find
from kvformat.recipes.program import Recipe
from kvformat.recipes.quantizer import Quantized, quantize
from kvformat.tasks import Journal
from kvformat.tasks import run as tasks_run
from kvformat.tasks.runner import Task, Watch

Array = NDArray[Any]

#: differing pairs that a task lists; more are only counted
MOST_LISTED = 1 << 12


@dataclass(frozen=True)
class Proof:
    """Two recipes on a complete domain. `equal` holds for all of it; otherwise `first` is the smallest difference.

    says: the domain in words, and why it is complete.
    """

    left: str
    right: str
    dtype: str
    says: tuple[str, ...]
    found: Found

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """The differences, smallest first; all of them if `listed`."""
        return self.found.pairs

    @property
    def equal(self) -> bool:
        """No code and no scale differs."""
        return not (self.found.different_codes or self.found.different_scales)

    @property
    def listed(self) -> bool:
        """Whether `pairs` has every difference."""
        return len(self.pairs) == self.found.different_codes + self.found.different_scales

    @property
    def first(self) -> Pair | None:
        """The difference with the smallest magnitude of its row, and then of x."""
        return self.pairs[0] if self.pairs else None

    def __str__(self) -> str:
        head = f"{self.left} and {self.right}, {self.dtype}: "
        if self.equal:
            verdict = f"EQUAL on all {self.found.codes:,} codes and {self.found.scales:,} scales"
        else:
            codes = f"{self.found.different_codes:,} of {self.found.codes:,} codes"
            verdict = f"DIFFERENT in {codes} and {self.found.different_scales:,} of {self.found.scales:,} scales"
        lines = [head + verdict, *(f"  {line}" for line in self.says)]
        if self.first is not None:
            lines.append(f"  the smallest: {self.first}")
        return "\n".join(lines)


def prove(
    left: str | Recipe,
    right: str | Recipe,
    dtype: str = "bfloat16",
    given: tuple[float, ...] = GLOBAL_SCALES,
    journal: Journal | None = None,
    watch: Watch | None = None,
) -> Proof:
    """Compare two recipes on every input that decides their bytes.

    Inside `with kvformat.parallel():` its tasks are given to several processes, or to any executor.

    Parameters
    ----------
    left, right : str or Recipe
        Recipes of one mode.
    dtype : {"bfloat16", "float16"}
        Of K and V.
    given : tuple of float
        Global scales, where the recipes have one.
    journal, watch
        Of `kvformat.tasks.run`.

    Raises
    ------
    InputError
        For recipes that no enumeration decides; see `kvformat.proofs.domains.domain`.

    """
    one, other = find(left), find(right)
    whole = domain(one, other, dtype, given)
    # the domain's tasks follow from the recipes as they are: they are what a result depends on
    decides = sha256(repr(whole).encode()).hexdigest()[:16]
    tasks = [Task(f"prove {decides} {stretch}", stretch, str(stretch)) for stretch in whole.tasks()]
    results = tasks_run(partial(run_as_json, domain=whole), tasks, journal, watch=watch)
    found = [Found.of_json(each) for each in results]
    pairs = sorted((pair for each in found for pair in each.pairs), key=lambda p: (p.amax, abs(p.x), p.x < 0))
    return Proof(one.name, other.name, dtype, whole.says, total(found, pairs))


def run_as_json(stretch: Stretch, domain: Domain) -> list[Any]:
    """`run`, as a journal keeps it."""
    return run(stretch, domain).to_json()


def run(task: Stretch, domain: Domain) -> Found:
    """One task: quantize its rows by both recipes and compare every code and scale that is part of the domain."""
    if task.kind == "borders":
        return between_borders(task, domain)
    found = []
    for rows in rows_of(task, domain):
        made = [quantize(rows.x, each, scale=rows.given) for each in (domain.left, domain.right)]
        found.append(_compared(task, rows, made[0], made[1]))
    return total(found, [pair for each in found for pair in each.pairs])


def _compared(task: Stretch, rows: Rows, left: Quantized, right: Quantized) -> Found:
    judge_codes, judge_scales = task.kind != "amaxes", task.kind in ("rows", "amaxes")
    amax = _carried(task, rows)
    codes = [each.codes[:, 0].view(np.uint8) for each in (left, right)]
    different = (codes[0] != codes[1]) & rows.counted if judge_codes else np.zeros_like(rows.counted)
    pairs = [
        _pair("code", amax[row], float(rows.x[row, 0, column]), [each[row, column] for each in codes], rows)
        for row, column in np.argwhere(different)[:MOST_LISTED]
    ]
    scales = [_patterns(each.scales).reshape(len(rows.x)) for each in (left, right)]
    apart = np.flatnonzero(scales[0] != scales[1]) if judge_scales else np.zeros(0, np.int64)
    pairs += [_pair("scale", amax[row], amax[row], [each[row] for each in scales], rows) for row in apart[:MOST_LISTED]]
    number = int(rows.counted.sum()) if judge_codes else 0
    return Found(number, len(rows.x) if judge_scales else 0, int(different.sum()), len(apart), tuple(pairs))


def _pair(what: str, amax: float, x: float, found: Sequence[Any], rows: Rows) -> Pair:
    left, right = map(int, found)
    return Pair(what, amax, x, left, right, rows.given)


def _patterns(scales: Array) -> Array:
    """Scales as stored: the bits of float32, or codes."""
    whole = np.ascontiguousarray(scales)
    return whole.view(np.uint32) if whole.dtype == np.float32 else whole


def _carried(task: Stretch, rows: Rows) -> list[float]:
    """The largest magnitude of each row, or the scale that it carries."""
    size = np.abs(rows.x[:, 0].astype(np.float32)).max(axis=1)
    return [float(each) for each in (size * np.float32(2.0**-LIFT) if task.kind == "given" else size)]

"""How many bits it takes to say what a hypothesis leaves over: the measure by which all of them are compared."""

from __future__ import annotations

from functools import cache
from math import inf, lgamma, log, log2

import numpy as np
from numpy.typing import NDArray

#: right bytes between two wrong ones that are said again rather than that a new run begins: a run costs some 20 bits
_GAP = 3
#: bits that another name must save before it is said instead of what the dump declares: one chance in a million
MARGIN = 20.0


@cache
def choose(n: int, m: int) -> float:
    """log2 of the number of ways to choose m of n."""
    return (lgamma(n + 1) - lgamma(m + 1) - lgamma(n - m + 1)) / log(2)


def of_choices(n: int, m: int, values: int = 2) -> float:
    """Bits to say which m of n operations gave another one of their admissible values than the nearest."""
    return log2(n + 1) + choose(n, m) + m * log2(max(values - 1, 1)) if m else 0.0


def of_exceptions(at: NDArray[np.int64], found: NDArray[np.uint8], known: int) -> float:
    """Bits to say bytes that a hypothesis has wrong: as runs, one by one, or all as one value.

    at: their places in `found`, ascending. known: how many bytes the hypothesis speaks of.
    """
    if not len(at):
        return 0.0
    which = log2(known + 1) + choose(known, len(at))
    values = found[at]
    scattered = which + 8.0 * (1 if (values == values[0]).all() else len(at))
    return min(scattered, _runs(at, found))


def _runs(at: NDArray[np.int64], found: NDArray[np.uint8]) -> float:
    """Runs of bytes: each says its place and its length, and its bytes, or the one value that all of it has."""
    breaks = np.flatnonzero(np.diff(at) > _GAP + 1)
    starts = at[np.concatenate([[0], breaks + 1])]
    ends = at[np.concatenate([breaks, [len(at) - 1]])] + 1
    lengths = ends - starts
    bounds = np.stack([starts, ends], axis=1).reshape(-1)
    padded = np.append(found, found[-1])  # an end may lie behind the last byte
    constant = np.minimum.reduceat(padded, bounds)[::2] == np.maximum.reduceat(padded, bounds)[::2]
    said = np.where(constant, 8, 8 * lengths)
    return float(len(starts) * (log2(len(found)) + 2) + (2 * np.floor(np.log2(lengths))).sum() + said.sum())


def of_silence(values: NDArray[np.uint8], held: NDArray[np.uint8] | None = None) -> float:
    """Bits to say bytes that a hypothesis is silent about: 8 each, or less where most are one value, or as before.

    held: what the pages held before at the same places, where that is known.
    """
    if not len(values):
        return 0.0
    fill = np.bincount(values, minlength=256).argmax()
    costs = [8.0 * len(values), 8.0 + _unlike(values != fill)]
    if held is not None:
        costs.append(_unlike(values != held))
    return 1.0 + min(costs)


def _unlike(unlike: NDArray[np.bool_]) -> float:
    """Bits to say which bytes are unlike, one by one or in runs, and what they are."""
    n, m = len(unlike), int(np.count_nonzero(unlike))
    runs = int(np.count_nonzero(np.diff(unlike.view(np.int8)))) + 1
    return log2(n + 1) + min(choose(n, m), runs * log2(n + 1)) + 8.0 * m


def of_some(n: int, m: int) -> float:
    """Bits to say which m of n."""
    return log2(n + 1) + choose(n, m)


def of_interval(count: int) -> float:
    """Bits to say one interval of places on an axis of so many."""
    return log2(count * (count + 1) / 2) if count else inf

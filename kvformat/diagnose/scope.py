"""Where a fault holds: on all of a side, or on some of its tokens, slots, blocks, heads or dims."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvformat.diagnose import length
from kvformat.verify.identify import Side

Axis = Literal["token", "slot", "block", "head", "dim"]
Ints = NDArray[np.int64]

AXES: tuple[Axis, ...] = ("token", "slot", "block", "head", "dim")


@dataclass(frozen=True)
class Scope:
    """An interval of one axis, its ends included, or some of its numbers: those of the dump for tokens and blocks."""

    axis: Axis
    first: int
    last: int
    #: the last of all
    open_ended: bool = False
    #: the numbers themselves, ascending, where they are no interval
    numbers: tuple[int, ...] = ()

    def holds(self, along: Mapping[Axis, Ints]) -> NDArray[np.bool_]:
        """Which bytes lie in it. along: by axis the number of each byte, -1 for none."""
        numbers = along[self.axis]
        if self.numbers:
            return np.isin(numbers, self.numbers)
        return (numbers >= self.first) & (numbers <= self.last)

    def bits(self, count: int) -> float:
        """Bits to say it, on an axis of so many."""
        return 1 + (length.of_some(count, len(self.numbers)) if self.numbers else length.of_interval(count))

    def __str__(self) -> str:
        of = " of each block" if self.axis == "slot" else ""
        if self.numbers:
            shown = ", ".join(map(str, self.numbers[:6]))
            return f"{self.axis}s {shown}{f' and {len(self.numbers) - 6} more' if len(self.numbers) > 6 else ''}{of}"
        numbers = str(self.first) if self.first == self.last else f"{self.first}..{self.last}"
        return f"{self.axis}{'' if self.first == self.last else 's'} {numbers}{of}"


class Gain(NamedTuple):
    """Bytes that a hypothesis has right on some sides, in a scope (None: everywhere), beyond the declared one."""

    bytes: int
    sides: tuple[Side, ...]
    scope: Scope | None


class Change(NamedTuple):
    """On one side, the bytes that a hypothesis has right and the declared one has not (+1), or the reverse (-1)."""

    delta: NDArray[np.int8]
    #: by axis, the number of each of those bytes
    along: Mapping[Axis, Ints]
    #: by axis, the last number of all bytes
    ends: Mapping[Axis, int]


#: bytes that a fault on a part must explain: with fewer, a part can be found for any error
_LEAST = 4
#: bytes that each of some numbers of an axis must gain, and bits that a byte is worth
_EACH, _PER_BYTE = 2, 9.0


def gains(changes: Mapping[Side, Change]) -> Iterator[Gain]:
    """What a hypothesis gains on the sides together and on each alone: everywhere, and on each axis's best part.

    A part, an interval or some numbers, must gain more than all of the axis does.
    """
    sides = tuple(changes)
    better = {side: int(np.count_nonzero(change.delta > 0)) for side, change in changes.items()}
    for chosen in [sides, *([(side,) for side in sides] if len(sides) > 1 else [])]:
        most = sum(better[side] for side in chosen)
        if not most:
            continue
        parts = [changes[side] for side in chosen]
        total = sum(int(part.delta.sum(dtype=np.int64)) for part in parts)
        if total > 0:
            yield Gain(total, chosen, None)
        for axis in AXES if most >= _LEAST and total < most else ():
            end = max(int(part.ends[axis]) for part in parts)
            best = max(_parts(parts, axis, end), key=lambda each: _worth(each, end), default=None)
            if best is not None and best[0] >= max(_LEAST, total + 1):
                yield Gain(best[0], chosen, best[1])


def _worth(part: tuple[int, Scope], end: int) -> float:
    return part[0] * _PER_BYTE - part[1].bits(end + 1)


def _parts(parts: Sequence[Change], axis: Axis, end: int) -> Iterator[tuple[int, Scope]]:
    """Parts of an axis with their gains: the best interval, and every number that gains something."""
    numbers = np.concatenate([part.along[axis] for part in parts]) + 1  # -1 is none
    delta = np.concatenate([part.delta for part in parts])
    sums = np.bincount(numbers, weights=delta)[1:]
    if not sums.size:
        return
    interval = _interval(sums)
    if interval is not None:
        gain, first, last = interval
        yield gain, Scope(axis, first, last, open_ended=last == end)
    some = np.flatnonzero(sums >= _EACH)
    if len(some) > 1:
        yield int(sums[some].sum()), Scope(axis, int(some[0]), int(some[-1]), numbers=tuple(map(int, some)))


def _interval(sums: NDArray[Any]) -> tuple[int, int, int] | None:
    """The interval with the greatest gain: the gain, its first and last number."""
    reached = np.concatenate([[0], np.cumsum(sums)])
    # the best end minus the least sum before it: Kadane's maximum subarray
    lows = np.minimum.accumulate(reached)
    end = int((reached[1:] - lows[:-1]).argmax()) + 1
    start = int(reached[:end].argmin())
    held = np.flatnonzero(sums[start:end]) + start
    return (int(reached[end] - reached[start]), int(held[0]), int(held[-1])) if len(held) else None

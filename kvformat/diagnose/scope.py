"""Where a fault holds: on all of a side, or on an interval of tokens, slots, blocks, heads or dims of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvformat.verify.identify import Side

Axis = Literal["token", "slot", "block", "head", "dim"]
Ints = NDArray[np.int64]

AXES: tuple[Axis, ...] = ("token", "slot", "block", "head", "dim")


@dataclass(frozen=True)
class Scope:
    """An interval of one axis, its ends included; tokens, slots and blocks by their numbers in the dump."""

    axis: Axis
    first: int
    last: int
    #: the last of all
    open_ended: bool = False

    def holds(self, along: Mapping[Axis, Ints]) -> NDArray[np.bool_]:
        """Which bytes lie in it. along: by axis the number of each byte, -1 for none."""
        numbers = along[self.axis]
        return (numbers >= self.first) & (numbers <= self.last)

    def __str__(self) -> str:
        numbers = str(self.first) if self.first == self.last else f"{self.first}..{self.last}"
        names = {"slot": "slot", "token": "token", "block": "block", "head": "head", "dim": "dim"}
        return f"{names[self.axis]}{'' if self.first == self.last else 's'} {numbers}{_OF[self.axis]}"


_OF = {"slot": " of each block", "token": "", "block": "", "head": "", "dim": ""}


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


def gains(changes: Mapping[Side, Change]) -> Iterator[Gain]:
    """What a hypothesis gains on the sides together and on each alone: everywhere, and on each axis's best interval.

    An interval must gain more than all of the axis does.
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
            best = _best(parts, axis)
            if best is not None and best[0] >= max(_LEAST, total + 1):
                end = max(int(part.ends[axis]) for part in parts)
                yield Gain(best[0], chosen, Scope(axis, best[1], best[2], open_ended=best[2] == end))


def _best(parts: Sequence[Change], axis: Axis) -> tuple[int, int, int] | None:
    """The interval of an axis with the greatest gain: the gain, its first and last number."""
    numbers = np.concatenate([part.along[axis] for part in parts]) + 1  # -1 is none
    delta = np.concatenate([part.delta for part in parts])
    sums = np.bincount(numbers, weights=delta)[1:]
    if not sums.size:
        return None
    reached = np.concatenate([[0], np.cumsum(sums)])
    # the best end minus the least sum before it: Kadane's maximum subarray
    lows = np.minimum.accumulate(reached)
    end = int((reached[1:] - lows[:-1]).argmax()) + 1
    start = int(reached[:end].argmin())
    held = np.flatnonzero(sums[start:end]) + start
    return (int(reached[end] - reached[start]), int(held[0]), int(held[-1])) if len(held) else None

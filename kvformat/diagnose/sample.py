"""Which blocks of a dump every hypothesis is tried on: all of a small one, of a large one those that tell most."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kvformat.dump.dump import Dump
from kvformat.recipes.program import Recipe
from kvformat.verify.compare import wrong_tokens

#: elements a side up to which every hypothesis is tried on all tokens, and bytes of pages up to which on all blocks
WHOLE = 1 << 17
_PAGES = 1 << 21

Ints = NDArray[np.int64]


def blocks(
    dump: Dump, declared: Recipe, slots: Ints, progress: Callable[[int, int], None] | None
) -> Ints | None:  # fmt: skip
    """The blocks, in order; None for all. Of a large dump as many as make WHOLE elements a side.

    Half of them have tokens where the declared recipe fails, if there are so many; the others are the first ones, where
    a wrong stride does not lead far away, and the last one.
    """
    row = dump.layout.num_kv_heads * max(dump.layout.head_size, dump.layout.head_size_v)
    used = np.unique(dump.slot_mapping[slots] // dump.layout.block_size)
    most = max(4, WHOLE // (row * dump.layout.block_size))
    if len(slots) * row <= WHOLE and dump.pages.size <= _PAGES:
        return None
    if len(used) <= most:
        return _with_neighbours(used, len(dump.pages))
    failing = np.unique(dump.slot_mapping[_failing(dump, declared, progress)] // dump.layout.block_size)
    kept = _spread(failing, most // 2)
    others = np.setdiff1d(used, kept)[: most - len(kept)]
    return np.union1d(np.union1d(kept, others), used[-1:])


def _failing(dump: Dump, declared: Recipe, progress: Callable[[int, int], None] | None) -> Ints:
    if not dump.layout.uniform or declared.prepare:
        return np.zeros(0, np.int64)
    return np.flatnonzero(wrong_tokens(dump, declared, progress=progress) & (dump.slot_mapping >= 0))


def _with_neighbours(used: Ints, count: int) -> Ints:
    near = np.unique(np.concatenate([used - 1, used, used + 1]))
    return near[(near >= 0) & (near < count)]


def _spread(numbers: Ints, most: int) -> Ints:
    """So many of them, evenly: the first and the last among them."""
    if len(numbers) <= most:
        return numbers
    return numbers[np.unique(np.linspace(0, len(numbers) - 1, most).astype(np.int64))]

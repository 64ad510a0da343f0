"""Which tokens of a dump every hypothesis is tried on: all of a small one, of a large one those that tell most."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kvformat.dump.dump import Dump
from kvformat.recipes.program import Recipe
from kvformat.verify.compare import wrong_tokens

#: elements a side up to which every hypothesis is tried on all tokens
WHOLE = 1 << 17


def chosen(
    dump: Dump, declared: Recipe, slots: NDArray[np.int64], progress: Callable[[int, int], None] | None
) -> NDArray[np.int64]:
    """The tokens, in order: of a large dump as many as make WHOLE elements a side.

    Half of them are tokens where the declared recipe fails, if there are so many; the others are spread evenly.
    """
    row = dump.layout.num_kv_heads * max(dump.layout.head_size, dump.layout.head_size_v)
    most = max(16, WHOLE // row)
    if len(slots) <= most:
        return slots
    failing = np.flatnonzero(wrong_tokens(dump, declared, progress=progress))
    kept = _spread(failing, most // 2)
    return np.union1d(kept, _spread(np.setdiff1d(slots, kept), most - len(kept)))


def _spread(tokens: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """So many of them, evenly: the first and the last among them."""
    if len(tokens) <= most:
        return tokens
    return tokens[np.unique(np.linspace(0, len(tokens) - 1, most).astype(np.int64))]

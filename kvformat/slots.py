"""The one place that judges a slot mapping: which slots are legal, and which token broke the rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvformat.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


def check_slots(slot_mapping: ArrayLike, num_slots: int) -> NDArray[np.int64]:
    """The slots as int64, one per token. A negative slot is padding and may repeat.

    Raises InputError, naming token and slot, for a slot past the end and for one that two tokens share.
    """
    slots = np.asarray(slot_mapping)
    if slots.ndim != 1 or slots.dtype.kind not in "iu":
        raise InputError(
            f"slot_mapping must be integers, one per token; got {slots.dtype.name} of shape {_shape(slots.shape)}"
        )
    # before the conversion to int64: an unsigned slot of 2**63 or more must not come out negative
    past = np.flatnonzero(slots >= num_slots)
    if past.size:
        token = int(past[0])
        raise InputError(
            f"token {token} has slot {int(slots[token])}, which is past the end: slots are 0..{num_slots - 1}"
            " (a negative one is padding)"
        )
    slots = slots.astype(np.int64)
    _refuse_duplicates(slots)
    return slots


def _refuse_duplicates(slots: NDArray[np.int64]) -> None:
    tokens = np.flatnonzero(slots >= 0)
    by_slot = tokens[np.argsort(slots[tokens], kind="stable")]
    repeats = np.flatnonzero(slots[by_slot[1:]] == slots[by_slot[:-1]])
    if repeats.size:
        second = int(by_slot[1:][repeats].min())  # the first token that finds its slot taken
        first = int(np.flatnonzero(slots[:second] == slots[second])[0])
        raise InputError(f"tokens {first} and {second} share slot {int(slots[second])}; a slot holds one token")


def _shape(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))})"

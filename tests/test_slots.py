"""Slot mappings: the legal ones come back as they are, and of the others the token at fault is named."""

from __future__ import annotations

import numpy as np
import pytest

from kvformat.errors import InputError
from kvformat.slots import check_slots


def test_slots_come_back_as_int64_whatever_integers_they_were():
    for dtype in (np.int8, np.int32, np.uint8, ">i4", np.uint64):
        slots = check_slots(np.array([5, 0, 3], dtype), 6)
        assert slots.dtype == np.int64
        assert slots.tolist() == [5, 0, 3]


def test_padding_may_repeat():
    assert check_slots([-1, 2, -1, -7], 3).tolist() == [-1, 2, -1, -7]


def test_the_first_token_whose_slot_is_taken_is_named_with_its_twin():
    with pytest.raises(InputError, match="tokens 1 and 3 share slot 4"):
        check_slots([0, 4, 9, 4, 0, 9], 10)


def test_slots_of_2_to_the_63_are_past_the_end_not_padding():
    with pytest.raises(InputError, match=f"token 1 has slot {2**63}"):
        check_slots(np.array([0, 2**63], np.uint64), 10)


@pytest.mark.parametrize("slots", [[[0, 1]], [0.0], ["0"], [True], 3])
def test_slots_that_are_not_a_row_of_integers_are_refused(slots):
    with pytest.raises(InputError, match="slot_mapping must be integers"):
        check_slots(slots, 10)

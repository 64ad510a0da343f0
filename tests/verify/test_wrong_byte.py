"""One wrong byte is found exactly where it lies; a byte that no token owns is not judged.

Where a byte belongs is said by tests.layouts.reference, formulas written out by hand, not by the code under test.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.verify.cases import BLOCK, BLOCKS, CASES, HEADS, PADDING, SLOTS, judge, owners, right

WRITTEN = {int(slot): token for token, slot in enumerate(SLOTS) if slot >= 0}


def damaged(entry, byte, mask):
    """Whether flipping the bits of `mask` in that page byte changes the entry."""
    _, _, _, _, _, first, bit, bits = entry
    window = ((1 << bits) - 1) << bit
    return window >> 8 * (byte - first) & mask != 0


@pytest.mark.slow  # every page of `kvformat check`
@given(
    case=st.sampled_from(CASES),
    block=st.integers(0, BLOCKS - 1),
    where=st.integers(0, 2**20),
    mask=st.one_of(st.sampled_from([1, 0x0F, 0xF0, 0x80]), st.integers(1, 255)),
)
@settings(max_examples=400)
def test_a_wrong_byte_is_found_at_the_token_head_dim_side_and_part_it_belongs_to(case, block, where, mask):
    sizes, layout, key, value, pages = right(case)
    byte = where % layout.page_bytes
    broken = pages.copy()
    broken[block, byte] ^= mask
    report = judge(layout, key, value, broken)

    hit = [entry for entry in owners(sizes)[byte] if damaged(entry, byte, mask)]
    token = WRITTEN.get(block * BLOCK + hit[0][2]) if hit else None
    said = layout.explain(byte=byte)
    assert said.part == (hit[0][1] if hit else "padding")  # two formulas for the same byte
    if token is None:
        assert report.ok
        return
    side, part, slot, head, dim, first, bit, _ = hit[0]
    assert (said.side, said.slot, said.head) == (side, slot, head)
    assert report.status == 1
    assert report.mismatches == len(hit)
    found = report.first
    assert (found["side"], found["part"], found["token"], found["head"], found["dim"]) == (side, part, token, head, dim)
    assert (found["slot"], found["block"], found["position"]) == (SLOTS[token], block, slot)
    assert (found["byte"], found["bit"]) == (first, bit)
    dims = f"dim {dim}\n" if part == "code" else f"dims {dim}..{dim + (16 if case[1] == 'nvfp4' else 64) - 1}\n"
    assert f"first difference: {side.upper()} {part} of token {token}, head {head}, {dims}" in str(report)


def test_bytes_of_unwritten_slots_and_padding_are_not_judged():
    for case in CASES:
        sizes, layout, key, value, pages = right(case)
        table = owners(sizes)
        unowned = np.array(
            [
                [not entries or block * BLOCK + entries[0][2] not in WRITTEN for entries in table]
                for block in range(BLOCKS)
            ]
        )
        # 12 slots, 5 of them written; the padding of every page
        expected = BLOCKS * layout.natural_bytes * 7 // 12 + BLOCKS * PADDING
        assert int(unowned.sum()) == expected
        broken = pages.copy()
        broken[unowned] ^= 0xFF
        assert judge(layout, key, value, broken).ok, case


def test_every_code_and_scale_of_written_slots_is_judged():
    for case in CASES:
        sizes, layout, key, value, pages = right(case)
        # as many entries per page as the reference lists, 4 slots each
        per_slot = len({entry for entries in owners(sizes) for entry in entries}) // BLOCK
        inverted = pages ^ np.uint8(0xFF)
        report = judge(layout, key, value, inverted)
        assert report.compared == len(WRITTEN) * per_slot
        assert report.mismatches == report.compared, case


def test_of_several_differences_the_first_is_that_of_the_first_token_then_k_then_the_first_head():
    sizes, layout, key, value, pages = right(CASES[3])
    places = {entry[:5]: entry[5] for entries in owners(sizes) for entry in entries}

    def first(*wrong):
        broken = pages.copy()
        for token, side, part, head, dim in wrong:
            block, slot = divmod(int(SLOTS[token]), BLOCK)
            broken[block, places[side, part, slot, head, dim]] ^= 1
        found = judge(layout, key, value, broken).first
        return tuple(found[name] for name in ("token", "side", "part", "head", "dim"))

    early, late = (2, "v", "code", 1, 60), (3, "k", "code", 0, 0)
    assert first(late, early) == early
    k, v = (4, "k", "code", HEADS - 1, 63), (4, "v", "code", 0, 0)
    assert first(v, k) == k
    code, scale = (4, "k", "code", 0, 63), (4, "k", "scale", 1, 0)
    assert first(scale, code) == code
    scale_too = (4, "k", "scale", 0, 0)
    assert first(code, scale_too) == scale_too
    assert first((4, "k", "code", 0, 9), (4, "k", "code", 0, 8)) == (4, "k", "code", 0, 8)

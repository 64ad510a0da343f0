"""Bulk reads and writes of rows against a byte-by-byte loop over `locate`."""

import numpy as np
import pytest

from kvformat.errors import InputError
from kvformat.layouts import layout
from tests.layouts.reference import CONFIGS

BLOCKS = 3


@pytest.fixture(params=CONFIGS, ids=str)
def page(request):
    return layout(request.param.name, **request.param.arguments)


@pytest.fixture
def pages(page):
    return np.random.default_rng(1).integers(0, 256, (BLOCKS, page.page_bytes), np.uint8)


def tokens(page):
    """Some (block, slot) pairs, out of order, each once."""
    chosen = np.random.default_rng(2).permutation(BLOCKS * page.block_size)[: 2 * page.block_size]
    return chosen // page.block_size, chosen % page.block_size


def bits_of(page, region, slot, head):
    """The bits of the page, low one first, that make up a row, one entry after the other."""
    bits = []
    for column in range(region.columns):
        dim = region.dims(column).start
        place = page.locate(side=region.side, slot=slot, head=head, dim=dim, part=region.part)
        start = place.byte * 8 + place.bit
        bits += range(start, start + place.bits)
    return bits


def slow_rows(page, region, pages, blocks, slots):
    bits = np.unpackbits(pages, axis=1, bitorder="little")
    rows = [
        [np.packbits(bits[block, bits_of(page, region, slot, head)], bitorder="little") for head in range(region.heads)]
        for block, slot in zip(blocks, slots, strict=True)
    ]
    return np.array(rows, np.uint8)


def test_bulk_reads_are_the_slow_reads(page, pages):
    blocks, slots = tokens(page)
    for region in page.regions:
        rows = region.read(pages, blocks, slots)
        assert rows.dtype == np.uint8
        assert rows.flags.c_contiguous
        assert np.array_equal(rows, slow_rows(page, region, pages, blocks, slots))


def test_bulk_writes_are_read_back_and_touch_nothing_else(page, pages):
    blocks, slots = tokens(page)
    for region in page.regions:
        rows = np.random.default_rng(3).integers(0, 256, (len(blocks), region.heads, region.row_bytes), np.uint8)
        written = pages.copy()
        region.write(written, blocks, slots, rows)
        assert np.array_equal(slow_rows(page, region, written, blocks, slots), rows)
        touched = np.zeros_like(pages, bool)
        for block, slot in zip(blocks, slots, strict=True):
            for head in range(region.heads):
                touched[block, np.array(bits_of(page, region, slot, head)) // 8] = True
        assert np.array_equal(written[~touched], pages[~touched])


def test_writing_all_regions_of_all_slots_fills_the_page_and_spares_its_padding(page):
    pages = np.full((BLOCKS, page.page_bytes), 0xA5, np.uint8)
    blocks, slots = np.divmod(np.arange(BLOCKS * page.block_size), page.block_size)
    for region in page.regions:
        region.write(pages, blocks, slots, np.zeros((len(blocks), region.heads, region.row_bytes), np.uint8))
    padding = np.array([page.explain(byte=byte).part == "padding" for byte in range(page.natural_bytes)])
    assert np.array_equal(pages[:, : page.natural_bytes] != 0, np.broadcast_to(padding, (BLOCKS, padding.size)))
    assert (pages[:, page.natural_bytes :] == 0xA5).all()


def test_pages_may_lie_anywhere_in_memory(page, pages):
    blocks, slots = tokens(page)
    wide = np.zeros((BLOCKS * 2, page.page_bytes + 9), np.uint8)
    spread = wide[::2, 3 : 3 + page.page_bytes]
    spread[:] = pages
    backwards = np.ascontiguousarray(pages[:, ::-1])[:, ::-1]
    columns = np.asfortranarray(pages)
    for region in page.regions:
        rows = region.read(pages, blocks, slots)
        for other in (spread, backwards, columns):
            assert np.array_equal(region.read(other, blocks, slots), rows)
            region.write(other, blocks, slots, rows)
            assert np.array_equal(other, pages)


def test_mapped_read_only_pages_are_read_and_never_written(page, pages, tmp_path):
    blocks, slots = tokens(page)
    pages.tofile(tmp_path / "pages")
    mapped = np.memmap(tmp_path / "pages", np.uint8, "r", shape=pages.shape)
    for region in page.regions:
        rows = region.read(mapped, blocks, slots)
        assert np.array_equal(rows, region.read(pages, blocks, slots))
        with pytest.raises(InputError, match="read-only"):
            region.write(mapped, blocks, slots, rows)


def test_no_token_is_a_read_and_a_write_too(page, pages):
    for region in page.regions:
        rows = region.read(pages, [], [])
        assert rows.shape == (0, region.heads, region.row_bytes)
        before = pages.copy()
        region.write(pages, [], [], rows)
        assert np.array_equal(pages, before)


def test_rows_need_not_be_contiguous(page, pages):
    blocks, slots = tokens(page)
    for region in page.regions:
        rows = np.random.default_rng(4).integers(0, 256, (region.row_bytes, region.heads, len(blocks)), np.uint8).T
        region.write(pages, blocks, slots, rows)
        assert np.array_equal(region.read(pages, blocks, slots), rows)


def test_the_last_row_of_a_slot_named_twice_stays(page, pages):
    for region in page.regions:
        rows = np.random.default_rng(5).integers(0, 256, (9, region.heads, region.row_bytes), np.uint8)
        region.write(pages, [1] * 9, [0] * 9, rows)
        assert np.array_equal(region.read(pages, [1], [0])[0], rows[-1])


REGION = layout("vllm-0.33", mode="nvfp4", block_size=4, num_kv_heads=2, head_size=64).regions[3]
PAGES = np.zeros((2, REGION.end), np.uint8)


@pytest.mark.parametrize(
    "pages, block, slot, message",
    [
        (PAGES, [2], [0], "block must be in 0..1; got 2"),
        (PAGES, [-1], [0], "block must be in 0..1; got -1"),
        (PAGES, [0, 0], [0, 4], "slot must be in 0..3; got 4"),
        (PAGES, [0], [-1], "slot must be in 0..3; got -1"),
        (PAGES, [0], [0, 1], "block and slot must have the same length; got 1 and 2"),
        (PAGES, [0.0], [0], "block must be integers of shape (n,); got float64 (1,)"),
        (PAGES, 0, [0], "block must be integers of shape (n,); got int64 ()"),
        (PAGES, [True], [0], "block must be integers of shape (n,); got bool (1,)"),
        (PAGES[:, :-1], [0], [0], f"V scale needs pages of at least {REGION.end} bytes; these have {REGION.end - 1}"),
        (PAGES[0], [0], [0], f"pages must be uint8 (num_blocks, page_bytes); got uint8 ({REGION.end},)"),
        (PAGES.view(np.int8), [0], [0], f"pages must be uint8 (num_blocks, page_bytes); got int8 (2, {REGION.end})"),
    ],
)
def test_what_cannot_be_read_is_named(pages, block, slot, message):
    with pytest.raises(InputError) as error:
        REGION.read(pages, block, slot)
    assert str(error.value) == message


@pytest.mark.parametrize(
    "rows", [np.zeros((1, 2, 5), np.uint8), np.zeros((2, 2, 4), np.uint8), np.zeros((1, 2, 4), np.int8)]
)
def test_rows_of_another_shape_or_dtype_are_not_written(rows):
    with pytest.raises(InputError, match=r"V scale rows must be uint8 \(1, 2, 4\); got"):
        REGION.write(PAGES.copy(), [0], [0], rows)

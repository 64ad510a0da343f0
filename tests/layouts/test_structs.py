"""Rows of structs, codes in halves and in bit planes: against NumPy's own structured arrays."""

from __future__ import annotations

import numpy as np
import pytest

import kvformat as kvf
from kvformat import cache
from kvformat.errors import InputError
from kvformat.layouts import Digit, Region
from kvformat.layouts import layout as layout_of
from kvformat.layouts.entry import parse_entry
from kvformat.recipes import plain

TOKENS, HEADS, DIMS, BLOCK = 5, 2, 64, 4

#: ggml-common.h, block_q8_0 and the like
STRUCTS = {
    "q8_0": [("d", "<f2"), ("qs", "u1", 32)],
    "q4_0": [("d", "<f2"), ("qs", "u1", 16)],
    "q4_1": [("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)],
    "q5_0": [("d", "<f2"), ("qh", "<u4"), ("qs", "u1", 16)],
    "q5_1": [("d", "<f2"), ("m", "<f2"), ("qh", "<u4"), ("qs", "u1", 16)],
}


@pytest.fixture(autouse=True)
def _no_kernel_is_compiled(monkeypatch):
    monkeypatch.setattr(cache, "quantize", plain.quantize)


def llama(mode):
    return layout_of("llama-cpp", mode=mode, block_size=BLOCK, num_kv_heads=HEADS, head_size=DIMS)


def struct_of(made, mode):
    """The structs (tokens, heads, groups) that hold what was quantized, by the fields' own definitions."""
    structs = np.zeros((TOKENS, HEADS, DIMS // 32), STRUCTS[mode])
    structs["d"] = made.params["d"]
    codes = made.codes.view(np.uint8).reshape(TOKENS, HEADS, -1, 32)
    if mode == "q8_0":
        structs["qs"] = codes
        return structs
    structs["qs"] = (codes[..., :16] & 15) | (codes[..., 16:] & 15) << 4
    if "m" in structs.dtype.names:
        structs["m"] = made.params["m"]
    if "qh" in structs.dtype.names:
        structs["qh"] = (codes.astype(np.uint32) >> 4 << np.arange(32, dtype=np.uint32)).sum(axis=-1)
    return structs


@pytest.mark.parametrize("mode", STRUCTS)
def test_a_cell_is_a_row_of_ggml_s_structs(mode):
    layout = llama(mode)
    assert [name for name, _ in layout.tensors] == ["cache_k", "cache_v"]
    assert layout.page_bytes == 2 * BLOCK * HEADS * DIMS // 32 * np.dtype(STRUCTS[mode]).itemsize
    key, value = np.random.default_rng(5).standard_normal((2, TOKENS, HEADS, DIMS)).astype(np.float32)
    pages = kvf.PagedCache(layout, 2)
    slots = np.array([6, 0, 3, 5, 1])
    pages.write(key, value, slots)
    for side, x, tensor in zip("kv", (key, value), np.split(pages.pages, 2, axis=1), strict=True):
        made = plain.quantize(x, kvf.recipe(layout.recipe))
        cells = np.ascontiguousarray(tensor).reshape(2 * BLOCK, -1)
        assert cells[slots].tobytes() == struct_of(made, mode).tobytes()
        assert not cells[[2, 4, 7]].any()
        read = cache.load(layout, pages.pages, slots, side, made.recipe, None)
        assert np.array_equal(read.codes, made.codes)
        assert {name: each.tobytes() for name, each in read.params.items()} == {
            name: each.tobytes() for name, each in made.params.items()
        }


@pytest.mark.parametrize("mode", STRUCTS)
def test_locate_and_explain_are_inverse_on_every_bit(mode):
    layout = llama(mode)
    bits = {region.name: (region.first_bit, region.bits) for region in layout.regions}
    owned = np.zeros(layout.page_bytes * 8, int)
    for bit in range(layout.page_bytes * 8):
        held = layout.explain(byte=bit // 8, bit=bit % 8)
        first, wide = bits[held.region]
        at = {"side": held.side, "slot": held.slot, "head": held.head, "part": held.part}
        for dim in (held.dims[0], held.dims[-1]):
            place = layout.locate(**at, dim=dim, bit=first)
            assert place.bits == wide
            assert 0 <= bit - (place.byte * 8 + place.bit) < wide
        owned[bit] += 1
    assert owned.all()


def test_a_byte_of_two_halves_names_both_dims():
    held = llama("q5_1").explain(byte=8 + 5)
    assert (held.part, list(held.dims)) == ("code", [5, 21])
    fifth = llama("q5_1").explain(byte=4 + 1)
    assert (fifth.region, list(fifth.dims)) == ("K bits 4 up", list(range(8, 16)))
    assert llama("q5_1").explain(byte=2).part == "m"


def test_one_flipped_bit_of_a_plane_is_found_where_it_lies():
    layout = llama("q5_1")
    x = np.random.default_rng(6).standard_normal((TOKENS, HEADS, DIMS)).astype(np.float32)
    made = kvf.PagedCache(layout, 2)
    made.write(x, x, np.arange(TOKENS))
    assert kvf.check(kvf.Dump.from_arrays(x, x, made.pages, np.arange(TOKENS), layout=layout)).ok
    for byte, part, dim, bit in ((2, "m", 0, 0), (5, "code", 10, 2), (8 + 5, "code", 21, 4)):
        pages = made.pages.copy()
        pages[0, byte] ^= 1 << (bit if part == "code" else 3)
        report = kvf.check(kvf.Dump.from_arrays(x, x, pages, np.arange(TOKENS), layout=layout))
        assert report.mismatches == 1
        assert [report.first[name] for name in ("part", "dim", "byte", "bit")] == [part, dim, byte, bit]


def test_the_high_nibble_can_be_the_lower_half():
    low, high = (layout_of("llama-cpp", mode="q4_0", block_size=1, num_kv_heads=1, head_size=32, nibbles=nibbles)
                 for nibbles in (None, "high_first"))  # fmt: skip
    x = np.random.default_rng(7).standard_normal((1, 1, 32)).astype(np.float32)
    pages = [kvf.PagedCache(each, 1) for each in (low, high)]
    for each in pages:
        each.write(x, x, [0])
    codes = (pages[0].pages[0, 2:18] << 4) | (pages[0].pages[0, 2:18] >> 4)
    assert codes.tobytes() == pages[1].pages[0, 2:18].tobytes()
    right = plain.quantize(x, kvf.recipe("ggml-0.25/reference/q4_0")).codes
    for each in pages:
        assert np.array_equal(cache.load(each.layout, each.pages, np.arange(1), "k", each.recipe, None).codes, right)


@pytest.mark.parametrize("column, order", [(((2, 4), (2, 8)), [0, 2, 1, 3]), (((2, 4), (2, 16)), [0, 2, 1, 3])])
def test_entries_in_halves_are_read_and_written_in_the_order_of_their_columns(column, order):
    columns = tuple(Digit(*digit) for digit in column)
    region = Region("K data", "k", "code", 4, 0, 1, 1, 4, (Digit(1, 32),), (Digit(1, 0),), columns)
    page = np.zeros((1, 4), np.uint8)
    region.write(page, [0], [0], np.array([[[0x21, 0x43]]], np.uint8))  # codes 1 2 3 4
    found = [page[0, bit // 8] >> bit % 8 & 15 for bit in (region.address(0, 0, c) for c in range(4))]
    assert found == [1, 2, 3, 4]
    assert region.read(page, [0], [0]).tolist() == [[[0x21, 0x43]]]
    assert sorted(range(4), key=lambda c: region.address(0, 0, c)) == order


@pytest.mark.parametrize("record, size, message", [
    (["k.scale", "k.code", "k.m"], 64, "unknown part 'k.m'"),
    (["k.scale", "k.code"], 48, "mode q8_0 needs head_size to be a multiple of 32; got 48"),
])  # fmt: skip
def test_a_struct_that_the_mode_does_not_have_is_one_line(record, size, message):
    sections = [{"per": "group", "record": record}]
    described = {"name": "x", "source": "a test", "modes": {"q8_0": {"recipe": "r", "sections": sections}}}
    with pytest.raises(InputError, match=message):
        layout_of(parse_entry(described), mode="q8_0", block_size=1, num_kv_heads=1, head_size=size)


def test_a_mode_without_groups_has_no_structs_of_them():
    sections = [{"per": "group", "record": ["k.code", "v.code"]}]
    described = {"name": "x", "source": "a test", "modes": {"fp8_per_tensor": {"recipe": "r", "sections": sections}}}
    with pytest.raises(InputError, match="mode fp8_per_tensor has no groups of dims; repeat the record per cell"):
        layout_of(parse_entry(described), mode="fp8_per_tensor", block_size=1, num_kv_heads=1, head_size=32)

"""All layers in one tensor: every byte against the array whose axes the order names."""

from __future__ import annotations

import numpy as np
import pytest

from kvformat.errors import InputError
from kvformat.layouts import Stack, layout
from kvformat.layouts.stack import STACK_ORDERS

LAYERS, BLOCKS, HEADS, SLOTS = 3, 4, 2, 2


def stack(order, mode="int8_per_token_head", **more):
    inside = "NHD" if order.index("N") < order.index("H") else "HND"
    sizes = {"block_size": SLOTS, "num_kv_heads": HEADS, "head_size": 64 if mode == "nvfp4" else 4} | more
    return Stack(layout("vllm-0.33", mode=mode, order=inside, **sizes), LAYERS, BLOCKS, order)


def by_axes(order):
    """(layer, block, byte of the page) of every byte, from the array [order] whose C axis has 16 bytes."""
    index = dict(zip("LBHNC", np.ix_(*map(range, (LAYERS, BLOCKS, HEADS, SLOTS, 16))), strict=True))
    inner = "HN" if order.index("H") < order.index("N") else "NH"
    counts = {"H": HEADS, "N": SLOTS}
    byte = (index[inner[0]] * counts[inner[1]] + index[inner[1]]) * 16 + index["C"]
    shape = (LAYERS, BLOCKS, HEADS, SLOTS, 16)
    axes = ["LBHNC".index(axis) for axis in order]
    return [np.broadcast_to(each, shape).transpose(axes).ravel() for each in (index["L"], index["B"], byte)]


@pytest.mark.parametrize("order", STACK_ORDERS)
def test_every_byte_is_where_the_axes_say_and_comes_back(order):
    made = stack(order)
    assert made.page.page_bytes == HEADS * SLOTS * 16
    assert made.num_bytes == LAYERS * BLOCKS * made.page.page_bytes
    for address, (layer, block, byte) in enumerate(zip(*by_axes(order), strict=True)):
        assert made.explain(byte=address) == (layer, block, byte)
        assert made.locate(layer=int(layer), block=int(block), byte=int(byte)) == address


@pytest.mark.parametrize("order", STACK_ORDERS)
def test_pages_are_taken_out_and_put_back(order):
    made = stack(order)
    tensor = np.random.default_rng(1).integers(0, 256, made.num_bytes, np.uint8)
    again = np.zeros_like(tensor)
    for layer in range(LAYERS):
        pages = made.pages(tensor, layer)
        for block, byte in ((0, 0), (3, 17), (1, 63), (2, 40)):
            assert pages[block, byte] == tensor[made.locate(layer=layer, block=block, byte=byte)]
        made.put(again, layer, pages)
    assert np.array_equal(again, tensor)


@pytest.mark.parametrize("order", ["LBHNC", "BLHNC", "LBNHC", "BLNHC"])
def test_a_page_in_one_piece_may_be_padded_and_of_any_mode(order):
    made = stack(order, "nvfp4", block_size=4, page_bytes=600)
    tensor = np.arange(made.num_bytes, dtype=np.uint32).astype(np.uint8)
    start = made.locate(layer=2, block=1, byte=0)
    assert np.array_equal(made.pages(tensor, 2)[1], tensor[start : start + 600])


@pytest.mark.parametrize(
    "change, says",
    [
        ({"order": "LBCHN"}, "unknown order of a stack 'LBCHN'"),
        ({"order": "LBNHC"}, "LBNHC holds pages of order NHD; these are HND"),
        ({"num_layers": 0}, "num_layers must be an integer of at least 1; got 0"),
        ({"num_blocks": 1.5}, "num_blocks must be an integer of at least 1; got 1.5"),
    ],
)
def test_what_no_stack_can_be_is_refused(change, says):
    page = layout("vllm-0.33", mode="none", block_size=2, num_kv_heads=2, head_size=4, order="HND")
    with pytest.raises(InputError) as error:
        Stack(**{"page": page, "num_layers": 2, "num_blocks": 2, "order": "LBHNC"} | change)
    assert str(error.value).startswith(says)


@pytest.mark.parametrize("order", ["LHBNC", "BHLNC"])
@pytest.mark.parametrize("page", [{"mode": "nvfp4", "block_size": 4}, {"page_bytes": 65}, {"page_bytes": 66}], ids=str)
def test_a_page_that_is_not_one_piece_a_head_is_not_cut_by_heads(order, page):
    with pytest.raises(InputError, match=f"{order} cuts a page by heads"):
        stack(order, **page)


def test_bytes_tensors_and_pages_are_checked():
    made = stack("LHBNC")
    tensor = np.zeros(made.num_bytes, np.uint8)
    for question, says in (
        (lambda: made.locate(layer=3, block=0, byte=0), "layer must be an integer in 0..2; got 3"),
        (lambda: made.explain(byte=made.num_bytes), "byte must be an integer in 0..767; got 768"),
        (lambda: made.pages(tensor[:-1], 0), "the tensor must be uint8 (768,); got uint8 (767,)"),
        (lambda: made.put(tensor, 0, np.zeros((4, 63), np.uint8)), "pages must be uint8 (4, 64); got uint8 (4, 63)"),
    ):
        with pytest.raises(InputError) as error:
            question()
        assert str(error.value) == says

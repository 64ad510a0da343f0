"""Caches as engines hold them, to pages and back: every byte of every form, at the place that the formulas say."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import kvformat as kvf
from kvformat.torch import from_pages, to_pages
from tests.layouts.reference import ITEM_BYTES, Config, entries, natural_bytes

BLOCKS = 3


def config(name, mode, order, slots=4, heads=2, size=64, size_v=None, v_scales=None, padding=0):
    dtype = "bfloat16" if mode == "none" else None
    return Config(name, mode, order, slots, heads, size, size_v or size, v_scales, dtype, padding)


CELLS = [
    config("vllm-0.33", mode, order, slots, heads, padding=padding)
    for mode in ("none", "fp8_per_tensor", "fp8_per_token_head", "int8_per_token_head")
    for order in ("NHD", "HND")
    for slots, heads, padding in ((4, 2, 0), (2, 2, 8), (1, 3, 0), (3, 1, 16))
]
PAGED = [
    *(config("vllm-0.33", "nvfp4", order, v_scales=how) for order in ("NHD", "HND") for how in ("linear", "swizzled")),
    *(config("flashinfer", mode, order) for order in ("NHD", "HND") for mode in ("none", "fp8_per_tensor", "nvfp4")),
    config("flashinfer", "fp8_per_tensor", "HND", 2, 2, padding=16),
    config("flashinfer", "nvfp4", "NHD", 2, 2),
]
each_cell = pytest.mark.parametrize("c", CELLS, ids=str)
each_config = pytest.mark.parametrize("c", CELLS + PAGED, ids=str)


def layout(c):
    return kvf.layout(c.name, **c.arguments)


def parts(c, byte):
    """A cache as four arrays (blocks, slots, heads, bytes of a row), and the pages that hold it by the formulas.

    Byte `byte` of a running number stands in each place, so that two of them tell all places apart.
    """
    numbers = iter(range(1, 1 << 24))
    rows, pages = {}, np.zeros((BLOCKS, natural_bytes(c) + c.padding), np.uint8)
    linear = Config(**{**c.__dict__, "v_scales": "linear"}) if c.v_scales else c
    for block in range(BLOCKS):
        for side, part, slot, head, dims, first_bit, bits in entries(linear):
            if bits == 4 and first_bit % 8:
                continue  # the byte was given a number with its low nibble
            size = c.head_size if side == "k" else c.head_size_v
            entry_bytes = max(bits // 8, 1)
            if part == "scale":
                index, width = dims.start // len(dims) * entry_bytes, size // len(dims) * entry_bytes
            else:
                index, width = dims.start * bits // 8, size * bits // 8
            held = rows.setdefault((side, part), np.zeros((BLOCKS, c.block_size, c.num_kv_heads, width), np.uint8))
            for i in range(entry_bytes):
                number = next(numbers) >> (8 * byte) & 0xFF
                held[block, slot, head, index + i] = number
                pages[block, first_bit // 8 + i] = number
    return {key: torch.from_numpy(row) for key, row in rows.items()}, torch.from_numpy(pages)


def typed(c, rows):
    """The arrays with the dtypes that an engine's tensors have."""
    dtype = {"none": torch.bfloat16, "int8_per_token_head": torch.int8}.get(c.mode, torch.uint8)
    scale = torch.uint8 if c.mode == "nvfp4" else torch.float32
    made = {key: row.view(dtype if key[1] == "code" else scale) for key, row in rows.items()}
    return {key: row[..., 0] if row.dtype == torch.float32 and key[1] == "scale" else row for key, row in made.items()}


def axes(tensor, order):
    """The same elements with the axes of slots and heads in that order, contiguous."""
    return tensor.transpose(1, 2).contiguous() if order == "HND" else tensor.contiguous()


def check(c, cache, expected, order=None, shares=False):
    made = layout(c)
    pages = to_pages(cache, made, axes=order)
    natural = natural_bytes(c)
    assert torch.equal(pages[:, :natural], expected[:, :natural])
    # and back: into a cache of zeros comes the same cache
    kept = [each.clone() for each in flat(cache)]
    held = pages.clone()
    for each in flat(cache):
        each.zero_()
    assert not to_pages(cache, made, axes=order)[:, :natural].any()
    from_pages(held, cache, made, axes=order)
    for before, after in zip(kept, flat(cache), strict=True):
        assert torch.equal(bytes_of(before), bytes_of(after))
    moved = to_pages(cache, made, axes=order)
    assert (moved.untyped_storage().data_ptr() == flat(cache)[0].untyped_storage().data_ptr()) == shares


def bytes_of(x):
    return x.reshape(-1).clone().view(torch.uint8)


def flat(cache):
    return [cache] if isinstance(cache, torch.Tensor) else [each for item in cache for each in flat(item)]


@pytest.mark.parametrize("byte", [0, 1])
@each_config
def test_pages_are_taken_as_they_are(c, byte):
    _, pages = parts(c, byte)
    check(c, pages, pages.clone(), shares=True)


@pytest.mark.parametrize("byte", [0, 1])
@each_cell
def test_cells_of_vllm(c, byte):
    """(blocks, heads, slots, cell), a view of the page in the layout's order: nothing is copied."""
    _, pages = parts(c, byte)
    slots, heads, cell = c.block_size, c.num_kv_heads, natural_bytes(c) // c.block_size // c.num_kv_heads
    strides = (slots * cell, cell) if c.order == "HND" else (cell, heads * cell)
    memory = pages.clone()
    cells = memory.as_strided((BLOCKS, heads, slots, cell), (pages.shape[1], *strides, 1))
    if c.mode == "none" and pages.shape[1] % 2 == 0:
        cells = cells.view(torch.bfloat16)
    check(c, cells, pages, shares=True)


@pytest.mark.parametrize("byte", [0, 1])
@pytest.mark.parametrize("order", ["NHD", "HND"])
@each_config
def test_separate_tensors(c, byte, order):
    rows, pages = parts(c, byte)
    held = typed(c, rows)
    cache = [axes(held[key], order) for key in (("k", "code"), ("v", "code"))]
    if ("k", "scale") in held:
        scales = [axes(held[key], order) for key in (("k", "scale"), ("v", "scale"))]
        check(c, (tuple(cache), tuple(scales)), pages, order)
        cache += scales
    check(c, tuple(cache), pages, order)


@pytest.mark.parametrize("byte", [0, 1])
@each_cell
def test_views_of_vllms_cells_as_its_kernels_take_them(c, byte):
    """key, value and scales (blocks, slots, heads, ...), strided views of one memory: nothing is copied."""
    _, pages = parts(c, byte)
    slots, heads, cell = c.block_size, c.num_kv_heads, natural_bytes(c) // c.block_size // c.num_kv_heads
    strides = (cell, slots * cell) if c.order == "HND" else (heads * cell, cell)
    memory = pages.clone()
    cells = memory.as_strided((BLOCKS, slots, heads, cell), (pages.shape[1], *strides, 1))
    width = c.head_size * ITEM_BYTES.get(c.dtype, 1)
    cache = [cells[..., :width], cells[..., cell // 2 : cell // 2 + width]]
    if "token_head" in c.mode:
        scales = [cells[..., width : cell // 2], cells[..., cell // 2 + width :]]
        cache += [each.view(torch.float32)[..., 0] for each in scales]
    check(c, tuple(cache), pages, "NHD", shares=True)


@pytest.mark.parametrize("byte", [0, 1])
@pytest.mark.parametrize("order", ["NHD", "HND"])
@pytest.mark.parametrize("c", [c for c in CELLS if "token_head" in c.mode], ids=str)
def test_inline_scales_behind_each_row(c, byte, order):
    rows, pages = parts(c, byte)
    cache = tuple(axes(torch.cat([rows[side, "code"], rows[side, "scale"]], -1), order) for side in "kv")
    check(c, cache, pages, order)


@pytest.mark.parametrize("byte", [0, 1])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("order", ["NHD", "HND"])
@each_config
def test_stacked(c, byte, order, axis):
    """FlashInfer's 5-D tensor (blocks, 2, ...) holds its pages in one piece; (2, blocks, ...) does not."""
    rows, pages = parts(c, byte)
    held = typed(c, rows)
    cache = torch.stack([axes(held[side, "code"], order) for side in "kv"], axis)
    shares = c.name == "flashinfer" and axis == 1 and order == c.order and not c.padding and c.mode != "nvfp4"
    if ("k", "scale") in held:
        cache = (cache, torch.stack([axes(held[side, "scale"], order) for side in "kv"], axis))
        if cache[1].ndim == 4:
            cache = (cache[0], *cache[1].unbind(axis))
    check(c, cache, pages, order, shares)


@pytest.mark.parametrize("c", [c for c in PAGED if c.name == "vllm-0.33"], ids=str)
def test_vllms_nvfp4_page_as_a_tensor_of_twice_the_heads(c):
    _, pages = parts(c, 0)
    memory = pages.clone()
    cell = natural_bytes(c) // (2 * c.num_kv_heads * c.block_size)
    check(c, memory.view(BLOCKS, 2 * c.num_kv_heads, c.block_size, cell), pages, shares=True)


@pytest.mark.parametrize(
    ("cache", "message"),
    [
        (torch.zeros(3, 4, 2, 65, dtype=torch.uint8), "a cell of this layout has 136 bytes"),
        (torch.zeros(3, 4, 5, 136, dtype=torch.uint8), "axes of 4 slots and 2 heads"),
        (torch.zeros(3, 3, 4, 2, 64, dtype=torch.uint8), "stacks K and V on axis 0 or 1"),
        (torch.zeros(3, 7, dtype=torch.uint8), "pages must be uint8"),
        ((torch.zeros(3, 4, 2, 64, dtype=torch.uint8),) * 3, "key and value, then their scales or none"),
        ((torch.zeros(3, 4, 2, 64, dtype=torch.uint8),) * 2, "has 68 bytes with its scale"),
        ((torch.zeros(3, 4, 64, 2, dtype=torch.uint8).transpose(2, 3),) * 2, "side by side"),
    ],
)
def test_other_tensors_are_refused_in_one_line(cache, message):
    made = kvf.layout("vllm-0.33", mode="int8_per_token_head", block_size=4, num_kv_heads=2, head_size=64)
    with pytest.raises(kvf.InputError, match=message) as error:
        to_pages(cache, made)
    assert "\n" not in str(error.value)

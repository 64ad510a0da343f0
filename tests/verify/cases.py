"""Every mode, layout, order and V scale order, listed by hand; K and V for them; dumps of pages known to be right."""

from __future__ import annotations

from functools import cache

import ml_dtypes
import numpy as np

from kvformat.cache import PagedCache
from kvformat.dump import Dump
from kvformat.layouts import layout as make_layout
from kvformat.verify import check
from tests.layouts.reference import Config, entries

DTYPES = (np.float32, np.float16, ml_dtypes.bfloat16)
INLINE = ("fp8_per_token_head", "int8_per_token_head")
#: (layout, mode, order, V scale order)
CASES = tuple(
    (name, mode, order, v_scales)
    for order in ("NHD", "HND")
    for name, mode, v_scales in (
        ("vllm-0.33", "none", None),
        ("vllm-0.33", "fp8_per_tensor", None),
        ("vllm-0.33", "fp8_per_token_head", None),
        ("vllm-0.33", "int8_per_token_head", None),
        ("vllm-0.33", "nvfp4", "swizzled"),
        ("vllm-0.33", "nvfp4", "linear"),
        ("flashinfer", "none", None),
        ("flashinfer", "fp8_per_tensor", None),
        ("flashinfer", "nvfp4", None),
    )
)

BLOCK, HEADS, DIM, BLOCKS, PADDING = 4, 2, 64, 3, 7
#: seven tokens, two of them padding, in all three blocks: written slots are 0 1 5 6 11
SLOTS = np.array([6, -1, 0, 11, 5, -7, 1], np.int64)


def config(case, *, padding=0, dtype="bfloat16", dims=(DIM, DIM)):
    name, mode, order, v_scales = case
    return Config(name, mode, order, BLOCK, HEADS, *dims, v_scales, dtype if mode == "none" else None, padding)


def layout_of(sizes):
    return make_layout(sizes.name, **sizes.arguments)


def hurtful(seed, dtype=np.float32):
    """Finite K or V: rows of very different size, a row of zeros, zeros of both signs, ties."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(len(SLOTS), HEADS, DIM))
    x *= 2.0 ** rng.integers(-8, 9, (len(SLOTS), HEADS, 1))
    x[2, 0] = 0
    x[3, 1, ::5] = -0.0
    x[4, :, :16] = np.arange(16) / 2 - 3.75
    return x.astype(dtype)


def written(layout, key, value, slots=SLOTS, blocks=BLOCKS, fill=0xA5, **options):
    """Pages by PagedCache over a background that nobody wrote, and the arguments they were written with."""
    cache_ = PagedCache(layout, blocks)
    cache_.pages[:] = fill
    cache_.write(key, value, slots, **options)
    return cache_.pages


def judge(layout, key, value, pages, slots=SLOTS, **options):
    options.setdefault("recipe", f"golden/{layout.mode}")
    return check(Dump.from_arrays(key, value, pages, slots, layout=layout, **options))


@cache
def right(case, padding=PADDING):
    """(sizes, layout, key, value, pages) that hold; pages are read-only, copy them to break them."""
    sizes = config(case, padding=padding)
    layout = layout_of(sizes)
    key, value = hurtful(1), hurtful(2)
    pages = written(layout, key, value)
    pages.flags.writeable = False
    return sizes, layout, key, value, pages


@cache
def owners(sizes):
    """By page byte, the entries that lie in it: (side, part, slot, head, first dim, byte, bit, bits)."""
    table = [[] for _ in range(layout_of(sizes).page_bytes)]
    for side, part, slot, head, dims, at, bits in entries(sizes):
        entry = (side, part, slot, head, dims.start, at // 8, at % 8, bits)
        for byte in range(at // 8, (at + bits - 1) // 8 + 1):
            table[byte].append(entry)
    return table


def one_head(mode, key, *, value=None, order="NHD", **options):
    """Right pages of rows that share one head: (layout, key, value, pages), float32, block size 4."""
    key = np.asarray(key, np.float32).reshape(len(key), 1, -1)
    value = key if value is None else np.asarray(value, np.float32).reshape(key.shape)
    sizes = {"block_size": 4, "num_kv_heads": 1, "head_size": key.shape[2], "order": order}
    choice = {"v_scales": "linear"} if mode == "nvfp4" else {}
    layout = make_layout("vllm-0.33", mode=mode, **sizes, **choice)
    slots = np.arange(len(key))
    pages = written(layout, key, value, slots, -(-len(key) // 4), fill=0, **options)
    return layout, key, value, pages


def from_bits(*patterns):
    return np.array(patterns, np.uint32).view(np.float32)

"""Pages go from any layout to any other and back without losing a bit; what would lose one is refused by its byte."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvformat.errors import InputError
from kvformat.layouts import LAYOUTS, join, layout, rearrange, split
from kvformat.layouts.build import NIBBLES
from kvformat.modes import mode as find_mode
from tests.layouts.engines import FOUR_BITS
from tests.layouts.reference import CONFIGS, Config, entries

#: caches that several layouts, orders, V scale places, nibble orders or block sizes can hold
CACHES = (
    *(("none", 2, 6, 4, dtype) for dtype in ("bfloat16", "float32")),
    ("none", 1, 576, 0, "float16"),
    ("none", 2, 8, 8, "bfloat16"),
    ("fp8_per_tensor", 3, 8, 8, None),
    ("fp8_per_tensor", 1, 576, 0, None),
    *((mode, 2, 8, 8, None) for mode in ("fp8_per_token_head", "int8_per_token_head", "int4_per_token_head")),
    ("nvfp4", 2, 64, 64, None),
    ("nvfp4", 1, 128, 128, None),
    ("nvfp4", 1, 576, 0, None),
    ("mxfp8", 2, 64, 64, None),
    ("mxfp8", 1, 512, 0, None),
    ("mxfp4", 2, 96, 96, None),
    ("fp4_mx_block16", 2, 32, 32, None),
    ("fp8_ds_mla", 1, 576, 0, None),
    ("fp8_ds_mla", 1, 512, 0, None),
    ("nvfp4_ds_mla", 1, 576, 0, None),
    ("indexer_k_mxfp8", 1, 128, 0, None),
)
BLOCKS = (4, 8, 32)


@functools.cache
def layouts_of(mode, heads, head_size, head_size_v, dtype):
    """Every layout that can hold such a cache."""
    found = []
    for (name, entry), block_size in itertools.product(LAYOUTS.items(), BLOCKS):
        if mode not in dict(entry.modes):
            continue
        form = entry.form(mode)
        choices = itertools.product(
            form.orders,
            [choice for choice, _ in form.v_scales] or [None],
            NIBBLES if mode in FOUR_BITS else [None],
            [0, 7],
        )
        for order, v_scales, nibbles, padding in choices:
            sizes = {"block_size": block_size, "num_kv_heads": heads, "head_size": head_size}
            sizes |= {"head_size_v": head_size_v, "order": order, "v_scales": v_scales, "nibbles": nibbles}
            try:
                made = layout(name, mode=mode, dtype=dtype, **sizes)
                found.append(layout(name, mode=mode, dtype=dtype, page_bytes=made.natural_bytes + padding, **sizes))
            except InputError:
                continue
    return found


def filled(page, slots, seed=0):
    """Pages of so many slots, random where codes and scales lie, zero elsewhere."""
    pages = np.random.default_rng(seed).integers(0, 256, (slots // page.block_size, page.page_bytes), np.uint8)
    for byte in range(page.page_bytes):
        if page.explain(byte=byte).part == "padding":
            pages[:, byte] = 0
    return pages


def test_every_cache_has_layouts_to_go_between():
    names = {cache: {page.name for page in layouts_of(*cache)} for cache in CACHES}
    assert all(len(layouts_of(*cache)) > 1 for cache in CACHES)
    # minimax-m3: its head size is 128; the others store their modes alone
    alone = {"llama-cpp", "mlx-lm", "openvino-by-token", "executorch", "onnxruntime"}
    assert set().union(*names.values()) >= set(LAYOUTS) - alone - {"vllm-0.33-minimax-m3"}
    tiled = {"tiles-128x4", "tiles-8x4"}
    native = {"vllm-0.33", "flashinfer", "flashinfer-split", "tensorrt-llm", "sglang", "sglang-native"}
    assert names["nvfp4", 1, 128, 128, None] == native | tiled | {"vllm-0.33-minimax-m3", "sglang-minimax-m3"}


@pytest.mark.parametrize(
    "cache",
    [*CACHES[::4], *(pytest.param(cache, marks=pytest.mark.slow) for i, cache in enumerate(CACHES) if i % 4)],
    ids=str,
)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_any_cycle_of_layouts_comes_back_byte_equal(cache, data):
    stations = data.draw(st.lists(st.sampled_from(layouts_of(*cache)), min_size=2, max_size=5), "stations")
    pages = start = filled(stations[0], 32, data.draw(st.integers(0, 3), "seed"))
    for here, there in itertools.pairwise((*stations, stations[0])):
        pages = rearrange(pages, here, there)
        assert pages.shape == (32 // there.block_size, there.page_bytes)
    assert np.array_equal(pages, start)


def bits(config, pages):
    """By (slot in the cache, side, part, head, dims): the bits of an entry, where the reference says they lie."""
    flat = np.unpackbits(pages, axis=1, bitorder="little")
    return {
        (block * config.block_size + slot, side, part, head, dims.start): tuple(flat[block, bit : bit + width])
        for block in range(len(pages))
        for side, part, slot, head, dims, bit, width in entries(config)
    }


def nvfp4(name, order, block_size, v_scales=None, nibbles=None):
    return Config(name, "nvfp4", order, block_size, 2, 64, 64, v_scales, nibbles=nibbles)


def heads8(name, order, block_size, mode="int8_per_token_head", **more):
    return Config(name, mode, order, block_size, 2, 8, 8, **more)


def plain(name, order, block_size, heads, head_size, head_size_v, dtype):
    return Config(name, "none", order, block_size, heads, head_size, head_size_v, dtype=dtype)


PAIRS = (
    (nvfp4("vllm-0.33", "HND", 4, "swizzled"), nvfp4("tensorrt-llm", "HND", 8)),
    (nvfp4("vllm-0.33", "NHD", 8, "linear"), nvfp4("sglang-native", "NHD", 4)),
    (nvfp4("flashinfer", "NHD", 4), nvfp4("tiles-8x4", "HND", 4)),
    (nvfp4("sglang-minimax-m3", "HND", 8, "swizzled"), nvfp4("flashinfer-split", "HND", 4, nibbles="high_first")),
    (heads8("vllm-0.33", "NHD", 4, padding=3), heads8("vllm-split", "HND", 8)),
    (heads8("vllm-unfused", "HND", 8, "fp8_per_token_head"), heads8("vllm-0.33", "HND", 8, "fp8_per_token_head")),
    (plain("vllm-0.33", "NHD", 4, 2, 6, 4, "bfloat16"), plain("vllm-0.33", "HND", 2, 2, 6, 4, "bfloat16")),
    (plain("flashinfer-mla", "NHD", 4, 1, 576, 0, "float16"), plain("vllm-0.33-mla", "NHD", 2, 1, 576, 0, "float16")),
)


@pytest.mark.parametrize("source, target", [*PAIRS, *(pair[::-1] for pair in PAIRS)], ids=str)
def test_every_entry_is_where_the_reference_of_the_target_says(source, target):
    here, there = (layout(config.name, **config.arguments) for config in (source, target))
    pages = filled(here, 8)
    assert bits(target, rearrange(pages, here, there)) == bits(source, pages)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_a_page_is_split_into_its_tensors_and_joined_again(config):
    page = layout(config.name, **config.arguments)
    pages = np.random.default_rng(0).integers(0, 256, (2, page.page_bytes), np.uint8)
    parts = split(page, pages)
    assert sum(part.shape[1] for part in parts.values()) == page.page_bytes
    assert np.array_equal(join(page, parts), pages)


def test_the_tensors_of_a_page_are_those_of_the_engine():
    page = layout("vllm-split", mode="int8_per_token_head", block_size=2, num_kv_heads=1, head_size=4)
    parts = split(page, np.arange(page.page_bytes, dtype=np.uint8)[None])
    assert {name: part[0].tolist() for name, part in parts.items()} == {
        "key_cache": [*range(8)], "value_cache": [*range(8, 16)],
        "k_scale_cache": [*range(16, 24)], "v_scale_cache": [*range(24, 32)],
    }  # fmt: skip


VLLM = {"mode": "int8_per_token_head", "block_size": 4, "num_kv_heads": 1, "head_size": 8}


def refusal(source, target, slots=8, **change):
    pages = filled(source, slots)
    for byte, value in change.pop("bytes", {}).items():
        pages[1, byte] = value
    with pytest.raises(InputError) as error:
        rearrange(pages, source, target, **change)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_padding_that_holds_something_is_named_and_dropped_only_if_asked():
    source, target = layout("vllm-0.33", page_bytes=99, **VLLM), layout("vllm-unfused", **VLLM)
    message = refusal(source, target, bytes={97: 0x5A})
    assert message == (
        "byte 97 of page 1 is padding and holds 0x5A, which would be lost; drop the padding, or clear it first"
    )
    pages = filled(source, 8)
    clean = rearrange(pages, source, target)
    pages[1, 97] = 0x5A
    assert np.array_equal(rearrange(pages, source, target, drop_padding=True), clean)


def test_padding_inside_a_page_is_padding_too():
    page = layout("vllm-0.33-deepseek-v4", mode="fp8_ds_mla", block_size=4)
    other = layout("vllm-0.33-deepseek-v4", mode="fp8_ds_mla", block_size=8)
    assert refusal(page, other, bytes={4 * 576 + 7: 1}).startswith("byte 2311 of page 1 is padding and holds 0x01")


@pytest.mark.parametrize(
    "change, says",
    [
        ({"block_size": 16}, "2 pages of 4 slots do not fill blocks of 16: a part of the last one would be made up"),
        ({"head_size": 4}, "the pages have head_size 8, those of the target 4; nothing converts one to the other"),
        (
            {"mode": "fp8_per_token_head"},
            "the pages have mode int8_per_token_head, those of the target fp8_per_token_head",
        ),
    ],
)
def test_another_cache_is_refused(change, says):
    assert refusal(layout("vllm-0.33", **VLLM), layout("vllm-0.33", **VLLM | change)).startswith(says)


def test_entries_that_the_target_does_not_store_are_named(monkeypatch):
    from kvformat.layouts import catalogue, register

    monkeypatch.setattr(catalogue, "_LAYOUTS", dict(catalogue._LAYOUTS))
    record = ["k.code", {"part": "k.scale", "bits": 8}, "v.code", "v.scale"]
    mode = {"recipe": "golden/x", "sections": [{"per": "cell", "record": record}]}
    register({"name": "test/narrow", "source": "a test", "modes": {"int8_per_token_head": mode}})
    message = refusal(layout("vllm-0.33", **VLLM), layout("test/narrow", **VLLM))
    assert message == (
        "K scales would be lost: test/narrow stores 1 of 8 bits a head where vllm-0.33 stores 1 of 32 bits a head"
    )


def test_pages_of_another_shape_are_refused():
    page = layout("vllm-0.33", **VLLM)
    for pages in (np.zeros((2, 95), np.uint8), np.zeros((2, 96), np.int8), np.zeros(96, np.uint8)):
        with pytest.raises(InputError, match=r"pages must be uint8 \(num_blocks, 96\) for layout vllm-0\.33"):
            rearrange(pages, page, page)


def test_every_mode_of_the_catalogue_is_known():
    assert all(find_mode(mode).name == mode for entry in LAYOUTS.values() for mode, _ in entry.modes)

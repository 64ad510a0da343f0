"""The paged cache: what is written is what `quantize` makes, where the layout says, and nothing else changes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvformat as kvf
from kvformat.fuzz import strategies
from tests.elements.compare import assert_same_values
from tests.paged import (
    BLOCK_SIZE,
    BLOCKS,
    HEAD_SIZE,
    HEADS,
    ONE_PER_MODE,
    SLOTS,
    VLLM,
    each_mode,
    every_config,
    expected,
    kv,
    new_cache,
    owned,
    refused,
)

# --- what is written comes back --------------------------------------------------------------------------------------


@every_config
def test_write_then_gather_is_quantize_then_dequantize(config):
    k, v = kv(config, SLOTS)
    slots = np.random.default_rng(1).permutation(SLOTS)
    cache = new_cache(config)
    cache.write(k, v, slots)
    for dtype in (np.float32, np.float16, ml_dtypes.bfloat16):
        found = cache.gather(range(BLOCKS), SLOTS, dtype=dtype)
        for side, x in zip(found, (k, v), strict=True):
            with np.errstate(over="ignore"):
                assert_same_values(side[slots], expected(config, x).astype(dtype))


@each_mode
@settings(max_examples=30)
@given(data=st.data())
def test_write_then_gather_holds_for_values_chosen_to_hurt(config, data):
    tokens = data.draw(st.integers(1, 4), "tokens")
    same = strategies.kv_tensors(config.mode, tokens=tokens, heads=HEADS, head_dim=HEAD_SIZE)
    k, v = (data.draw(same, side) for side in "kv")
    slots = data.draw(st.lists(st.integers(0, SLOTS - 1), min_size=tokens, max_size=tokens, unique=True), "slots")
    cache = new_cache(config, 0xAA)
    cache.write(k, v, slots)
    for side, x in zip(cache.gather(range(BLOCKS), SLOTS), (k, v), strict=True):
        assert_same_values(side[slots], expected(config, x))


@each_mode
def test_gather_follows_the_block_table_and_stops_at_seq_len(config):
    k, v = kv(config, SLOTS)
    cache = new_cache(config)
    cache.write(k, v, range(SLOTS))
    whole = cache.gather([0, 1, 2], SLOTS)
    order = [*range(8, 12), *range(4), *range(4, 8)]
    for length in (0, 1, 4, 5, 12):
        for part, all_of_it in zip(cache.gather([2, 0, 1], length), whole, strict=True):
            assert part.shape == (length, HEADS, HEAD_SIZE)
            assert_same_values(part, all_of_it[order[:length]])
    for part, all_of_it in zip(cache.gather([1, 1], 8), whole, strict=True):
        assert_same_values(part, all_of_it[[4, 5, 6, 7, 4, 5, 6, 7]])
    assert [side.shape for side in cache.gather([], 0)] == [(0, HEADS, HEAD_SIZE)] * 2


@each_mode
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, ">f4"], ids=["float16", "bfloat16", "big-endian"])
def test_key_and_value_may_be_any_float_that_can_be_quantized(config, dtype):
    k, v = (x.astype(dtype) for x in kv(config, 3))
    cache = new_cache(config)
    cache.write(k, v, [5, 0, 9])
    for side, x in zip(cache.gather(range(BLOCKS), SLOTS), (k, v), strict=True):
        assert_same_values(side[[5, 0, 9]], expected(config, x.astype(np.float32)))


def test_key_and_value_may_be_views_of_one_fused_tensor():
    config = ONE_PER_MODE[2]  # a kernel for strided rows is another compilation: one mode has to do
    fused = np.random.default_rng(5).standard_normal((3, HEADS, 2, HEAD_SIZE)).astype(np.float32)
    cache, other = new_cache(config), new_cache(config)
    cache.write(fused[:, :, 0], fused[:, :, 1], [5, 0, 9])
    other.write(fused[:, :, 0].copy(), fused[:, :, 1].copy(), [5, 0, 9])
    np.testing.assert_array_equal(cache.pages, other.pages)


# --- and nothing else changes ----------------------------------------------------------------------------------------


@every_config
def test_bytes_outside_the_written_slots_keep_their_canaries(config):
    k, v = kv(config, 5)
    slots = [7, -1, 2, 11, -5]
    mask = owned(config, [7, 2, 11])
    pages = []
    for fill in (0xAA, 0x55):
        cache = new_cache(config, fill)
        cache.write(k, v, slots)
        assert (cache.pages[~mask] == fill).all()
        pages.append(cache.pages)
    # every byte of a written slot is written: none shines through from before
    np.testing.assert_array_equal(pages[0][mask], pages[1][mask])


@every_config
def test_appending_never_rewrites(config):
    k, v = kv(config, SLOTS)
    slots = np.random.default_rng(3).permutation(SLOTS)
    cache = new_cache(config, 0xAA)
    written: list[int] = []
    for part in (slice(0, 5), slice(5, 6), slice(6, 12)):
        before = cache.pages.copy()
        cache.write(100 * k[part] if part.start else k[part], v[part], slots[part])
        old = owned(config, written)
        np.testing.assert_array_equal(cache.pages[old], before[old])
        assert (cache.pages != before).any()
        written += slots[part].tolist()
    assert (cache.pages[~owned(config, range(SLOTS))] == 0xAA).all()


@each_mode
@settings(max_examples=25)
@given(data=st.data())
def test_tokens_written_one_by_one_lie_as_if_written_together(config, data):
    tokens = data.draw(st.integers(2, 5), "tokens")
    k, v = kv(config, tokens, data.draw(strategies.seeds))
    slots = data.draw(st.permutations(range(SLOTS)), "slots")[:tokens]
    scales = {"k_scale": 0.5, "v_scale": 0.25} if config.mode in {"fp8_per_tensor", "nvfp4"} else {}
    together, singly = new_cache(config, 0xAA, **scales), new_cache(config, 0xAA, **scales)
    together.write(k, v, slots)
    for token in data.draw(st.permutations(range(tokens)), "order"):
        singly.write(k[token : token + 1], v[token : token + 1], slots[token : token + 1])
    np.testing.assert_array_equal(singly.pages, together.pages)


@each_mode
def test_negative_slots_write_nothing_at_all(config):
    k, v = kv(config, 4)
    cache = new_cache(config, 0xAA)
    cache.write(k, v, [-1, -1, -7, -(2**62)])
    assert (cache.pages == 0xAA).all()


@each_mode
def test_a_slot_written_again_holds_the_new_token_only(config):
    scales = {"k_scale": 0.5, "v_scale": 0.25} if config.mode in {"fp8_per_tensor", "nvfp4"} else {}
    cache, fresh = new_cache(config, 0xAA, **scales), new_cache(config, 0xAA, **scales)
    cache.write(*kv(config, 1, 1), [6])
    cache.write(*kv(config, 1, 2), [6])
    fresh.write(*kv(config, 1, 2), [6])
    np.testing.assert_array_equal(cache.pages, fresh.pages)


# --- what is refused leaves the pages alone --------------------------------------------------------------------------


@each_mode
@pytest.mark.parametrize(
    "slots, words",
    [
        ([0, 1, SLOTS], f"token 2 has slot {SLOTS}, which is past the end: slots are 0..{SLOTS - 1}"),
        ([2**62, 1, 2], f"token 0 has slot {2**62}, which is past the end"),
        ([0, 5, 5], "tokens 1 and 2 share slot 5"),
        ([3, -1, 3], "tokens 0 and 2 share slot 3"),
        ([0, 1], "key must have shape (2, 2, 64); got (3, 2, 64)"),
        ([0, 1, 2, 3], "key must have shape (4, 2, 64); got (3, 2, 64)"),
        ([0.0, 1.0, 2.0], "slot_mapping must be integers, one per token; got float64"),
        ([[0, 1, 2]], "slot_mapping must be integers, one per token; got int64 of shape (1, 3)"),
        (np.array([0, 1, 2**64 - 1], np.uint64), "past the end"),
    ],
)
def test_slots_that_cannot_be_are_refused_by_name_before_anything_is_written(config, slots, words):
    cache = new_cache(config, 0xAA)
    assert words in refused(cache.write, *kv(config, 3), slots)
    assert (cache.pages == 0xAA).all()
    assert cache.k_scale is None
    assert cache.v_scale is None


@each_mode
@pytest.mark.parametrize("side", ["key", "value"])
@pytest.mark.parametrize(
    "spoil, words",
    [
        (lambda x: x.astype(np.float64), "{side} must be float32, float16 or bfloat16; got float64"),
        (lambda x: x.astype(np.int8), "{side} must be float32, float16 or bfloat16; got int8"),
        (lambda x: x[:2], "{side} must have shape (3, 2, 64); got (2, 2, 64)"),
        (lambda x: x[:, :1], "{side} must have shape (3, 2, 64); got (3, 1, 64)"),
        (lambda x: x[..., :32], "{side} must have shape (3, 2, 64); got (3, 2, 32)"),
        (lambda x: x[0], "{side} must have shape (tokens, heads, head_dim); got (2, 64)"),
        (lambda x: x[:0], "{side} has no elements"),
        (lambda x: x.tolist(), "{side} must be float32, float16 or bfloat16; got float64"),
    ],
)
def test_one_bad_side_keeps_the_other_from_being_written(config, side, spoil, words):
    cache = new_cache(config, 0xAA)
    k, v = kv(config, 3)
    k, v = (spoil(k), v) if side == "key" else (k, spoil(v))
    assert words.format(side=side) in refused(cache.write, k, v, [0, 1, 2])
    assert (cache.pages == 0xAA).all()
    assert (cache.k_scale, cache.v_scale) == (None, None)


@each_mode
def test_side_that_fails_while_it_is_quantized_keeps_the_other_from_being_written(config, monkeypatch):
    made = []

    def quantize(*arguments, **keywords):
        if made:
            raise kvf.InputError("no")
        made.append(kvf.quantize(*arguments, **keywords))
        return made[0]

    monkeypatch.setattr("kvformat.cache.quantize", quantize)
    cache = new_cache(config, 0xAA)
    assert refused(cache.write, *kv(config, 3), [0, 1, 2]) == "no"
    assert (cache.pages == 0xAA).all()
    assert (cache.k_scale, cache.v_scale) == (None, None)


@each_mode
@pytest.mark.parametrize(
    "table, length, words",
    [
        ([0, BLOCKS], 1, f"block_table names block {BLOCKS}; blocks are 0..{BLOCKS - 1}"),
        ([-1], 1, "block_table names block -1"),
        ([0], BLOCK_SIZE + 1, f"seq_len must be an integer in 0..{BLOCK_SIZE}, what the block table holds; got 5"),
        ([0], -1, "seq_len must be an integer in 0..4"),
        ([], 1, "seq_len must be an integer in 0..0"),
        ([0], 1.0, "seq_len must be an integer in 0..4"),
        ([0], True, "seq_len must be an integer in 0..4"),
        ([0.0], 1, "block_table must be integers of shape (blocks,); got float64"),
        ([[0]], 1, "block_table must be integers of shape (blocks,); got int64 (1, 1)"),
        (0, 1, "block_table must be integers of shape (blocks,)"),
    ],
)
def test_gather_refuses_what_the_table_does_not_hold(config, table, length, words):
    cache = new_cache(config)
    cache.write(*kv(config, 3), [0, 1, 2])
    assert words in refused(cache.gather, table, length)


def test_gather_gives_floats_of_16_to_64_bits():
    config = ONE_PER_MODE[-1]
    cache = new_cache(config)
    cache.write(*kv(config, 3), [0, 1, 2])
    assert {side.dtype.name for side in cache.gather([0], 3, dtype=np.float64)} == {"float64"}
    assert "float32, float16, bfloat16 or float64" in refused(cache.gather, [0], 3, dtype=np.int8)


@pytest.mark.parametrize("num_blocks", [0, -1, 1.0, True, None, "3"])
def test_a_cache_has_at_least_one_block(num_blocks):
    layout = kvf.layout(VLLM, **ONE_PER_MODE[0].arguments)
    assert "num_blocks must be an integer >= 1" in refused(kvf.PagedCache, layout, num_blocks)


def test_recipe_of_another_mode_isrefused():
    cache = new_cache(ONE_PER_MODE[2], 0xAA)
    k, v = kv(ONE_PER_MODE[2], 1)
    words = refused(cache.write, k, v, [0], recipe="int8_per_token_head")
    assert words.startswith(
        "recipe golden/int8_per_token_head is for mode int8_per_token_head; this layout is for mode fp8"
    )
    assert (cache.pages == 0xAA).all()


def test_recipe_of_the_same_mode_may_be_chosen():
    config = ONE_PER_MODE[2]
    x = np.random.default_rng(2).standard_normal((SLOTS, HEADS, HEAD_SIZE)).astype(np.float32)
    cache = new_cache(config)
    cache.write(x, x, range(SLOTS), recipe="exact/fp8_per_token_head")
    assert cache.recipe.name == "exact/fp8_per_token_head"
    assert_same_values(cache.gather(range(BLOCKS), SLOTS)[0], kvf.quantize(x, "exact/fp8_per_token_head").dequantize())

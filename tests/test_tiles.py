"""Tiles and threads change no byte: pages, verdicts and values are those of one piece of work."""

from __future__ import annotations

import numpy as np
import pytest

import kvformat as kvf
from kvformat.elements import threads
from kvformat.errors import InputError

TOKENS, HEADS, DIMS = 37, 3, 64
MODES = ("none", "fp8_per_tensor", "fp8_per_token_head", "int8_per_token_head", "nvfp4")
KEY, VALUE = np.random.default_rng(5).standard_normal((2, TOKENS, HEADS, DIMS), np.float32)
#: some without a slot, in no order
SLOTS = np.where(np.arange(TOKENS) % 7 == 3, -1, np.random.default_rng(6).permutation(80)[:TOKENS])


def written(mode, **scales):
    layout = kvf.layout("vllm-0.33", mode=mode, block_size=16, num_kv_heads=HEADS, head_size=DIMS)
    cache = kvf.PagedCache(layout, 5, **scales)
    cache.pages[:] = 0xA5
    cache.write(KEY, VALUE, SLOTS)
    return cache


@pytest.fixture(params=[1, 2 * HEADS * DIMS, 5 * HEADS * DIMS], ids="tiles of {}".format)
def small_tiles(request, monkeypatch):
    """Tiles of one, two and five tokens, on three threads."""

    def shrink():
        monkeypatch.setattr(threads, "TILE", request.param)
        monkeypatch.setattr(threads, "count", lambda: 3)

    return shrink


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("given", [True, False], ids=["given", "computed"])
def test_pages_and_values_are_those_of_one_piece(mode, given, small_tiles):
    scales = {"k_scale": 0.02, "v_scale": 0.03} if given and mode in ("fp8_per_tensor", "nvfp4") else {}
    whole = written(mode, **scales)
    values = whole.gather(np.arange(5), 80)
    alone = whole.read("k", SLOTS[SLOTS >= 0], np.float16)
    small_tiles()
    cache = written(mode, **scales)
    np.testing.assert_array_equal(cache.pages, whole.pages)
    assert (cache.k_scale, cache.v_scale) == (whole.k_scale, whole.v_scale)
    for found, expected in zip(cache.gather(np.arange(5), 80), values, strict=True):
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(cache.read("k", SLOTS[SLOTS >= 0], np.float16), alone)


@pytest.mark.parametrize("mode", MODES[1:])
def test_dequantize_gives_the_values_of_one_piece(mode, small_tiles):
    quantized = kvf.quantize(KEY, mode)
    whole = quantized.dequantize(np.float16)
    small_tiles()
    np.testing.assert_array_equal(quantized.dequantize(np.float16).view(np.uint16), whole.view(np.uint16))


@pytest.mark.parametrize("mode", MODES[1:])
@pytest.mark.parametrize("wrong", [(), (0,), (9, 10, 30)], ids=["right", "the first", "three"])
def test_the_verdict_is_that_of_one_piece(mode, wrong, small_tiles):
    cache = written(mode)
    kept = np.flatnonzero(SLOTS >= 0)
    for token in wrong:
        block, slot = divmod(int(SLOTS[kept[token]]), 16)
        cache.pages[block, cache.layout.locate(side="v", slot=slot, head=1, dim=5).byte] ^= 1
    dump = kvf.Dump.from_arrays(
        KEY, VALUE, cache.pages, SLOTS, layout=cache.layout, recipe=f"golden/{mode}", k_scale=cache.k_scale,
        v_scale=cache.v_scale,
    )  # fmt: skip
    whole = kvf.check(dump)
    small_tiles()
    parts = kvf.check(dump)
    assert (parts.ok, parts.to_json(), str(parts)) == (not wrong, whole.to_json(), str(whole))


def test_what_a_tile_refuses_is_refused_before_a_byte_is_written(small_tiles):
    layout = kvf.layout("vllm-0.33", mode="nvfp4", block_size=16, num_kv_heads=HEADS, head_size=DIMS)
    cache = kvf.PagedCache(layout, 5, k_scale=0.02, v_scale=0.03)
    small_tiles()
    with pytest.raises(InputError):
        cache.write(KEY, VALUE.astype(np.float64), SLOTS)
    assert not cache.pages.any()


def test_pieces_come_in_order_and_a_failure_is_raised(monkeypatch):
    monkeypatch.setattr(threads, "count", lambda: 3)
    pieces = [(start, start + 2) for start in range(0, 40, 2)]
    assert list(threads.in_order(lambda start, stop: (start, stop), pieces)) == pieces
    with pytest.raises(ZeroDivisionError):
        list(threads.in_order(lambda start, _stop: 1 // (start - 8), pieces))

"""Right pages hold: every mode, layout, order, V scale order and input dtype, from two writers that share nothing."""

from __future__ import annotations

import numpy as np
import pytest

from kvformat.cache import PagedCache
from kvformat.data import sample
from kvformat.dump import Dump
from kvformat.layouts import layout as make_layout
from kvformat.verify import check
from kvformat.verify.plain import write_pages
from tests.verify.cases import (
    BLOCK,
    BLOCKS,
    CASES,
    DIM,
    DTYPES,
    HEADS,
    INLINE,
    PADDING,
    SLOTS,
    config,
    hurtful,
    judge,
    layout_of,
    written,
)

WRITTEN = 5


def names(case):
    return "-".join(filter(None, case))


def entries(mode, dims=(DIM, DIM)):
    """Codes and scales of the five tokens that have a slot."""
    scales = {"nvfp4": sum(dims) // 16}.get(mode, 2 if mode in INLINE else 0)
    return WRITTEN * HEADS * (sum(dims) + scales)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=names)
def test_pages_of_the_cache_hold(case, dtype):
    layout = layout_of(config(case, padding=PADDING))
    key, value = hurtful(1, dtype), hurtful(2, dtype)
    report = judge(layout, key, value, written(layout, key, value))
    assert (report.ok, report.status, report.mismatches, report.first) == (True, 0, 0, None), str(report)
    assert report.compared == entries(case[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES, ids=names)
def test_pages_of_the_plain_writer_hold(case, dtype):
    name, mode, order, v_scales = case
    key, value = hurtful(3, dtype), hurtful(4, dtype)
    sizes = {"block_size": BLOCK, "num_blocks": BLOCKS, "v_scales": v_scales}
    pages = write_pages(name, mode, order, key, value, SLOTS, **sizes)
    report = judge(layout_of(config(case)), key, value, pages)
    assert report.ok, str(report)
    assert report.compared == entries(mode)


@pytest.mark.parametrize("case", CASES, ids=names)
def test_on_real_k_and_v_the_plain_writer_and_the_cache_write_the_same_bytes(case):
    name, mode, order, v_scales = case
    for layer in sample():
        tokens, heads, dims = layer.key.shape
        slots = np.random.default_rng(5).permutation(144)[:tokens].astype(np.int64)
        slots[7] = -1
        choice = {"block_size": 16, "num_kv_heads": heads, "head_size": dims, "order": order, "v_scales": v_scales}
        cache = PagedCache(make_layout(name, mode=mode, **choice), 9)
        cache.write(layer.key, layer.value, slots)
        pages = write_pages(
            name, mode, order, layer.key, layer.value, slots, block_size=16, num_blocks=9, v_scales=v_scales
        )
        assert np.array_equal(pages, cache.pages)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES[:9], ids=names)
def test_pages_of_nan_inf_zeros_and_subnormals_hold(case, dtype):
    layout = layout_of(config(case))
    key, value = hurtful(5, dtype), hurtful(6, dtype)
    key[0, 0, 3], key[0, 1, 40], value[2, 0, 63] = np.nan, np.inf, -np.inf
    key[3, 0], value[4, 1, :16] = np.nan, np.inf
    value[6] = np.finfo(np.float16).smallest_subnormal
    report = judge(layout, key, value, written(layout, key, value))
    assert report.ok, str(report)


@pytest.mark.parametrize("stored", ["float16", "float32", "bfloat16"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_mode_none_holds_in_every_stored_dtype(dtype, stored):
    layout = layout_of(config(("vllm-0.33", "none", "HND", None), dtype=stored))
    key, value = hurtful(7, dtype), hurtful(8, dtype)
    assert judge(layout, key, value, written(layout, key, value)).ok


@pytest.mark.parametrize("mode, dims", [("none", (6, 4)), ("fp8_per_tensor", (5, 7)), ("nvfp4", (16, 64))])
def test_pages_whose_k_and_v_differ_in_head_size_hold(mode, dims):
    v_scales = "swizzled" if mode == "nvfp4" else None
    layout = layout_of(config(("vllm-0.33", mode, "NHD", v_scales), dims=dims, padding=PADDING))
    key, value = (np.random.default_rng(9).normal(size=(7, HEADS, size)).astype(np.float32) for size in dims)
    report = judge(layout, key, value, written(layout, key, value))
    assert report.ok, str(report)
    assert report.compared == entries(mode, dims)


def test_big_endian_and_strided_arrays_are_judged_by_the_numbers_they_hold():
    layout = layout_of(config(CASES[3]))
    key, value = hurtful(1), hurtful(2)
    pages = written(layout, key, value)
    swapped = np.asfortranarray(key).astype(">f4")
    strided = np.repeat(value, 2, axis=2)[:, :, ::2]
    assert judge(layout, swapped, strided, np.repeat(pages, 2, axis=0)[::2], SLOTS.astype(">i8")).ok


def test_a_dump_from_a_file_and_one_from_arrays_give_the_same_report(tmp_path):
    layout = layout_of(config(CASES[4], padding=PADDING))
    key, value = hurtful(1), hurtful(2)
    pages = written(layout, key, value)
    pages[1, 77] ^= 0x11
    dump = Dump.from_arrays(key, value, pages, SLOTS, layout=layout, recipe=f"golden/{layout.mode}")
    dump.save(tmp_path / "d.safetensors")
    report = check(Dump.load(tmp_path / "d.safetensors"))
    assert report.status == 1
    assert report.to_json() == check(dump).to_json()
    assert str(report) == str(check(dump))


def test_judging_changes_nothing_that_it_was_given():
    layout = layout_of(config(CASES[3]))
    given = [hurtful(1), hurtful(2), written(layout, hurtful(1), hurtful(2)), SLOTS.copy()]
    before = [array.tobytes() for array in given]
    for array in given:
        array.flags.writeable = False
    assert judge(layout, *given).ok
    assert [array.tobytes() for array in given] == before

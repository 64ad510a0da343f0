"""Every layout and mode: a cache stores what its recipe makes where the reference says, and check reads it there.

Recipes run in the NumPy reader here, which needs no compilation.
"""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

import kvformat as kvf
from kvformat import cache
from kvformat.layouts import LAYOUTS
from kvformat.recipes import plain
from kvformat.recipes.admissible import is_approximate
from kvformat.verify.compare import check
from tests.layouts import engines
from tests.layouts.reference import Config, entries, region_name
from tests.paged import refused

BLOCKS = 2


def configs():
    for name, entry in LAYOUTS.items():
        for mode, form in entry.modes:
            if (name, mode) in engines.IN_TWO_PLACES:
                continue
            head_size = form.head_size or 64
            dtype = "bfloat16" if mode == "none" else None
            v_scales = next((choice for choice, _ in form.v_scales), None)
            block_size = 32 if (name, mode) == ("sglang", "mxfp8") else 4
            head_size_v = head_size if "v" in form.sides else 0
            heads = form.num_kv_heads or 2
            nibbles = "high_first" if name == "flashinfer-split" and mode in engines.FOUR_BITS else None
            sizes = (block_size, heads, head_size, head_size_v)
            yield Config(name, mode, form.orders[-1], *sizes, v_scales, dtype, nibbles=nibbles)


def _compiles(config):
    """Whether the NumPy reader leaves the recipe to the engine, which compiles a kernel."""
    recipe = kvf.recipe(kvf.layout(config.name, **config.arguments).recipe)
    return not recipe.one_scale_a_group


CONFIGS = tuple(configs())


@pytest.fixture(autouse=True)
def _no_compilation(monkeypatch):
    monkeypatch.setattr(cache, "quantize", plain.quantize)


@pytest.fixture(
    params=[pytest.param(each, marks=[pytest.mark.slow] if _compiles(each) else []) for each in CONFIGS], ids=str
)
def config(request):
    return request.param


def written(config, tokens=5, seed=0):
    """A cache that holds some tokens in some slots; its layout, K, V, and the slots."""
    page = kvf.layout(config.name, **config.arguments)
    rng = np.random.default_rng(seed)
    k, v = (
        rng.standard_normal((tokens, config.num_kv_heads, size)).astype(ml_dtypes.bfloat16)
        for size in (config.head_size, config.head_size_v)
    )
    slots = rng.permutation(BLOCKS * config.block_size)[:tokens]
    slots[1] = -1
    held = kvf.PagedCache(page, BLOCKS, **scales(page))
    held.write(k, v if v.size else None, slots, recipe=page.recipe)
    return held, page, k, v, slots


def scales(page):
    """The per-tensor scales of the layout's recipe, where it has some."""
    if not kvf.recipe(page.recipe).outer:
        return {}
    return {"k_scale": 0.03} | ({"v_scale": 0.02} if "v" in page.sides else {})


def made(config, page, side, x):
    """By part: the bits of every entry that the recipe makes of a side, whole numbers (tokens, heads, entries)."""
    start = engines.rope_starts(config) or config.head_size
    main = plain.quantize(x[..., :start], kvf.recipe(page.recipe), scale=scales(page).get(f"{side}_scale"))
    element = main.recipe.element
    codes = (main.codes.view(np.uint16) if element is None else main.codes).astype(int)
    parts = {"code": codes % (1 << (16 if element is None else kvf.element(element).bits))}
    if start < x.shape[2]:
        rope = x[..., start:]
        own = next(region.recipe for region in page.regions if region.name == "K rope")
        if config.name == "flashinfer-mla" and not own:
            whole = plain.quantize(x, kvf.recipe(page.recipe), scale=scales(page).get("k_scale")).codes
            tail = whole.view(np.uint16 if whole.dtype.itemsize == 2 else np.uint8)[..., start:]
            parts["code"] = whole.view(tail.dtype)[..., :start].astype(int)
        else:
            tail = rope.view(np.uint16) if own == "golden/none" else rope.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
        parts["code"] = np.concatenate([parts["code"], tail.astype(int)], axis=-1)
    if main.recipe.inner is not None:
        stored = main.scales.reshape(*x.shape[:2], -1)
        bits = stored.view(f"u{stored.itemsize}")
        parts["scale"] = bits.astype(int) * (0x01010101 if config.mode == "indexer_k_mxfp8" else 1)
        for level in main.recipe.group[1:]:
            stored = main.params[level.name].reshape(*x.shape[:2], -1)
            parts[level.name] = stored.view(f"u{stored.itemsize}").astype(int)
    return parts


def test_a_cache_stores_what_the_recipe_makes_where_the_reference_says(config):
    held, page, k, v, slots = written(config)
    expected = {side: made(config, page, side, x) for side, x in (("k", k), ("v", v)) if x.size}
    flat = np.unpackbits(held.pages, axis=1, bitorder="little").astype(object)
    token_of = {int(slot): token for token, slot in enumerate(slots) if slot >= 0}
    seen = 0
    for block, (side, part, slot, head, dims, bit, width) in itertools.product(range(BLOCKS), entries(config)):
        token = token_of.get(block * config.block_size + slot)
        found = sum(int(each) << place for place, each in enumerate(flat[block, bit : bit + width]))
        if token is None:
            assert found == 0
            continue
        column = dims.start if part == "code" else dims.start // len(dims)
        assert found == expected[side][part][token, head, column], (side, part, token, head, dims)
        seen += 1
    assert seen == sum(parts[name].size for parts in expected.values() for name in parts) * 4 // 5


def dump_of(config):
    held, page, k, v, slots = written(config)
    value = v if v.size else None
    return kvf.Dump.from_arrays(k, value, held.pages, slots, layout=page, recipe=page.recipe, **scales(page))


def test_check_judges_every_entry_of_every_layout(config):
    report = check(dump_of(config))
    assert report.ok, str(report)
    per_page = sum(1 for _ in entries(config))
    assert report.compared == per_page // config.block_size * 4  # of five tokens one is padding


@pytest.mark.parametrize("seed", range(4))
def test_one_flipped_bit_anywhere_is_found_where_it_is(config, seed):
    dump = dump_of(config)
    rng = np.random.default_rng(seed)
    token = int(rng.choice([0, 2, 3, 4]))
    block, position = divmod(int(dump.slot_mapping[token]), config.block_size)
    every = [entry for entry in entries(config) if entry[2] == position]
    side, part, _, head, dims, bit, width = every[rng.integers(len(every))]
    sign = bit + width - 1
    copies = width // 8 if config.mode == "indexer_k_mxfp8" and part == "scale" else 1
    if copies > 1:
        sign = bit + 8 * int(rng.integers(copies)) + 7
    dump.pages[block, sign // 8] ^= 1 << sign % 8
    report = check(dump)
    name = region_name(config, side, part, dims)
    # codes are admissible under the scale that lies there: with another scale they may not be
    assert report.mismatches == 1 or (part == "scale" and is_approximate(kvf.recipe(dump.layout.recipe))), name
    first = report.first
    assert (first["side"], first["part"], first["token"], first["head"], first["dim"]) == (
        side, part, token, head, dims.start)  # fmt: skip
    assert first["byte"] == bit // 8
    assert first["block"] == block


def test_a_dump_without_v_is_saved_and_judged_again(tmp_path):
    config = Config("vllm-0.33-mla", "fp8_ds_mla", "NHD", 4, 1, 576, 0)
    dump = dump_of(config)
    dump.save(tmp_path / "dump.safetensors")
    again = kvf.Dump.load(tmp_path / "dump.safetensors")
    assert again.value.shape == (5, 1, 0)
    assert again.layout == dump.layout
    report = check(again)
    assert report.ok
    assert "K rope codes by golden/none: 256 equal" in str(report)
    assert set(report.to_json()["where"]) == {"k", "k rope"}


def test_a_layout_without_v_takes_no_value():
    held, _, k, _, slots = written(Config("vllm-0.33-mla", "fp8_ds_mla", "NHD", 4, 1, 576, 0))
    assert refused(held.write, k, k, slots) == ("layout vllm-0.33-mla in mode fp8_ds_mla stores no V; leave value out")
    found, nothing = held.gather([0, 1], 3)
    assert (found.shape, nothing.shape) == ((3, 1, 576), (3, 1, 0))


def test_a_mode_without_a_golden_recipe_is_written_by_the_layouts_engine():
    page = kvf.layout("vllm-0.33-mla", mode="nvfp4_ds_mla", block_size=4)
    held = kvf.PagedCache(page, 1)
    held.write(np.full((1, 1, 576), 6, np.float32), None, [0])
    assert held.recipe.name == page.recipe == "vllm-0.33/csrc/nvfp4_ds_mla"
    assert np.array_equal(held.gather([0], 1)[0], np.full((1, 1, 576), 6, np.float32))


def test_a_recipe_of_the_same_mode_for_another_record_is_refused():
    page = kvf.layout("vllm-0.33-mla", mode="fp8_ds_mla", block_size=4)
    says = (
        "recipe vllm-0.33/csrc-v4/fp8_ds_mla stores 8 scales of 8 bits for 512 dims; "
        "layout vllm-0.33-mla in mode fp8_ds_mla has 4 of 32 bits"
    )
    key = np.ones((1, 1, 576), np.float32)
    assert refused(kvf.PagedCache(page, 1).write, key, None, [0], recipe="vllm-0.33/csrc-v4/fp8_ds_mla") == says
    pages = np.zeros((1, page.page_bytes), np.uint8)
    dump = kvf.Dump.from_arrays(key, None, pages, [0], layout=page, recipe="vllm-0.33/csrc-v4/fp8_ds_mla")
    assert refused(check, dump) == says

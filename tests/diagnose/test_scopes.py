"""Faults on a part of the pages, errors that are no fault, pages that were not written, and every kind of layout."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kvformat import Dump, PagedCache, diagnose, layout
from tests.diagnose.by_hand import F32, dump_of, e4m3, int8, spread, write

INT8, PT = "int8_per_token_head", "fp8_per_tensor"


def normal(seed, tokens=40, heads=4, dims=32):
    return np.random.default_rng(seed).normal(size=(tokens, heads, dims)).astype(F32)


def cached(mode=INT8, *, name="vllm-0.33", tokens=40, block=16, recipe=None, **sizes):
    """A right dump of random K and V."""
    made = layout(name, mode=mode, block_size=block, **sizes)
    rng = np.random.default_rng(0)
    key, value = (
        rng.normal(size=(tokens, made.num_kv_heads, size)).astype(F32) for size in (made.head_size, made.head_size_v)
    )
    cache = PagedCache(made, -(-tokens // block))
    how = recipe or made.recipe
    cache.write(key, value if "v" in made.sides else None, np.arange(tokens), recipe=how)
    return Dump.from_arrays(
        key, value, cache.pages, np.arange(tokens), layout=made, recipe=how, k_scale=cache.k_scale,
        v_scale=cache.v_scale,
    )  # fmt: skip


def int8_dump(**sizes):
    return cached(recipe=f"golden/{INT8}", **{"num_kv_heads": 4, "head_size": 32, **sizes})


def headline(found):
    return str(found).splitlines()[0]


# --- errors that are no fault ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("block, byte", [(0, 5), (1, 77), (2, 900)])
def test_one_wrong_byte_is_an_exception_wherever_it_lies(block, byte):
    dump = int8_dump()
    dump.pages[block, byte] ^= 4
    found = diagnose(dump)
    assert (found.status, found.explanations[0].faults, found.own.wrong) == (1, (), 1)
    assert headline(found).startswith(f"as declared, except byte {byte} of block {block} (")


def test_a_wrong_byte_of_a_tiny_dump_is_an_exception():
    dump = int8_dump(tokens=3, num_kv_heads=1, head_size=16)
    dump.pages[0, 33] ^= 4
    assert headline(diagnose(dump)).startswith("as declared, except byte 33 of block 0")


def test_slots_that_hold_something_else_are_named():
    dump = int8_dump()
    dump.pages.reshape(48, -1)[33:37] = np.random.default_rng(3).integers(0, 256, (4, 288))
    line = headline(diagnose(dump))
    assert line.startswith("as declared, except slots 33..36 (1,1")


def test_random_bytes_are_explained_by_nothing():
    dump = int8_dump()
    dump.pages[:] = np.random.default_rng(1).integers(0, 256, dump.pages.shape)
    found = diagnose(dump)
    assert not found.explained
    assert headline(found).startswith("UNEXPLAINED: nothing explains these bytes")


def test_no_name_costs_more_bits_than_the_declared_one_with_its_exceptions():
    rng = np.random.default_rng(5)
    for size in (1, 1, 2, 5, 17, 64):
        dump = int8_dump()
        start = int(rng.integers(0, 40 * 288 - size))
        dump.pages.reshape(-1)[start : start + size] ^= rng.integers(1, 256, size).astype(np.uint8)
        found = diagnose(dump)
        assert found.explanations[0] is found.own
        assert found.own.wrong == size


# --- nothing was written --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0x00, 0xFF])
def test_pages_that_were_never_written(value):
    dump = int8_dump()
    dump.pages[:] = value
    found = diagnose(dump)
    assert found.explanations[0].faults == ("never-written",)
    assert f"each byte is 0x{value:02X}" in headline(found)


def test_pages_that_were_partly_written():
    dump = int8_dump()
    dump.pages.reshape(48, -1)[23:] = 0
    first = diagnose(dump).explanations[0]
    assert (first.complete, first.faults, first.first.scope) == (True, ("never-written",), "tokens 23..39")


# --- faults on a part -----------------------------------------------------------------------------------------------


def test_the_last_lanes_round_another_way():
    sides = normal(1, dims=24), normal(2, dims=24)
    made = []
    for x in sides:
        codes, scales = write(INT8, x)
        other, _ = write(INT8, x, encode=lambda q: int8(np.trunc(np.clip(q, -127, 127))))
        codes[..., 16:] = other[..., 16:]
        made.append((codes, scales))
    slots = np.arange(40)
    dump = dump_of(INT8, *sides, spread(INT8, made, slots=slots, blocks=5), slots=slots)
    first = diagnose(dump).explanations[0]
    assert (first.complete, first.faults, first.first.scope) == (True, ("round-toward-zero",), "dims 16..23")


def test_k_is_stored_where_v_belongs():
    key, value = normal(1), normal(2)
    row = write(INT8, key)
    slots = np.arange(40)
    dump = dump_of(INT8, key, value, spread(INT8, [row, row], slots=slots, blocks=5), slots=slots)
    first = diagnose(dump).explanations[0]
    assert (first.complete, first.faults, first.first.sides) == (True, ("other-side",), ("v",))


def test_heads_hold_those_of_another_rank():
    key, value = normal(1), normal(2)
    order = [2, 3, 0, 1]
    made = [tuple(part[:, order] for part in write(INT8, x)) for x in (key, value)]
    slots = np.arange(40)
    first = diagnose(dump_of(INT8, key, value, spread(INT8, made, slots=slots, blocks=5), slots=slots)).explanations[0]
    assert (first.complete, first.faults) == (True, ("other-head",))
    assert first.first.variants == ("the halves exchanged",)


def test_slots_hold_the_next_token():
    dump = int8_dump()
    moved = replace(dump, key=np.roll(dump.key, 1, axis=0), value=np.roll(dump.value, 1, axis=0))
    found = diagnose(moved)
    assert found.explanations[0].explained > found.own.explained
    assert set(found.explanations[0].faults) <= {"other-token", "slot-shift"}


def test_the_top_binade_becomes_the_largest_value():
    key, value = normal(1), normal(2)

    def encode(q):
        return np.where(np.abs(q) >= 256, np.where(np.signbit(q), 0xFE, 0x7E), e4m3(q)).astype(np.uint8)

    made = [write(PT, x, given=F32(0.005), encode=encode) for x in (key, value)]
    slots = np.arange(40)
    pages = spread(PT, made, slots=slots, blocks=5)
    first = diagnose(dump_of(PT, key, value, pages, slots=slots, k_scale=0.005, v_scale=0.005)).explanations[0]
    assert (first.complete, first.faults) == (True, ("top-binade",))


# --- layouts and modes of engines -----------------------------------------------------------------------------------

ENGINES = [
    ("vllm-0.33-mla", "fp8_ds_mla", {}),
    ("vllm-0.33-indexer", "indexer_k_mxfp8", {}),
    ("vllm-0.33", "int4_per_token_head", {"num_kv_heads": 2, "head_size": 64}),
    *(
        pytest.param(*case, marks=pytest.mark.slow)
        for case in (
            ("vllm-0.33-mla", "fp8_per_tensor", {}),
            ("vllm-0.33-mla", "nvfp4_ds_mla", {}),
            ("vllm-0.33-deepseek-v4", "fp8_ds_mla", {}),
            ("vllm-0.33-indexer", "indexer_k", {}),
            ("vllm-0.33-indexer", "indexer_k_mxfp4", {}),
            ("vllm-0.33-deepseek-v41", "mxfp8", {}),
            ("sglang", "mxfp8", {"num_kv_heads": 2, "head_size": 64}),
            ("sglang", "fp4_mx_block16", {"num_kv_heads": 2, "head_size": 64}),
            ("tiles-128x4", "mxfp4", {"num_kv_heads": 2, "head_size": 64}),
            ("sglang-mla", "fp8_per_tile", {}),
        )
    ),
]


@pytest.mark.parametrize("name, mode, sizes", ENGINES)
def test_every_kind_of_layout_is_diagnosed(name, mode, sizes):
    dump = cached(mode, name=name, block=64, **sizes)
    assert diagnose(dump).ok
    dump.pages[0, 77] ^= 4
    assert headline(diagnose(dump)).startswith("as declared, except byte 77 of block 0")
    dump.pages[:] = 0
    assert diagnose(dump).explanations[0].faults == ("never-written",)


def test_an_approximate_power_of_two_is_one_of_two_numbers_here_too():
    dump = cached("fp8_ds_mla", name="vllm-0.33-mla", block=64, tokens=4)
    region = next(each for each in dump.layout.regions if each.part == "scale" and each.bits == 32)
    at = int(region.address(0, 0, 0)) // 8
    right = dump.pages[0, at : at + 4].view(np.float32)[0]
    assert diagnose(dump).ok
    for factor in (1.1, 1.5, 1.99):
        dump.pages[0, at : at + 4] = np.frombuffer(F32(right * F32(factor)).tobytes(), np.uint8)
        assert diagnose(dump).own.wrong > 0, factor


# --- what the pages held before ---------------------------------------------------------------------------------------


def before(dump, seed=9):
    return np.random.default_rng(seed).integers(0, 256, dump.pages.shape).astype(np.uint8)


def test_pages_that_hold_what_they_held_before_were_never_written(tmp_path):
    dump = int8_dump()
    old = before(dump)
    dump = replace(dump, pages=old.copy(), pages_before=old)
    first = diagnose(dump).explanations[0]
    assert (first.complete, first.faults, first.first.variants) == (
        True, ("never-written",), ("what the pages held before",),
    )  # fmt: skip
    dump.save(tmp_path / "d.safetensors")
    assert diagnose(Dump.load(tmp_path / "d.safetensors")).explanations[0].first == first.first


def test_pages_that_were_written_up_to_a_token_hold_the_rest_as_before():
    dump = int8_dump()
    old = before(dump)
    dump.pages.reshape(48, -1)[23:] = old.reshape(48, -1)[23:]
    first = diagnose(replace(dump, pages_before=old)).explanations[0]
    assert (first.complete, first.faults, first.first.scope) == (True, ("never-written",), "tokens 23..39")


def test_scales_that_stay_from_before_are_named_beside_right_codes():
    dump = int8_dump()
    old = before(dump)
    region = next(each for each in dump.layout.regions if (each.side, each.part) == ("k", "scale"))
    for slot in range(dump.layout.block_size):
        for head in range(4):
            at = int(region.address(slot, head, 0)) // 8
            dump.pages[:, at : at + 4] = old[:, at : at + 4]
    first = diagnose(replace(dump, pages_before=old)).explanations[0]
    assert (first.complete, first.faults, first.first.sides) == (True, ("scale-elsewhere",), ("k",))
    assert first.first.variants == ("what the page held before",)


def test_codes_of_zeros_under_right_scales_are_named():
    dump = int8_dump()
    for region in dump.layout.regions:
        if region.part == "code":
            for slot in range(dump.layout.block_size):
                for head in range(4):
                    at = int(region.address(slot, head, 0)) // 8
                    dump.pages[:, at : at + 32] = 0
    first = diagnose(dump).explanations[0]
    assert (first.complete, first.faults) == (True, ("never-written",))
    assert first.first.variants == ("each byte of the codes is 0x00",)


def test_padding_lanes_of_zeros_in_minimum_and_maximum_are_named():
    # rows above 0, whose minimum is that of the padding: w = max / 15, zero point 0, codes round(x / w)
    from kvformat.recipes.catalogue import recipe
    from kvformat.recipes.rows import prepared

    dump = cached("int4_per_token_head", num_kv_heads=2, head_size=64, tokens=20)
    steps = recipe(dump.recipe).for_input("float32").prepare
    turn = prepared(steps, np.eye(64, dtype=F32)[:, None]).reshape(64, 64).astype(np.float64)
    sides = []
    for side, seed in (("k", 1), ("v", 2)):
        wanted = np.random.default_rng(seed).uniform(3, 5, (20, 2, 64))
        x = (wanted @ np.linalg.inv(turn)).astype(F32)
        turned = prepared(steps, x).astype(F32)
        assert (turned > 1).all()
        w = turned.max(axis=2, keepdims=True) * (F32(1) / F32(15))
        stored = (w.view(np.uint32) & ~np.uint32(15)).view(F32)
        q = (turned.astype(np.float64) * (F32(1) / w)).astype(F32)
        codes = np.trunc(q + F32(0.5)).clip(0, 15).astype(np.uint8)
        for token, head in np.ndindex(20, 2):
            block, slot = divmod(token, 16)
            at = dump.layout.locate(side=side, slot=slot, head=head, dim=0).byte
            dump.pages[block, at : at + 32] = codes[token, head, 0::2] | codes[token, head, 1::2] << 4
            at = dump.layout.locate(side=side, slot=slot, head=head, dim=0, part="scale").byte
            dump.pages[block, at : at + 4] = stored[token, head].view(np.uint8)
        sides.append(x)
    first = diagnose(replace(dump, key=sides[0], value=sides[1])).explanations[0]
    assert (first.complete, first.faults) == (True, ("amax-scope",))
    assert first.first.variants == ("padding lanes of zeros as well",)

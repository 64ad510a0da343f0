"""lint: silent on right pages of every mode and profile; each rule finds what was planted, and says where."""

from __future__ import annotations

import dataclasses

import ml_dtypes
import numpy as np
import pytest

import kvformat as kvf
from kvformat import InputError, PagedCache, layout, lint
from kvformat import cache as caching
from kvformat.lint import linter
from kvformat.lint.linter import lint_file
from kvformat.lint.rules import RULES
from kvformat.lint.traits import traits
from kvformat.modes import MODES as MODES_OF_GOLDEN
from kvformat.modes import RECORDS
from kvformat.recipes import plain
from kvformat.recipes.catalogue import recipe as find
from tests.lint import corpus
from tests.verify.profiles import PROFILES, key_value

MODES = ("none", "fp8_per_tensor", "fp8_per_token_head", "int8_per_token_head", "nvfp4")
BLOCK, HEADS, DIMS = 16, 2, 64


def laid(mode, **options):
    return layout("vllm-0.33", mode=mode, block_size=BLOCK, num_kv_heads=HEADS, head_size=DIMS, **options)


def right_pages(mode, profile="llama", blocks=4, recipe=None, seed=1, **options):
    made = laid(mode, **options)
    cache = PagedCache(made, blocks)
    key, value = key_value(profile, blocks * BLOCK, HEADS, DIMS, seed)
    cache.write(key, value, np.arange(blocks * BLOCK), recipe=recipe or f"golden/{mode}")
    return made, cache.pages


def of_rule(report, rule):
    found = [each for each in report.findings if each.rule == rule]
    assert found, str(report)
    assert report.status == 1
    return found


# --- right pages -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("profile", ["llama"])
@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_found_in_50_right_pages_alone_and_together(mode, profile):
    nothing_is_found(mode, profile, 50)


@pytest.mark.exhaustive
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_found_in_1000_right_pages_alone_and_together(mode, profile):
    nothing_is_found(mode, profile, 1000)


def nothing_is_found(mode, profile, count):
    for recipe in {f"golden/{mode}", laid(mode).recipe}:
        for v_scales in ("swizzled", "linear") if mode == "nvfp4" else (None,):
            made, pages = right_pages(mode, profile, count, recipe, v_scales=v_scales)
            whole = lint(pages, layout=made)
            assert whole.ok, str(whole)
            assert whole.slots == count * BLOCK
            for page in range(count):
                report = lint(pages[page : page + 1], layout=made)
                assert report.ok, f"page {page}: {report}"


@pytest.mark.parametrize("mode", MODES)
def test_a_block_that_is_filled_in_part_is_right(mode):
    made = laid(mode, page_bytes=laid(mode).page_bytes + 32)
    cache = PagedCache(made, 3)
    key, value = key_value("llama", 21, HEADS, DIMS, 2)
    cache.write(key, value, np.arange(21))
    assert lint(cache.pages, layout=made).ok
    report = lint(cache.pages, layout=made, slot_mapping=np.arange(21))
    assert report.ok
    assert report.slots == 21


# --- what each rule finds --------------------------------------------------------------------------------------------


def planted(mode, *, side="k", slot=3, head=1, dim=0, part="scale", stored=b"", **options):
    """Right pages in which one entry of block 2 has other bytes, and the page byte where it starts."""
    made, pages = right_pages(mode, **options)
    byte = made.locate(side=side, slot=slot, head=head, dim=dim, part=part).byte
    pages[2, byte : byte + len(stored)] = np.frombuffer(stored, np.uint8)
    return lint(pages, layout=made), byte


@pytest.mark.parametrize(
    "rule, mode, stored",
    [
        ("scale-not-finite", "nvfp4", b"\x7f"),
        ("scale-not-finite", "int8_per_token_head", np.float32(np.inf).tobytes()),
        ("scale-not-finite", "fp8_per_token_head", np.float32(np.nan).tobytes()),
        ("scale-negative", "nvfp4", b"\x80"),
        ("scale-negative", "fp8_per_token_head", np.float32(-0.25).tobytes()),
        ("scale-zero", "int8_per_token_head", b"\0\0\0\0"),
        ("scale-zero", "nvfp4", b"\0"),
    ],
)
@pytest.mark.parametrize("side", ["k", "v"])
def test_a_scale_that_no_page_has_is_found_at_its_byte(rule, mode, stored, side):
    report, byte = planted(mode, side=side, stored=stored)
    (found,) = of_rule(report, rule)
    assert (found.block, found.slot, found.head, found.side, found.part) == (2, 3, 1, side, "scale")
    assert found.byte == byte


def test_a_nan_code_is_found_at_its_byte():
    report, byte = planted("fp8_per_tensor", part="code", dim=9, stored=b"\xff")
    (found,) = of_rule(report, "code-nan")
    assert (found.block, found.slot, found.head, found.part, found.byte) == (2, 3, 1, "code", byte)


def test_a_value_that_is_not_finite_is_found():
    report, byte = planted("none", part="code", dim=9, stored=np.array(np.inf, ml_dtypes.bfloat16).tobytes())
    (found,) = of_rule(report, "value-not-finite")
    assert (found.block, found.byte) == (2, byte)


def with_scales(mode, value):
    made, pages = right_pages(mode)
    for slot in range(BLOCK):
        for head in range(HEADS):
            for side in "kv":
                at = made.locate(side=side, slot=slot, head=head, dim=0, part="scale").byte
                pages[:, at : at + 4] = np.frombuffer(np.float32(value).tobytes(), np.uint8)
    return lint(pages, layout=made)


@pytest.mark.parametrize("mode", ["int8_per_token_head", "fp8_per_token_head"])
def test_scales_reset_to_one_are_found(mode):
    assert len(of_rule(with_scales(mode, 1), "scale-one")) == 20  # as many as a report lists
    assert with_scales(mode, 1).counts["scale-one"] == 4 * BLOCK * HEADS * 2
    assert "scale-one" not in with_scales(mode, 0.5).counts


def test_codes_that_do_not_reach_the_top_are_found():
    """QMAX 240 for 448, as fnuz kernels have it; a stale scale, twice too large."""
    made, pages = right_pages("fp8_per_token_head", recipe="golden/fp8_per_token_head")
    key, value = (x.astype(np.float32) for x in key_value("llama", 64, HEADS, DIMS, 1))
    for divisor in (240, 4000):
        for side, x in (("k", key), ("v", value)):
            scale = np.abs(x).max(axis=2, keepdims=True) / np.float32(divisor)
            codes = np.clip(x / scale, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
            for token in range(64):
                for head in range(HEADS):
                    at = made.locate(side=side, slot=token % BLOCK, head=head, dim=0).byte
                    pages[token // BLOCK, at : at + DIMS] = codes[token, head]
        counts = lint(pages, layout=made).counts
        assert counts.get("top-not-reached" if divisor == 240 else "saturated", 0) >= 50


def test_int8_rows_in_which_most_codes_are_the_largest_are_found_and_rows_of_a_constant_are_right():
    made, pages = right_pages("int8_per_token_head")
    at = made.locate(side="v", slot=5, head=0, dim=0).byte
    pages[1, at : at + DIMS] = np.where(np.arange(DIMS) % 2, 127, 129)  # 129 is -127: a row of +-c
    assert "saturated" not in lint(pages, layout=made).counts
    pages[1, at : at + 6] = [3, 17, 40, 99, 120, 250]
    (found,) = of_rule(lint(pages, layout=made), "saturated")
    assert (found.block, found.slot, found.head, found.side) == (1, 5, 0, "v")


@pytest.mark.parametrize("profile", PROFILES)
def test_codes_of_another_format_are_found(profile):
    int8, pages8 = right_pages("int8_per_token_head", profile)
    fp8, pages_fp8 = right_pages("fp8_per_token_head", profile)
    assert "other-format" in lint(pages_fp8, layout=int8).counts
    assert "other-format" in lint(pages8, layout=fp8).counts


def test_e5m2_bytes_in_an_e4m3fn_cache_are_found():
    made = laid("fp8_per_tensor")
    key, value = key_value("llama", 64, HEADS, DIMS, 3)
    rows = [x.astype(np.float32).astype(ml_dtypes.float8_e5m2).view(np.uint8) for x in (key, value)]
    report = lint(np.concatenate(rows, axis=2).reshape(4, -1), layout=made)
    assert "e5m2" in of_rule(report, "other-format")[0].text


@pytest.mark.parametrize("written, read", [("swizzled", "linear"), ("linear", "swizzled")])
@pytest.mark.parametrize("profile", PROFILES)
def test_a_swizzle_is_betrayed_by_neighbouring_scales(profile, written, read):
    _, pages = right_pages("nvfp4", profile, blocks=64, v_scales=written)
    found = of_rule(lint(pages, layout=laid("nvfp4", v_scales=read)), "other-swizzle")
    assert {each.side for each in found} == {"v"}


def test_zeros_that_are_all_negative_are_found():
    made, pages = right_pages("nvfp4")
    at = [made.locate(side="k", slot=slot, head=0, dim=0).byte for slot in range(BLOCK)]
    low = pages.copy()
    for byte in at:
        low[:, byte : byte + DIMS // 2] = 0x87  # a 6 and a -0
    # every zero of K is negative only if no other head has a +0
    for slot in range(BLOCK):
        byte = made.locate(side="k", slot=slot, head=1, dim=0).byte
        low[:, byte : byte + DIMS // 2] = 0x78
    assert {each.side for each in of_rule(lint(low, layout=made), "negative-zeros")} == {"k"}


def test_a_hole_in_a_block_and_a_mapped_slot_that_is_blank_are_found():
    made = laid("int8_per_token_head")
    cache = PagedCache(made, 2)
    key, value = key_value("llama", 20, HEADS, DIMS, 2)
    slots = np.array([slot for slot in range(21) if slot != 5])
    cache.write(key, value, slots)
    (hole,) = [each for each in of_rule(lint(cache.pages, layout=made), "unwritten-slot") if each.side == "k"]
    assert (hole.block, hole.slot) == (0, 5)
    mapped = lint(cache.pages, layout=made, slot_mapping=np.arange(21))
    assert {(each.block, each.slot) for each in of_rule(mapped, "unwritten-slot")} == {(0, 5)}

    assert mapped.counts["unwritten-slot"] == 1  # a slot, not one for K and one for V


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("mapped", [False, True])
def test_a_token_of_zeros_is_right(mode, mapped):
    made = laid(mode)
    for recipe in {f"golden/{mode}", made.recipe}:
        cache = PagedCache(made, 2)
        cache.pages[:] = 0xA5 if mapped else 0
        key, value = key_value("llama", 32, HEADS, DIMS, 2)
        key[[5, 31]], value[[5, 31]] = 0, 0
        cache.write(key, value, np.arange(32), recipe=recipe)
        report = lint(cache.pages, layout=made, slot_mapping=np.arange(32) if mapped else None)
        assert report.ok, str(report)


@pytest.mark.parametrize("mode", MODES)
def test_a_mapped_slot_of_other_bytes_than_zeros_was_never_written(mode):
    made = laid(mode)
    cache = PagedCache(made, 2)
    cache.pages[:] = 0xA5
    key, value = key_value("llama", 31, HEADS, DIMS, 2)
    cache.write(key, value, np.delete(np.arange(32), 5))
    report = lint(cache.pages, layout=made, slot_mapping=np.arange(32))
    assert [(each.block, each.slot) for each in of_rule(report, "unwritten-slot")] == [(0, 5)]
    assert report.counts["unwritten-slot"] == 1


# --- whole caches ----------------------------------------------------------------------------------------------------


def in_chunks(monkeypatch, elements, pages, made):
    monkeypatch.setattr(linter, "_CHUNK", elements)
    return lint(pages, layout=made).to_json()


def other_codes():
    _, pages = right_pages("fp8_per_token_head", blocks=8)
    return laid("int8_per_token_head"), pages, "other-format"


def ones_in_some_blocks():
    """Most scales of blocks 0..3 are 1.0, but not most of all."""
    made, pages = right_pages("int8_per_token_head", blocks=12)
    at = [made.locate(side=s, slot=t, head=h, dim=0, part="scale").byte for s in "kv" for t in range(BLOCK)
          for h in range(HEADS)]  # fmt: skip
    for byte in at:
        pages[:4, byte : byte + 4] = np.frombuffer(np.float32(1).tobytes(), np.uint8)
    return made, pages, None


def zeros_negative_in_the_first_block():
    made, pages = right_pages("fp8_per_tensor", blocks=3)
    at = made.locate(side="k", slot=0, head=0, dim=0).byte
    pages[0, at : at + DIMS] = 0x80
    pages[0][pages[0] == 0] = 0x01
    pages[2, at : at + DIMS] = 0
    return made, pages, None


def other_swizzle():
    _, pages = right_pages("nvfp4", blocks=64, v_scales="linear")
    return laid("nvfp4", v_scales="swizzled"), pages, "other-swizzle"


@pytest.mark.parametrize("case", [other_codes, ones_in_some_blocks, zeros_negative_in_the_first_block, other_swizzle])
def test_the_findings_do_not_depend_on_how_many_blocks_are_looked_at_together(monkeypatch, case):
    made, pages, rule = case()
    whole = in_chunks(monkeypatch, 1 << 20, pages, made)
    assert in_chunks(monkeypatch, 1, pages, made) == whole
    whole_rules = {"scale-one", "other-format", "other-swizzle", "negative-zeros"}
    assert set(whole["counts"]) & whole_rules == ({rule} if rule else set())


def test_all_rows_are_looked_at_for_their_format():
    made, right = right_pages("int8_per_token_head", blocks=130)
    _, wrong = right_pages("fp8_per_token_head", blocks=380)
    # 4,160 right rows a side, then three times as many others, all seen at once
    report = lint(np.concatenate([right, wrong]), layout=made)
    assert "other-format" in report.counts


def test_nan_beside_written_slots_is_found_where_the_mapping_is_known():
    made = laid("fp8_per_tensor")
    cache = PagedCache(made, 3)
    cache.pages[:] = 0x7F
    key, value = key_value("llama", 20, HEADS, DIMS, 2)
    cache.write(key, value, np.arange(20))
    report = lint(cache.pages, layout=made, slot_mapping=np.arange(20))
    assert {each.block for each in of_rule(report, "poison")} == {1}  # block 2 holds no token
    assert set(report.counts) == {"poison"}


def test_payload_in_the_padding_is_found_at_its_byte():
    made, pages = right_pages("fp8_per_tensor", page_bytes=laid("fp8_per_tensor").page_bytes + 64)
    pages[1, made.natural_bytes + 7] = 0x3C
    (found,) = of_rule(lint(pages, layout=made), "padding-payload")
    assert (found.block, found.byte, found.side, found.slot) == (1, made.natural_bytes + 7, None, None)


def test_every_rule_names_a_reason_and_a_public_case():
    for rule in RULES.values():
        assert rule.reason
        assert "#" in rule.source or "NVIDIA" in rule.source


# --- what cannot be judged ---


def test_what_is_no_page_of_the_layout_is_refused():
    made = laid("nvfp4")
    with pytest.raises(InputError, match="give a layout"):
        lint(np.zeros((1, made.page_bytes), np.uint8))
    for wrong in (np.zeros((1, 7), np.uint8), np.zeros(made.page_bytes, np.uint8), np.zeros((1, made.page_bytes))):
        with pytest.raises(InputError, match="pages must be uint8"):
            lint(wrong, layout=made)
    with pytest.raises(InputError, match="nothing to judge"):
        lint(np.zeros((2, made.page_bytes), np.uint8), layout=made)
    with pytest.raises(InputError, match="past the end"):
        lint(np.zeros((2, made.page_bytes), np.uint8), layout=made, slot_mapping=[99])


def test_pages_of_another_mode_s_recipe_are_refused():
    made = laid("nvfp4")
    with pytest.raises(InputError, match="recipe golden/int8_per_token_head is for mode int8_per_token_head"):
        lint(np.ones((1, made.page_bytes), np.uint8), layout=made, recipe="int8_per_token_head")


# --- right pages of every kind of numbers, mode and writer -----------------------------------------------------------

EVERY_MODE = [mode for mode in (*MODES_OF_GOLDEN, *RECORDS) if corpus.writers(mode)]
COMPILED = [mode for mode in EVERY_MODE if all(corpus.needs_engine(recipe) for recipe, _ in corpus.writers(mode))]


def test_every_mode_that_some_layout_holds_has_a_writer():
    assert {*MODES_OF_GOLDEN, *RECORDS} - set(EVERY_MODE) == {"fp8_per_head", "int8_per_tile"} & {*RECORDS}
    assert COMPILED == ["int4_per_token_head"]


def test_codes_of_zeros_that_were_clamped_are_right_under_a_scale_of_zero():
    """SGLang's dsa writer: 0 * Inf is NaN, which the clamp makes 448."""
    assert traits(find("sglang-0.5/dsa/fp8_per_tile")).zeros == 448
    assert traits(find("golden/fp8_per_token_head")).zeros == 0


@pytest.mark.parametrize(
    "mode", [pytest.param(mode, marks=pytest.mark.slow if mode in COMPILED else ()) for mode in EVERY_MODE]
)
def test_nothing_is_found_in_300_right_pages_of_every_kind_and_writer(mode):
    rates = corpus.rates(mode, 300)
    assert rates.found == []
    assert rates.caches - rates.blank > 10
    assert rates.judged.total() > 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", EVERY_MODE)
def test_the_rate_of_false_alarms_is_0_in_30000_right_pages(mode):
    """Each rule, in caches of 1 to 80 pages: what tools/lint_rates.py measures for spec/evidence/lint.txt."""
    assert corpus.rates(mode, 30_000, seed=7, engine=True).found == []


@pytest.mark.parametrize("kind", ["zero_padded", "every_second_zero", "log_uniform", "constant"])
def test_vllm_s_own_fp8_pages_of_padded_sparse_and_log_uniform_values_are_right(kind):
    recipe = kvf.recipe("vllm-0.33/triton/fp8_per_token_head")
    made = laid("fp8_per_token_head")
    rng = np.random.default_rng(3)
    x = np.asarray(corpus.KINDS[kind](rng, 64, HEADS, DIMS)).astype(ml_dtypes.bfloat16)
    pages = corpus.written(recipe, made, x, x, np.arange(64), 4)
    for how in (None, recipe):
        report = lint(pages, layout=made, recipe=how)
        assert report.ok, str(report)


# --- what other modes and layouts show -------------------------------------------------------------------------------


def right(mode, name, recipe=None, tokens=64, seed=1):
    how, made = next((r, made) for r, made in corpus.writers(mode) if made.name == name and recipe in (None, r.name))
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((2, tokens, made.num_kv_heads, made.head_size)).astype(ml_dtypes.bfloat16)
    blocks = -(-tokens // made.block_size)
    return how, made, corpus.written(how, made, *x, np.arange(tokens), blocks)


@pytest.mark.parametrize("mode", ["mxfp8", "mxfp4", "fp4_mx_block16", "indexer_k_mxfp8"])
def test_nan_scale_bytes_of_mx_formats_are_found(mode):
    how, made = corpus.writers(mode)[0]
    _, _, pages = right(mode, made.name, how.name)
    assert lint(pages, layout=made, recipe=how).ok
    region = next(each for each in made.regions if each.part == "scale")
    block, slot = np.zeros(5, np.int64), np.arange(5)
    rows = region.read(pages, block, slot)
    rows[...] = 0xFF
    region.write(pages, block, slot, rows)
    report = lint(pages, layout=made, recipe=how)
    assert report.counts["scale-not-finite"] == 5 * made.num_kv_heads * region.columns


@pytest.mark.parametrize("mode", ["mxfp8", "mxfp4", "fp8_ds_mla", "nvfp4_ds_mla", "indexer_k", "fp8_per_tile"])
def test_a_scale_four_times_too_large_does_not_reach_the_top_in_any_mode_with_scales(mode):
    """Codes are four times smaller than the recipe's scale would leave any amax."""
    how, made = corpus.writers(mode)[0]
    _, _, pages = right(mode, made.name, how.name)
    segment = made.segments("k")[0]
    rng = np.random.default_rng(1)
    x = rng.standard_normal((2, 64, made.num_kv_heads, made.head_size)).astype(ml_dtypes.bfloat16)[0]
    dims = np.ascontiguousarray(x[..., segment.dims.start : segment.dims.stop])
    full = plain.quantize(dims, how)
    stale = dataclasses.replace(full, codes=_quarter(full.codes, how))
    caching.store(made, pages, np.arange(64), "k", stale, segment)
    assert lint(pages, layout=made, recipe=how).counts.get("top-not-reached", 0) > 0


def _quarter(codes, how):
    """Codes whose values are a quarter, rounded."""
    return kvf.encode(kvf.decode(codes, how.element) / 4, how.element)


def test_the_recipe_decides_what_is_right():
    """ModelOpt's mxfp4 makes every zero negative; a fnuz writer's codes end at 224, not at 448."""
    how, made = next(pair for pair in corpus.writers("mxfp4") if pair[0].name == "modelopt-0.47/mxfp4")
    x = np.random.default_rng(1).choice(np.float32([0, 1, -1.5, 4, -6]), (64, made.num_kv_heads, made.head_size))
    pages = corpus.written(how, made, x, x, np.arange(64), -(-64 // made.block_size))
    assert lint(pages, layout=made, recipe=how).ok
    others = [r for r, _ in corpus.writers("mxfp4") if r.name.startswith("torchao-0.18/floor")]
    assert "negative-zeros" in lint(pages, layout=made, recipe=others[0]).counts


def test_a_dump_is_linted_by_what_it_declares(tmp_path):
    """Pages of a recipe with its own largest code, which the mode's own rule would accuse."""
    from tests.recipes.test_names import TEXT

    (tmp_path / "mine.toml").write_text(
        TEXT.format(name="test/ends-at-64", rounding="half_even")
        .replace("127)", "64)")
        .replace("-127, 64)", "-64, 64)")
    )
    how = kvf.load_recipe(tmp_path / "mine.toml")
    made = laid("int8_per_token_head")
    key, value = key_value("llama", 64, HEADS, DIMS, 1)
    pages = corpus.written(how, made, key, value, np.arange(64), 4)
    dump = kvf.Dump.from_arrays(key, value, pages, np.arange(64), layout=made, recipe=how)
    assert lint(dump).ok
    assert "top-not-reached" in lint(dump, recipe="int8_per_token_head").counts
    dump.save(tmp_path / "d.safetensors")
    assert lint_file(tmp_path / "d.safetensors").ok
    assert "by test/ends-at-64; " in str(lint_file(tmp_path / "d.safetensors"))

"""Every variant of every fault in every mode, and pairs of an arithmetic and a layout fault, planted by the rewrites.

What plants here is what diagnoses, so this shows that the search is consistent, not that a rewrite is what it says:
`test_faults` plants by hand.
"""

from __future__ import annotations

from functools import cache

import ml_dtypes
import numpy as np
import pytest

from kvformat import Dump, diagnose, layout
from kvformat.diagnose.bench import RIGHT, Bench
from kvformat.diagnose.canvas import packed
from kvformat.diagnose.catalogue import FAULTS, variants
from kvformat.diagnose.probe import probe
from kvformat.diagnose.remaps import SIDES, Frame, right_places
from kvformat.modes import MODES
from kvformat.recipes.catalogue import recipe

FITTED = np.float32(0.02)


@cache
def inputs(mode):
    made = probe(mode, dtype="float32", stored="bfloat16" if mode == "none" else None)
    return made, {"k": made.k_scale, "v": made.v_scale}


def planted(mode, variant=RIGHT, remap=None, padding=0):
    """A dump whose writer has a variant on both sides and puts its rows elsewhere; None where that does not apply."""
    made, scales = inputs(mode)
    spec = {**made.layout.spec, "page_bytes": made.layout.page_bytes + padding}
    laid = layout(spec.pop("name"), **spec)
    how = recipe(f"golden/{mode}")
    # enough of them for a block size of a quarter
    pages = np.random.default_rng(1).integers(0, 256, (4 * len(made.pages), laid.page_bytes)).astype(np.uint8)

    def dump():
        return Dump.from_arrays(
            made.key, made.value, pages, made.slot_mapping, layout=laid, recipe=how.name,
            k_scale=scales["k"], v_scale=scales["v"],
        )  # fmt: skip

    frame = Frame(laid, made.slot_mapping, len(pages))
    places = right_places(frame) if remap is None else remap.places(frame)
    bench = Bench(dump(), how.for_input("float32"), np.arange(made.tokens))
    fitted = FITTED if variant.tensor == "?" else None
    rows = {side: bench.rows(side, bench.declared, variant, fitted) for side in SIDES}
    if places is None or any(each is None for each in rows.values()):
        return None
    flat = pages.reshape(-1)
    for side in SIDES:
        if rows[side].predicted is not None:
            return None
        for part in ("code", "scale"):
            if (side, part) not in places.at or (part == "scale" and not rows[side].scales.size):
                continue
            stored = packed(rows[side], places.packing) if part == "code" else rows[side].scales
            if part == "scale" and rows[side].any_scale:
                stored = np.random.default_rng(2).integers(1, 60, stored.shape).astype(np.uint8)
            if part == "scale" and places.blank_scales:
                stored = np.zeros_like(stored)
            at = places.at[side, part]
            inside = (at >= 0) & (at < flat.size)
            flat[at[inside]] = stored[inside]
    return dump()


def padding_for(variant):
    return 48 if "padding" in variant.label else 0


#: without the products of quotients and block scales, of which the factors are here
CASES = [
    (mode, fault, place)
    for mode in MODES
    for fault in FAULTS.values()
    for place, variant in enumerate(fault.variants_in(mode))
    if "; " not in variant.label
]


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode, fault, place", CASES, ids=[f"{m}-{f.id}-{p}" for m, f, p in CASES])
def test_every_variant_that_shows_is_named_first_and_alone(mode, fault, place):
    variant = fault.variants_in(mode)[place]
    padding = padding_for(variant)
    right = planted(mode, padding=padding)
    dump = planted(mode, RIGHT if fault.kind == "layout" else variant, variant.remap, padding)
    if dump is None or (dump.pages == right.pages).all():
        pytest.skip("leaves the right bytes, or does not apply to this recipe or layout")
    found = diagnose(dump)
    first = found.explanations[0]
    assert first.complete, str(found)
    # another fault may leave the same bytes: then both are in the first group
    assert fault.id in {name for member in first.members for name in member.faults if len(member.faults) == 1}, str(
        found
    )


def pairs(mode):
    """Each fault of arithmetic or scales with two of layout, each time others."""
    first = list(dict.fromkeys(fault.id for fault, _ in variants(mode, "arithmetic", "scale")))
    second = list(dict.fromkeys(fault.id for fault, _ in variants(mode, "layout")))
    for i, arithmetic in enumerate(first):
        for geometry in {second[i % len(second)], second[(3 * i + 4) % len(second)]}:
            yield mode, arithmetic, geometry


PAIRS = sorted(pair for mode in MODES for pair in pairs(mode))


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode, arithmetic, geometry", PAIRS)
def test_a_fault_of_arithmetic_and_one_of_layout_are_named_together(mode, arithmetic, geometry):
    for place, value in ((place, value) for place in FAULTS[geometry].variants_in(mode)
                         for value in FAULTS[arithmetic].variants_in(mode)):  # fmt: skip
        padding = padding_for(place)
        both = planted(mode, value, place.remap, padding)
        alone = [planted(mode, value, None, padding), planted(mode, RIGHT, place.remap, padding)]
        if both is None or None in alone or any((each.pages == both.pages).all() for each in alone):
            continue  # each must change a byte of the other's result
        found = diagnose(both)
        assert found.explanations[0].complete, str(found)
        assert found.explanations[0].faults == (arithmetic, geometry), str(found)
        return
    pytest.skip("no variant of one changes a byte of the other's result")


@pytest.mark.exhaustive
def test_the_planter_without_a_fault_is_right():
    for mode in MODES:
        assert diagnose(planted(mode)).ok


def test_the_pairs_have_every_fault_in_every_mode():
    wanted = {(mode, fault.id) for mode in MODES for fault, _ in variants(mode, "arithmetic", "scale")}
    assert {(mode, arithmetic) for mode, arithmetic, _ in PAIRS} == wanted


def test_bfloat16_is_what_mode_none_stores():
    assert inputs("none")[0].layout.dtype == np.dtype(ml_dtypes.bfloat16).name

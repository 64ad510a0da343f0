"""Every recipe that some layout can hold: a check finds one flipped bit of a code and of a scale, and explains it.

Recipes run in the NumPy reader, which needs no compilation. Fast are the first recipe of each mode, and the first one
with approximate instructions.
"""

from __future__ import annotations

import numpy as np
import pytest

import kvformat as kvf
from kvformat import cache
from kvformat.layouts import LAYOUTS
from kvformat.modes import mode
from kvformat.recipes import plain
from kvformat.recipes.admissible import is_approximate
from kvformat.recipes.catalogue import names
from kvformat.verify.compare import check


def layout_for(recipe):
    """A small page of the first layout that holds what the recipe stores; None where there is none."""
    if any(level.granularity.name != "per_tensor" for level in recipe.outer):
        return None  # a dump has one scale per tensor
    for name, entry in LAYOUTS.items():
        if recipe.mode not in dict(entry.modes):
            continue
        form = entry.form(recipe.mode)
        sizes = {"num_kv_heads": form.num_kv_heads or 1, "head_size": form.head_size or 64}
        if "input" in mode(recipe.mode).parameters.values():
            sizes["dtype"] = "float32"
        page = kvf.layout(name, mode=recipe.mode, block_size=32 if name == "sglang" else 4, **sizes)
        try:
            cache.check_fits(page, recipe)
        except kvf.InputError:
            continue
        return page
    return None


def left_to_the_engine(recipe):
    return bool(recipe.prepare) or (recipe.inner is not None and bool(recipe.inner.trials))


def kind(name):
    return kvf.recipe(name).mode, is_approximate(kvf.recipe(name))


PAGES = {name: layout_for(kvf.recipe(name)) for name in names()}
HELD = [name for name, page in PAGES.items() if page is not None]
FIRST = {kind(name): name for name in reversed(HELD) if not left_to_the_engine(kvf.recipe(name))}
CASES = [
    pytest.param(name, part, marks=[] if name in FIRST.values() else [pytest.mark.slow])
    for name in HELD
    for part in ("code", "scale")
    if part == "code" or kvf.recipe(name).inner is not None
]


def test_most_of_the_catalogue_can_lie_in_a_page():
    assert len(HELD) > 80


@pytest.mark.parametrize("name, part", CASES)
def test_a_flipped_bit_is_found_and_explained(monkeypatch, name, part):
    monkeypatch.setattr(cache, "quantize", plain.quantize)
    page, recipe = PAGES[name], kvf.recipe(name)
    rng = np.random.default_rng(0)
    k, v = (
        rng.standard_normal((2, page.num_kv_heads, size)).astype(np.float32)
        for size in (page.head_size, page.head_size_v)
    )
    given = {}
    if any(level.may_be_given for level in recipe.outer):
        given = {"k_scale": 0.03} | ({"v_scale": 0.02} if v.size else {})
    held = kvf.PagedCache(page, 1)
    held.write(k, v if v.size else None, [0, 2], recipe=name, **given)
    place = page.locate(side="k", slot=2, head=0, dim=3, part=part)
    bit = place.byte * 8 + place.bit + place.bits - 1
    held.pages[0, bit // 8] ^= 1 << bit % 8
    dump = kvf.Dump.from_arrays(k, v if v.size else None, held.pages, [0, 2], layout=page, recipe=name, **given)
    report = check(dump)
    first = report.first
    # codes are admissible under the scale that lies there: with another scale they may not be
    assert report.mismatches == 1 or (part == "scale" and is_approximate(recipe))
    assert report.status == 1
    assert (first["side"], first["part"], first["token"], first["byte"]) == ("k", part, 1, place.byte)
    assert "first difference: K" in str(report)

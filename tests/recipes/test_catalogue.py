"""Every recipe of the catalogue: the engine is its exact twin on the edges, and the interval reader knows its bytes."""

from __future__ import annotations

import re

import numpy as np
import pytest

import kvformat as kvf
from kvformat.elements.formats import element
from kvformat.recipes import exact
from kvformat.recipes.admissible import is_approximate, outer_scales, within
from kvformat.recipes.catalogue import names
from kvformat.recipes.catalogue import recipe as find
from tests.elements.compare import assert_same_codes, assert_same_values
from tests.recipes import adversarial

NAMES = [name for name in names() if find(name).element is not None]
LIBRARIES = [name for name in NAMES if not name.startswith(("golden/", "exact/"))]
PATTERN = re.compile(r"[a-z0-9-]+-(\d+(\.\d+)+|[0-9a-f]{8}|snapshot)(/[a-z0-9-]+)?/[a-z0-9_]+")
_OPEN = {"admissible only", "verified against the library"}


def test_names_are_unique():
    assert len(set(names())) == len(names())


@pytest.mark.parametrize("name", LIBRARIES)
def test_an_entry_says_what_it_is_where_it_was_read_and_how_far_it_can_be_trusted(name):
    recipe = find(name)
    assert PATTERN.fullmatch(name), name
    assert len(recipe.source) > len("vLLM 0.33.0")
    assert recipe.notes.endswith(".")
    assert recipe.notes.strip() == recipe.notes
    assert recipe.status in {"read, not run", *_OPEN}
    # only bounds are known of an approximate instruction, unless its library was run on a CPU
    assert not is_approximate(recipe) or recipe.status in _OPEN
    assert recipe.status != "admissible only" or is_approximate(recipe)


#: their codes show the sign of a NaN that Inf / Inf or 0 / 0 made, which IEEE 754 leaves open (x86 sets it)
SIGN_OF_NAN = {f"torchao-0.18/{rule}/mxfp4" for rule in ("floor", "ceil", "even")}


def _assert_engine_is_twin(x, recipe, scale=None):
    found = kvf.quantize(x, recipe, scale=scale)
    codes, scales, shared = exact.quantize(x, recipe, scale)
    kept = np.where((recipe.name in SIGN_OF_NAN) & ~np.isfinite(x), 0b0111, 0xFF).astype(codes.view(np.uint8).dtype)
    assert_same_codes(found.codes.view(np.uint8) & kept, codes.view(np.uint8) & kept, x)
    (assert_same_values if scales.dtype.kind == "f" else assert_same_codes)(found.scales, scales)
    assert_same_values(np.array(found.global_scale), np.array(shared, np.float32))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_engine_is_its_exact_twin_on_every_edge(name):
    recipe = find(name)
    for x in (adversarial.finite(), adversarial.anything()):
        _assert_engine_is_twin(x, recipe)
        if any(level.may_be_given for level in recipe.levels):
            _assert_engine_is_twin(x, recipe, 0.037)


def _judged(x, recipe, codes, scales):
    definite = recipe.for_input(x.dtype.name)
    if any(not level.granularity.shares_heads for level in recipe.outer):  # each head has a scale of its own
        good = [_judged_rows(x[:, [head]], definite, codes[:, [head]], scales[::2])[1] for head in range(x.shape[1])]
        return np.ones((0, 0), bool), np.stack(good, axis=1)
    return _judged_rows(x, definite, codes, scales)


def _judged_rows(x, recipe, codes, scales):
    rows = x.astype(np.float32).reshape(-1, x.shape[-1])
    outer = outer_scales(recipe, rows.reshape(-1), None)
    return within(rows, recipe, outer, codes.reshape(rows.shape), scales.reshape(len(rows), -1))


def _bytes(found, recipe, rows):
    codes = found.codes.view(np.uint8) & np.uint8(element(recipe.element).codes - 1)
    return codes, found.scales if recipe.inner else np.zeros((rows, 0), np.float32)


def _steps_away(codes, fmt, steps):
    """Codes so many places further in the order of their values, and where there are such codes."""
    order = sorted((code for code in range(fmt.codes) if code not in fmt.nan_codes), key=lambda c: _key(c, fmt))
    place = np.full(fmt.codes, -1)
    place[order] = np.arange(len(order))
    target = place[codes] + steps
    exists = (place[codes] >= 0) & (target >= 0) & (target < len(order))
    return np.array(order, np.uint8)[np.where(exists, target, 0)], exists


def _key(code, fmt):
    value = fmt.value(code)
    return value, code < fmt.sign_bit  # -0 before +0


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in LIBRARIES if find(name).one_scale_a_group])
def test_the_ieee_result_is_admissible(name):
    recipe = find(name)
    for x in (adversarial.finite(), adversarial.anything(), adversarial.ordinary()):
        found = kvf.quantize(x, recipe)
        good_scales, good = _judged(x, recipe, *_bytes(found, recipe, x.shape[0] * x.shape[1]))
        assert good_scales.all()
        assert good.all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name in NAMES if not is_approximate(find(name)) and find(name).one_scale_a_group]
)
def test_without_approximate_words_only_the_engines_bytes_are_admissible(name):
    recipe = find(name)
    for x in (adversarial.finite(), adversarial.anything()):
        found = kvf.quantize(x, recipe)
        codes, scales = _bytes(found, recipe, x.shape[0] * x.shape[1])
        assert all(mask.all() for mask in _judged(x, recipe, codes, scales))
        for steps in (-1, 1):
            other, exists = _steps_away(codes, element(recipe.element), steps)
            _, good = _judged(x, recipe, other, scales)
            assert not good[exists.reshape(good.shape)].any()
            if recipe.inner is None:
                continue
            if scales.dtype.kind == "f":
                with np.errstate(all="ignore"):
                    other = np.nextafter(scales, scales.dtype.type(np.inf * steps))
                exists = ~np.isnan(scales) & (other != scales)
            else:
                other, exists = _steps_away(scales, element(recipe.inner.storing.attributes[0]), steps)
            good_scales, _ = _judged(x, recipe, codes, other)
            assert not good_scales[exists.reshape(good_scales.shape)].any()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in LIBRARIES if is_approximate(find(name))])
def test_no_bound_reaches_two_codes_further(name):
    # the intervals are a few ulp of binary32 wide, neighbouring codes are 2^-4 apart
    recipe, x = find(name), adversarial.ordinary()
    found = kvf.quantize(x, recipe)
    codes, scales = _bytes(found, recipe, x.shape[0] * x.shape[1])
    for steps in (-2, 2):
        other, exists = _steps_away(codes, element(recipe.element), steps)
        _, good = _judged(x, recipe, other, scales)
        assert not good[exists.reshape(good.shape)].any()

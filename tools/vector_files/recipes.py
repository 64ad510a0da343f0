"""Vectors for recipes: small tensors, and the codes, scales and values that the recipe makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kvformat
from kvformat.elements.exact import Number, number
from kvformat.elements.formats import ElementFormat, element
from kvformat.recipes import exact, plain
from kvformat.recipes.admissible import is_approximate, outer_scales, within
from kvformat.recipes.catalogue import names
from kvformat.recipes.catalogue import recipe as find
from kvformat.recipes.program import Recipe
from kvformat.recipes.quantizer import Quantized
from vector_files import libraries
from vector_files.cases import DTYPES, NOTES, Case, cases
from vector_files.files import Group, Test, VectorFile, bits_hex, code_hex
from vector_files.sources import SOURCES

Array = NDArray[Any]

_HEADER = (
    (
        "x: a tensor of that shape (tokens, heads, head_dim), row-major: the bit patterns of its elements, big-endian "
        "hex, one after the other."
    ),
    "codes: the code of each element in the same order, two hex digits each, one where the format has four bits.",
    (
        "scales: as they are stored: binary32 bit patterns, or two hex digits each where the group's scaleStore is an "
        "8-bit format. In the order of tokens, heads, groups along head_dim. "
        "globalScale: of recipes with two levels, binary32."
    ),
    "values: what the codes stand for, binary32. A NaN pattern anywhere stands for any NaN: compare it as a class.",
    "result valid: exactly these bytes. acceptable: see the note on Approximate.",
)
#: their codes show the sign of a NaN that Inf / Inf or 0 / 0 made, which IEEE 754 leaves open
_SIGN_OF_NAN = frozenset(f"torchao-0.18/{rule}/mxfp4" for rule in ("floor", "ceil", "even"))


def files() -> Iterator[tuple[str, Callable[[], VectorFile]]]:
    """Path under spec/vectors/ and what makes the file, for each recipe of the catalogue that makes codes."""
    for name in names():
        recipe = find(name)
        if recipe.element is not None:
            yield f"recipes/{name}.json", partial(_file, recipe)


def _file(recipe: Recipe) -> VectorFile:
    groups = [_group(recipe, source) for source in DTYPES]
    return VectorFile(f"recipe {recipe.name}", "recipe", _HEADER, groups, NOTES, SOURCES)


def _group(recipe: Recipe, source: str) -> Group:
    definite = recipe.for_input(np.dtype(DTYPES[source]).name)
    main = definite.inner or (definite.levels[-1] if definite.levels else None)
    more = {part: level.store for part, level in definite.in_page.items() if part != "scale"}
    fmt = element(recipe.element or "")
    # in binary32 the compiled engine is asked too; its kernels for the other inputs differ in how they widen alone
    confirmed = ["exact twin", "NumPy reader", *(["kvformat"] if source == "binary32" else [])]
    chosen = [case for case in cases(recipe, source) if _definite(recipe, case)]
    if libraries.knows(recipe, source):
        for case in chosen:
            libraries.confirm(recipe, case)
        confirmed.append("library")
    about = {
        "id": source,
        "type": "Quantize",
        "recipe": recipe.name,
        "mode": recipe.mode,
        "status": recipe.status,
        "source": source,
        "element": recipe.element,
        "nanCodes": [code_hex(code, fmt) for code in fmt.nan_codes],
        "scaleStore": main.store.split()[0] if main else None,
        **({"parameters": more} if more else {}),
        "confirmedBy": confirmed,
    }
    return Group(about, [_test(recipe, case, source) for case in chosen])


def _definite(recipe: Recipe, case: Case) -> bool:
    return recipe.name not in _SIGN_OF_NAN or case.flag in ("Ordinary", "Real", "Tie", "Outlier", "Shared", "Huge")


def _test(recipe: Recipe, case: Case, source: str) -> Test:
    with np.errstate(all="ignore"):
        return _made(recipe, case, source)


def _made(recipe: Recipe, case: Case, source: str) -> Test:
    where = f"{recipe.name} {source} {case.id}"
    codes, scales, shared = exact.quantize(case.x, recipe, None if case.scale is None else float(case.scale))
    expected = Quantized(codes, scales, shared, recipe.for_input(case.x.dtype.name), _more(recipe, case))
    _agree(plain.quantize(case.x, recipe, scale=case.scale), expected, f"{where}: NumPy reader")
    if source == "binary32":
        _agree(kvformat.quantize(case.x, recipe, scale=case.scale), expected, f"{where}: kvformat")
    fmt = element(recipe.element or "")
    patterns = (codes.reshape(-1).view(np.uint8) & np.uint8(fmt.codes - 1)).tolist()
    valid = is_certain(recipe, case, expected)
    test = {
        "id": case.id,
        "flags": [case.flag] if valid else [case.flag, "Approximate"],
        "result": "valid" if valid else "acceptable",
        "shape": list(case.x.shape),
        "scale": None if case.scale is None else bits_hex(np.array([case.scale]))[0],
        "x": "".join(bits_hex(case.x)),
        "codes": "".join(code_hex(code, fmt) for code in patterns),
        "scales": "".join(_canonical(scales)),
        "globalScale": "".join(_canonical(np.array([shared]))) if recipe.outer and recipe.inner else None,
    }
    if expected.more:
        test["parameters"] = {name: "".join(_canonical(each.reshape(-1))) for name, each in expected.more.items()}
    values = _values(recipe, expected)
    return test if values is None else {**test, "values": "".join(_canonical(values))}


def _more(recipe: Recipe, case: Case) -> dict[str, Array]:
    """The further parameters of the groups, by the exact twin."""
    names = [level.name for part, level in recipe.in_page.items() if part != "scale"]
    params = exact.quantize_all(case.x, recipe).params if names else {}
    return {name: params[name] for name in names}


def _canonical(x: Array) -> list[str]:
    """Bit patterns, a NaN as 7FC00000; codes as they are."""
    if x.dtype == np.float32:
        x = np.where(np.isnan(x), np.uint32(0x7FC00000), x.view(np.uint32)).view(np.float32)
    return bits_hex(x)


def _agree(found: Quantized, expected: Quantized, where: str) -> None:
    pairs = (
        (found.codes.view(np.uint8), expected.codes.view(np.uint8)),
        (found.scales, expected.scales),
        (np.array(found.global_scale, np.float32), np.array(expected.global_scale, np.float32)),
        *((found.more[name], each) for name, each in expected.more.items()),
    )
    for a, b in pairs:
        same = a.shape == b.shape and a.dtype == b.dtype and _canonical(a.reshape(-1)) == _canonical(b.reshape(-1))
        assert same, (where, a, b)


# --- what the codes stand for ----------------------------------------------------------------------------------------


def _values(recipe: Recipe, made: Quantized) -> Array | None:
    """The values, by the twin and the engine; None where rows were transformed first, which only the engine undoes."""
    if recipe.prepare:
        return None
    fmt = element(recipe.element or "")
    patterns = made.codes.view(np.uint8) & np.uint8(fmt.codes - 1)
    values = np.array(
        [
            float(exact.dequantize(int(patterns[place]), _scales_of(recipe, made, place), recipe))
            for place in np.ndindex(*patterns.shape)
        ],
        np.float32,
    )
    found = made.dequantize().reshape(-1)
    assert _canonical(found) == _canonical(values), recipe.name
    return values


def _scales_of(recipe: Recipe, made: Quantized, place: tuple[int, ...]) -> dict[str, Number]:
    """The values of the scales of one element, by name."""
    token, head, dim = place
    if not recipe.levels:
        return {}
    last, shared = recipe.levels[-1], number(float(made.global_scale))
    known = {level.name: shared for level in recipe.outer}
    for name, each in made.more.items():
        level = made.recipe.in_page[name]
        at = dim // level.granularity.dims if level.granularity.dims else 0
        known[name] = number(float(level.format.values(each[token, head, at])))
    if recipe.inner is not None:
        last = made.recipe.inner or last
    share = last.granularity
    if not share.within_row:
        grid = (1 if share.shares_tokens else made.codes.shape[0], 1 if share.shares_heads else made.codes.shape[1])
        stored = made.scales.reshape(grid)[0 if share.shares_tokens else token, 0 if share.shares_heads else head]
    else:
        stored = made.scales[token, head, dim // share.dims] if share.dims else made.scales[token, head]
    return {**known, last.name: number(float(last.format.values(stored)))}


# --- what an approximate instruction leaves open ---------------------------------------------------------------------


def is_certain(recipe: Recipe, case: Case, made: Quantized) -> bool:
    """Whether no other byte is admissible. Sets are intervals, so neighbours decide; with trials it is not certain."""
    if not is_approximate(recipe):
        return True
    inner = recipe.inner
    if inner is not None and inner.trials:
        return False
    fmt = element(recipe.element or "")
    patterns = made.codes.view(np.uint8) & np.uint8(fmt.codes - 1)
    scales = made.scales if inner else np.zeros((case.x.shape[0] * case.x.shape[1], 0), np.float32)
    held = _held(recipe, case, patterns, scales)
    assert all(mask.all() for mask in held), (recipe.name, case.id)
    for steps in (-1, 1):
        other, exists = _steps_away(patterns, fmt, steps)
        if (_held(recipe, case, other, scales)[1].reshape(other.shape) & exists).any():
            return False
        if inner is None:
            continue
        if scales.dtype == np.float32:
            other = np.nextafter(scales, np.float32(np.inf * steps))
            exists = ~np.isnan(scales) & (other != scales)
        else:
            other, exists = _steps_away(scales, element(inner.storing.attributes[0]), steps)
        if (_held(recipe, case, patterns, other)[0].reshape(other.shape) & exists).any():
            return False
    return True


def _held(recipe: Recipe, case: Case, codes: Array, scales: Array) -> tuple[Array, Array]:
    rows = case.x.astype(np.float32).reshape(-1, case.x.shape[-1])
    definite = recipe.for_input(case.x.dtype.name)
    outer = outer_scales(definite, rows.reshape(-1), case.scale)
    return within(rows, definite, outer, codes.reshape(rows.shape), scales.reshape(len(rows), -1))


def _steps_away(codes: Array, fmt: ElementFormat, steps: int) -> tuple[Array, Array]:
    """Codes so many places further in the order of their values, and where there are such codes."""
    numbers = [code for code in range(fmt.codes) if code not in fmt.nan_codes]
    order = np.array(sorted(numbers, key=lambda code: (fmt.value(code), code < fmt.sign_bit)), np.uint8)
    place = np.full(fmt.codes, -1)
    place[order] = np.arange(len(order))
    target = place[codes] + steps
    exists = (place[codes] >= 0) & (target >= 0) & (target < len(order))
    return order[np.where(exists, target, 0)], exists

"""One page per recipe: its program, what it answers to special inputs, and worked examples."""

from __future__ import annotations

from fractions import Fraction
from textwrap import indent

import ml_dtypes
import numpy as np

import kvformat
from kvformat.elements import exact
from kvformat.elements.exact import BINARIES, Number, number
from kvformat.elements.formats import element
from kvformat.recipes import catalogue
from kvformat.recipes.catalogue import golden
from kvformat.recipes.program import Program, Recipe
from kvformat.recipes.vocabulary import WORDS
from spec_pages import examples
from spec_pages.examples import APART, EXAMPLES, NAN_NUMBER
from spec_pages.numbers import coded, hex_text, short
from spec_pages.statements_recipes import STATEMENTS
from spec_pages.text import block, bullets, page, table, wrap

_PURPOSES = {
    "none": "K and V as they are.",
    "fp8_per_tensor": "8-bit floats under one scale for all of K, and one for all of V.",
    "fp8_per_token_head": "8-bit floats, each row of a token and head under a scale of its own.",
    "int8_per_token_head": "8-bit integers, each row of a token and head under a scale of its own.",
    "nvfp4": "4-bit floats in blocks of 16, each under an 8-bit float scale, all of them under one float32 scale.",
}
_SHARES = {
    "per_tensor": "one for all of K, one for all of V",
    "per_token_head": "one for each token and head",
    "per_block": "one for each 16 consecutive dims of a token and head",
}
_IN = {"float32": "in binary32", "real": "in real numbers"}
_PRECISIONS = {
    "float32": "In binary32: every operation is rounded to binary32, to nearest even. Nothing is fused, nothing is "
    "flushed to zero.",
    "real": "In real numbers: nothing is rounded before it is stored or encoded.",
}


def files() -> dict[str, str]:
    """Path under spec/ and text of the pages of the recipes."""
    return {f"recipes/{recipe.name}.md": _page(recipe) for recipe in golden.RECIPES}


def _page(recipe: Recipe) -> str:
    mode = recipe.mode
    common = {
        "name": recipe.name,
        "purpose": wrap(f"{_PURPOSES[mode]} {_family(recipe)}"),
        "facts": _facts(recipe),
        "statements": bullets(STATEMENTS[mode](recipe)),
    }
    if recipe.element is None:
        return page("recipes/none.md", {**common, "examples": _stored()})
    chosen = [(example.title, example.text, examples.tables(recipe, example)) for example in EXAMPLES[mode]]
    shown = "\n\n".join(f"### {title}\n\n{wrap(text)}\n\n{tables}" for title, text, tables in chosen)
    return page(
        "recipes/recipe.md",
        {
            **common,
            "program": _program(recipe),
            "examples": f"{shown}\n\n{_apart(recipe)}",
            "words": _words(recipe),
        },
    )


def _family(recipe: Recipe) -> str:
    family, mode = recipe.name.split("/")
    if family == "golden":
        return f"The yardstick for mode `{mode}`: what a kernel is compared with where no other recipe is named."
    if recipe.element is None:
        return "Nothing is computed here, so this is [golden/none](../golden/none.md) under another name."
    return (
        f"[golden/{mode}](../golden/{mode}.md) without its roundings on the way from the float32 scale to the code: "
        "it shows what binary32 arithmetic itself costs."
    )


def _facts(recipe: Recipe) -> str:
    rows = [("mode", f"`{recipe.mode}`"), ("codes", _element(recipe))]
    for level in recipe.levels:
        stored = level.store if level.format.is_float else f"[`{level.store}`](../../elements/{level.store}.md)"
        given = "; may be given" if level.may_be_given else ""
        share = level.granularity.name
        rows.append((f"scale `{level.name}`", f"`{share}`: {_SHARES[share]}; stored as {stored}{given}"))
    rows += [("source", recipe.source), ("status", recipe.status)]
    return table(("", ""), rows)


def _element(recipe: Recipe) -> str:
    if recipe.element is None:
        return "the values themselves, in the dtype of the cache"
    return f"[`{recipe.element}`](../../elements/{recipe.element}.md)"


# --- the program -----------------------------------------------------------------------------------------------------


def _program(recipe: Recipe) -> str:
    parts = []
    for level in recipe.levels:
        end = f"\nstore {level.name} as {level.store}{', or as it is given' if level.may_be_given else ''}"
        where = f"{level.granularity.name}, {_IN[level.program.precision]}"
        parts.append((f"scale {level.name}", where, level.program.text + end))
    parts += [(what, _IN[part.precision], part.text) for what, part in (("code", recipe.code), ("value", recipe.value))]
    width = max(len(what) for what, _, _ in parts) + 3
    sections = [f"{what.ljust(width)}{where}\n{indent(text, ' ' * width)}" for what, where, text in parts]
    used = dict.fromkeys(program.precision for program in _programs(recipe))
    rules = "\n".join(wrap(f"- {_PRECISIONS[name]}", indent="  ") for name in used)
    return f"{rules}\n\n" + block("\n\n".join(sections))


def _programs(recipe: Recipe) -> tuple[Program, ...]:
    return (*(level.program for level in recipe.levels), recipe.code, recipe.value)


def _words(recipe: Recipe) -> str:
    used = {operation.word for program in _programs(recipe) for operation in program.operations}
    rows = [(f"`{name}`", word.meaning) for name, word in WORDS.items() if name in used and name != "eq"]
    return table(("word", "meaning (operands a, b, c in order)"), rows)


# --- examples --------------------------------------------------------------------------------------------------------


def _apart(recipe: Recipe) -> str:
    """Where golden and exact give different codes for one input, under the same scales."""
    family, mode = recipe.name.split("/")
    example = APART[mode]
    golden_recipe, exact_recipe = (catalogue.recipe(f"{name}/{mode}") for name in ("golden", "exact"))
    one, other = examples.run(golden_recipe, example), examples.run(exact_recipe, example)
    assert np.array_equal(one.scales, other.scales)
    fmt = element(recipe.element or "")
    singles, quotients = (examples.quotients(each, example) for each in (golden_recipe, exact_recipe))
    rows = []
    for dim, (a, b) in enumerate(zip(one.codes.reshape(-1), other.codes.reshape(-1), strict=True)):
        if a != b:
            x, single, quotient = number(float(np.float32(example.rows[0][dim]))), singles[dim], quotients[dim]
            assert examples.is_tie(single.value, recipe)
            assert not examples.is_tie(quotient.value, recipe)
            codes = (coded(int(code), fmt) for code in (a, b))
            rows.append((str(dim), short(x), short(single), _beside(quotient, single), *codes))
    assert rows
    note = {
        "golden": "binary32 rounds the quotient onto a midpoint, and the tie goes to the even code. The exact "
        "quotient lies beside it.",
        "exact": "The exact quotient lies beside a midpoint. binary32 rounds it onto the midpoint, and the tie goes "
        "to the even code.",
    }[family]
    given = f" The scale is given as {np.float32(example.scale)!s}." if example.scale is not None else ""
    row = ", ".join(short(number(x)) for x in example.rows[0])
    header = ("dim", "x", "quotient in binary32", "exact quotient", "golden", "exact")
    shown = table(header, rows, right=header[:4])
    return f"### Where golden and exact part\n\n{wrap(f'{note}{given} The row: {row}.')}\n\n{shown}"


def _beside(x: Number, near: Number) -> str:
    """X as `near` plus or minus a small difference of two digits."""
    difference = x.value - near.value
    return f"{short(near)} {'+' if difference > 0 else '-'} ~{float(abs(difference)):.1e}"


_STORED: tuple[tuple[str, Number], ...] = (
    ("a number", number(float(np.float32(0.3)))),
    ("a tie in bfloat16: to even", number(1 + Fraction(1, 256))),
    ("a tie in float16: to even", number(1 + Fraction(1, 2048))),
    ("the largest float16", number(65504)),
    ("halfway to the next step of float16", number(65520)),
    ("the largest float32", number(float(np.finfo(np.float32).max))),
    ("half the smallest float16", number(2.0**-25)),
    ("-0", Number(negative=True, magnitude=Fraction(0))),
    ("Inf", exact.infinity(negative=False)),
    ("NaN", NAN_NUMBER),
)


def _stored() -> str:
    """float32 values rounded to the dtypes a cache can have."""
    dtypes = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
    values = np.array([float(x) for _, x in _STORED], np.float32).reshape(1, 1, -1)
    quantized = kvformat.quantize(values, "none")
    engine = {name: quantized.dequantize(dtype).astype(np.float32).reshape(-1) for name, dtype in dtypes.items()}
    rows = []
    for index, (what, x) in enumerate(_STORED):
        cells = []
        for name in dtypes:
            rounded = exact.round_binary(x, BINARIES[name])
            assert _equal(float(engine[name][index]), float(rounded))
            cells.append(f"`{hex_text(rounded)}`")
        rows.append((what, short(x), f"`{hex_text(x)}`", *cells))
    return table(("input", "x", "x in hex", *dtypes), rows, right=("x",))


def _equal(a: float, b: float) -> bool:
    return (np.isnan(a) and np.isnan(b)) or (a == b and np.signbit(a) == np.signbit(b))


def vocabulary() -> str:
    """Every word of the vocabulary and what it means."""
    rows = [(f"`{word.name}`", word.meaning) for word in WORDS.values()]
    return table(("word", "meaning (operands a, b, c in order)"), rows)


def summary() -> str:
    """The recipes side by side, for the index."""
    rows = []
    for recipe in golden.RECIPES:
        family, mode = recipe.name.split("/")
        if family == "golden":
            scales = ", ".join(f"`{level.name}` {level.granularity.name}, {level.store}" for level in recipe.levels)
            pages = [f"[{name}](recipes/{name}/{mode}.md)" for name in ("golden", "exact")]
            rows.append((f"`{mode}`", recipe.element or "", scales, *pages))
    return table(("mode", "codes", "scales", "", ""), rows)

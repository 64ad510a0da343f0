"""A page for each recipe of a library: its program, source and status, and what tells it from its nearest neighbour."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import indent
from typing import Any

from kvformat.recipes.catalogue import names, recipe
from kvformat.recipes.evidence import Execution, evidence, executions
from kvformat.recipes.program import Level, Recipe
from spec_pages.text import block, page, table, wrap

NEIGHBOURS = Path(__file__).resolve().parents[2] / "spec" / "recipes" / "neighbours.json"
_IN = {"float32": "binary32", "float64": "binary64", "real": "real numbers"}


def files() -> dict[str, str]:
    """Path under spec/ and text of the pages of the libraries' recipes."""
    neighbours = {each["recipe"]: each for each in json.loads(NEIGHBOURS.read_text(encoding="utf-8"))}
    return {path(each): _page(each, neighbours[each.name]) for each in recipes()}


def recipes() -> tuple[Recipe, ...]:
    """The recipes that describe a library, in the order of the catalogue."""
    return tuple(recipe(name) for name in names() if not name.startswith(("golden/", "exact/")))


def path(of: Recipe) -> str:
    """The page of a recipe under spec/."""
    return f"recipes/{of.name}.md"


def summary() -> str:
    """The recipes of libraries side by side, for the index."""
    rows = [(f"[{each.name}]({path(each)})", f"`{each.mode}`", each.status, evidence(each)) for each in recipes()]
    return table(("recipe", "mode", "status", "evidence"), rows)


def _page(of: Recipe, neighbour: dict[str, Any]) -> str:
    facts = [("mode", f"`{of.mode}`"), ("codes", f"`{of.element}`"), ("source", of.source), ("status", of.status)]
    facts += [("evidence", "executed by " + "; ".join(map(_executed_by, executions(of))))] if executions(of) else []
    return page(
        "recipes/vendor.md",
        {
            "name": of.name,
            "index": "../" * of.name.count("/") + "../README.md#the-words-of-a-recipe",
            "notes": wrap(of.notes),
            "facts": table(("", ""), facts),
            "program": block(program(of)),
            "neighbour": _neighbour(neighbour),
        },
    )


def _executed_by(each: Execution) -> str:
    functions = ", ".join(f"`{function}`" for function in each.functions)
    return (
        f"{each.engine} {each.version}, {each.how}: {functions}, {', '.join(each.dtypes)}, {', '.join(each.inputs)}, "
        f"{each.compared:,} codes, scales and bytes of pages equal ({each.date}, `{each.log}`)"
    )


def program(of: Recipe) -> str:
    """The program of a recipe, part by part."""
    parts = [("rows", "before everything else", "\n".join(map(str, of.prepare)))] if of.prepare else []
    parts += [(f"scale {level.name}", _about(level), _scale(level)) for level in of.levels]
    parts += [("code", f"in {_IN[of.code.precision]}", of.code.text), ("value", "in binary32", of.value.text)]
    width = max(len(what) for what, _, _ in parts) + 3
    return "\n\n".join(f"{what.ljust(width)}{about}\n{indent(_flat(text), ' ' * width)}" for what, about, text in parts)


def _about(level: Level) -> str:
    given = ", may be given" if level.may_be_given else ""
    multiplier = {"decode": "", "encode": ", the encode multiplier", "amax": ", given as the tensor's amax"}
    return f"{level.granularity.name}, in {_IN[level.program.precision]}{given}{multiplier[level.multiplier]}"


def _scale(level: Level) -> str:
    lines = [level.program.text, f"store {level.name} as {level.store}"]
    if level.trials:
        lines += [f"for trial in {', '.join(level.trials)}; the first with the least e is kept:", level.error.text]
    return "\n".join(lines)


def _flat(text: str) -> str:
    return "\n".join(line.strip() for line in text.splitlines())


def _neighbour(found: dict[str, Any]) -> str:
    lines = [f"The same operations as {', '.join(f'`{name}`' for name in found['same'])}."] if found["same"] else []
    lines += [
        f"No input was found that tells it from `{each['recipe']}`, on {each['tried']:,} elements tried."
        for each in found.get("inseparable", [])
    ]
    if found["neighbour"] is None:
        lines.append("No other recipe here stores the same kinds of codes and scales.")
    if found["x"] is not None:
        scale = "" if found["scale"] is None else f", the scale given as {float.fromhex(found['scale'])!r}"
        shown = ", ".join(f"x[{place}] = {bits}" for place, bits in found["x"].items()) or "all of them +0"
        lines.append(
            f"`{found['neighbour']}` gives other bytes on this row of {found['head_dim']} {found['dtype']} elements"
            f"{scale}: {shown}{', the others +0' if found['x'] else ''}."
        )
    return "\n\n".join(map(wrap, lines))

"""kvformat recipes: the catalogue, one recipe as a program, or two side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvformat.cli import complete, work
from kvformat.cli.outcome import DIFFERENCE, HOLDS, print_json, say

if TYPE_CHECKING:
    import numpy as np

    from kvformat.recipes.difference import Difference, Witness
    from kvformat.recipes.program import Recipe
    from kvformat.recipes.quantizer import Quantized

app = typer.Typer(
    help="The catalogue of recipes. A name may be a mode, or the path of a TOML recipe. Without a command: list.",
    no_args_is_help=False,
    invoke_without_command=True,
)

_AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]


def find(name: str) -> Recipe:
    """The recipe of that name, or in that TOML file. Raises InputError."""
    from kvformat.recipes import load_recipe, recipe

    return load_recipe(name) if Path(name).is_file() else recipe(name)


@app.callback()
def default(context: typer.Context, as_json: _AsJson = False) -> int:
    """What is meant where no command is given: list."""
    return HOLDS if context.invoked_subcommand else listing(as_json)


@app.command("list")
def listing(as_json: _AsJson = False) -> int:
    """Every recipe: its mode, its status, its evidence and where it was read."""
    from kvformat.cli import console
    from kvformat.recipes.catalogue import names
    from kvformat.recipes.evidence import evidence

    found = [(each, evidence(each)) for each in map(find, names())]
    if as_json:
        rows = [
            {"name": r.name, "mode": r.mode, "status": r.status, "evidence": proved, "source": r.source}
            for r, proved in found
        ]
        return print_json({"recipes": rows})
    table = console.grid("recipe", "mode", "status", "evidence", "source")
    for each, proved in found:
        table.add_row(each.name, each.mode, each.status, proved, each.source)
    console.stdout().print(table)
    return HOLDS


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="Recipe, mode or TOML file.", autocompletion=complete.recipes)],
    as_json: _AsJson = False,
) -> int:
    """One recipe: every operation in order."""
    recipe = find(name)
    if as_json:
        return print_json(describe(recipe))
    say(text(recipe))
    return HOLDS


@app.command("find")
def finding(
    like: Annotated[str, typer.Option("--like", metavar="WORDS", help='Such as "int8 group 32 scale fp16".')],
    as_json: _AsJson = False,
) -> int:
    """The recipes that have most of what the words say: format, group, scale, rounding, engine, mode."""
    from kvformat.cli import console
    from kvformat.recipes.finding import like as search

    found = search(like)
    if as_json:
        rows = [{"name": m.recipe.name, "mode": m.recipe.mode, "has": m.has, "lacks": m.lacks} for m in found]
        return print_json({"recipes": rows})
    table = console.grid("recipe", "mode", "has", "lacks")
    for match in found:
        table.add_row(match.recipe.name, match.recipe.mode, ", ".join(match.has), ", ".join(match.lacks) or "-")
    console.stdout().print(table)
    return HOLDS


@app.command("prove", short_help="Two recipes on every input that decides their bytes.")
def prove(
    left: Annotated[str, typer.Argument(help="Recipe, mode or TOML file.", autocompletion=complete.recipes)],
    right: Annotated[str, typer.Argument(help="Recipe, mode or TOML file.", autocompletion=complete.recipes)],
    dtype: Annotated[str, typer.Option(help="Of K and V: bfloat16 or float16.")] = "bfloat16",
    listed: Annotated[Path | None, typer.Option("--list", help="Write every difference to this CSV file.")] = None,
    workers: work.Workers = None,
    scheduler: work.Scheduler = None,
    resume: work.Resume = None,
    as_json: _AsJson = False,
) -> int:
    """Enumerate a complete domain: equal for all of it, or the smallest difference. Status 1: they differ.

    A row is decided by its largest magnitude and x: all 2^30 pairs in bfloat16. What no enumeration decides is refused.
    """
    from kvformat.proofs import prove as enumerate_all
    from kvformat.proofs.listing import document, write

    with work.Crew(workers, scheduler, resume).at_work("prove") as (journal, watch):
        proof = enumerate_all(find(left), find(right), dtype, journal=journal, watch=watch)
    if listed is not None:
        write(proof, listed)
    status = HOLDS if proof.equal else DIFFERENCE
    if as_json:
        return print_json(document(proof), status)
    say(str(proof))
    return status


@app.command("diff", short_help="Two recipes: what differs, and the smallest input that shows it.")
def diff(
    left: Annotated[str, typer.Argument(help="Recipe, mode or TOML file.", autocompletion=complete.recipes)],
    right: Annotated[str, typer.Argument(help="Recipe, mode or TOML file.", autocompletion=complete.recipes)],
    as_json: _AsJson = False,
) -> int:
    """The operations in which two recipes differ, and the smallest input on which their bytes do. Status 1: they do."""
    from kvformat.recipes.difference import difference

    found = difference(find(left), find(right))
    status = HOLDS if found.witness is None else DIFFERENCE
    if as_json:
        return print_json(_difference_json(found), status)
    say("\n".join(_difference_lines(found)))
    return status


def describe(recipe: Recipe) -> dict[str, Any]:
    """A recipe as plain data, in the form that TOML recipes have, and what executed it."""
    from dataclasses import asdict

    from kvformat.recipes.evidence import evidence, executions

    return {
        "name": recipe.name,
        "mode": recipe.mode,
        "element": recipe.element,
        "status": recipe.status,
        "source": recipe.source,
        "notes": recipe.notes,
        "scales": [
            {
                "name": level.name,
                "granularity": level.granularity.name,
                "store": level.store,
                "multiplier": level.multiplier,
                "may_be_given": level.may_be_given,
                "precision": level.program.precision,
                "program": level.program.text,
            }
            for level in recipe.levels
        ],
        "precision": recipe.code.precision,
        "code": recipe.code.text,
        "value": recipe.value.text,
        "evidence": evidence(recipe),
        "executed": [asdict(each) for each in executions(recipe)],
    }


def text(recipe: Recipe) -> str:
    """A recipe as people read it."""
    from kvformat.recipes.evidence import executions

    lines = [f"{recipe.name}: mode {recipe.mode}, {recipe.status}", f"source  {recipe.source}"]
    lines += [f"run     {each}" for each in executions(recipe)]
    lines += [f"note    {recipe.notes}"] if recipe.notes else []
    for level in recipe.levels:
        kind = " (the encode multiplier)" if level.multiplier == "encode" else ""
        given = ", may be given" if level.may_be_given else ""
        head = f"scale {level.name}, {level.granularity.name}, {level.program.precision}{given}"
        lines += ["", head, *_indented(level.program.text), f"  store {level.name} as {level.store}{kind}"]
    if recipe.element is not None:
        lines += ["", f"code, {recipe.code.precision}", *_indented(recipe.code.text)]
        lines += ["", f"value, {recipe.value.precision}", *_indented(recipe.value.text)]
    return "\n".join(lines)


def _indented(program: str) -> list[str]:
    return [f"  {line.strip()}" for line in program.splitlines()]


def _difference_lines(found: Difference) -> list[str]:
    if found.equal:
        return [f"equal: {found.left.name} and {found.right.name} come down to the same operations"]
    lines = [f"- {found.left.name}", f"+ {found.right.name}"]
    for part, changes in found.operations:
        lines += ["", part, *(f"  {change}" for change in changes)]
    lines.append("")
    if found.witness is None:
        return [*lines, f"no input was found on which the bytes differ: {found.tried:,} elements tried"]
    return [*lines, f"smallest input found ({found.tried:,} elements tried):", *_witness_lines(found, found.witness)]


def _witness_lines(found: Difference, witness: Witness) -> list[str]:
    from kvformat.verify.explain import bits_of

    places = _places(witness)
    lines = [f"  scale   {witness.scale!r} given"] if witness.scale is not None else []
    for place in places:
        bits = bits_of(witness.x[0, 0, place])
        lines.append(f"  x[{place}]{' ' * (5 - len(str(place)))}{bits['value']} ({bits['dtype']} {bits['bits']})")
    if not places:
        lines.append(f"  x       {witness.x.shape[2]} zeros ({witness.x.dtype.name})")
    for sign, recipe, made in (("-", found.left, witness.left), ("+", found.right, witness.right)):
        lines.append(f"  {sign} {recipe.name}: scale {_scale(made)}, codes {_codes(made, places)}")
    return lines


def _places(witness: Witness) -> list[int]:
    """The elements that are not +0."""
    bits = witness.x.view(f"u{witness.x.dtype.itemsize}")[0, 0]
    return [place for place in range(len(bits)) if bits[place]]


def _scale(made: Quantized) -> str:
    stored: np.generic = made.scales.reshape(-1)[0]
    return str(stored) if stored.dtype.kind == "f" else f"0x{int(stored):02X}"


def _codes(made: Quantized, places: list[int]) -> str:
    codes = made.codes[0, 0, places or [0]]
    return " ".join(str(int(code)) if codes.dtype.kind == "i" else f"0x{int(code):02X}" for code in codes)


def _difference_json(found: Difference) -> dict[str, Any]:
    witness = found.witness
    return {
        "left": found.left.name,
        "right": found.right.name,
        "equal": found.equal,
        "operations": {part: list(changes) for part, changes in found.operations},
        "tried": found.tried,
        "witness": None if witness is None else _witness_json(witness),
    }


def _witness_json(witness: Witness) -> dict[str, Any]:
    from kvformat.verify.explain import bits_of

    places = _places(witness)
    return {
        "scale": witness.scale,
        "head_dim": witness.x.shape[2],
        "x": {str(place): bits_of(witness.x[0, 0, place]) for place in places},
        "left": {"scale": _scale(witness.left), "codes": _codes(witness.left, places)},
        "right": {"scale": _scale(witness.right), "codes": _codes(witness.right, places)},
    }

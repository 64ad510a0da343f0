"""kvformat check: judge dumps, or without any the sample that ships with the package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvformat.cli import complete
from kvformat.cli.outcome import CANNOT_JUDGE, complain, print_json, printable, say, worst
from kvformat.cli.recipes import find
from kvformat.errors import InputError
from kvformat.layouts import load_layout

if TYPE_CHECKING:
    from rich.table import Table

    from kvformat.recipes import Recipe
    from kvformat.verify.builtin import Summary


def check(
    dumps: Annotated[list[str] | None, typer.Argument(metavar="[DUMP]...", help="Dumps (safetensors files).")] = None,
    recipe: Annotated[
        str | None,
        typer.Option(help="Judge by this recipe (name, mode or TOML file).", autocompletion=complete.recipes),
    ] = None,
    layout_file: Annotated[str | None, typer.Option(help="A TOML file with a layout that dumps may name.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """Judge dumps bit for bit. Without one: write, judge and break pages of real K and V in every mode and layout."""
    if not dumps and (recipe or layout_file):
        raise InputError("--recipe and --layout-file say how to judge a dump; name one")
    if layout_file:
        load_layout(layout_file)
    how = find(recipe) if recipe else None
    documents = (
        [_check_dump(path, how, as_json=as_json) for path in dumps] if dumps else [_check_sample(as_json=as_json)]
    )
    status = worst(document["status"] for document in documents)
    if as_json:
        print_json(documents[0] if len(documents) == 1 else _together(documents), status)
    return status


def _together(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """Several reports as one document: each with its own recipe and layout, and what they add up to."""
    counts = {name: sum(document.get(name, 0) for document in documents) for name in ("compared", "mismatches")}
    first = next(({"dump": each["dump"], **each["first"]} for each in documents if each.get("first")), None)
    return {"recipe": None, "layout": None, **counts, "first": first, "reports": documents}


def _check_dump(path: str, recipe: Recipe | None, *, as_json: bool) -> dict[str, Any]:
    """The report on one dump as plain data, printed unless `as_json`. A dump that cannot be judged stops no other."""
    from kvformat.cli import console
    from kvformat.dump.dump import Dump

    try:
        dump = Dump.load(path)
        from kvformat.verify import check as judge  # compiled code: a file that is no dump does not wait for it

        with console.progress(printable(path)) as advance:
            report = judge(dump, recipe=recipe, progress=advance)
    except InputError as error:
        if not as_json:
            complain(str(error))
        return {"dump": path, "ok": False, "status": CANNOT_JUDGE, "error": str(error)}
    if not as_json:
        say(f"{printable(path)}: {report}")
    return {"dump": path, "ok": report.ok, "status": report.status, **report.to_json()}


def _check_sample(*, as_json: bool) -> dict[str, Any]:
    from kvformat.cli import console
    from kvformat.verify import builtin

    with console.progress("built-in check") as advance:
        report = builtin.run(progress=advance)
    if not as_json:
        console.stdout().print(_table(report))
        verdict = "all hold, every planted byte was found" if report.ok else "NOT ALL HOLD"
        counted = f"{len(report.rows)} layouts, {report.compared:,} codes and scales"
        say(f"{verdict}: {report.tokens} tokens of real K and V, {counted}")
    return {"ok": report.ok, "status": report.status, **report.to_json()}


def _table(summary: Summary) -> Table:
    from kvformat.cli import console

    table = console.grid(
        "mode", "layout", "order", "V scales", "compared", "wrong", "planted byte", right=("compared", "wrong")
    )
    for row in summary.rows:
        found = f"found: {row.found}" if row.found == row.planted else f"NOT FOUND: {row.planted}, but {row.found}"
        style = "green" if row.ok else "bold red"
        table.add_row(
            row.mode,
            row.layout,
            row.order,
            row.v_scales,
            f"{row.compared:,}",
            f"{row.mismatches:,}",
            found,
            style=style,
        )
    return table

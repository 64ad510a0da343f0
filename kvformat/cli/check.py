"""kvformat check: judge dumps, or without any the sample that ships with the package."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvformat.cli import complete, many, work
from kvformat.cli.outcome import CANNOT_JUDGE, complain, print_json, printable, say
from kvformat.cli.recipes import find
from kvformat.errors import InputError
from kvformat.layouts import load_layout

if TYPE_CHECKING:
    from rich.table import Table

    from kvformat.recipes import Recipe
    from kvformat.verify.builtin import Summary

#: files up to which each report is printed whole; more are a table
_READ_WHOLE = 16


def check(
    dumps: Annotated[
        list[str] | None,
        typer.Argument(metavar="[DUMP]...", help="Dumps (safetensors files), folders of them, or patterns."),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(help="Judge by this recipe (name, mode or TOML file).", autocompletion=complete.recipes),
    ] = None,
    layout_file: Annotated[str | None, typer.Option(help="A TOML file with a layout that dumps may name.")] = None,
    diagnose: Annotated[
        bool, typer.Option("--diagnose", help="Of many files: group those that differ by the name of their fault.")
    ] = False,
    workers: work.Workers = None,
    scheduler: work.Scheduler = None,
    resume: work.Resume = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """Judge dumps bit for bit. Without one: write, judge and break pages of real K and V in every mode and layout.

    A folder stands for every .safetensors file in it and below. Many files are one table and the groups of those with
    the same fault.
    """
    crew = work.Crew(workers, scheduler, resume)
    if not dumps and (recipe or layout_file or crew != work.Crew()):
        raise InputError("--recipe, --layout-file, --workers, --scheduler and --resume are for dumps; name one")
    if layout_file:
        load_layout(layout_file)
    how = find(recipe) if recipe else None
    if not dumps:
        document = _check_sample(as_json=as_json)
        return print_json(document, document["status"]) if as_json else int(document["status"])
    from kvformat.many.files import expand, is_collection

    files = expand(dumps)
    collected = any(is_collection(name) and name not in files for name in dumps)
    if len(files) == 1 and crew == work.Crew() and not collected:
        return _check_dump(files[0], how, as_json=as_json)
    listed = collected or len(files) > _READ_WHOLE
    if diagnose and not listed:
        raise InputError("--diagnose is for folders and patterns; of one dump: kvformat diagnose DUMP")
    return many.check(files, how, layout_file, crew, as_json=as_json, listed=listed, diagnosed=diagnose)


def _check_dump(path: str, recipe: Recipe | None, *, as_json: bool) -> int:
    """One dump, with a bar that moves within it."""
    from kvformat.cli import console
    from kvformat.dump.dump import Dump

    try:
        dump = Dump.load(path)
        from kvformat.verify import check as judge  # compiled code: a file that is no dump does not wait for it

        with console.progress(printable(path)) as advance:
            report = judge(dump, recipe=recipe, progress=advance)
    except InputError as error:
        if as_json:
            return print_json({"dump": path, "error": str(error)}, CANNOT_JUDGE)
        complain(str(error))
        return CANNOT_JUDGE
    if as_json:
        return print_json({"dump": path, **report.to_json()}, report.status)
    say(f"{printable(path)}: {report}")
    return report.status


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

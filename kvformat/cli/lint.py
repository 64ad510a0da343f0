"""kvformat lint: pages alone, without the K and V they came from."""

from __future__ import annotations

from typing import Annotated

import typer

from kvformat.cli import complete, many, work
from kvformat.cli.outcome import print_json, printable, say
from kvformat.cli.recipes import find
from kvformat.layouts import load_layout
from kvformat.many.files import expand


def lint(
    pages: Annotated[
        list[str],
        typer.Argument(metavar="PAGES...", help="Dumps, files of pages alone, folders of them, or patterns."),
    ],
    recipe: Annotated[
        str | None,
        typer.Option(
            help="What wrote them (name or TOML file), whatever the file declares.", autocompletion=complete.recipes
        ),
    ] = None,
    layout_file: Annotated[str | None, typer.Option(help="A TOML file with a layout that the file may name.")] = None,
    workers: work.Workers = None,
    scheduler: work.Scheduler = None,
    resume: work.Resume = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """Look at pages for what right ones never show. Status 1: something was found.

    Each of PAGES holds `pages`, uint8 (num_blocks, page_bytes), and the metadata of a dump; `slot_mapping`, where it is
    there, says which slots hold tokens.
    """
    if layout_file:
        load_layout(layout_file)
    how = find(recipe) if recipe else None
    files, crew = expand(pages), work.Crew(workers, scheduler, resume)
    if len(files) > 1 or crew != work.Crew():
        return many.lint(files, how, layout_file, crew, as_json=as_json)
    (path,) = files
    from kvformat.cli import console
    from kvformat.lint.linter import lint_file

    with console.progress(printable(path)) as advance:
        report = lint_file(path, how, advance)
    if as_json:
        return print_json({"pages": path, **report.to_json()}, report.status)
    say(f"{printable(path)}: {report}")
    return report.status

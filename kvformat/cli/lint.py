"""kvformat lint: pages alone, without the K and V they came from."""

from __future__ import annotations

from typing import Annotated

import typer

from kvformat.cli import complete
from kvformat.cli.outcome import print_json, printable, say
from kvformat.cli.recipes import find
from kvformat.layouts import load_layout


def lint(
    pages: Annotated[str, typer.Argument(metavar="PAGES", help="A dump, or a safetensors file of pages alone.")],
    recipe: Annotated[
        str | None,
        typer.Option(
            help="What wrote them (name or TOML file), whatever the file declares.", autocompletion=complete.recipes
        ),
    ] = None,
    layout_file: Annotated[str | None, typer.Option(help="A TOML file with a layout that the file may name.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """Look at pages for what right ones never show. Status 1: something was found.

    PAGES holds `pages`, uint8 (num_blocks, page_bytes), and the metadata of a dump; `slot_mapping`, where it is there,
    says which slots hold tokens.
    """
    if layout_file:
        load_layout(layout_file)
    from kvformat.cli import console
    from kvformat.lint.linter import lint_file

    with console.progress(printable(pages)) as advance:
        report = lint_file(pages, find(recipe) if recipe else None, advance)
    if as_json:
        return print_json({"pages": pages, **report.to_json()}, report.status)
    say(f"{printable(pages)}: {report}")
    return report.status

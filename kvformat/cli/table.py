"""kvformat table: every code of an element format and its value."""

from __future__ import annotations

from typing import Annotated

import typer

from kvformat.cli import complete
from kvformat.cli.outcome import HOLDS, print_json, say
from kvformat.elements.formats import ElementFormat, element


def table(
    name: Annotated[
        str,
        typer.Argument(
            metavar="FORMAT", help="Element format: e4m3fn, e5m2, e2m1fn, ...", autocompletion=complete.elements
        ),
    ],
    csv: Annotated[bool, typer.Option("--csv", help="Lines of code,value with C99 hex floats.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """Every code of an element format: its bits and its value, exactly."""
    from kvformat.cli.explanation import code_json

    fmt = element(name)
    if csv:
        say("\n".join(csv_lines(fmt)))
        return HOLDS
    rows = [code_json(code, fmt) for code in range(fmt.codes)]
    if as_json:
        return print_json({"format": fmt.name, "codes": rows})
    from kvformat.cli import console

    shown = console.grid("code", "bits", "value", "hex float", right=("value",))
    for row in rows:
        shown.add_row(row["code"], row["bits"], row["value"], row["hex"])
    console.stdout().print(shown)
    return HOLDS


def csv_lines(fmt: ElementFormat) -> list[str]:
    """The table as CSV: a header, then one line per code in order."""
    from kvformat.cli.numerals import code_text, hex_float

    return ["code,value", *(f"{code_text(code, fmt)},{hex_float(fmt.value(code))}" for code in range(fmt.codes))]

"""kvformat explain: what a number becomes in an element format, and why; or what a code stands for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from kvformat.cli import complete
from kvformat.cli.outcome import HOLDS, print_json
from kvformat.elements.formats import element

if TYPE_CHECKING:
    from kvformat.cli.explanation import Explanation


def explain(
    value: Annotated[str, typer.Argument(help="0.3, -1e-7, 0x1.8p3, 3/8, inf, nan; with --code: 0x7e, 0b0_1111_110")],
    name: Annotated[
        str,
        typer.Option(
            "--format", help="Element format: e4m3fn, e5m2, e2m1fn, e8m0fnu, ...", autocompletion=complete.elements
        ),
    ],
    code: Annotated[bool, typer.Option("--code", help="VALUE is a code, not a number.")] = False,
    overflow: Annotated[str, typer.Option(help="saturate or ieee.")] = "saturate",
    rounding: Annotated[str | None, typer.Option(help="nearest_even; e8m0fnu also has up and down.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """What a number becomes in an element format, and why. It is read exactly, as written, and rounded once."""
    from kvformat.cli.explanation import explain_code, explain_number
    from kvformat.cli.numerals import parse_code, parse_number

    fmt = element(name)
    if code:
        found = explain_code(parse_code(value, fmt), fmt)
    else:
        found = explain_number(parse_number(value), fmt, overflow=overflow, rounding=rounding)
    if as_json:
        return print_json({"input": value, **found.to_json()})
    _show(value, found, is_code=code)
    return HOLDS


def _show(text: str, found: Explanation, *, is_code: bool) -> None:
    from rich.text import Text

    from kvformat.cli import console
    from kvformat.cli.explanation import code_json
    from kvformat.cli.numerals import code_text, decimal_text

    out, answer = console.stdout(), code_json(found.code, found.fmt)
    rest = f" = {answer['bits']} = {answer['value']} = {answer['hex']}"
    out.print(Text.assemble((f"{text} in {found.fmt.name}: ", "bold"), (answer["code"], "bold green"), rest))
    table = console.grid("", "code", "value", right=("value",))
    for rung in reversed(found.ladder):
        chosen = rung.code == found.code
        what = "the code" if is_code and chosen else rung.what
        name = "" if rung.code is None else code_text(rung.code, found.fmt)
        table.add_row(what, name, decimal_text(rung.number), style="green" if chosen else None)
    out.print(table)
    for note in found.notes:
        out.print(note)
    if not is_code and re.fullmatch("0x[0-9a-f]+", text.lower()):
        out.print(f"{text} was read as a number; for the code {text} add --code")

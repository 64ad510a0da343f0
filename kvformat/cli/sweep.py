"""kvformat sweep: all 2^32 float32 inputs through one element format's codec."""

from __future__ import annotations

from typing import Annotated

import typer

from kvformat.cli import complete
from kvformat.cli.outcome import print_json, say
from kvformat.elements.formats import element


def sweep(
    name: Annotated[
        str,
        typer.Argument(
            metavar="FORMAT", help="Element format: e4m3fn, e5m2, e2m1fn, ...", autocompletion=complete.elements
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """Encode all 2^32 float32 inputs and judge every code. After an interruption it goes on where it stopped."""
    fmt = element(name)
    from kvformat.cli import console
    from kvformat.elements import sweep as sweeping

    with console.progress(f"sweep {fmt.name}") as advance:
        report = sweeping.run(fmt.name, progress=advance)
    if as_json:
        return print_json(report.to_json(), report.status)
    say(str(report))
    return int(report.status)

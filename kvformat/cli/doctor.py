"""kvformat doctor: what this installation has, and what is missing."""

from __future__ import annotations

from typing import Annotated

import typer

from kvformat.cli.outcome import CANNOT_JUDGE, HOLDS, print_json


def doctor(as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False) -> int:
    """Versions, Numba's cache, threads, extras, compilers, a GPU. Status 2: what all commands need is not in order."""
    from kvformat.installation import findings

    found = list(findings())
    status = HOLDS if all(each.good for each in found) else CANNOT_JUDGE
    if as_json:
        return print_json({"findings": [each._asdict() for each in found]}, status)
    from kvformat.cli import console

    table = console.grid("", "found", "to change it")
    for each in found:
        table.add_row(each.name if each.good else f"{each.name}: WRONG", each.says, each.remedy)
    console.stdout().print(table)
    return status

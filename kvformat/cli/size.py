"""kvformat size: how many bytes the cache of a model takes, in every mode."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvformat.cli import complete
from kvformat.cli.outcome import HOLDS, print_json
from kvformat.errors import InputError, unknown_name

if TYPE_CHECKING:
    from kvformat.sizing import Model, Part, Size

#: columns of the longest bar
_BAR = 40
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


def size(
    model: Annotated[
        str,
        typer.Argument(
            help="llama-2-70b, deepseek-v3, ... or the path of a config.json.", autocompletion=complete.models
        ),
    ],
    context: Annotated[int, typer.Option(help="Tokens of the sequence.")],
    mode: Annotated[
        str, typer.Option(help="A mode, or all of those that the model's cache has.", autocompletion=complete.modes)
    ] = "all",
    block_size: Annotated[int | None, typer.Option(help="Rows in a page; 16, of latent rows 64, if not given.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout, exact bytes.")] = False,
) -> int:
    """How many bytes the cache of a model takes for one sequence: codes, scales and padding, in whole pages."""
    from kvformat.sizing import modes_of
    from kvformat.sizing import size as size_of

    found = _model(model)
    known = modes_of(found)
    if mode != "all" and mode not in known:
        raise unknown_name(f"mode of {found.name}:", mode, (*known, "all"))
    sizes: list[Size] = []
    refused: dict[str, str] = {}
    for name in known if mode == "all" else (mode,):
        try:
            sizes.append(size_of(found, name, context, block_size=block_size))
        except InputError as error:  # one mode's layout may not have such heads; the others do
            if mode != "all" or name == known[0]:
                raise
            refused[name] = str(error)
    if as_json:
        return print_json(_document(found, context, sizes, refused))
    _show(sizes, size_of(found, known[0], context, block_size=block_size), refused)
    return HOLDS


def _model(name: str) -> Model:
    from kvformat.sizing import find_model, load_config

    return load_config(name) if name.endswith(".json") or Path(name).exists() else find_model(name)


def _document(model: Model, context: int, sizes: list[Size], refused: dict[str, str]) -> dict[str, Any]:
    return {
        "model": model.name,
        "layers": model.num_layers,
        "context": context,
        "source": model.source,
        "notes": model.notes,
        "modes": [_mode(each) for each in sizes],
        "refused": refused,
    }


def _mode(each: Size) -> dict[str, Any]:
    return {
        "mode": each.mode,
        "bytes": each.bytes,
        "code_bytes": each.code_bytes,
        "scale_bytes": each.scale_bytes,
        "padding_bytes": each.padding_bytes,
        "scales": each.scales,
        "bytes_per_token": _number(each.per_token),
        "parts": [_part(part) for part in each.parts],
    }


def _part(part: Part) -> dict[str, Any]:
    """One stream of one kind of layer; all numbers are those of one layer."""
    return {
        "stores": part.stream.name,
        "layers": part.layers.count,
        "layout": None if part.page is None else part.page.spec,
        "block_size": part.block_size,
        "page_bytes": part.page_bytes,
        "tokens_per_row": part.stream.tokens_per_row,
        "window": part.stream.window or part.layers.window or None,
        "rows": part.rows,
        "pages": part.pages,
        "bytes": part.bytes,
        "scales": part.rows * part.scales,
        "bytes_per_token": _number(part.per_token),
    }


def _number(value: Fraction) -> int | float:
    return value.numerator if value.denominator == 1 else float(value)


def _show(sizes: list[Size], plain: Size, refused: dict[str, str]) -> None:
    """plain: mode none, which the others are compared with."""
    from kvformat.cli import console

    out, model = console.stdout(), plain.model
    out.print(f"{model.name}, one sequence of {plain.context:,} tokens", style="bold")
    for group in model.layers:
        kept = "; ".join(stream.name for stream in group.streams()) or "nothing of a token"
        out.print(f"- {group}: {kept}")
    numbers = ("per token, layer", "per token", "scales", "sequence", "of which scales", "padding", "x smaller")
    table = console.grid("mode", *numbers, right=numbers)
    for each in sizes:
        table.add_row(each.mode, *_cells(each, plain))
    out.print(table)
    longest = max(each.bytes for each in sizes)
    width = max(len(each.mode) for each in sizes)
    for each in sizes:
        out.print(f"{each.mode.ljust(width)}  {_bar(each, longest)} {_human(each.bytes)}")
    if any(each.scale_bytes for each in sizes):
        out.print("- in a bar, the part for scales is dotted")
    for name, why in refused.items():
        out.print(f"- {name} is not possible: {why}")
    if model.notes:
        out.print(f"- {model.notes}")


def _cells(each: Size, plain: Size) -> tuple[str, ...]:
    per_layer = sorted(
        {
            sum((part.per_token for part in each.parts if part.layers == group), Fraction(0))
            for group in each.model.layers
        }
    )
    ends = dict.fromkeys((per_layer[0], per_layer[-1]))
    return (
        "..".join(_decimal(value) for value in ends),
        _human(each.per_token),
        f"{each.scales:,}",
        _human(each.bytes),
        _human(each.scale_bytes),
        _human(each.padding_bytes),
        f"{plain.bytes / each.bytes:.2f}",
    )


def _decimal(value: Fraction) -> str:
    return f"{float(value):,.2f}".rstrip("0").rstrip(".")


def _bar(each: Size, longest: int) -> str:
    length = max(1, round(_BAR * each.bytes / longest))
    dotted = min(length, round(_BAR * each.scale_bytes / longest))
    return "█" * (length - dotted) + "░" * dotted


def _human(count: int | Fraction) -> str:
    """A number of bytes with four digits: 10.00 GiB."""
    unit = 0
    value = Fraction(count)
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{_decimal(value) if not unit else f'{float(value):.2f}'} {_UNITS[unit]}"

"""kvformat simulate: experiments on what the lost bits do, as tables, as JSON, or as one HTML file with plots."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvformat.cli.outcome import HOLDS, print_json, printable, say
from kvformat.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from kvformat.simulate.experiments import Result


def simulate(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[EXPERIMENT]...", help="Which ones; all that need no model if none is named."),
    ] = None,
    list_them: Annotated[bool, typer.Option("--list", help="List the experiments and their questions.")] = False,
    seed: Annotated[int, typer.Option(help="Of the synthetic queries, keys and values.")] = 0,
    tokens: Annotated[int, typer.Option(help="Context length.")] = 256,
    budget: Annotated[int, typer.Option(help="Tokens that eviction keeps.")] = 64,
    model: Annotated[Path | None, typer.Option(help="GGUF file; default: where tools/fetch_model.py puts it.")] = None,
    layers: Annotated[int | None, typer.Option(help="Run the model's first layers only.")] = None,
    chunks: Annotated[int, typer.Option(help="Pieces of text that the model reads.")] = 1,
    report: Annotated[Path | None, typer.Option(help="Write one self-contained HTML file with plots.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """What quantization does to attention, through real page bytes: where the error comes from and what it costs."""
    from kvformat.cli import console
    from kvformat.simulate.experiments import EXPERIMENTS, Settings, experiment

    if list_them:
        return _listing(as_json=as_json)
    chosen = [experiment(name) for name in names] if names else [e for e in EXPERIMENTS.values() if not e.needs_model]
    if model is not None and not any(each.needs_model for each in chosen):
        raise InputError("--model is for experiments that read one: name `model`")
    settings = Settings(seed, tokens, budget, model, layers, chunks)
    if report is not None:
        from kvformat.simulate.html import check_target

        check_target(report)
    results = []
    for each in chosen:
        with console.progress(f"simulate {each.name}") as advance:
            results.append(each.run(settings, advance or (lambda _done, _total: None)))
    if report is not None:
        from kvformat.simulate.html import write

        write(report, results)
        if not as_json:
            say(f"wrote {printable(str(report))}")
    if as_json:
        return print_json({"experiments": [result.to_json() for result in results]})
    for result in results:
        console.stdout().print(table(result))
        say("\n".join(f"- {line}" for line in result.says) + "\n")
    return HOLDS


def table(result: Result) -> Table:
    """The rows of a result."""
    from kvformat.cli import console

    names = list(result.rows[0]) if result.rows else []
    numbers = tuple(name for name in names if not isinstance(result.rows[0][name], str))
    shown = console.grid(*names, right=numbers)
    shown.title, shown.title_justify = result.title, "left"
    for row in result.rows:
        shown.add_row(*(cell(value) for value in row.values()))
    return shown


def cell(value: str | float | bool | None) -> str:
    """A value as people read it: three or four significant digits."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def _listing(*, as_json: bool) -> int:
    from kvformat.cli import console
    from kvformat.simulate.experiments import EXPERIMENTS

    if as_json:
        listed = [{"name": e.name, "question": e.question, "needs_model": e.needs_model} for e in EXPERIMENTS.values()]
        return print_json({"experiments": listed})
    shown = console.grid("experiment", "question", "needs")
    for each in EXPERIMENTS.values():
        shown.add_row(each.name, each.question, "kvformat[model]" if each.needs_model else "")
    console.stdout().print(shown)
    return HOLDS

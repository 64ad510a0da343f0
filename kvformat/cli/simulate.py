"""kvformat simulate: experiments on what the lost bits do, as tables, as JSON, or as one HTML file with plots."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvformat.cli.outcome import HOLDS, print_json, printable, say
from kvformat.cli.recipes import find
from kvformat.cli.scales import read_text
from kvformat.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from kvformat.simulate.eviction import Eviction
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
    model: Annotated[
        Path | None,
        typer.Option(
            help="A transformers checkpoint or GGUF file to measure --recipe on. The experiment `model` takes a GGUF"
            " file; default: where tools/fetch_model.py puts it."
        ),
    ] = None,
    text: Annotated[
        Path | None, typer.Option(help="With --model: the text it reads; default: prose that ships.")
    ] = None,
    recipe: Annotated[
        list[str] | None, typer.Option(help="With --model: recipes or modes; default: every golden one. Repeatable.")
    ] = None,
    evict: Annotated[
        str | None,
        typer.Option(help="With --model: streaming (4 first tokens and the last) or h2o, to --budget tokens."),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="With --model: a file of finished pieces; a run that was stopped goes on there.")
    ] = None,
    kv: Annotated[
        Path | None, typer.Option(help="K and V of your own for the experiment `sink`: layerN.key, layerN.value.")
    ] = None,
    layers: Annotated[int | None, typer.Option(help="Run the model's first layers only.")] = None,
    chunks: Annotated[int, typer.Option(help="Pieces of text that the model reads.")] = 1,
    report: Annotated[Path | None, typer.Option(help="Write one self-contained HTML file with plots.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """What quantization does to attention, through real page bytes: where the error comes from and what it costs."""
    from kvformat.cli import console
    from kvformat.simulate.eviction import Eviction
    from kvformat.simulate.experiments import EXPERIMENTS, Settings, experiment

    if list_them:
        return _listing(as_json=as_json)
    chosen = [experiment(name) for name in names] if names else [e for e in EXPERIMENTS.values() if not e.needs_model]
    if model is not None and not names:
        if report is not None or layers is not None or kv is not None:
            raise InputError("--report, --layers and --kv are for experiments: name them")
        eviction = None if evict is None else Eviction.of(evict, budget)
        return _measured(model, text, recipe, tokens, chunks, resume, eviction, as_json=as_json)
    if text or recipe or resume or evict:
        raise InputError(
            "--text, --recipe, --evict and --resume are for `kvformat simulate --model PATH` without experiments"
        )
    if model is not None and not any(each.needs_model for each in chosen):
        raise InputError("--model is for experiments that read one: name `model`, or none to measure recipes")
    settings = Settings(seed, tokens, budget, model, layers, chunks, kv)
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


def _measured(
    model: Path,
    text: Path | None,
    recipes: list[str] | None,
    context: int,
    chunks: int,
    resume: Path | None,
    eviction: Eviction | None,
    *,
    as_json: bool,
) -> int:
    """Recipes on a model of the user's own, by a text."""
    from kvformat.cli import console
    from kvformat.simulate.model.text import excerpt

    try:
        from kvformat.transformers.measure import GOLDEN, Journal, Run, measure
        from kvformat.transformers.states import load_model
    except ModuleNotFoundError as error:
        raise InputError(f"running a model needs {error.name}: pip install 'kvformat[transformers]'") from None
    words = excerpt() if text is None else read_text(text)
    names = [find(name).name for name in recipes or GOLDEN]
    net, tokenizer = load_model(model)
    run = Run.of(str(model), words, tokenizer, context, chunks, eviction)
    journal = Journal(resume, run.name)
    with console.progress(f"simulate {model.name}") as advance:
        rows = measure(net, run.chunks, names, journal, advance or (lambda _done, _total: None), eviction)
    if as_json:
        return print_json({**run.to_json(), "rows": [row.to_json() for row in rows]})
    shown = console.grid("recipe", "KL (95 % interval)", "dNLL (95 % interval)", "same top-1", "PPL")
    shown.title, shown.title_justify = run.title, "left"
    for row in rows:
        shown.add_row(row.recipe, str(row.kl), str(row.dnll), f"{row.top1.mean:.4f}", f"{row.ppl:.2f}")
    console.stdout().print(shown)
    say(f"PPL of the bf16 cache: {rows[0].base_ppl:.2f}; KL and dNLL are against it, intervals by blocks of tokens")
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

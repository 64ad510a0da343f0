"""kvformat fuzz: search for the smallest input on which a kernel leaves its contract; or try the search on the zoo."""

from __future__ import annotations

import math
import re
import shlex
import sys
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from kvformat.cli import complete, work
from kvformat.cli.outcome import CANNOT_JUDGE, DIFFERENCE, HOLDS, complain, print_json, say
from kvformat.errors import InputError
from kvformat.layouts import load_layout

if TYPE_CHECKING:
    from kvformat.fuzz.report import FuzzReport
    from kvformat.fuzz.zoo.scoreboard import Scoreboard

_DEVICE = re.compile(r"(cpu|cuda|hip|mps|xpu|meta)(:[0-9]+)?")
_COUNTEREXAMPLE = "counterexample.safetensors"


class OptionalDevice(TyperCommand):
    """A command whose `--torch` may stand without a device, which is then the CPU."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The arguments, with a device behind each `--torch`."""
        given = []
        for place, argument in enumerate(args):
            given.append(argument)
            if argument == "--torch" and not _DEVICE.fullmatch("".join(args[place + 1 : place + 2])):
                given.append("cpu")
        return super().parse_args(ctx, given)


def fuzz(
    context: typer.Context,
    target: Annotated[
        str | None, typer.Argument(metavar="[MODULE:FUNCTION]", help="The candidate; FILE.py:FUNCTION too.")
    ] = None,
    mode: Annotated[str | None, typer.Option(help="The mode that it is for.", autocompletion=complete.modes)] = None,
    recipe: Annotated[
        str | None,
        typer.Option(help="What it must compute (name or TOML file); golden if none.", autocompletion=complete.recipes),
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option(help="Where a writer must put it (default vllm-0.33).", autocompletion=complete.layouts),
    ] = None,
    layout_file: Annotated[str | None, typer.Option(help="A TOML file with a layout, which --layout may name.")] = None,
    kind: Annotated[str | None, typer.Option(help="quantizer, writer or reader, if the signature says not.")] = None,
    budget: Annotated[float | None, typer.Option(metavar="SECONDS", help="How long to search (default 20).")] = None,
    examples: Annotated[int | None, typer.Option(help="How many examples to try.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same examples again; no database is used.")] = None,
    torch: Annotated[str | None, typer.Option("--torch", metavar="[DEVICE]", help="Give it torch tensors.")] = None,
    emulate: Annotated[
        str | None, typer.Option(metavar="TARGET", help="Run its Triton kernels as compiled for sm_90, ... on the CPU.")
    ] = None,
    order: Annotated[str | None, typer.Option(help="NHD or HND, where it takes only one.")] = None,
    v_scales: Annotated[str | None, typer.Option(help="swizzled or linear, where it takes only one.")] = None,
    head_dim: Annotated[list[int] | None, typer.Option(help="A head size that it takes (repeatable).")] = None,
    dtype: Annotated[list[str] | None, typer.Option(help="A dtype of K and V that it takes (repeatable).")] = None,
    limit: Annotated[float, typer.Option(metavar="SECONDS", help="How long one call may take.")] = 10.0,
    output: Annotated[str, typer.Option("-o", "--output", help="Where the counterexample goes.")] = _COUNTEREXAMPLE,
    zoo: Annotated[bool, typer.Option("--zoo", help="Search every kernel of the zoo instead.")] = False,
    seeds: Annotated[int, typer.Option(help="With --zoo: how many seeds.")] = 1,
    only: Annotated[str | None, typer.Option(help="With --zoo: the faults whose names contain this.")] = None,
    workers: work.Workers = None,
    scheduler: work.Scheduler = None,
    resume: work.Resume = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """Search for the smallest input on which a quantizer, a cache writer or a cache reader leaves its contract."""
    try:
        import hypothesis  # noqa: F401
    except ModuleNotFoundError:
        raise InputError("fuzzing needs hypothesis: pip install 'kvformat[fuzz]'") from None
    crew = work.Crew(workers, scheduler, resume)
    if zoo:
        if target is not None:
            raise InputError("--zoo brings its own kernels; leave MODULE:FUNCTION out")
        own = (mode, recipe, layout, kind, torch, emulate, order, v_scales, head_dim, dtype)
        if any(each is not None for each in own):
            raise InputError("--zoo searches each kernel by its own mode, recipe and layout; leave those options out")
        return _zoo(seeds, seed, only, budget, examples, crew, as_json=as_json)
    if crew != work.Crew():
        raise InputError("--workers, --scheduler and --resume are for --zoo: one search is one task")
    if seed is not None and seed < 0:
        raise InputError(f"--seed must be 0 or more; got {seed}")
    if not (math.isfinite(limit) and limit > 0):
        raise InputError(f"--limit must be a number of seconds above 0; got {limit:g}")
    if target is None or mode is None:
        raise InputError("name a candidate, MODULE:FUNCTION, and its --mode; or --zoo")
    if layout_file:
        load_layout(layout_file)
    from kvformat.cli.recipes import find
    from kvformat.fuzz.runner import fuzz as search

    with redirect_stdout(sys.stderr), _emulated(emulate, torch):  # what the candidate prints is no part of the answer
        report = search(
            target,
            mode=mode,
            recipe=find(recipe) if recipe else None,
            layout=layout,
            kind=kind,
            budget=budget,
            examples=examples,
            seed=seed,
            torch="cpu" if emulate else torch,
            order=order,
            v_scales=v_scales,
            head_dims=head_dim,
            dtypes=dtype,
            limit=limit,
            database=_database(),
        )
    saved = _save(report, output)
    if as_json:
        return print_json({**report.to_json(), "saved": saved}, report.status)
    say(str(report))
    if saved is not None:
        say(f"  reproduce: kvformat check {saved}")
    if report.finding is not None:
        say(f"  again: {_again(context, report.seed)}")
    return report.status


def _again(context: typer.Context, seed: int) -> str:
    """The command that searches the same examples again: every option as it was given, and the seed."""
    words = ["kvformat", "fuzz"]
    for parameter in context.command.params:
        name = str(parameter.name)
        source = context.get_parameter_source(name)
        if name in ("seed", "output", "as_json") or source is None or source.name != "COMMANDLINE":
            continue
        value = context.params[name]
        option = [] if parameter.param_type_name == "argument" else [max(parameter.opts, key=len)]
        for each in value if isinstance(value, list | tuple) else [value]:
            words += [*option, str(each)]
    return shlex.join([*words, "--seed", str(seed)])


def _emulated(target: str | None, device: str | None) -> AbstractContextManager[object]:
    """Where the candidate's Triton kernels run."""
    if target is None:
        return nullcontext()
    if device not in (None, "cpu"):
        raise InputError(f"--emulate gives the candidate CPU tensors; leave --torch {device} out")
    try:
        from kvformat.torch.emulation import emulate
    except ModuleNotFoundError as error:
        raise InputError(f"--emulate needs {error.name}: pip install 'kvformat[torch]'") from None
    return emulate(target)


def _database() -> Any:
    from hypothesis import settings

    return settings.default.database if settings.default is not None else None


def _save(report: FuzzReport, output: str) -> str | None:
    """The file that `kvformat check` shows the difference in, where a dump shows it."""
    if report.check() is None:
        return None
    dump = report.dump()
    assert dump is not None
    try:
        dump.save(Path(output))
    except InputError as error:
        complain(str(error))
        return None
    return output


def _zoo(
    seeds: int,
    seed: int | None,
    only: str | None,
    budget: float | None,
    examples: int | None,
    crew: work.Crew,
    *,
    as_json: bool,
) -> int:
    from kvformat.fuzz.zoo import scoreboard

    if seeds < 1:
        raise InputError(f"--seeds must be at least 1; got {seeds}")
    first = 0 if seed is None else seed
    with crew.at_work("zoo") as (journal, watch):
        board = scoreboard.run(
            tuple(range(first, first + seeds)),
            only=only,
            budget=budget,
            examples=examples,
            journal=journal,
            watch=watch,
        )
    status = HOLDS if board.ok else DIFFERENCE
    if not board.rows:
        raise InputError(f"no kernel of the zoo has {only!r} in its name")
    if as_json:
        return print_json(board.to_json(), status if board.rows else CANNOT_JUDGE)
    _print(board)
    return status


def _print(board: Scoreboard) -> None:
    from kvformat.cli import console

    table = console.grid(
        "kernel", "mode", "caught", "slowest", "examples", "counterexample", right=("caught", "slowest", "examples")
    )
    for row in board.rows:
        style = "" if row.ok else "bold red"
        table.add_row(row.name, row.mode, row.caught, f"{row.slowest:.2f} s", str(row.examples), row.size, style=style)
    console.stdout().print(table)
    say(board.verdict)

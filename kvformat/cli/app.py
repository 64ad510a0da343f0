"""The commands by name, and the one place where errors become an exit status."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Annotated, cast

import typer

from kvformat import __version__
from kvformat.cli import recipes, stream, vectors
from kvformat.cli.check import check
from kvformat.cli.convert import convert
from kvformat.cli.diagnose import diagnose
from kvformat.cli.explain import explain
from kvformat.cli.fuzz import OptionalDevice, fuzz
from kvformat.cli.layout import layout
from kvformat.cli.lint import lint
from kvformat.cli.outcome import CANNOT_JUDGE, INTERRUPTED, complain, refuse, say
from kvformat.cli.simulate import simulate
from kvformat.cli.size import size
from kvformat.cli.sweep import sweep
from kvformat.cli.table import table
from kvformat.errors import InputError

# click's, which typer brings in its own copy or as a dependency, by version
_UsageError = cast("type[Exception]", typer.BadParameter.__mro__[1])

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("check")(check)
app.command("diagnose")(diagnose)
# -0.0 and -inf are values, not options
app.command("explain", context_settings={"ignore_unknown_options": True})(explain)
app.command("table")(table)
app.command("layout")(layout)
app.command("convert")(convert)
app.command("size")(size)
app.command("simulate")(simulate)
app.command("sweep")(sweep)
app.command("lint")(lint)
app.command("fuzz", cls=OptionalDevice)(fuzz)
app.add_typer(recipes.app, name="recipes")
app.add_typer(stream.app, name="stream")
app.add_typer(vectors.app, name="vectors")


def _print_version(asked: bool) -> None:
    if asked:
        say(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """The bit-exact reference for quantized KV caches. Exit status: 0 holds, 1 a difference, 2 cannot be judged."""


def run(arguments: list[str], *, as_json: bool) -> int:
    """Run one command line and return its exit status; every error that a user can cause is one line."""
    try:
        status = _run(arguments, as_json=as_json)
        sys.stdout.flush()  # an answer that did not arrive is an error
    except OSError as error:
        return _unwritable(error)
    return status


def _run(arguments: list[str], *, as_json: bool) -> int:
    try:
        status = typer.main.get_command(app).main(args=arguments, prog_name="kvformat", standalone_mode=False)
    except InputError as error:
        return refuse(str(error), as_json=as_json)
    except MemoryError:
        return refuse("there is not enough memory for sizes like these; ask for smaller ones", as_json=as_json)
    except _UsageError as error:
        return refuse(_usage(error), as_json=as_json)
    except typer.Abort:
        status = INTERRUPTED
    if status == INTERRUPTED:
        complain("interrupted")
    return CANNOT_JUDGE if status is None else int(status)


def _unwritable(error: OSError) -> int:
    """The answer could not be written. What is left of it must not be tried again when Python ends."""
    complain(f"cannot write: {error.strerror or error}")
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return CANNOT_JUDGE


def _usage(error: Exception) -> str:
    message = error.format_message().rstrip(".")  # type: ignore[attr-defined]
    context = getattr(error, "ctx", None)
    return f"{message[:1].lower()}{message[1:]}; see '{context.command_path if context else 'kvformat'} --help'"

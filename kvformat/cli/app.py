"""The commands by name, and the one place where errors become an exit status."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any, cast

import typer

from kvformat import __version__, installation
from kvformat.cli import recipes, stream, vectors
from kvformat.cli.check import check
from kvformat.cli.compat import compat
from kvformat.cli.convert import convert
from kvformat.cli.diagnose import diagnose
from kvformat.cli.doctor import doctor
from kvformat.cli.explain import explain
from kvformat.cli.fuzz import OptionalDevice, fuzz
from kvformat.cli.layout import layout
from kvformat.cli.lint import lint
from kvformat.cli.outcome import CANNOT_JUDGE, INTERRUPTED, complain, refuse, say
from kvformat.cli.ptx import ptx
from kvformat.cli.scales import scales
from kvformat.cli.simulate import simulate
from kvformat.cli.size import size
from kvformat.cli.sweep import sweep
from kvformat.cli.table import table
from kvformat.errors import InputError

# click's, which typer brings in its own copy or as a dependency, by version
_UsageError = cast("type[Exception]", typer.BadParameter.__mro__[1])

#: the reader of a pipe stopped early: as of a process that SIGPIPE ends
_BROKEN_PIPE = 141

#: what a person comes with; the help shows the commands under it
VALIDATE = "Validate (are these bytes right?)"
FUZZ = "Fuzz (where does mine break?)"
DOCUMENT = "Document (what does this byte mean, and what does it cost?)"
ABOUT = "This installation"

_EPILOG = """\b
Where to go on:
  kvformat check                 a first verdict, on K and V that ship with it
  kvformat COMMAND -h            what a command takes
  kvformat --install-completion  the Tab key completes commands and options
\b
Exit status: 0 holds, 1 a difference was found, 2 it cannot be judged."""


class _ByVerb(typer.core.TyperGroup):
    """A group whose help shows first of all its commands, under the headings that they were added with."""

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        super().format_help_text(ctx, formatter)
        sections: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command = cast("Any", self.get_command(ctx, name))
            sections.setdefault(command.rich_help_panel, []).append((name, command.get_short_help_str(200)))
        width = max(len(name) for rows in sections.values() for name, _ in rows)
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), says) for name, says in rows])

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Nothing is left to say after the options."""

    def invoke(self, ctx: Any) -> Any:
        """What the command returns; two of its errors would reach typer as something else."""
        try:
            return super().invoke(ctx)
        except EOFError as error:  # "interrupted", as after Ctrl-D
            raise InputError("a file ends too early") from error
        except BrokenPipeError as error:  # status 1, which says that a difference was found
            raise _ReaderGoneError from error


class _ReaderGoneError(Exception):
    """Nobody reads stdout any more."""


app = typer.Typer(
    cls=_ByVerb,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=_EPILOG,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _add(verb: str, name: str, command: Callable[..., int] | typer.Typer, says: str, **options: Any) -> None:
    """A command, or a group of commands, under the verb that it serves."""
    if isinstance(command, typer.Typer):
        app.add_typer(command, name=name, short_help=says, rich_help_panel=verb)
    else:
        app.command(name, short_help=says, rich_help_panel=verb, **options)(command)


_add(VALIDATE, "check", check, "Judge the pages that a kernel wrote, bit for bit.")
_add(VALIDATE, "diagnose", diagnose, "Name the bug: recipe, layout and faults that left these bytes.")
_add(VALIDATE, "lint", lint, "Look at pages alone for what right ones never show.")
_add(VALIDATE, "scales", scales, "The K and V scales of a checkpoint, and who loads them.")
_add(VALIDATE, "compat", compat, "Whether two engines may share pages.")
_add(FUZZ, "fuzz", fuzz, "The smallest input on which a kernel leaves its contract.", cls=OptionalDevice)
_add(FUZZ, "vectors", vectors.app, "Inputs and answers for any language: list, verify, run.")
_add(FUZZ, "sweep", sweep, "All 2^32 float32 inputs of an element format.")
_add(FUZZ, "stream", stream.app, "Hex in, hex out, line by line: for hardware and other languages.")
# -0.0 and -inf are values, not options
_values = {"ignore_unknown_options": True}
_add(DOCUMENT, "explain", explain, "A number in an element format: code, neighbours, tie.", context_settings=_values)
_add(DOCUMENT, "table", table, "Every code of an element format and its value.")
_add(DOCUMENT, "recipes", recipes.app, "The arithmetic of each engine: list, show, diff, prove.")
_add(DOCUMENT, "layout", layout, "Where every code and scale of a page lies.")
_add(DOCUMENT, "ptx", ptx, "A kernel as compiled: its parameters, its instructions, what cannot be run.")
_add(DOCUMENT, "convert", convert, "The same cache in another layout, losslessly.")
_add(DOCUMENT, "size", size, "Bytes of a model's cache in every mode.")
_add(DOCUMENT, "simulate", simulate, "What quantization does to attention, through real bytes.")
_add(ABOUT, "doctor", doctor, "What is here, what is missing: caches, extras, compilers, GPU.")


def _print_version(asked: bool) -> None:
    if asked:
        rows = {"kvformat": __version__, "python": platform.python_version(), **installation.versions()}
        say("\n".join(f"{name} {version}" for name, version in rows.items()))
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print versions: what decides about bytes.", callback=_print_version, is_eager=True
        ),
    ] = False,
    define: Annotated[
        str | None,
        typer.Option(
            metavar="FILE.toml", help="Formats, modes, recipes and layouts of your own; after a command as well."
        ),
    ] = None,
) -> None:
    """What a quantized KV cache contains, bit for bit: the reference, and the verdict on what kernels wrote."""


def run(arguments: list[str], *, as_json: bool) -> int:
    """Run one command line and return its exit status; every error that a user can cause is one line."""
    try:
        status = _run(arguments or ["--help"], as_json=as_json)
        sys.stdout.flush()  # an answer that did not arrive is an error
    except (BrokenPipeError, _ReaderGoneError):
        _silence()
        return _BROKEN_PIPE
    except OSError as error:
        complain(f"cannot write: {error.strerror or error}")
        _silence()
        return CANNOT_JUDGE
    except Exception as error:  # a fault of kvformat; status 1 would say that a difference was found
        if os.environ.get("KVFORMAT_TRACEBACK"):
            raise
        where = f"{type(error).__name__}: {error}"
        return refuse(f"kvformat failed ({where}); KVFORMAT_TRACEBACK=1 shows where; please report it", as_json=as_json)
    return status if arguments else CANNOT_JUDGE  # help was shown and nothing was judged


def _without_definitions(arguments: list[str]) -> list[str]:
    """The command line without its `--define FILE`, wherever they stand; what the files define is then known."""
    rest: list[str] = []
    waiting = iter(arguments)
    for each in waiting:
        name, equals, path = each.partition("=")
        if each == "--":
            return [*rest, each, *waiting]
        if name != "--define":
            rest.append(each)
            continue
        path = path if equals else next(waiting, "")
        if not path:
            raise InputError("--define takes a TOML file of formats, modes, recipes and layouts")
        from kvformat.definitions import register

        register(path)
    return rest


def _run(arguments: list[str], *, as_json: bool) -> int:
    try:
        arguments = _without_definitions(arguments)
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


def _silence() -> None:
    """The answer could not be written. What is left of it must not be tried again when Python ends."""
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _usage(error: Exception) -> str:
    message = error.format_message().rstrip(".")  # type: ignore[attr-defined]
    context = getattr(error, "ctx", None)
    return f"{message[:1].lower()}{message[1:]}; see '{context.command_path if context else 'kvformat'} --help'"

"""The page of the command line: every command with its arguments and options, as the commands themselves have them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import typer

from kvformat.cli.app import app
from spec_pages.text import page, table, wrap


def files() -> dict[str, str]:
    """Path under spec/ and text of the page."""
    sections: dict[str, list[str]] = {}
    for command in typer.main.get_command(app).commands.values():
        sections.setdefault(command.rich_help_panel, []).extend(_described(command, "kvformat"))
    text = "\n\n".join(f"## {title}\n\n" + "\n\n".join(parts) for title, parts in sections.items())
    return {"cli.md": page("cli.md", {"commands": text})}


def _described(command: Any, before: str) -> Iterator[str]:
    """A command, and each command below it."""
    name = f"{before} {command.name}"
    inner = getattr(command, "commands", {})
    yield f"### {name}"
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        yield wrap(" ".join(paragraph.split()))
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    options = [each for each in command.params if each.param_type_name == "option" and each.opts[0] != "--help"]
    usage = [name, *(_argument(each) for each in arguments), *(["[OPTIONS]"] if options else [])]
    if not inner:
        yield f"```text\n{' '.join(usage)}\n```"
    if arguments or options:
        rows = [(f"`{_argument(each)}`", each.help or "", "") for each in arguments]
        rows += [(f"`{', '.join(each.opts)}`", each.help or "", _default(each)) for each in options]
        yield table(("argument", "what it is", "if it is not given"), rows)
    for each in inner.values():
        yield from _described(each, name)


def _argument(parameter: Any) -> str:
    name = (parameter.metavar or parameter.name.upper()).strip("[]").replace("]...", "...")
    return name if parameter.required else f"[{name}]"


def _default(option: Any) -> str:
    if option.required:
        return "must be given"
    return "" if option.default in (None, False, (), []) else f"`{option.default}`"

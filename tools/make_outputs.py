"""Run the commands and the Python of pages for people, and put what they print below them.

    python tools/make_outputs.py [PAGE.md ...]      write; default: README.md, spec/guides/*.md, spec/engines/*.md
    python tools/make_outputs.py --check [PAGE ...] write nothing; status 1 where a page does not say what is printed

A page runs from top to bottom in an empty folder of its own. Of its fenced blocks

- `python` is executed, and shares its names with the blocks after it; one that begins with `# NAME.py` is that file
  instead;
- `sh` with a `text` block below it has its kvformat commands run; without one, they must exist and their options too;
- `text` directly below one of these is what it printed. A line `...` in it stands for lines left out: as many lines as
  stand before and after it are kept. Seconds may differ.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
_BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# (?P<name>\w+\.(?:py|toml))\n")
_SECONDS = re.compile(r"\b[0-9.]+ s\b")
_LEFT_OUT = "..."


class Block(NamedTuple):
    """A fenced block, and where its body lies in the page."""

    language: str
    body: str
    start: int
    end: int
    #: where the whole fence begins and ends
    opens: int
    closes: int


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page, in order."""
    found = _BLOCK.finditer(page)
    return [Block(m["language"], m["body"], m.start("body"), m.end("body"), m.start(), m.end()) for m in found]


def commands(body: str) -> Iterator[list[str]]:
    """The kvformat commands of a shell block, without comments."""
    for line in body.replace("\\\n", " ").splitlines():
        for part in line.split("&&"):
            words = shlex.split(part.rpartition(" | ")[2], comments=True)
            if words and words[0] == "kvformat":
                yield words[1:]


def shown(printed: str, before: str) -> str:
    """What of the printed lines stands in the page: all, or as many as stood around the line of dots."""
    lines, old = [line.rstrip() for line in printed.strip("\n").splitlines()], before.splitlines()
    if _LEFT_OUT in old:
        head = old.index(_LEFT_OUT)
        tail = len(old) - head - 1
        lines = [*lines[:head], _LEFT_OUT, *lines[len(lines) - tail :]]
    text = "".join(f"{line}\n" for line in lines)
    return before if _SECONDS.sub("s", before) == _SECONDS.sub("s", text) else text


def run(page: str) -> str:
    """The page with what its blocks print. Runs in the working directory. Raises what a block raises."""
    names: dict[str, Any] = {"__name__": "page"}
    found, parts, at = blocks(page), [], 0
    for block, below in zip(found, [*found[1:], None], strict=True):
        answered = below is not None and below.language == "text" and not page[block.closes : below.opens].strip()
        if block.language == "python":
            printed = _python(block.body, names)
        elif block.language == "sh":
            printed = _shell(block.body, execute=answered)
        else:
            continue
        if answered:
            assert below is not None
            parts += [page[at : below.start], shown(printed, below.body)]
            at = below.end
    return "".join((*parts, page[at:]))


def _python(body: str, names: dict[str, Any]) -> str:
    file = _FILE.match(body)
    if file:
        Path(file["name"]).write_text(body, encoding="utf-8")
        return ""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(body, "a block of the page", "exec"), names)
    return printed.getvalue()


def _shell(body: str, *, execute: bool) -> str:
    from kvformat.cli import main

    printed = io.StringIO()
    for words in commands(body):
        if not execute:
            _parse(words)
            continue
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            main(words)
    return printed.getvalue()


def _parse(words: list[str]) -> None:
    """Raises click's error for a command, or an option, that does not exist; runs nothing."""
    import typer

    from kvformat.cli.app import app

    command, context = typer.main.get_command(app), None
    while words and hasattr(command, "commands"):
        context = command.make_context("kvformat", list(words[:1]), parent=context, resilient_parsing=True)
        name, inner, _ = command.resolve_command(context, list(words))
        if name is None or inner is None:
            raise ValueError(f"kvformat has no command {words[0]!r}")
        command, words = inner, words[1:]
    if not hasattr(command, "commands"):
        command.make_context("kvformat", list(words), parent=context)


def made(path: Path) -> str:
    """The page as it should be."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="kvformat-page-") as folder:
        os.chdir(folder)
        sys.path.insert(0, folder)
        try:
            return run(path.read_text(encoding="utf-8"))
        finally:
            sys.path.remove(folder)
            os.chdir(here)


def pages() -> list[Path]:
    """README.md, the guides and the engines' pages."""
    return [
        ROOT / "README.md",
        *(page for room in ("guides", "engines") for page in sorted((ROOT / "spec" / room).glob("[!R]*.md"))),
    ]


def main() -> int:
    """Run one command line and return its exit status."""
    parser = argparse.ArgumentParser(description="Put what a page's commands print below them.")
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE", help="default: README.md, guides and engines")
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 where a page differs")
    arguments = parser.parse_args()
    status = 0
    for path in map(Path.resolve, arguments.pages or pages()):
        old, new = path.read_text(encoding="utf-8"), made(path)
        if arguments.check and new != old:
            status = 1
            print(
                "\n".join(difflib.unified_diff(old.splitlines(), new.splitlines(), str(path), "printed", lineterm=""))
            )
        elif new != old:
            path.write_text(new, encoding="utf-8")
            print(f"{path}: written")
    return status


if __name__ == "__main__":
    sys.exit(main())

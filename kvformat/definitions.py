"""Formats, modes, recipes and layouts of one's own: read from one TOML file, known by their names from then on."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvformat import modes
from kvformat.elements import formats
from kvformat.elements.described import parse_format
from kvformat.errors import InputError, unknown_name
from kvformat.files import regular
from kvformat.layouts import catalogue as layouts
from kvformat.layouts.entry import parse_entry
from kvformat.recipes import catalogue as recipes
from kvformat.recipes.entry import parse_recipe


@dataclass(frozen=True)
class _Kind:
    """One kind of table: what makes a definition of it, and what makes it known."""

    parse: Callable[[Mapping[str, Any]], Any]
    define: Callable[[Any], Any]


#: the tables of a file, in the order in which they are read: each may name what those before it define
KINDS: Mapping[str, _Kind] = {
    "formats": _Kind(parse_format, formats.define),
    "modes": _Kind(modes.parse_mode, modes.define),
    "recipes": _Kind(parse_recipe, recipes.replace),
    "layouts": _Kind(parse_entry, layouts.replace),
}


#: the file that defined a name
_owners: dict[tuple[str, str], Path] = {}


def register(path: str | Path) -> dict[str, tuple[str, ...]]:
    """Make known what a TOML file defines, until the program ends.

    Parameters
    ----------
    path: a TOML file of arrays of tables, each array optional: `[[formats]]`, `[[modes]]`, `[[recipes]]`,
        `[[layouts]]`; spec/recipe_toml.md and spec/layout_toml.md have every key. It may be registered again after a
        change: its own names are then those of the new text.

    Returns
    -------
    The names that it defines, by table: `{"recipes": ("mine/int6",), ...}`.

    Raises
    ------
    InputError: one line, `FILE:LINE: ...`, for a file that cannot be read, an unknown key, a wrong type, a width
        outside 1..8, an unsorted codebook, a name that is taken, empty or not printable. Nothing is then registered.
    """
    text, described = _read(path)
    for name, value in described.items():
        if name not in KINDS:
            raise _error(path, text, (name, 0), unknown_name("table", name, KINDS))
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise _error(path, text, (name, 0), InputError(f"{name} is an array of tables: [[{name}]]"))
    before = _snapshot()
    try:
        return {kind: _define_all(path, text, kind, described[kind]) for kind in KINDS if kind in described}
    except InputError:
        _restore(before)
        raise


def registered() -> tuple[str, ...]:
    """The files that were registered, in order: what another process has to read to know the same names."""
    return tuple(dict.fromkeys(str(path) for path in _owners.values()))


def _define_all(path: str | Path, text: str, kind: str, tables: list[dict[str, Any]]) -> tuple[str, ...]:
    found: list[str] = []
    for place, table in enumerate(tables):
        try:
            _check_name(table.get("name"), kind)
            if table["name"] in found:
                raise InputError(f"two {kind} are named {table['name']!r}")
            made = KINDS[kind].parse(table)
            known = _tables()[list(KINDS).index(kind)].get(made.name)
            KINDS[kind].define(made)
            _check_owner(kind, known, made, Path(path).resolve())
        except InputError as error:
            raise _error(path, text, (kind, place), error) from None
        found.append(made.name)
    return tuple(found)


def _check_owner(kind: str, known: Any, made: Any, path: Path) -> None:
    """A name means one thing: only the file that defined it may give it another meaning."""
    if known is not None and known != made and _owners.get((kind, made.name)) != path:
        raise InputError(f"name {made.name!r} is taken by another of {kind}; choose another one")
    _owners[kind, made.name] = path


def _check_name(name: object, kind: str) -> None:
    if not isinstance(name, str) or not name.strip():
        raise InputError(f"each of {kind} needs a name, a text that is not empty; got {name!r}")
    if not name.isprintable() or name != name.strip():
        raise InputError(f"name {name!r} has characters that no name has: use printable ones, no blanks at the ends")


def _read(path: str | Path) -> tuple[str, dict[str, Any]]:
    try:
        text = regular(path).read_text(encoding="utf-8")
        return text, tomllib.loads(text)
    except InputError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: no readable TOML file: {' '.join(str(error).split())}") from None


def _snapshot() -> list[dict[str, Any]]:
    return [dict(table) for table in _tables()]


def _restore(before: list[dict[str, Any]]) -> None:
    for table, kept in zip(_tables(), before, strict=True):
        table.clear()
        table.update(kept)


def _tables() -> tuple[dict[str, Any], ...]:
    """Where definitions are kept."""
    return formats.defined(), modes.defined(), recipes.defined(), layouts.defined()


# --- where an error is -----------------------------------------------------------------------------------------------


def _error(path: str | Path, text: str, place: tuple[str, int], error: InputError) -> InputError:
    """The error with the line that it speaks of: that of the key that it names, else that of its table."""
    return InputError(f"{path}:{_line(text, place, str(error))}: {error}")


def _line(text: str, place: tuple[str, int], message: str) -> int:
    """The line of `[[kind]]` number n, or below it that of the first key that the message names."""
    kind, wanted = place
    words = {word.strip("'\",:;()") for word in message.split()}
    count, start, found = -1, 1, None
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped.startswith("["):
            name = stripped.strip("[]").partition("]")[0].partition("#")[0].strip()
            if name == kind:
                count += 1
                start = number if count == wanted else start
            elif name.partition(".")[0] != kind:
                count = count if count < wanted else wanted + 1
        elif count == wanted and found is None:
            key = stripped.partition("=")[0].strip().strip("'\"")
            if "=" in stripped and key != "name" and key in words:
                found = number
    return found or start

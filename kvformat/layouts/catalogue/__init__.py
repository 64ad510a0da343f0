"""The layouts by name: those that ship with kvformat, and those a user registers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from kvformat import toml
from kvformat.errors import InputError, unknown_name
from kvformat.layouts.catalogue import flashinfer, laptops, llama_cpp, sglang, tensorrt_llm, tiles, vllm, vllm_mla
from kvformat.layouts.entry import Entry, parse_entry

_LAYOUTS: dict[str, Entry] = {}

#: every layout entry by name
LAYOUTS: Mapping[str, Entry] = MappingProxyType(_LAYOUTS)


def register(described: Mapping[str, object]) -> Entry:
    """Add a layout: a plain mapping in the language of `kvformat.layouts.entry`, as the shipped ones are.

    Raises InputError for a malformed entry, and for a name that is already taken by another one: a layout's name is
    what dumps say, so it means one thing.
    """
    entry = _named(parse_entry(described))
    if _LAYOUTS.setdefault(entry.name, entry) != entry:
        raise InputError(f"layout {entry.name!r} is already registered as something else; choose another name")
    return entry


def replace(entry: Entry) -> Entry:
    """Make a layout known by its name, in place of another one of a user's. Raises InputError for a shipped name."""
    if _SHIPPED.get(entry.name, entry) != entry:
        raise InputError(f"{entry.name!r} is a layout of kvformat's own; choose another name")
    _LAYOUTS[_named(entry).name] = entry
    return entry


def defined() -> dict[str, Entry]:
    """Where layouts are kept: for `kvformat.register`, which takes back a file that does not hold."""
    return _LAYOUTS


def _named(entry: Entry) -> Entry:
    if not entry.name.strip() or not entry.name.isprintable():
        raise InputError(f"{entry.name!r} is no name of a layout; use printable characters")
    return entry


def load_layout(path: str | Path) -> Entry:
    """Add the layout that a TOML file describes. Raises InputError, naming the file, for one that does not."""
    return toml.read(path, register)


def find_entry(name: str) -> Entry:
    """The entry of that name. Raises InputError, naming the close names, for an unknown one."""
    if name not in _LAYOUTS:
        raise unknown_name("layout", name, _LAYOUTS)
    return _LAYOUTS[name]


for _family in (vllm, vllm_mla, flashinfer, tensorrt_llm, sglang, tiles, llama_cpp, laptops):
    for _described in _family.ENTRIES:
        register(_described)

#: what ships with kvformat; a verdict that prints one of these names means these bytes
_SHIPPED = dict(_LAYOUTS)

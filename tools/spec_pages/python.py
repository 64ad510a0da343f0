"""The page of the Python interface: every public name with its signature and its docstring."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

import kvformat
from spec_pages.text import page

#: by what a person comes for, the public names
_GROUPS = {
    "Element formats": ("encode", "decode", "element", "ElementFormat", "pack_nibbles", "unpack_nibbles"),
    "Recipes": ("quantize", "Quantized", "recipe", "Recipe", "load_recipe", "mode", "KVQuantMode"),
    "Layouts and caches": ("layout", "Layout", "load_layout", "PagedCache"),
    "Validate": ("Dump", "check", "diagnose", "probe", "lint"),
    "Fuzz": ("fuzz",),
}
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def files() -> dict[str, str]:
    """Path under spec/ and text of the page. Every public name stands in one group."""
    placed = [name for names in _GROUPS.values() for name in names]
    rest = [name for name in kvformat.__all__ if name not in placed and name != "__version__"]
    groups = {**_GROUPS, "Others": tuple(rest)} if rest else _GROUPS
    sections = (f"## {title}\n\n" + "\n\n".join(map(_described, names)) for title, names in groups.items())
    return {"python.md": page("python.md", {"names": "\n\n".join(sections)})}


def _described(name: str) -> str:
    value = getattr(kvformat, name)
    if inspect.ismodule(value):  # a room that can be called
        value = value.__call__
    parts = [f"### {name}", _block(name, value)]
    if inspect.isclass(value):
        parts += [_block(f"{name}.{method}", call) for method, call in _methods(value)]
    return "\n\n".join(parts)


def _methods(made: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The public methods that the class itself defines, in the order of its source."""
    for name, value in vars(made).items():
        call = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        if not name.startswith("_") and inspect.isfunction(call):
            yield name, call


class _Words(str):
    """An annotation as it stands in the source: without quotes around it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _signature(name: str, value: Any) -> str:
    """On one line, or a line for each parameter."""
    if inspect.isclass(value) and issubclass(value, Enum):
        return name  # what the class of all enumerations takes differs between versions of Python
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return name
    parameters = [each.replace(annotation=_words(each.annotation)) for each in found.parameters.values()]
    parameters = [each for each in parameters if each.name != "self"]
    written = found.replace(parameters=parameters, return_annotation=_words(found.return_annotation))
    line = _ADDRESS.sub("", f"{name}{written}").replace("<class 'numpy.float32'>", "np.float32")
    if len(line) <= 110:
        return line
    stars = [] if any(each.kind == each.VAR_POSITIONAL for each in parameters) else ["*"]
    lines: list[str] = []
    for each in parameters:
        if each.kind == each.KEYWORD_ONLY and stars:
            lines += [f"    {stars.pop()},"]
        lines.append(f"    {each},")
    end = "" if written.return_annotation is written.empty else f" -> {written.return_annotation}"
    return "\n".join((f"{name}(", *lines, f"){end}"))


def _words(annotation: Any) -> Any:
    return _Words(annotation) if isinstance(annotation, str) else annotation


def _block(name: str, value: Any) -> str:
    lines = [_signature(name, value), "", *inspect.cleandoc(value.__doc__ or "").splitlines()]
    return "```text\n" + "\n".join(lines).rstrip() + "\n```"

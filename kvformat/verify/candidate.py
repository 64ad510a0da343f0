"""Somebody else's function: found by MODULE:FUNCTION, called with what it takes, its failures told in one line."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kvformat.errors import InputError


def load(reference: str) -> Callable[..., Any]:
    """The function that MODULE:FUNCTION names; a module in the current folder counts. Raises InputError."""
    module_name, colon, path = reference.partition(":")
    if not (module_name and colon and path):
        raise InputError(f"a function is named as MODULE:FUNCTION, such as my_kernels:encode; got {reference!r}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:  # noqa: BLE001 whatever a module raises when it is imported
        raise InputError(f"cannot import {module_name}: {_told(error)}") from None
    for name in path.split("."):
        if not hasattr(found, name):
            raise InputError(f"{module_name} has no {path}")
        found = getattr(found, name)
    if not callable(found):
        raise InputError(f"{reference} is no function: {type(found).__name__}")
    function: Callable[..., Any] = found
    return function


def keywords(function: Callable[..., Any]) -> frozenset[str] | None:
    """The names that a function takes as keywords; None where it takes any, or does not say."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # compiled code without a signature
        return frozenset()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return None
    return frozenset(each.name for each in parameters if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD))


def call(function: Callable[..., Any], *arguments: Any, offered: Mapping[str, Any]) -> Any:
    """What the function answers; of `offered` it gets the keywords it takes. Raises InputError for what it raises."""
    taken = keywords(function)
    given = {name: value for name, value in offered.items() if taken is None or name in taken}
    try:
        return function(*arguments, **given)
    except Exception as error:  # whatever it raises
        raise InputError(f"{_name(function)} raised {_told(error)}") from error


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _told(error: Exception) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__

"""A TOML file made into what it describes: every failure is one line that names the file."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from kvformat.errors import InputError
from kvformat.files import regular

Described = TypeVar("Described")


def read(path: str | Path, parse: Callable[[dict[str, Any]], Described]) -> Described:
    """What `parse` makes of the file. Raises InputError for one that cannot be read or that `parse` refuses."""
    try:
        described = tomllib.loads(regular(path).read_text(encoding="utf-8"))
    except InputError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: no readable TOML file: {' '.join(str(error).split())}") from None
    try:
        return parse(described)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None

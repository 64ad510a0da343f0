"""What every command ends with: an exit status, and on --json exactly one document on stdout."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from kvformat.errors import shortened

HOLDS = 0
DIFFERENCE = 1
CANNOT_JUDGE = 2
INTERRUPTED = 130
_NAME = "kvformat: "
#: characters of a complaint, the program's name among them
_LONGEST_LINE = 200


def worst(statuses: Iterable[int]) -> int:
    """The status of several inputs together. Having looked at nothing is no success."""
    return max(statuses, default=CANNOT_JUDGE)


def say(text: str) -> None:
    """Text as it is on stdout."""
    sys.stdout.write(f"{text}\n")


def print_json(document: Mapping[str, Any], status: int = HOLDS) -> int:
    """Print the command's one document and return its status. `ok` and `status` lead it."""
    say(json.dumps({"ok": status == HOLDS, "status": status, **document}, allow_nan=False))
    return status


def complain(message: str) -> None:
    """One line on stderr: one that is too long to read loses its middle."""
    with suppress(OSError):
        sys.stderr.write(f"{_NAME}{shortened(printable(message), _LONGEST_LINE - len(_NAME))}\n")


def refuse(message: str, *, as_json: bool) -> int:
    """End a command that cannot judge its input: one line on stderr, or one document on stdout."""
    if as_json:
        return print_json({"error": printable(message)}, CANNOT_JUDGE)
    complain(message)
    return CANNOT_JUDGE


def printable(text: str) -> str:
    """The text as one line that a terminal shows as it is: a file's name may hold anything."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in " ".join(text.split()))

"""What kvformat says when an input cannot be judged: one line, what is wrong and what would be right."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class InputError(ValueError):
    """An input that cannot be judged (exit status 2). Its message is one line: what is wrong, what would be right."""


def unknown_name(kind: str, name: object, known: Iterable[str]) -> InputError:
    """The error for a name that is in no table: it suggests the close names, or lists all of them."""
    names = sorted(known)
    close = get_close_matches(str(name), names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(names)}"
    return InputError(f"unknown {kind} {str(name)!r}; {hint}")

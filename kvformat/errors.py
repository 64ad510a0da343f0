"""What kvformat says when an input cannot be judged: one line, what is wrong and what would be right."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class InputError(ValueError):
    """An input that cannot be judged (exit status 2). Its message is one line: what is wrong, what would be right."""


#: characters of somebody's text that a message repeats
LONGEST_ECHO = 200
#: names up to which all are listed where none is close; of more, the closest three
_FEW = 16


def unknown_name(kind: str, name: object, known: Iterable[str]) -> InputError:
    """The error for a name that is in no table: it suggests the close names, or lists them where they are few."""
    names, text = sorted(known), shortened(str(name), LONGEST_ECHO)
    close = get_close_matches(text, names, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(names)}"
    if not close and len(names) > _FEW:
        nearest = get_close_matches(text, names, n=3, cutoff=0) or names[:3]
        hint = f"the closest of {len(names)} are {', '.join(nearest)}"
    return InputError(f"unknown {kind} {text!r}; {hint}")


def shortened(text: str, longest: int) -> str:
    """The text, or of a longer one its beginning and its end."""
    if len(text) <= longest:
        return text
    end = longest // 4
    return f"{text[: longest - end - 5]} ... {text[-end:]}"

"""Fuzzing: inputs at which implementations break, the search that uses them, and a zoo of faults it must catch.

`kvformat.fuzz(candidate, mode=...)` is the search; `kvformat.fuzz.strategies` are the inputs, for tests of one's own.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvformat.fuzz.report import FuzzReport


class _Room(ModuleType):
    """A package that can be called: importing `kvformat.fuzz.strategies` makes `kvformat.fuzz` the package."""

    def __call__(self, candidate: Any, **options: Any) -> FuzzReport:
        from kvformat.fuzz.runner import fuzz

        return fuzz(candidate, **options)


_room = sys.modules[__name__]
_room.__class__ = _Room

#: what `from kvformat import fuzz` gives
fuzz = _room

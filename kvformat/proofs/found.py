"""What a task of a proof finds: how much it looked at, and the inputs on which two recipes differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any


@dataclass(frozen=True)
class Pair:
    """One input on which the recipes differ.

    amax: the largest magnitude of the row or block, or the given scale where x is judged beside one. x: the element;
    amax itself where scales differ. left, right: codes as unsigned patterns, or scales as stored (float32 bit patterns
    or codes). given: the global scale.
    """

    what: str
    amax: float
    x: float
    left: int
    right: int
    given: float | None

    def __str__(self) -> str:
        beside = "" if self.given is None else f", global scale {self.given!r}"
        return f"{self.what} of x = {self.x!r} at {self.amax!r}{beside}: 0x{self.left:X} and 0x{self.right:X}"


@dataclass(frozen=True)
class Found:
    """What one task found."""

    codes: int
    scales: int
    different_codes: int
    different_scales: int
    pairs: tuple[Pair, ...]

    def to_json(self) -> list[Any]:
        """As JSON values; floats as hexadecimal text, which loses no bit."""
        counts = [self.codes, self.scales, self.different_codes, self.different_scales]
        return [*counts, [[_text(value) for value in astuple(pair)] for pair in self.pairs]]

    @classmethod
    def of_json(cls, document: Sequence[Any]) -> Found:
        """What `to_json` wrote."""
        codes, scales, different_codes, different_scales, pairs = document
        return cls(codes, scales, different_codes, different_scales, tuple(_pair(*each) for each in pairs))


def _pair(what: str, amax: str, x: str, left: int, right: int, given: str | None) -> Pair:
    shared = None if given is None else float.fromhex(given)
    return Pair(what, float.fromhex(amax), float.fromhex(x), left, right, shared)


def _text(value: Any) -> Any:
    return value.hex() if isinstance(value, float) else value


def total(found: Sequence[Found], pairs: Sequence[Pair]) -> Found:
    """Of several tasks, with the pairs in the order that they are listed in."""
    return Found(
        sum(each.codes for each in found),
        sum(each.scales for each in found),
        sum(each.different_codes for each in found),
        sum(each.different_scales for each in found),
        tuple(pairs),
    )

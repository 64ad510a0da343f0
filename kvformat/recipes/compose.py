"""Composes a program's operations into one jitted function from the values it reads to all values it computes.

The function is written out, one line per operation that calls its word's small jitted function; LLVM melts them into
straight-line code. No operation is contracted, reordered or flushed, so a `float32` operation is the IEEE binary32 one.

`real` operations run in float64, which is exact for what recipes use them for: one final quotient x / d, rounded to a
code. x has 24 significant bits, d = bs * g at most 4 + 24 = 28, and a midpoint m between two codes at most 8 (int8), so
the product m * d has at most 36 and float64 holds it. If x / d is not m, x and m * d differ by at least a last place of
one of the two, that is by more than 2^-37 of either, and so do x / d and m: rounding the quotient to 53 bits cannot
make it m, nor carry it across. If x / d is m, so is the float64 quotient. Range is no issue: 2^128 / 2^-158 is fine.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from kvformat.elements.formats import BINARIES
from kvformat.elements.static import inlined
from kvformat.recipes.program import Program, is_constant
from kvformat.recipes.vocabulary import WORDS, Kind
from kvformat.recipes.words import rounding_to, step


class Composed(NamedTuple):
    """A composed program."""

    #: takes a tuple of the named values, gives a longer one
    run: Any
    #: where the latest value of each name is in the longer tuple
    places: dict[str, int]

    @property
    def names(self) -> tuple[str, ...]:
        """A name for each place; one that was assigned again is shadowed."""
        latest = {place: name for name, place in self.places.items()}
        return tuple(latest.get(place, "") for place in range(max(latest, default=-1) + 1))


def compose(program: Program, names: tuple[str, ...]) -> Composed:
    """Compose `program` for a tuple of values with these names."""
    real = scalar(program)
    places = {name: place for place, name in enumerate(names)}
    known: dict[str, Any] = {"real": real}
    lines: list[str] = []
    narrow = rounding_to(program.precision, real) if program.precision in BINARIES else None
    known["narrow"] = narrow
    known["constant"] = _constants(program.precision, real)
    for place, operation in enumerate(program.steps, len(names)):
        known[f"word{place}"] = step(operation, real)
        kinds = WORDS[operation.word].operands
        operands = [_operand(text, kind, places, known) for text, kind in zip(operation.operands, kinds, strict=True)]
        call = f"word{place}({', '.join(operands)})"
        rounds = narrow is not None and WORDS[operation.word].result == "number"
        lines.append(f"v{place} = narrow({call})" if rounds else f"v{place} = {call}")
        places[operation.target] = place
    return Composed(_function(len(names), lines, known), places)


def _constants(precision: str, real: Any) -> Any:
    if precision not in BINARIES:
        return real
    kept = ml_dtypes.bfloat16 if precision == "bfloat16" else np.float16
    return lambda text: real(kept(float(text)))


def _operand(text: str, kind: Kind, places: dict[str, int], known: dict[str, Any]) -> str:
    if text not in places and is_constant(text):
        name = f"constant{len(known)}"
        known[name] = known["constant"](text)
        return name
    return f"v{places[text]}" if kind == "flag" else f"real(v{places[text]})"  # to `real` it is exact


def _function(count: int, lines: list[str], known: dict[str, Any]) -> Any:
    """The function that takes `count` values and gives them and one more for each line."""
    # Flat code: a chain of closures makes Numba infer types N calls deep, over tuples that grow N times. No text of a
    # recipe gets into it: a line has nothing but v<number>, word<number>, constant<number> and real.
    taken = [f"v{place} = values[{place}]" for place in range(count)]
    computed = "".join(f"v{place}, " for place in range(count, count + len(lines)))
    body = "\n    ".join([*taken, *lines, f"return values + ({computed})" if lines else "return values"])
    exec(f"def run(values):\n    {body}", known)  # noqa: S102 the text is made of numbers and the names above
    return inlined(known["run"])


def scalar(program: Program) -> Any:
    """The NumPy scalar type that the program's operations run in."""
    return np.float64 if program.precision in ("float64", "real") else np.float32


def take(count: int, first: int = 0) -> Any:
    """The jitted function that gives `count` entries of an array or a tuple, from the first one on, as a tuple."""
    return pick(range(first, first + count))


def pick(places: Iterable[int]) -> Any:
    """The jitted function that gives the entries of an array or a tuple at these places as a tuple."""
    taken: Any = inlined(lambda row: ())
    for place in places:
        taken = _take_one_more(taken, place)
    return taken


def _take_one_more(taken: Any, place: int) -> Any:
    return inlined(lambda row: (*taken(row), row[place]))

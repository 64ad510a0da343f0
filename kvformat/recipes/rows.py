"""What a recipe does to each row before everything else: words on whole rows, in binary32, and how they are undone."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from kvformat.errors import InputError, unknown_name

Array = NDArray[Any]

#: every word by name, and what it does; each step is rounded as its word says
ROW_WORDS: Mapping[str, str] = MappingProxyType({
    "flip_signs": "x times +-1: element i is kept where bit 23 of the i-th output of MT19937, seeded so, is 0 "
    "(torch.bernoulli(0.5) on a CPU generator)",
    "hadamard": "Walsh-Hadamard transform, not normalised, in blocks of the largest power of two that divides the row: "
    "butterflies a + b, a - b at distance 1, 2, 4, ..., each rounded to binary32",
    "to": "rounded to nearest even in that format; `input`: the format of x",
})  # fmt: skip

_FORMATS = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
_LINE = re.compile(r"x = (\w+)\(x(?:, (\w+))?\)")


@dataclass(frozen=True)
class RowStep:
    """`x = word(x, argument)`."""

    word: str
    argument: str = ""

    def __str__(self) -> str:
        return f"x = {self.word}(x, {self.argument})" if self.argument else f"x = {self.word}(x)"


def parse_rows(text: str, where: str) -> tuple[RowStep, ...]:
    """The steps that lines of `x = word(x, argument)` stand for. Raises InputError for anything else."""
    return tuple(_parse_step(line, where) for line in filter(None, map(str.strip, text.splitlines())))


def _parse_step(line: str, where: str) -> RowStep:
    match = _LINE.fullmatch(line)
    if match is None:
        raise InputError(f"{where}, prepare: {line!r} is not of the form 'x = word(x, argument)'")
    step = RowStep(match[1], match[2] or "")
    if step.word not in ROW_WORDS:
        raise unknown_name(f"word in {where}, prepare:", step.word, ROW_WORDS)
    known = {"flip_signs": step.argument.isdecimal(), "hadamard": not step.argument}
    if not known.get(step.word, step.argument in ("input", *_FORMATS)):
        raise InputError(f"{where}, prepare: {line!r}: {step.word} cannot take that argument")
    return step


def prepared(steps: tuple[RowStep, ...], x: Array) -> Array:
    """Rows (..., head_dim), float32, as the steps leave them."""
    with np.errstate(all="ignore"):
        for step in steps:
            x = _STEPS[step.word](x, step.argument)
    return x


def restored(steps: tuple[RowStep, ...], x: Array) -> Array:
    """Rows in the space of the original x: the transforms undone in float32, last one first; roundings stay."""
    with np.errstate(all="ignore"):
        for step in reversed(steps):
            if step.word == "hadamard":
                x = _hadamard(x, "") / np.float32(_power_of_two(x.shape[-1]))
            elif step.word == "flip_signs":
                x = _flip_signs(x, step.argument)
    return x


@cache
def signs(seed: int, count: int) -> NDArray[np.float32]:
    """The first `count` signs of a seed."""
    generator: Any = np.random.MT19937()
    generator._legacy_seeding(seed)  # noqa: SLF001 init_genrand, as torch.Generator.manual_seed
    kept = generator.random_raw(count) >> np.uint64(23) & np.uint64(1) == 0
    return np.where(kept, np.float32(1), np.float32(-1))


def _power_of_two(count: int) -> int:
    return count & -count


def _flip_signs(x: Array, argument: str) -> Array:
    return x * signs(int(argument), x.shape[-1])


def _hadamard(x: Array, argument: str) -> Array:
    distance = 1
    while distance < _power_of_two(x.shape[-1]):
        pairs = x.reshape(*x.shape[:-1], -1, 2, distance)
        left, right = pairs[..., 0, :], pairs[..., 1, :]
        x = np.stack([left + right, left - right], axis=-2).reshape(x.shape)
        distance *= 2
    return x


def _to(x: Array, argument: str) -> Array:
    return x.astype(_FORMATS[argument]).astype(np.float32)


_STEPS: Mapping[str, Callable[[Array, str], Array]] = {"flip_signs": _flip_signs, "hadamard": _hadamard, "to": _to}

"""A recipe as a kernel takes it: frozen data of functions and numbers, a compile-time constant of the kernel.

One kernel per kind of data movement runs every recipe: it unrolls the programs, so that what is compiled holds the
recipe's operations and nothing else. These are dataclasses because Triton before 3.8 takes a nested named tuple for a
tuple without names; up to 3.6 it passes a field on only as a local constexpr, and slices no tuple.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import triton.language as tl

from kvformat.elements.formats import element
from kvformat.errors import InputError
from kvformat.recipes import words as engine_words
from kvformat.recipes.program import Level, Program, Recipe, is_constant, needs_one_scale
from kvformat.recipes.vocabulary import WORDS
from kvformat.torch import words
from kvformat.torch.codec import Decoding, Encoding, decoding, encoding


@dataclass(frozen=True)
class Operand:
    """A value by its place, or a constant (place -1). A flag is not converted."""

    place: int
    constant: float
    flag: bool


@dataclass(frozen=True)
class Step:
    """One operation: its word's function, what it reads, its attributes."""

    run: Any
    operands: tuple[Operand, ...]
    attributes: Any


@dataclass(frozen=True)
class Steps:
    """A program: each step appends its result to the values; `result` is the place of the one that is wanted."""

    steps: tuple[Step, ...]
    real: Any
    result: int


@dataclass(frozen=True)
class Trial:
    """The scale within a row and the quotients, with one of the level's trials."""

    #: the scale before it is stored; None where no scale lies within a row
    scale: Steps | None
    #: how it is stored, None: float32
    store: Encoding | None
    read: Decoding | None
    #: the number that is encoded
    quotient: Steps
    #: the sum of errors that chooses between trials, and which values it reads
    error: Steps | None
    error_reads: tuple[bool, ...]


@dataclass(frozen=True)
class Quantizer:
    """What a kernel that quantizes rows is specialised on."""

    #: of all code that kernels are made of: Triton's key knows a function in a constant by its name alone
    digest: str
    reductions: tuple[str, ...]
    trials: tuple[Trial, ...]
    encode: Encoding
    #: the value of a code, for errors
    decode: Decoding


@dataclass(frozen=True)
class Scaler:
    """What computing a scale shared by a whole tensor is specialised on."""

    digest: str
    reductions: tuple[str, ...]
    scale: Steps


@dataclass(frozen=True)
class Dequantizer:
    """What a kernel that reads values is specialised on."""

    digest: str
    decode: Decoding
    #: how the scale within a row was stored; None: float32
    read: Decoding | None
    restore: Steps


#: reductions that kernels know
REDUCTIONS = ("amax_finite", "amax_number", "amax", "any_nan", "all_nan", "largest", "smallest")


@cache
def digest() -> str:
    """A digest of all code that kernels are made of."""
    found = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def outer_level(recipe: Recipe) -> Level | None:
    """The level that is shared by the whole tensor. Raises InputError for one that is shared in another way."""
    if len(recipe.outer) > 1 or any(level.granularity.name != "per_tensor" for level in recipe.outer):
        shared = ", ".join(level.granularity.name for level in recipe.outer)
        raise InputError(f"recipe {recipe.name} has scales {shared}; kernels know one scale per tensor")
    return recipe.outer[0] if recipe.outer else None


@cache
def quantizer(recipe: Recipe, dtype: str) -> Quantizer:
    """What a kernel needs to quantize by a recipe. Raises InputError for what kernels do not know."""
    how = _supported(recipe).for_input(dtype)
    outer = outer_level(how)
    names = (outer.name,) if outer else ()
    last = _last_encode(how.code)
    policy = engine_words.encode_policy(last)
    trials = tuple(_trial(settled, names) for settled in how.tried())
    real = _real(how.code)
    return Quantizer(
        digest(),
        tuple(operation.word for operation in how.inner.program.reductions) if how.inner else (),
        trials,
        encoding(policy, real),
        decoding(policy.format),
    )


@cache
def scaler(level: Level) -> Scaler:
    """What a kernel needs to compute a per-tensor scale."""
    names = tuple(operation.target for operation in level.program.reductions)
    if level.format.name != "float32":
        raise InputError(f"scale {level.name} is shared by a tensor and stored as {level.store}; kernels know float32")
    steps, _ = _steps(level.program, names, level.name)
    return Scaler(digest(), tuple(operation.word for operation in level.program.reductions), steps)


@cache
def dequantizer(recipe: Recipe) -> Dequantizer:
    """What a kernel needs to read values back. Raises InputError for what kernels do not know."""
    how = _supported(recipe)
    outer_level(how)
    names = tuple(level.name for level in (*how.outer, *([how.inner] if how.inner else [])))
    value, _ = _steps(how.value, (*names, "c"), "v")
    assert how.element is not None
    return Dequantizer(digest(), decoding(element(how.element)), _read(how.inner), value)


def _supported(recipe: Recipe) -> Recipe:
    needs_one_scale(recipe, "a Triton kernel")
    for level in recipe.levels:
        if level.format.is_float and level.format.name != "float32":
            raise InputError(f"recipe {recipe.name} stores {level.name} as {level.store}; kernels know float32")
    for program in (recipe.code, recipe.value, *(level.program for level in recipe.levels)):
        if program.precision not in ("float32", "float64", "real"):
            raise InputError(f"recipe {recipe.name} rounds to {program.precision}, which kernels do not")
    if recipe.prepare:
        raise InputError(f"recipe {recipe.name} transforms rows first, which kernels do not; use CPU tensors")
    programs = [level.program for level in recipe.levels] + [level.error for level in recipe.levels]
    for program in (*programs, recipe.code, recipe.value):
        for operation in program.operations:
            reduced = operation.word in REDUCTIONS
            if operation.word not in words.WORDS and not reduced:
                raise InputError(f"recipe {recipe.name}: kernels do not know {operation.word}; use CPU tensors")
    return recipe


def _trial(how: Recipe, names: tuple[str, ...]) -> Trial:
    inner, scale = how.inner, None
    if inner is not None:
        stats = tuple(operation.target for operation in inner.program.reductions)
        scale, after = _steps(inner.program, (*names, *stats), inner.name)
        names = (*after, inner.name)
    last = _last_encode(how.code)
    before = Program(how.code.operations[: how.code.operations.index(last)], how.code.precision)
    quotient, after = _steps(before, (*names, "x"), last.operands[0])
    error, reads = None, tuple[bool, ...]()
    if inner is not None and inner.error.operations:
        error, _ = _steps(inner.error, (*after, "c", "e"), "e")
        read = {operand.place for step in error.steps for operand in step.operands}
        reads = tuple(place in read for place in range(len(after)))
    return Trial(scale, _store(inner), _read(inner), quotient, error, reads)


def _last_encode(code: Program) -> Any:
    return next(operation for operation in reversed(code.operations) if operation.target == "c")


def _store(level: Level | None) -> Encoding | None:
    if level is None or level.format.is_float:
        return None
    return encoding(engine_words.encode_policy(level.storing), _real(level.program))


def _read(level: Level | None) -> Decoding | None:
    if level is None or level.format.element is None:
        return None
    return decoding(level.format.element)


def _real(program: Program) -> str:
    return "float32" if program.precision == "float32" else "float64"


def _steps(program: Program, names: tuple[str, ...], result: str) -> tuple[Steps, tuple[str, ...]]:
    """The program over values with these names, and the names of all values after it."""
    places = {name: place for place, name in enumerate(names)}
    real, made = _real(program), list[Step]()
    for place, operation in enumerate(program.steps, len(names)):
        kinds = WORDS[operation.word].operands
        operands = tuple(
            _operand(text, kind == "flag", places, real) for text, kind in zip(operation.operands, kinds, strict=True)
        )
        made.append(Step(words.WORDS[operation.word], operands, words.attributes(operation, real)))
        places[operation.target] = place
    latest = {place: name for name, place in places.items()}
    after = tuple(latest.get(place, "") for place in range(len(names) + len(made)))
    dtype = tl.float32 if real == "float32" else tl.float64
    return Steps(tuple(made), dtype, places.get(result, -1)), after


def _operand(text: str, flag: bool, places: Mapping[str, int], real: str) -> Operand:
    if text not in places and is_constant(text):
        return Operand(-1, float(np.float32(text) if real == "float32" else np.float64(text)), flag)
    return Operand(places[text], 0.0, flag)

"""Edits of a recipe: the program that a faulty writer runs, made from the right one by replacing a few operations."""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from kvformat.elements.formats import ElementFormat, element
from kvformat.errors import InputError
from kvformat.recipes.program import Level, Operation, Program, Recipe, is_constant

#: the words by which a number is scaled, and those through which it passes unscaled
_SCALING = ("div", "mul", "div_full", "div_approx")
_PASSING = ("flush",)
#: the divisors that make a scale of an amax, as catalogues write them
TOPS = ("127", "127.5", "128", "224", "240", "448", "57344", "2688", "1536")


@dataclass(frozen=True)
class Edit:
    """Replacements in a recipe. Texts are recipe lines or expressions with the names of `_names` in braces.

    An edit that finds nothing to replace does not apply to the recipe.
    """

    #: the expression by which x is scaled
    quotient: str = ""
    #: lines that follow, on {q}
    then: str = ""
    #: lines right before the code is made, on {c}
    last: str = ""
    #: rounding and overflow of the code
    policy: tuple[str, ...] = ()
    #: another element format
    element: str = ""
    #: what the recipe's words for rounding to an integer become
    rounding: str = ""
    #: the expression that makes the scale of {a}
    scale: str = ""
    #: lines that follow, on {s}
    then_scale: str = ""
    #: the number that divides amax, in place of the recipe's
    top: str = ""
    #: constants of the code program, and what they become
    constants: tuple[tuple[str, str], ...] = ()
    #: format and policy in which the scale within a row is stored
    store: str = ""
    #: words of the scale program, and what they become; "" takes the operation away
    words: tuple[tuple[str, str], ...] = ()
    #: where a quotient and a product with the reciprocal change places
    reciprocal: tuple[Literal["code", "scale"], ...] = ()
    #: no floor: a maximum with a constant is left out
    no_floor: bool = False
    #: the precision of scale and code
    precision: str = ""

    @property
    def empty(self) -> bool:
        """Nothing is replaced."""
        return self == Edit()


@lru_cache(maxsize=4096)
def edited(recipe: Recipe, edit: Edit) -> Recipe | None:
    """The recipe with the edit, None where it does not apply. recipe: `for_input` of the dtype it is given."""
    if edit.empty:
        return recipe
    if recipe.element is None:
        return None
    try:
        return _Editor(recipe).apply(edit)
    except (_NotThereError, KeyError, InputError):
        return None


class _NotThereError(Exception):
    """What an edit replaces is not in the recipe."""


class _Editor:
    """One recipe while it is edited: the level whose scale the codes use, and the operations of both programs."""

    def __init__(self, recipe: Recipe) -> None:
        assert recipe.element is not None
        self.recipe = recipe
        self.level = recipe.inner or (recipe.outer[-1] if recipe.outer else None)
        self.element = element(recipe.element)

    def apply(self, edit: Edit) -> Recipe:
        """The edited recipe. Raises _NotThereError, KeyError or InputError where it cannot be."""
        level = self._level(edit)
        levels = tuple(level if each is self.level and level else each for each in self._outer(edit))
        code = self._code(edit)
        fmt = edit.element or self.recipe.element
        return replace(self.recipe, levels=levels, code=code, element=fmt)

    def _outer(self, edit: Edit) -> tuple[Level, ...]:
        """All levels; a divisor of amax is that of the level that has one, be it the outer one."""
        if not edit.top or self.level is None or self._top(self.level):
            return self.recipe.levels
        changed = tuple(self._with_top(level, edit.top) for level in self.recipe.levels)
        if changed == self.recipe.levels:
            raise _NotThereError
        return changed

    def _level(self, edit: Edit) -> Level | None:
        level = self.level
        wanted = (edit.scale, edit.then_scale, edit.store, edit.words, edit.no_floor, "scale" in edit.reciprocal)
        if level is None:
            if any(wanted):
                raise _NotThereError
            return None
        operations = list(level.program.operations)
        if edit.scale:
            self._replace_scale(operations, level, edit.scale)
        if "scale" in edit.reciprocal:
            _exchange_reciprocal(operations, _chain(operations, self._amax(operations)))
        for old, new in edit.words:
            operations = _reworded(operations, old, new)
        if edit.no_floor:
            operations = _without_floor(operations)
        if edit.then_scale:
            names = self._names(operations) | {"s": level.name}
            operations += _lines(edit.then_scale, names, len(operations))
        precision = edit.precision or level.program.precision
        level = replace(level, program=Program(tuple(operations), precision), store=edit.store or level.store)
        if edit.store and self.recipe.inner is None:
            raise _NotThereError
        return self._with_top(level, edit.top) if edit.top and self._top(level) else level

    def _code(self, edit: Edit) -> Program:
        operations = list(self.recipe.code.operations)
        if edit.rounding or edit.quotient or edit.then or "code" in edit.reciprocal:
            operations = _unfused(operations, keep_half=not edit.rounding)
        if edit.quotient:
            place = _chain(operations, "x")
            target = operations[place].target
            operations[place : place + 1] = _lines(f"{target} = {edit.quotient}", self._names(), place)
        if "code" in edit.reciprocal:
            _exchange_reciprocal(operations, _chain(operations, "x"))
        if edit.rounding:
            operations = _rounded(operations, edit.rounding)
        if edit.constants:
            operations = _with_constants(operations, edit.constants)
        if edit.then:
            place = _chain(operations, "x")
            names = self._names() | {"q": operations[place].target}
            operations[place + 1 : place + 1] = _lines(edit.then, names, place)
        if edit.last:
            names = self._names() | {"c": operations[-1].operands[0]}
            operations[-1:-1] = _lines(edit.last, names, len(operations))
        if edit.policy or edit.element:
            last = operations[-1]
            fmt = edit.element or last.attributes[0]
            operations[-1] = replace(last, attributes=(fmt, *(edit.policy or last.attributes[1:])))
        return Program(tuple(operations), edit.precision or self.recipe.code.precision)

    def _replace_scale(self, operations: list[Operation], level: Level, text: str) -> None:
        place = _chain(operations, self._amax(operations))
        target = operations[place].target
        operations[place : place + 1] = _lines(f"{target} = {text}", self._names() | {"s": level.name}, place)

    def _amax(self, operations: Sequence[Operation]) -> str:
        for operation in operations:
            if operation.word.startswith("amax"):
                return operation.target
        raise _NotThereError

    def _top(self, level: Level) -> str:
        constants = (operand for op in level.program.operations for operand in op.operands)
        return next((each for each in constants if each in TOPS), "")

    def _with_top(self, level: Level, top: str) -> Level:
        old = self._top(level)
        if not old:
            return level
        if old == "2688":  # 6 * 448: the divisor of a per-tensor scale over block scales
            top = repr(6 * float(top))
        operations = tuple(_substituted(op, old, top) for op in level.program.operations)
        return replace(level, program=replace(level.program, operations=operations))

    def _names(self, operations: Sequence[Operation] = ()) -> dict[str, str]:
        """What the names in braces stand for; those that the recipe does not have are missing."""
        level = self.level
        names = {"x": "x", **_shape(self.element, "")}
        if level is None:
            return names
        names["s"] = level.name
        names |= {"a": self._amax(operations or level.program.operations)}
        if level.format.element is not None:
            names |= _shape(level.format.element, "s_")
        top = self._top(level)
        if top:
            names["divisor"] = top
        if self.recipe.inner and self.recipe.outer and self.recipe.outer[-1].multiplier == "decode":
            names["g"] = self.recipe.outer[-1].name
        return names


def _shape(fmt: ElementFormat, prefix: str) -> dict[str, str]:
    """The numbers of a format that edits speak of."""
    step = fmt.min_subnormal
    shape = {
        "max": fmt.max,
        "min_normal": fmt.min_normal,
        "step": step,
        "steps": 1 / step,
        #: the largest number that rounds to a zero, and the smallest one that rounds to a normal code
        "half_step": step / 2,
        "under": fmt.min_normal - step / 2,
    }
    names = {f"{prefix}{name}": repr(float(value)) for name, value in shape.items()}
    if fmt.kind == "float":
        names[f"{prefix}low"] = str(23 - fmt.mantissa_bits)
        names[f"{prefix}ulp"] = repr(2.0**-fmt.mantissa_bits)
    return names


def _lines(text: str, names: dict[str, str], place: int) -> list[Operation]:
    """The operations of a text, its inner results under names that no recipe uses."""
    filled = string.Formatter().vformat(text, (), names)
    parsed = Program.parse(filled).operations
    written = {line.partition("=")[0].strip() for line in filled.splitlines()}
    inner = {op.target for op in parsed if re.fullmatch(r"t[0-9]+", op.target)} - written
    renamed = {name: f"edit{place}_{name}" for name in inner}
    return [
        replace(op, target=renamed.get(op.target, op.target), operands=tuple(renamed.get(o, o) for o in op.operands))
        for op in parsed
    ]


def _chain(operations: Sequence[Operation], start: str) -> int:
    """The last of the operations that scale `start`, one after the other. Raises _NotThereError if there is none."""
    scaled, last, ended = {start}, None, False
    for index, operation in enumerate(operations):
        touched = scaled.intersection(operation.operands)
        if not touched:
            continue
        if operation.word in _PASSING:
            scaled.add(operation.target)
        elif operation.word in _SCALING and not ended:
            last = index
            scaled.add(operation.target)
        elif last is not None:
            ended = True
    if last is None:
        raise _NotThereError
    return last


def _unfused(operations: list[Operation], *, keep_half: bool) -> list[Operation]:
    """Make two roundings of fma(x, r, copysign(0.5, x * r)), so that there is a quotient; or leave the half out."""
    made = {op.target: op for op in operations}
    result = []
    for op in operations:
        half = made.get(op.operands[-1]) if op.word in ("fma", "add") else None
        if half is not None and half.word == "copysign" and half.operands[0] == "0.5":
            scaled = half.operands[1]
            op = replace(op, word="add", operands=(scaled, half.target)) if keep_half else replace(
                op, word="mul", operands=(scaled, "1")
            )  # fmt: skip
        result.append(op)
    return result


def _exchange_reciprocal(operations: list[Operation], place: int) -> None:
    """Make a * (1 / b) of a / b, and a / b of a * (1 / b)."""
    operation = operations[place]
    a, b = operation.operands
    if operation.word == "div":
        inverse = f"inverse{place}"
        product = replace(operation, word="mul", operands=(a, inverse))
        operations[place : place + 1] = [Operation(inverse, "div", ("1", b)), product]
        return
    for index in reversed(range(place)):
        made = operations[index]
        if made.target == b and made.word in ("div", "rcp", "div_full", "rcp_approx"):
            divisor = made.operands[-1]
            if made.operands[0] == "1" or made.word.startswith("rcp"):
                operations[place] = replace(operation, word="div", operands=(a, divisor), attributes=())
                return
    raise _NotThereError


def _reworded(operations: list[Operation], old: str, new: str) -> list[Operation]:
    """Every `old` as `new`. Without a new word it goes away, and so does every choice that it decided."""
    found = [op for op in operations if op.word == old]
    if not found:
        raise _NotThereError
    if new:
        return [replace(op, word=new) if op.word == old else op for op in operations]
    gone = {op.target for op in found}
    return [op for op in operations if op.word != old and not gone.intersection(op.operands)]


def _without_floor(operations: list[Operation]) -> list[Operation]:
    def floor(op: Operation) -> bool:
        return op.word in ("max", "max_number") and any(map(is_constant, op.operands))

    if not any(map(floor, operations)):
        raise _NotThereError
    # scales are not negative, so `abs` hands the number on
    return [
        Operation(op.target, "abs", tuple(o for o in op.operands if not is_constant(o))) if floor(op) else op
        for op in operations
    ]


def _rounded(operations: list[Operation], text: str) -> list[Operation]:
    """Every rounding to an integer as the expression `text` of {q}."""
    result: list[Operation] = []
    found = False
    for index, op in enumerate(operations):
        if op.word == "round":
            found = True
            result += _lines(f"{op.target} = {text}", {"q": op.operands[0]}, index)
        else:
            result.append(op)
    if not found:
        raise _NotThereError
    return result


def _with_constants(operations: list[Operation], pairs: tuple[tuple[str, str], ...]) -> list[Operation]:
    changed = operations
    for old, new in pairs:
        changed = [_substituted(op, old, new) for op in changed]
    if changed == operations:
        raise _NotThereError
    return changed


def _substituted(operation: Operation, old: str, new: str) -> Operation:
    return replace(operation, operands=tuple(new if operand == old else operand for operand in operation.operands))

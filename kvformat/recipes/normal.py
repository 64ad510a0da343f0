"""The normal form of a recipe: what it computes, without the names and the order in which it is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kvformat.recipes.compose import scalar
from kvformat.recipes.program import Level, Operation, Program, Recipe, is_constant
from kvformat.recipes.vocabulary import WORDS

#: the operations of each part, one per line
Normal = dict[str, tuple[str, ...]]


def normal(recipe: Recipe) -> Normal:
    """What a recipe computes, by part: `scale <name>` for each level, `code`, `value`.

    Two recipes with equal normal forms compute the same from every input; the converse does not hold.
    """
    parts: Normal = {"rows": tuple(map(str, recipe.prepare))} if recipe.prepare else {}
    for level in recipe.levels:
        stored = f"store {level.granularity.name} {level.multiplier} {level.store}"
        parts[f"scale {level.name}"] = (*_made(recipe, level), stored)
        if level.trials:
            error = (*_on_the_way((level,)), *recipe.code.operations, *level.error.operations)
            parts["trials"] = (f"trial in {', '.join(level.trials)}", *_lines(error, level.error, "e"))
    group = _on_the_way(recipe.group)
    parts["code"] = _lines((*group, *recipe.code.operations), recipe.code, "c")
    if recipe.undefined:
        parts["undefined"] = _lines(group, recipe.code, recipe.undefined)
    parts["value"] = _lines(recipe.value.operations, recipe.value, "v")
    return parts


def _made(recipe: Recipe, level: Level) -> tuple[str, ...]:
    """How a parameter arises, before it is stored; one that is made from codes, with its sums over them."""
    if level not in recipe.group and not level.after:
        return _lines(level.program.operations, level.program, level.name)
    if not level.after:
        before = recipe.group[: recipe.group.index(level) + 1]
        return _lines(_on_the_way(before), level.program, f"{level.name}'")
    sums = (*_on_the_way(recipe.group), *recipe.code.operations, *level.sums.operations)
    totals = [f"sum {name}: {line}" for name in level.totals for line in _lines(sums, level.sums, name)]
    known = (*_on_the_way(recipe.group), *level.program.operations)
    return (*totals, *_lines(known, level.program, level.name))


def _on_the_way(levels: Sequence[Level]) -> tuple[Operation, ...]:
    """The operations of the levels of a group; the name of a level with a tick is it before it is stored."""
    operations = list[Operation]()
    for index, level in enumerate(levels):
        unstored = {each.name: f"{each.name}'" for each in levels[index:]}
        operations += (
            replace(
                op,
                target=unstored.get(op.target, op.target),
                operands=tuple(unstored.get(operand, operand) for operand in op.operands),
            )
            for op in level.program.operations
        )
    return tuple(operations)


def _lines(operations: Sequence[Operation], program: Program, result: str) -> tuple[str, ...]:
    """The operations that `result` depends on, each once, operands first, under new names."""
    unfolded = _Unfolding(operations, scalar(program))
    unfolded.value(result, len(operations))
    precision = () if program.precision == "float32" else (f"precision {program.precision}",)
    return (*precision, *unfolded.lines)


class _Unfolding:
    """Emits operations in the order in which a result needs them; equal ones get one name."""

    def __init__(self, operations: Sequence[Operation], scalar: Any) -> None:
        self.operations = operations
        self.scalar = scalar
        self.names: dict[str, str] = {}

    @property
    def lines(self) -> list[str]:
        """What was emitted: `v0 = div(x, s)`, ..."""
        return [f"{name} = {call}" for call, name in self.names.items()]

    def value(self, name: str, before: int) -> str:
        """The new name of what `name` means before operation `before`; constants and inputs keep theirs."""
        if is_constant(name):
            return repr(float(self.scalar(name)))
        index = next((i for i in reversed(range(before)) if self.operations[i].target == name), None)
        if index is None:
            return name
        operation = self.operations[index]
        word, operands = operation.word, [self.value(operand, index) for operand in operation.operands]
        short = WORDS[word].short_for
        if short is not None:
            word, constant = short
            operands.insert(0, repr(float(self.scalar(constant))))
        if WORDS[word].commutative:
            operands.sort()
        call = f"{word}({', '.join((*operands, *operation.attributes))})"
        return self.names.setdefault(call, f"v{len(self.names)}")

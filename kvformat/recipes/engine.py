"""The Numba engine: runs a recipe's program over arrays at memory speed."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kvformat.elements.formats import element
from kvformat.elements.static import compiled, inlined, specialised, static
from kvformat.recipes.compose import Composed, compose, scalar, take
from kvformat.recipes.program import Level, Operation, Program
from kvformat.recipes.reduce import WIDENERS, reduce_group
from kvformat.recipes.words import step


class RowPlan(NamedTuple):
    """What the kernel over rows is specialised on: the input's dtype and the part of the recipe that it runs."""

    dtype: str
    #: names of the outer scales
    outer: tuple[str, ...]
    inner: Level | None
    code: Program

    @property
    def reductions(self) -> tuple[Operation, ...]:
        """What the scales within a row are made of."""
        return self.inner.program.reductions if self.inner else ()

    def tried(self) -> tuple[RowPlan, ...]:
        """The plan in each trial of the scale within a row."""
        assert self.inner is not None
        return tuple(
            self._replace(inner=self.inner.settled(trial), code=self.code.with_constant("trial", trial))
            for trial in self.inner.trials
        )


class ReducePlan(NamedTuple):
    """What the pass that feeds an outer level is specialised on: the input's dtype and what is reduced."""

    dtype: str
    reductions: tuple[Operation, ...]


class ScalePlan(NamedTuple):
    """What computing the scales of an outer level from its reductions is specialised on."""

    outer: tuple[str, ...]
    level: Level

    @property
    def reductions(self) -> tuple[Operation, ...]:
        """What the scales of the level are made of."""
        return self.level.program.reductions


class ValuePlan(NamedTuple):
    """What decoding is specialised on: the names of the scales and the program."""

    outer: tuple[str, ...]
    #: (name,) of the scale within a row, () where there is none
    inner: tuple[str, ...]
    value: Program


def _scale(plan: Any, outer: Any, stats: Any) -> Any:
    """The stored scale (its code, or float32) of one group and the tuple of values that its codes depend on."""
    raise NotImplementedError("compiled code only")


@specialised(_scale)
def _scale_typed(plan: Any, outer: Any, stats: Any) -> Any:
    composed, level = _scale_program(plan.value)
    run, place = composed.run, composed.places[level.name]
    if level.store == "float32":

        def as_float(plan: Any, outer: Any, stats: Any) -> Any:
            values = run(outer + stats)
            stored = np.float32(values[place])
            return stored, (*values, stored)

        return as_float

    encode = inlined(step(level.storing, scalar(level.program)))
    table = element(level.storing.attributes[0]).values()

    def as_code(plan: Any, outer: Any, stats: Any) -> Any:
        values = run(outer + stats)
        code = encode(values[place])
        return code, (*values, table[code])

    return as_code


def _scale_program(plan: RowPlan | ScalePlan) -> tuple[Composed, Level]:
    level = plan.inner if isinstance(plan, RowPlan) else plan.level
    assert level is not None
    names = (*plan.outer, *(operation.target for operation in level.program.reductions))
    return compose(level.program, names), level


def _code(plan: Any, values: Any, bits: Any) -> Any:
    """The code of one element, given what its scales left in `values`."""
    raise NotImplementedError("compiled code only")


@specialised(_code)
def _code_typed(plan: Any, values: Any, bits: Any) -> Any:
    composed = _code_program(plan.value)
    run, place, widen = composed.run, composed.places["c"], WIDENERS[plan.value.dtype]
    return lambda plan, values, bits: run((*values, widen(bits)))[place]


def _code_program(plan: RowPlan) -> Composed:
    names = plan.outer
    if plan.inner is not None:
        names = (*_scale_program(plan)[0].names, plan.inner.name)
    return compose(plan.code, (*names, "x"))


def _value(plan: Any, outer: Any, inner: Any, code: Any) -> Any:
    """The number that a code stands for, given the code's own value and its scales."""
    raise NotImplementedError("compiled code only")


@specialised(_value)
def _value_typed(plan: Any, outer: Any, inner: Any, code: Any) -> Any:
    wanted: ValuePlan = plan.value
    composed = compose(wanted.value, (*wanted.outer, *wanted.inner, "c"))
    run, place = composed.run, composed.places["v"]
    if wanted.inner:
        return lambda plan, outer, inner, code: run((*outer, inner, code))[place]
    return lambda plan, outer, inner, code: run((*outer, code))[place]


def _outer(plan: Any, row: Any) -> Any:
    """A row's outer scales as a tuple."""
    raise NotImplementedError("compiled code only")


@specialised(_outer)
def _outer_typed(plan: Any, row: Any) -> Any:
    taken = take(len(plan.value.outer))
    return lambda plan, row: taken(row)


def _stats(plan: Any, row: Any) -> Any:
    """A group's reductions as a tuple."""
    raise NotImplementedError("compiled code only")


@specialised(_stats)
def _stats_typed(plan: Any, row: Any) -> Any:
    taken = take(len(plan.value.reductions))
    return lambda plan, row: taken(row)


def _group(plan: Any, dims: Any) -> Any:
    """How many elements share an inner scale; a constant where the recipe fixes it, so that LLVM unrolls the loop."""
    raise NotImplementedError("compiled code only")


@specialised(_group)
def _group_typed(plan: Any, dims: Any) -> Any:
    shared = plan.value.inner.granularity.dims
    return (lambda plan, dims: shared) if shared else (lambda plan, dims: dims)


def _block(plan: Any, outer: Any, bits: Any, codes: Any, count: Any) -> Any:
    """Writes the codes of the `count` elements that share a scale within a row; gives the stored scale."""
    raise NotImplementedError("compiled code only")


@specialised(_block)
def _block_typed(plan: Any, outer: Any, bits: Any, codes: Any, count: Any) -> Any:
    if len(plan.value.inner.trials) > 1:
        return _best_block(plan.value)

    def once(plan: Any, outer: Any, bits: Any, codes: Any, count: Any) -> Any:
        stored, values = _scale(plan, outer, reduce_group(plan, bits, count))
        for i in range(count):
            codes[i] = _code(plan, values, bits[i])
        return stored

    return once


def _best_block(plan: RowPlan) -> Any:
    first, *others = map(static, plan.tried())
    pick: Any = inlined(lambda outer, bits, count: (0, _error(first, outer, bits, count)))
    write: Any = inlined(lambda index, outer, bits, codes, count: _block(first, outer, bits, codes, count))
    for index, trial in enumerate(others, 1):
        pick, write = _pick_or(pick, trial, index), _write_or(write, trial, index)
    return lambda plan, outer, bits, codes, count: write(pick(outer, bits, count)[0], outer, bits, codes, count)


def _pick_or(pick: Any, trial: Any, index: int) -> Any:
    def picked(outer: Any, bits: Any, count: Any) -> Any:
        best, least = pick(outer, bits, count)
        error = _error(trial, outer, bits, count)
        return (index, error) if error < least else (best, least)

    return inlined(picked)


def _write_or(write: Any, trial: Any, index: int) -> Any:
    def written(best: Any, outer: Any, bits: Any, codes: Any, count: Any) -> Any:
        if best == index:
            return _block(trial, outer, bits, codes, count)
        return write(best, outer, bits, codes, count)

    return inlined(written)


def _error(plan: Any, outer: Any, bits: Any, count: Any) -> Any:
    """The error of a trial over the elements that share a scale."""
    raise NotImplementedError("compiled code only")


@specialised(_error)
def _error_typed(plan: Any, outer: Any, bits: Any, count: Any) -> Any:
    recipe: RowPlan = plan.value
    assert recipe.inner is not None
    code = _code_program(recipe)
    summed = compose(recipe.inner.error, (*code.names, "c", "e"))
    run, place, widen = code.run, code.places["c"], WIDENERS[recipe.dtype]
    add, total = summed.run, summed.places["e"]
    table = element(recipe.code.operations[-1].attributes[0]).values()

    def error(plan: Any, outer: Any, bits: Any, count: Any) -> Any:
        _, values = _scale(plan, outer, reduce_group(plan, bits, count))
        e = np.float32(0)
        for i in range(count):
            after = run((*values, widen(bits[i])))
            e = np.float32(add((*after, table[after[place]], e))[total])
        return e

    return error


# Kernels. Arrays: bits (rows, head_dim), the input's bit patterns; outer (rows, outer levels) float32; codes (rows,
# head_dim) uint8; scales (rows, columns), stored scales. Rows never depend on each other.


@compiled
def quantize_rows(plan: Any, bits: Any, outer: Any, codes: Any, scales: Any) -> None:
    """Scales within the row, and codes."""
    group = _group(plan, bits.shape[1])
    for row in range(bits.shape[0]):
        around = _outer(plan, outer[row])
        for column in range(scales.shape[1]):
            these = bits[row, column * group : column * group + group]
            into = codes[row, column * group : column * group + group]
            scales[row, column] = _block(plan, around, these, into, group)


@compiled
def encode_rows(plan: Any, bits: Any, outer: Any, codes: Any) -> None:
    """Codes of a recipe whose scales are all shared across rows."""
    for row in range(bits.shape[0]):
        values = _outer(plan, outer[row])
        these, into = bits[row], codes[row]
        for i in range(these.size):
            into[i] = _code(plan, values, these[i])


@compiled
def reduce_rows(plan: Any, bits: Any, stats: Any) -> None:
    """The reductions of each row: stats (rows, reductions) float32. Groups of rows combine by maximum."""
    for row in range(bits.shape[0]):
        found = reduce_group(plan, bits[row], bits.shape[1])
        for i in range(stats.shape[1]):
            stats[row, i] = found[i]


@compiled
def scale_groups(plan: Any, outer: Any, stats: Any, stored: Any) -> None:
    """The stored scales (groups,) of an outer level, from outer (groups, levels before it) and stats."""
    for group in range(stored.size):
        stored[group] = _scale(plan, _outer(plan, outer[group]), _stats(plan, stats[group]))[0]


@compiled
def dequantize_rows(plan: Any, codes: Any, table: Any, outer: Any, scales: Any, out: Any) -> None:
    """Values (rows, head_dim) float32 of codes; `table` is the value of each code, scales (rows, columns) float32."""
    columns = scales.shape[1]
    group = codes.shape[1] // columns
    for row in range(codes.shape[0]):
        around = _outer(plan, outer[row])
        for column in range(columns):
            these = codes[row, column * group : column * group + group]
            into = out[row, column * group : column * group + group]
            for i in range(group):
                into[i] = _value(plan, around, scales[row, column], table[these[i]])

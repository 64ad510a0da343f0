"""The Numba engine: runs a recipe's program over arrays at memory speed."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kvformat.elements.formats import element
from kvformat.elements.static import compiled, inlined, specialised, static
from kvformat.recipes.compose import Composed, compose, pick, scalar, take
from kvformat.recipes.program import Level, Operation, Program
from kvformat.recipes.reduce import WIDENERS, reduce_group
from kvformat.recipes.words import storing


class RowPlan(NamedTuple):
    """What the kernel over rows is specialised on: the input's dtype and the part of the recipe that it runs."""

    dtype: str
    #: names of the parameters shared by several groups
    outer: tuple[str, ...]
    #: the parameters of each group from which its codes are made, in order
    group: tuple[Level, ...]
    code: Program
    #: the parameters of each group that are made from its codes
    after: tuple[Level, ...] = ()
    #: the flag that leaves the codes of a group undefined
    undefined: str = ""
    #: elements of a group; 0: the whole row
    width: int = 0

    @property
    def reductions(self) -> tuple[Operation, ...]:
        """What the parameters of a group are made of."""
        return tuple(operation for level in self.group for operation in level.program.reductions)

    @property
    def kept(self) -> int:
        """Numbers that are kept for each group: its parameters, and whether its codes are undefined."""
        return len(self.group) + len(self.after) + bool(self.undefined)

    def tried(self) -> tuple[RowPlan, ...]:
        """The plan in each trial of the scale within a row."""
        (level,) = self.group
        return tuple(
            self._replace(group=(level.settled(trial),), code=self.code.with_constant("trial", trial))
            for trial in level.trials
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
    def group(self) -> tuple[Level, ...]:
        """The level, as `RowPlan` has those of a group."""
        return (self.level,)

    @property
    def reductions(self) -> tuple[Operation, ...]:
        """What the scales of the level are made of."""
        return self.level.program.reductions


class ValuePlan(NamedTuple):
    """What decoding is specialised on: the names of the scales and the program."""

    outer: tuple[str, ...]
    #: those of the parameters that each group has for itself
    inner: tuple[str, ...]
    value: Program


def _scale(plan: Any, outer: Any, stats: Any) -> Any:
    """The stored parameters of one group, a tuple, and the tuple of values that its codes depend on."""
    raise NotImplementedError("compiled code only")


@specialised(_scale)
def _scale_typed(plan: Any, outer: Any, stats: Any) -> Any:
    run, _ = _scale_program(plan.value)
    return lambda plan, outer, stats: run(outer, stats)


def _scale_program(plan: RowPlan | ScalePlan) -> tuple[Any, tuple[str, ...]]:
    """The function of outer values and reductions that computes a group's parameters, and the names of its values."""
    made: Any = inlined(lambda outer, stats: ((), outer))
    names, first = plan.outer, 0
    for level in plan.group:
        found = tuple(operation.target for operation in level.program.reductions)
        composed = compose(level.program, (*names, *found))
        made = _linked(made, composed.run, composed.places[level.name], level, take(len(found), first))
        names, first = (*composed.names, level.name), first + len(found)
    return made, names


def _linked(before: Any, run: Any, place: int, level: Level, own: Any) -> Any:
    keep, read = storing(level, scalar(level.program))

    def linked(outer: Any, stats: Any) -> Any:
        kept, known = before(outer, stats)
        values = run(known + own(stats))
        stored = keep(values[place])
        return (*kept, stored), (*values, read(stored))

    return inlined(linked)


def _code(plan: Any, values: Any, bits: Any) -> Any:
    """The code of one element, given what its scales left in `values`."""
    raise NotImplementedError("compiled code only")


@specialised(_code)
def _code_typed(plan: Any, values: Any, bits: Any) -> Any:
    composed = _code_program(plan.value)
    run, place, widen = composed.run, composed.places["c"], WIDENERS[plan.value.dtype]
    return lambda plan, values, bits: run((*values, widen(bits)))[place]


def _code_program(plan: RowPlan) -> Composed:
    return compose(plan.code, (*_scale_program(plan)[1], "x"))


def _value(plan: Any, outer: Any, inner: Any, code: Any) -> Any:
    """The number that a code stands for, given the code's own value and its scales."""
    raise NotImplementedError("compiled code only")


@specialised(_value)
def _value_typed(plan: Any, outer: Any, inner: Any, code: Any) -> Any:
    wanted: ValuePlan = plan.value
    composed = compose(wanted.value, (*wanted.outer, *wanted.inner, "c"))
    run, place = composed.run, composed.places["v"]
    return lambda plan, outer, inner, code: run((*outer, *inner, code))[place]


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
    shared = plan.value.width
    return (lambda plan, dims: shared) if shared else (lambda plan, dims: dims)


def _block(plan: Any, outer: Any, bits: Any, codes: Any, count: Any) -> Any:
    """Writes the codes of the `count` elements of a group; gives what is kept for it, a tuple."""
    raise NotImplementedError("compiled code only")


@specialised(_block)
def _block_typed(plan: Any, outer: Any, bits: Any, codes: Any, count: Any) -> Any:
    wanted: RowPlan = plan.value
    if any(len(level.trials) > 1 for level in wanted.group):
        return _best_block(wanted)
    later = _later(wanted)

    def once(plan: Any, outer: Any, bits: Any, codes: Any, count: Any) -> Any:
        kept, values = _scale(plan, outer, reduce_group(plan, bits, count))
        for i in range(count):
            codes[i] = _code(plan, values, bits[i])
        return kept + later(values, bits, count)

    return once


def _later(plan: RowPlan) -> Any:
    """The function that gives what is kept of a group beside the parameters that its codes are made from."""
    names = _scale_program(plan)[1]
    made: Any = inlined(lambda values, bits, count: ())
    for level in plan.after:
        made = _after(made, plan, level, names)
    if plan.undefined:
        place = len(names) - 1 - names[::-1].index(plan.undefined)
        made = _flagged(made, place)
    return made


def _flagged(before: Any, place: int) -> Any:
    return inlined(lambda values, bits, count: (*before(values, bits, count), np.uint8(values[place])))


def _after(before: Any, plan: RowPlan, level: Level, names: tuple[str, ...]) -> Any:
    code, totals, real = _code_program(plan), level.totals, scalar(level.sums)
    coded, at, widen = code.run, code.places["c"], WIDENERS[plan.dtype]
    table = element(_codes_of(plan.code)).values()
    summed = compose(level.sums, (*code.names, "c", *totals))
    add, found = summed.run, pick([summed.places[name] for name in totals])
    composed = compose(level.program, (*names, *totals))
    run, place = composed.run, composed.places[level.name]
    keep, _ = storing(level, scalar(level.program))
    zeros = tuple(real(0) for _ in totals)

    def later(values: Any, bits: Any, count: Any) -> Any:
        so_far = zeros
        for i in range(count):
            after = coded((*values, widen(bits[i])))
            so_far = found(add((*after, table[after[at]], *so_far)))
        return (*before(values, bits, count), keep(run(values + so_far)[place]))

    return inlined(later)


def _codes_of(code: Program) -> str:
    """The element format of a program's codes."""
    return next(operation for operation in reversed(code.operations) if operation.target == "c").attributes[0]


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
    (level,) = recipe.group
    code = _code_program(recipe)
    summed = compose(level.error, (*code.names, "c", "e"))
    run, place, widen = code.run, code.places["c"], WIDENERS[recipe.dtype]
    add, total = summed.run, summed.places["e"]
    table = element(_codes_of(recipe.code)).values()

    def error(plan: Any, outer: Any, bits: Any, count: Any) -> Any:
        _, values = _scale(plan, outer, reduce_group(plan, bits, count))
        e = np.float32(0)
        for i in range(count):
            after = run((*values, widen(bits[i])))
            e = np.float32(add((*after, table[after[place]], e))[total])
        return e

    return error


def _keep(plan: Any, kept: Any, row: Any, column: Any, made: Any) -> Any:
    """Stores what is kept for a group, made, in the arrays kept."""
    raise NotImplementedError("compiled code only")


@specialised(_keep)
def _keep_typed(plan: Any, kept: Any, row: Any, column: Any, made: Any) -> Any:
    store: Any = inlined(lambda kept, row, column, made: None)
    for place in range(plan.value.kept):
        store = _keep_one_more(store, place)
    return lambda plan, kept, row, column, made: store(kept, row, column, made)


def _keep_one_more(before: Any, place: int) -> Any:
    def stored(kept: Any, row: Any, column: Any, made: Any) -> Any:
        before(kept, row, column, made)
        kept[place][row, column] = made[place]

    return inlined(stored)


def _inner(plan: Any, scales: Any, row: Any, column: Any) -> Any:
    """A group's own parameters as a tuple."""
    raise NotImplementedError("compiled code only")


@specialised(_inner)
def _inner_typed(plan: Any, scales: Any, row: Any, column: Any) -> Any:
    taken = take(len(plan.value.inner))
    return lambda plan, scales, row, column: taken(scales[row, column])


# Kernels. Arrays: bits (rows, head_dim), the input's bit patterns; outer (rows, outer levels) float32; codes (rows,
# head_dim) uint8; kept, a tuple of arrays (rows, columns) of stored parameters. Rows never depend on each other.


@compiled
def quantize_rows(plan: Any, bits: Any, outer: Any, codes: Any, kept: Any) -> None:
    """The parameters of each group of a row, and its codes."""
    group = _group(plan, bits.shape[1])
    for row in range(bits.shape[0]):
        around = _outer(plan, outer[row])
        for column in range(bits.shape[1] // group):
            these = bits[row, column * group : column * group + group]
            into = codes[row, column * group : column * group + group]
            _keep(plan, kept, row, column, _block(plan, around, these, into, group))


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
        made, _ = _scale(plan, _outer(plan, outer[group]), _stats(plan, stats[group]))
        stored[group] = made[0]


@compiled
def dequantize_rows(plan: Any, codes: Any, table: Any, outer: Any, scales: Any, out: Any) -> None:
    """Values (rows, head_dim) float32 of codes; `table` is the value of each code.

    scales: float32 (rows, columns, parameters of a group).
    """
    columns = scales.shape[1]
    group = codes.shape[1] // columns
    for row in range(codes.shape[0]):
        around = _outer(plan, outer[row])
        for column in range(columns):
            these = codes[row, column * group : column * group + group]
            into = out[row, column * group : column * group + group]
            own = _inner(plan, scales, row, column)
            for i in range(group):
                into[i] = _value(plan, around, own, table[these[i]])

"""A recipe as a straight-line program: its text, the operations it is parsed into, and the checks on both."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import count
from textwrap import dedent
from typing import Literal

from kvformat.elements.formats import ELEMENTS
from kvformat.errors import InputError, unknown_name
from kvformat.recipes.rows import RowStep
from kvformat.recipes.store import StoreFormat, store_format
from kvformat.recipes.vocabulary import NUMBER, OVERFLOWS, PRECISIONS, WORDS, Granularity, Kind, Word, granularity

__all__ = ["NOTHING", "Level", "Operation", "Program", "Recipe", "granularity", "is_constant"]

#: how far a recipe has been proved to be what its source computes
Status = Literal["golden", "exact", "verified against the library", "read, not run", "admissible only"]

#: the distance from 1 to the next larger number
_EPS = {"float32": "1.1920928955078125e-07", "float16": "0.0009765625", "bfloat16": "0.0078125"}
#: names that programs give to other things than scales
_TAKEN = {"x": "the input", "c": "the code", "v": "the value", "e": "the error of a trial", "trial": "a level's trial"}

#: characters of a recipe's name, which reports print in one line
_LONGEST_NAME = 100

_COMPARISONS = {ast.Eq: "eq", ast.NotEq: "ne", ast.Lt: "lt", ast.LtE: "le"}


@dataclass(frozen=True)
class Operation:
    """`target = word(*operands, *attributes)`. An operand is a name, or the text of a constant such as `2688`."""

    target: str
    word: str
    operands: tuple[str, ...]
    attributes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.target} = {self.word}({', '.join((*self.operands, *self.attributes))})"


@dataclass(frozen=True)
class Program:
    """Operations in order, all in one precision. A name may be assigned again; operands mean its latest value."""

    operations: tuple[Operation, ...]
    precision: str = "float32"
    #: the text as it was written, calls nested; two programs are equal if their operations are
    text: str = field(default="", compare=False, repr=False)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.operations, self.precision))

    @classmethod
    def parse(cls, text: str, precision: str = "float32") -> Program:
        """The program that a text of `name = word(operand, ...)` lines stands for.

        Calls nest, and `a == b`, `!=`, `<`, `<=` may stand where a flag is wanted. Raises InputError for anything else.
        """
        if precision not in PRECISIONS:
            raise unknown_name("precision", precision, PRECISIONS)
        operations = _Operations(text)
        for line in filter(None, (line.strip() for line in text.splitlines())):
            _parse_line(line, operations)
        return cls(tuple(operations), precision, dedent(text).strip())

    def for_input(self, dtype: str) -> Program:
        """The program for an input of that dtype: `to(a, input)` and the constant `eps` (1 ulp of 1) made definite."""
        definite = tuple(
            replace(
                op,
                operands=tuple(_EPS[dtype] if operand == "eps" else operand for operand in op.operands),
                attributes=tuple(dtype if word == "input" else word for word in op.attributes),
            )
            for op in self.operations
        )
        precision = dtype if self.precision == "input" else self.precision
        return replace(self, operations=definite, precision=precision)

    def with_constant(self, name: str, text: str) -> Program:
        """The program with a constant in the place of a name."""
        return replace(self, operations=tuple(
            replace(op, operands=tuple(text if operand == name else operand for operand in op.operands))
            for op in self.operations
        ))  # fmt: skip

    @property
    def reductions(self) -> tuple[Operation, ...]:
        """The operations that read all elements of the group; they come first in every engine."""
        return tuple(op for op in self.operations if WORDS[op.word].reduces)

    @property
    def steps(self) -> tuple[Operation, ...]:
        """The operations on single values, in order."""
        return tuple(op for op in self.operations if not WORDS[op.word].reduces)

    def check(self, inputs: Mapping[str, Kind], result: str, kind: Kind, where: str) -> dict[str, Kind]:
        """The kind of every name after the program. Raises InputError where an operation cannot run."""
        kinds: dict[str, Kind] = {**inputs, "eps": "number"}
        for op in self.operations:
            if WORDS[op.word].reduces and (op.operands != ("x",) or op.target in kinds):
                raise InputError(f"{where}: {op}: a reduction reads x, into a name of its own")
            for operand, wanted in zip(op.operands, WORDS[op.word].operands, strict=True):
                found: Kind | None = "number" if is_constant(operand) else kinds.get(operand)
                if found is None:
                    raise InputError(f"{where}: {op}: {operand!r} has no value; known: {', '.join(sorted(kinds))}")
                if found != wanted:
                    raise InputError(f"{where}: {op}: {operand!r} is a {found}, {op.word} takes a {wanted} there")
            if op.word == "encode":
                _check_encode(op, where)
            if op.word == "fma" and self.precision not in ("float32", "float64", "real"):
                raise InputError(f"{where}: {op}: a fused product has no precision {self.precision}; write mul and add")
            kinds[op.target] = WORDS[op.word].result
        if kinds.get(result) != kind:
            raise InputError(f"{where}: the program must give a {kind} named {result!r}")
        return kinds

    def __str__(self) -> str:
        return "\n".join(map(str, self.operations))


def is_constant(operand: str) -> bool:
    """Whether an operand is the text of a number (`127`, `1e-6`, `nan`) and not a name."""
    try:
        float(operand)
    except ValueError:
        return False
    return True


class _Operations(list[Operation]):
    """The operations of a text while it is parsed, and the names for inner results that the text does not use."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._taken = set(re.findall(r"\bt[0-9]+\b", text))

    def temporary(self) -> str:
        name = next(name for name in map("t{}".format, count(len(self))) if name not in self._taken)
        self._taken.add(name)
        return name


def _parse_line(line: str, operations: _Operations) -> None:
    try:
        (statement,) = ast.parse(line).body
    except (SyntaxError, ValueError):
        raise InputError(f"recipe line {line!r} is not of the form 'name = word(operand, ...)'") from None
    match statement:
        case ast.Assign(targets=[ast.Name(id=target)], value=ast.Call() as call):
            if is_constant(target):
                raise InputError(f"recipe line {line!r}: {target!r} is a number, not a name")
            _parse_call(call, target, line, operations)
        case _:
            raise InputError(f"recipe line {line!r} is not of the form 'name = word(operand, ...)'")


def _parse_call(call: ast.Call, target: str | None, line: str, operations: _Operations) -> str:
    name = call.func.id if isinstance(call.func, ast.Name) else ast.unparse(call.func)
    if name not in WORDS:
        raise unknown_name(f"word in recipe line {line!r}:", name, WORDS)
    if call.keywords:
        raise InputError(f"recipe line {line!r}: {name} takes its arguments in order, none of them by name")
    word = WORDS[name]
    operand_count = len(word.operands)
    least, most = operand_count + word.required, operand_count + len(word.attributes)
    if not least <= len(call.args) <= most:
        raise InputError(f"recipe line {line!r}: {name} takes {least}{f'..{most}' if most > least else ''} arguments")
    operands = tuple(_parse_operand(arg, line, operations) for arg in call.args[:operand_count])
    attributes = tuple(_parse_attribute(arg, word, i, line) for i, arg in enumerate(call.args[operand_count:]))
    target = target or operations.temporary()
    operations.append(Operation(target, name, operands, attributes))
    return target


def _parse_operand(arg: ast.expr, line: str, operations: _Operations) -> str:
    match arg:
        case ast.Name(id=name):
            return name
        case (
            ast.Constant(value=int() | float())
            | ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float()))
        ):
            return ast.unparse(arg)
        case ast.Call():
            return _parse_call(arg, None, line, operations)
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
            sides = tuple(_parse_operand(side, line, operations) for side in (left, right))
            temporary = operations.temporary()
            operations.append(Operation(temporary, _COMPARISONS[type(op)], sides))
            return temporary
    raise InputError(f"recipe line {line!r}: {ast.unparse(arg)!r} is no name, number, call or comparison")


def _parse_attribute(arg: ast.expr, word: Word, index: int, line: str) -> str:
    text = ast.unparse(arg)
    if word.attributes[index] == NUMBER:
        if not is_constant(text):
            raise InputError(f"recipe line {line!r}: {word.name} takes a number there; got {text!r}")
        return text
    if text not in word.attributes[index]:
        raise unknown_name(f"attribute of {word.name} in recipe line {line!r}:", text, word.attributes[index])
    return text


NOTHING = Program(())

#: what the scale of a level is to its library: what makes values of codes, or codes of values, or the tensor's amax
Multiplier = Literal["decode", "encode", "amax"]


@dataclass(frozen=True)
class Level:
    """A quantization parameter: what shares one, how it arises, and in which format it is stored.

    The program reads `x` through reductions, the stored values of the parameters before it, and what the programs of
    those that share its groups computed on their way; it assigns `name`, unless one of those did.
    """

    name: str
    granularity: Granularity
    program: Program
    #: a float (`float32`, `float16`, `bfloat16`, `input`), or an element format and its policy as `encode` takes them
    #: (`e4m3fn`, `e8m0fnu up`)
    store: str
    #: the caller may give this parameter (k_scale, v_scale) instead of having it computed
    may_be_given: bool = False
    #: `encode`: the library stores, and is given, the multiplier that makes codes, not the one that reads them; `amax`:
    #: it is given the tensor's largest magnitude
    multiplier: Multiplier = "decode"
    #: the numbers that `trial` stands for in turn; of several, the first one with the least error is kept. `code` and
    #: `error` run for every trial. A NaN is never less.
    trials: tuple[str, ...] = ()
    #: adds one element's error to `e`, which starts at 0 and goes through the elements in order; reads what `code` left
    error: Program = NOTHING
    #: computed from the codes, which do not depend on it: `sums` goes through the elements in order, reads x, c and
    #: what `code` left, and adds to names that start at 0; the program reads those sums
    after: bool = False
    sums: Program = NOTHING

    def __hash__(self) -> int:
        return hash((self.name, self.store, self.program))

    def settled(self, trial: str) -> Level:
        """The level with one of its trials."""
        program, error = (each.with_constant("trial", trial) for each in (self.program, self.error))
        return replace(self, program=program, error=error, trials=(trial,))

    @property
    def format(self) -> StoreFormat:
        """The format that the parameter is stored in."""
        return store_format(self.store)

    @property
    def storing(self) -> Operation:
        """The operation that stores the parameter in its element format."""
        return Operation(self.name, "encode", (self.name,), (self.format.name, *self.format.policy))

    @property
    def totals(self) -> tuple[str, ...]:
        """The names that `sums` adds to, in order: those it reads before it assigns them, and assigns."""
        targets = {operation.target for operation in self.sums.operations}
        made, found = set[str](), list[str]()
        for operation in self.sums.operations:
            found += [each for each in operation.operands if each in targets - made and each not in found]
            made.add(operation.target)
        return tuple(found)


@dataclass(frozen=True)
class Recipe:
    """The complete arithmetic from K or V to codes and parameters, and back. Plain data: every engine reads it.

    `code` reads `x` and the STORED value of every level, and assigns `c`. `value` reads `c`, the value of the code, and
    the stored scales, and assigns `v`. Raises InputError if an operation cannot run.
    """

    name: str
    mode: str
    #: element format of the codes; None: the values themselves, in the cache's own dtype
    element: str | None
    levels: tuple[Level, ...]
    code: Program
    value: Program
    source: str
    status: Status
    #: what its users should know, for the pages
    notes: str = field(default="", compare=False)
    #: what is done to each row before everything else
    prepare: tuple[RowStep, ...] = ()
    #: a flag that a program of the group computes: where it holds, the library leaves the codes as they were
    undefined: str = ""

    def __hash__(self) -> int:
        # equal recipes have an equal one; that of all operations takes longer than what is looked up by it
        return hash((self.name, self.element))

    def __post_init__(self) -> None:
        if not 1 <= len(self.name.strip()) <= 100 or not self.name.isprintable():
            raise InputError(f"a recipe's name is 1 to 100 printable characters; got {self.name!r:.120}")
        if self.prepare and self.prepare[-1].word != "to":
            raise InputError(f"recipe {self.name}: the last thing done to a row is 'x = to(x, input)'")
        if self.prepare and not all(level.granularity.within_row for level in self.levels):
            raise InputError(f"recipe {self.name}: rows can be prepared only where no scale is shared across rows")
        _check_levels(self.levels, f"recipe {self.name}")
        kinds = self._check_parameters()
        if self.undefined and kinds.get(self.undefined) != "flag":
            raise InputError(f"recipe {self.name}: undefined must name a flag of a scale; got {self.undefined!r}")
        if self.element is not None:
            after = self.code.check({**kinds, "x": "number"}, "c", "code", f"recipe {self.name}, code")
            if self.inner and self.inner.trials:
                where = f"recipe {self.name}, error"
                if all(operation.target != "e" for operation in self.inner.error.operations):
                    raise InputError(f"{where}: the program must add to 'e'")
                self.inner.error.check({**after, "c": "number", "e": "number"}, "e", "number", where)
            for level in self.after:
                _check_after(level, kinds, after, f"recipe {self.name}, scale {level.name}")
            last = next(op for op in reversed(self.code.operations) if op.target == "c")
            if last.attributes[0] != self.element:
                raise InputError(f"recipe {self.name}, code: {last}: the codes are {self.element}")
            stored: dict[str, Kind] = {level.name: "number" for level in self.levels}
            self.value.check({**stored, "c": "number"}, "v", "number", f"recipe {self.name}, value")

    def _check_parameters(self) -> dict[str, Kind]:
        """The kind of every name that the code can read."""
        kinds: dict[str, Kind] = {}
        for level in self.levels:
            where = f"recipe {self.name}, scale {level.name}"
            _check_store(level, where)
            _check_reach(level, where)
            if level.after:
                continue
            trial: dict[str, Kind] = {"trial": "number"} if level.trials else {}
            inside = level.program.check({**kinds, **trial, "x": "group"}, level.name, "number", where)
            # what a level of the group computed on its way (the scale before it is stored, say) is there for the code
            kinds.update(inside if level in self.group else {level.name: "number"})
            kinds.pop("x", None)
        return kinds

    def for_input(self, dtype: str) -> Recipe:
        """The recipe for an input of that dtype, its dtype-dependent words made definite."""
        return _definite(self, dtype)

    def tried(self) -> tuple[Recipe, ...]:
        """The recipe in each of its trials; itself where it has none."""
        inner = self.inner
        if inner is None or not inner.trials:
            return (self,)
        return tuple(
            replace(self, levels=(*self.outer, inner.settled(trial)), code=self.code.with_constant("trial", trial))
            for trial in inner.trials
        )

    @cached_property
    def share(self) -> Granularity | None:
        """What shares the finest parameters; None where there are none, or all are shared by whole rows."""
        if not self.levels or all(level.granularity.of_rows and not level.granularity.within_row
                                  for level in self.levels):  # fmt: skip
            return None
        return self.levels[-1].granularity

    @cached_property
    def outer(self) -> tuple[Level, ...]:
        """The levels whose parameters are shared by several groups, outermost first."""
        return tuple(level for level in self.levels if level.granularity != self.share)

    @cached_property
    def group(self) -> tuple[Level, ...]:
        """The levels that share the finest groups, and from which codes are made."""
        return tuple(level for level in self.levels if level.granularity == self.share and not level.after)

    @property
    def after(self) -> tuple[Level, ...]:
        """The levels that are computed from the codes."""
        return tuple(level for level in self.levels if level.after)

    @cached_property
    def inner(self) -> Level | None:
        """The first level of the finest groups, if there are such."""
        return self.group[0] if self.group else None

    @property
    def in_page(self) -> dict[str, Level]:
        """The parameters of the finest groups by what they are called in a page: `scale` the first, others by name."""
        inner = (*self.group, *self.after)
        return {level.name if index else "scale": level for index, level in enumerate(inner)}

    @property
    def within_rows(self) -> bool:
        """Whether all a page holds beside the codes belongs to groups within a row, several parameters to a group."""
        return (
            all(level.granularity.of_rows or level.granularity.within_row for level in self.levels)
            and not self.after
            and not self.undefined
            and not any(level.granularity.within_row for level in self.outer)
            and not any(level.may_be_given for level in self.group)
        )

    @property
    def one_scale_a_group(self) -> bool:
        """Whether all a page holds beside the codes is at most one parameter for each group within a row.

        What reads pages without asking for more (`diagnose`, `lint`, `fuzz`, Triton kernels) needs this.
        """
        return len(self.group) <= 1 and self.within_rows


def needs_one_scale(recipe: Recipe, who: str) -> None:
    """Raises InputError if `who` cannot take the recipe because it stores more than one scale for each group."""
    if not recipe.one_scale_a_group:
        kept = ", ".join(f"{level.name} {level.granularity.name}" for level in recipe.levels)
        raise InputError(
            f"recipe {recipe.name} stores {kept}; {who} takes recipes with one scale for each group of a row"
        )


def _check_after(level: Level, kinds: Mapping[str, Kind], coded: Mapping[str, Kind], where: str) -> None:
    totals: dict[str, Kind] = dict.fromkeys(level.totals, "number")
    result = level.totals[-1] if level.totals else "e"
    level.sums.check({**coded, "c": "number", **totals}, result, "number", f"{where}, sums")
    level.program.check({**kinds, **totals}, level.name, "number", where)


def _check_levels(levels: tuple[Level, ...], where: str) -> None:
    names = [level.name for level in levels]
    for name in names:
        if name in _TAKEN:
            raise InputError(f"{where}: a scale cannot be named {name!r}, which is {_TAKEN[name]}")
        if names.count(name) > 1:
            raise InputError(f"{where}: two scales are named {name!r}; each needs a name of its own")
    finest = levels[-1].granularity if levels else None
    for level in levels:
        share = level.granularity
        rows = finest is not None and finest.of_rows and not finest.within_row and share.of_rows
        if finest is not None and not rows and not share.covers(finest):
            inside = share.within_row and not finest.within_row
            why = (
                f"scale {level.name} lies within a row and {names[-1]} does not"
                if inside
                else f"{levels[-1].name} of {finest.name} does not divide {level.name} of {share.name}"
            )
            raise InputError(f"{where}: {why}; outer scales come first")
        if level.after and (share != finest or finest is None):
            raise InputError(f"{where}: scale {level.name} is made from codes; it belongs to the finest groups")
    trials = [level.name for level in levels if level.trials]
    if trials and sum(level.granularity == finest for level in levels) > 1:
        raise InputError(f"{where}: scale {trials[0]} has trials; no other scale can share its groups")


def _check_store(level: Level, where: str) -> None:
    try:
        store = level.format
    except InputError as error:
        raise InputError(str(error).replace("store format:", f"store format in {where}:")) from None
    if store.element is not None:
        _check_encode(level.storing, where)
    elif level.program.precision == "real":
        raise InputError(
            f"{where}: a real number stored as float32 would round twice in the engine; store an element format"
        )


#: reductions of which the largest over parts is that of the whole
COMBINING = ("amax_finite", "amax_number", "amax", "any_nan", "largest")


def _check_reach(level: Level, where: str) -> None:
    share = level.granularity
    if level.after and (level.program.reductions or level.trials or level.may_be_given):
        raise InputError(f"{where}: what is made from codes reads its own sums; no reduction, trial or given number")
    for operation in level.program.reductions:
        if share.of_rows and not share.within_row and operation.word not in COMBINING:
            raise InputError(
                f"{where}: {operation}: parts of a tensor combine by maximum; {operation.word} needs a row"
            )
    if level.trials and not share.within_row:
        raise InputError(f"{where}: trials are for a scale within a row")
    if any(not is_constant(trial) for trial in level.trials):
        raise InputError(f"{where}: trials are numbers; got {', '.join(level.trials)}")


def _check_encode(encode: Operation, where: str) -> None:
    name, *policy = encode.attributes
    fmt, roundings = ELEMENTS[name], [word for word in policy if word not in OVERFLOWS]
    if fmt.rounding_required and not roundings:
        raise InputError(f"{where}: {encode}: {name} needs a rounding by name: {', '.join(fmt.roundings)}")
    known = fmt.roundings if fmt.rounding_required else (*fmt.roundings, "nearest_away", "nearest_toward_zero")
    for word in roundings:
        if word not in known:
            raise InputError(f"{where}: {encode}: {name} knows the rounding {', '.join(known)}; got {word!r}")


@lru_cache(maxsize=1024)  # every call of `quantize` asks: 0.3 ms a time otherwise
def _definite(how: Recipe, dtype: str) -> Recipe:
    levels = tuple(
        replace(
            level,
            program=level.program.for_input(dtype),
            sums=level.sums.for_input(dtype),
            store=str(level.format.for_input(dtype)),
        )
        for level in how.levels
    )
    prepare = tuple(replace(step, argument=dtype) if step.argument == "input" else step for step in how.prepare)
    code, value = how.code.for_input(dtype), how.value.for_input(dtype)
    made = replace(how, levels=levels, code=code, value=value, prepare=prepare)
    return how if made == how else made

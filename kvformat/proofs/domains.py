"""Complete domains: every input that decides the codes and scales of a recipe, cut into pure tasks.

A recipe whose scale lies within a row is decided by pairs (largest magnitude of the row, x): all of them are 2^30 in
bfloat16. One whose scale is given is decided by pairs (scale, x), of which the ratio alone counts. One with a block
scale stored in few bits is decided by (global scale, block scale's code, x) and by (global scale, largest magnitude).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import isqrt
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from kvformat.elements.formats import element
from kvformat.errors import InputError, unknown_name
from kvformat.proofs.homogeneous import why_not
from kvformat.proofs.monotone import why_not as not_monotone
from kvformat.recipes.admissible import is_approximate
from kvformat.recipes.program import Level, Program, Recipe, granularity
from kvformat.recipes.quantizer import quantize

Array = NDArray[Any]

#: dtypes of K and V whose values can be enumerated: finite positive patterns are 0 .. last
DTYPES = {"bfloat16": (ml_dtypes.bfloat16, 0x7F7F), "float16": (np.float16, 0x7BFF)}
#: reductions that depend on the largest magnitude of finite elements, and on NaN, alone
_BY_AMAX = frozenset({"amax", "amax_finite", "amax_number", "any_nan"})
#: elements in one call: some 10 ms of work
_AT_ONCE = 1 << 21
#: significands of x whose borders are searched in one task
_SIGNIFICANDS = 32
#: 64 global scales: amax_tensor / 2688 for bfloat16 amax from 2^-7 to 2^9, four to an octave
GLOBAL_SCALES = tuple(
    float(np.float32(value) / np.float32(2688))
    for value in (0x3C00 + 32 * np.arange(64)).astype(np.uint16).view(ml_dtypes.bfloat16)
)


@dataclass(frozen=True)
class Stretch:
    """A piece of a domain: rows of inputs and what is given with them. Pure: the same piece gives the same rows.

    kind: which of the domains below; start, stop: its range there; given: a global scale.
    """

    kind: str
    dtype: str
    start: int
    stop: int
    given: float | None = None

    def __str__(self) -> str:
        beside = "" if self.given is None else f" at global scale {self.given!r}"
        return f"{self.kind} {self.start} to {self.stop} of {self.dtype}{beside}"


@dataclass(frozen=True)
class Rows:
    """Inputs of one call. x: (rows, 1, width); counted: which elements are part of the domain, bool (rows, width)."""

    x: Array
    counted: NDArray[np.bool_]
    given: float | None = None


@dataclass(frozen=True)
class Domain:
    """What is enumerated for a pair of recipes.

    says: in words, with the argument that makes it complete. per_row: the recipes as they are run.
    """

    kind: str
    dtype: str
    says: tuple[str, ...]
    left: Recipe
    right: Recipe
    #: global scales that are tried, for the blocks
    given: tuple[float | None, ...] = (None,)

    def tasks(self) -> Iterator[Stretch]:
        """The whole domain, piece by piece."""
        last = DTYPES[self.dtype][1]
        if self.kind == "rows":
            start = 0
            while start <= last:
                # n rows of width 2 (start + n)
                rows = (isqrt(start * start + 2 * _AT_ONCE) - start) // 2
                stop = min(last + 1, start + max(1, rows))
                yield Stretch("rows", self.dtype, start, stop)
                start = stop
        elif self.kind == "borders":
            for start in range(0, len(significands(self.dtype)), _SIGNIFICANDS):
                yield Stretch("borders", self.dtype, start, start + _SIGNIFICANDS)
        elif self.kind == "given":
            width = _ratio_width(self)
            step = max(1, _AT_ONCE // width)
            for start in range(0, 1 << 23, step):
                yield Stretch("given", self.dtype, start, min(1 << 23, start + step))
        else:
            for given in self.given:
                yield Stretch("amaxes", self.dtype, 0, last + 1, given)
                yield Stretch("blocks", self.dtype, 0, 1 << 8, given)


def domain(left: Recipe, right: Recipe, dtype: str = "bfloat16", given: tuple[float, ...] = GLOBAL_SCALES) -> Domain:
    """The complete domain that decides two recipes.

    Parameters
    ----------
    left, right : Recipe
        Of one mode, storing the same kinds of codes and scales.
    dtype : {"bfloat16", "float16"}
        Of K and V.
    given : tuple of float
        Global scales that are tried where a recipe has one: this part of the domain is a stated set.

    Raises
    ------
    InputError
        For recipes whose bytes depend on more than can be enumerated; the message says on what.

    """
    if dtype not in DTYPES:
        raise unknown_name("dtype of a proof", dtype, DTYPES)
    if left.mode != right.mode or left.element is None or right.element is None:
        raise InputError(f"{left.name} and {right.name} do not store codes of one mode")
    if _stores(left) != _stores(right):
        raise InputError(f"{left.name} and {right.name} do not store the same kinds of codes and scales")
    left, right = left.for_input(dtype), right.for_input(dtype)
    for each in (left, right):
        _check(each)
    if left.inner is None:
        return _given_domain(left, right, dtype)
    if not left.inner.granularity.dims:
        pairs = f"all pairs of a finite {dtype} x and the row's largest magnitude, a finite {dtype} number, x included"
        return Domain("rows", dtype, (pairs, "a scale depends on that magnitude, a code on it and on x"), left, right)
    for each in (left, right):
        _check_reads(each)
    stated = f"global scales: {len(given)} stated ones" if left.outer else "no global scale"
    says = (
        f"{stated}; for each, all finite {dtype} largest magnitudes of a block, and all pairs of a scale's code and x",
        "a block scale depends on that magnitude and the global scale, a code on x and the stored scales alone",
    )
    return Domain("blocks", dtype, says, left, right, tuple(given) if left.outer else (None,))


def _given_domain(left: Recipe, right: Recipe, dtype: str) -> Domain:
    for each in (left, right):
        (level,) = each.outer
        reason = why_not(each.code, level.name)
        if reason:
            raise InputError(f"{each.name}: its code depends on more than x / {level.name}: {reason}")
    mixed = [why for each in (left, right) if (why := not_monotone(each.code, each.outer[0].name))]
    says = (
        f"all ratios of a normal {dtype} x to a normal float32 scale: 2^23 significands by all of x by the exponents",
        "both programs are homogeneous: x and the scale times 2^k give the same code, for scales from 2^-100 to 2^100",
    )
    if mixed:
        return Domain("given", dtype, (*says, f"enumerated pair by pair: {mixed[0]}"), _per_row(left), _per_row(right))
    argument = (
        "both programs are monotone: of one x the code's magnitude falls as the scale grows, as each word keeps or"
        " turns the order; the scales at which a code changes are found by bisection, and nothing changes between them"
    )
    return Domain("borders", dtype, (*says, argument), _per_row(left), _per_row(right))


def rows_of(task: Stretch, domain: Domain) -> Iterator[Rows]:
    """The inputs of a task."""
    if task.kind == "rows":
        yield _all_of_rows(task)
    elif task.kind == "given":
        yield _ratios(task, domain)
    elif task.kind == "amaxes":
        yield _amaxes(task, domain)
    else:
        yield from _codes_of_blocks(task, domain)


def _finite(dtype: str, last: int) -> Array:
    """0, -0, and then x and -x, of patterns 0 .. last."""
    kind, _ = DTYPES[dtype]
    patterns = np.arange(last + 1, dtype=np.uint16).repeat(2)
    patterns[1::2] |= 0x8000
    return patterns.view(kind)


def _all_of_rows(task: Stretch) -> Rows:
    """One row per largest magnitude, start .. stop - 1, with all x that are no larger."""
    x = np.broadcast_to(_finite(task.dtype, task.stop - 1), (task.stop - task.start, 2 * task.stop))
    counted = np.arange(2 * task.stop) < 2 * (np.arange(task.start, task.stop)[:, None] + 1)
    return Rows(np.where(counted, x, x.dtype.type(0))[:, None], counted)


def _amaxes(task: Stretch, domain: Domain) -> Rows:
    """One block per largest magnitude: it alone, and zeros."""
    assert domain.left.inner is not None
    width = domain.left.inner.granularity.dims
    x = np.zeros((task.stop - task.start, 1, width), DTYPES[task.dtype][0])
    x[:, 0, 0] = np.arange(task.start, task.stop, dtype=np.uint16).view(x.dtype)
    counted = np.zeros((len(x), width), np.bool_)
    counted[:, 0] = True
    return Rows(x, counted, task.given)


def _codes_of_blocks(task: Stretch, domain: Domain) -> Iterator[Rows]:
    """For each code of the block scale that both recipes store, all x up to the largest magnitude that stores it."""
    amaxes = _amaxes(replace(task, start=0, stop=DTYPES[task.dtype][1] + 1), domain)
    stored = [_run(each, amaxes).scales.reshape(len(amaxes.x)) for each in (domain.left, domain.right)]
    alike = np.flatnonzero(stored[0] == stored[1])
    width = amaxes.x.shape[2]
    for code in np.unique(stored[0][alike]):
        top = int(alike[stored[0][alike] == code].max())
        values = _finite(task.dtype, top)
        blocks = -(-len(values) // (width - 1))
        x = np.zeros((blocks, 1, width), values.dtype)
        x[:, 0, 0] = values[-2]  # the largest magnitude, which makes the scale
        padded = np.zeros(blocks * (width - 1), values.dtype)
        padded[: len(values)] = values
        x[:, 0, 1:] = padded.reshape(blocks, width - 1)
        counted = np.zeros((blocks, width), np.bool_)
        counted[:, 1:] = (np.arange(padded.size) < len(values)).reshape(blocks, width - 1)
        yield Rows(x, counted, task.given)


#: how far x is below the scale that a row of `_ratios` carries: beyond every ratio that reaches a code
LIFT = 40


def _per_row(recipe: Recipe) -> Recipe:
    """The recipe with its given scale in the row itself: the first element is the scale times 2^40."""
    (level,) = recipe.outer
    carried = Program.parse(f"{level.name} = mul(amax(x), {2.0**-LIFT!r})")
    inner = Level(level.name, granularity("per_token_head"), carried, "float32")
    return replace(recipe, name=f"{recipe.name}, scale given", levels=(inner,))


def exponents(domain: Domain) -> range:
    """Exponents of x, s in [1, 2): from where x / s rounds to 0 to where it is beyond the largest."""
    fmt = element(str(domain.left.element))
    smallest, largest = np.log2(float(fmt.min_subnormal)), np.log2(float(fmt.max))
    return range(int(np.floor(smallest)) - 2, int(np.ceil(largest)) + 2)


def significands(dtype: str) -> Array:
    """The significands of normal numbers, in [1, 2)."""
    bits = {"bfloat16": 7, "float16": 10}[dtype]
    return np.float32(1) + np.arange(1 << bits, dtype=np.float32) / np.float32(1 << bits)


def _ratio_width(domain: Domain) -> int:
    return 1 + 2 * len(exponents(domain)) * len(significands(domain.dtype))


def _ratios(task: Stretch, domain: Domain) -> Rows:
    """One row per significand of the scale, with every x whose ratio to it can reach a code, of both signs."""
    sizes = np.concatenate([significands(task.dtype) * np.float32(2.0**e) for e in exponents(domain)])
    values = np.concatenate([sizes, -sizes])
    scales = np.arange(task.start, task.stop, dtype=np.float32) * np.float32(2.0**-23) + np.float32(1)
    x = np.empty((len(scales), 1, 1 + len(values)), np.float32)
    x[:, 0, 0] = scales * np.float32(2.0**LIFT)
    x[:, 0, 1:] = values
    counted = np.ones((len(scales), x.shape[2]), np.bool_)
    counted[:, 0] = False
    return Rows(x, counted)


def _run(recipe: Recipe, rows: Rows) -> Any:
    return quantize(rows.x, recipe, scale=rows.given)


def _check(recipe: Recipe) -> None:
    """Raises InputError for what no enumeration of pairs decides."""
    if is_approximate(recipe):
        raise InputError(f"{recipe.name} has approximate instructions: its bytes are a set, and no proof is about sets")
    if recipe.prepare:
        raise InputError(f"{recipe.name} transforms whole rows ({recipe.prepare[0].word}): codes depend on all of them")
    if recipe.inner is not None and recipe.inner.trials:
        raise InputError(f"{recipe.name} tries several scales by their error: a scale depends on every element")
    for level in recipe.levels:
        other = [op.word for op in level.program.reductions if op.word not in _BY_AMAX]
        if other:
            raise InputError(f"{recipe.name}: scale {level.name} depends on {other[0]}, not on the largest |x| alone")
    if recipe.inner is None and not any(level.may_be_given for level in recipe.levels):
        raise InputError(f"{recipe.name} has one scale for all and computes it: prove the one with a given scale")


def _check_reads(recipe: Recipe) -> None:
    """Raises InputError where a code reads what was computed before the block scale was stored."""
    stored = {"x", *(level.name for level in recipe.levels)}
    assigned: set[str] = set()
    for operation in recipe.code.operations:
        before = [each for each in operation.operands if each.isidentifier() and each not in stored | assigned]
        before = [each for each in before if each not in ("nan", "inf")]
        if before:
            raise InputError(f"{recipe.name}: its code reads {before[0]}, computed before the scale was stored")
        assigned.add(operation.target)


def _stores(recipe: Recipe) -> Any:
    inner = recipe.inner
    return recipe.element, None if inner is None else (inner.store.split()[0], inner.granularity), len(recipe.outer)

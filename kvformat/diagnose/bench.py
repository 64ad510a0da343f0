"""What a writer with a fault makes of K and V: a recipe run in NumPy on a few tokens, with its departures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvformat.cache import covering
from kvformat.diagnose.canvas import unpacked
from kvformat.diagnose.edits import edited
from kvformat.diagnose.fault import RIGHT, Source, Variant
from kvformat.diagnose.remaps import Frame, in_mode_none, laid, right_places
from kvformat.diagnose.rows import BINARY, Rows, binary_shape
from kvformat.diagnose.scopes import OUTER_SCOPES, SCOPES, Scene
from kvformat.diagnose.values import expression, moved, parsed, spread, where
from kvformat.dump.dump import Dump
from kvformat.elements.formats import element
from kvformat.layouts import Segment
from kvformat.recipes.admissible import trial_error
from kvformat.recipes.intervals import (
    Interval,
    Value,
    codes_inside,
    holds,
    kept,
    narrowed,
    patterns,
    points,
    read,
    run,
    written,
)
from kvformat.recipes.program import Level, Recipe
from kvformat.recipes.rows import prepared
from kvformat.verify.identify import SIDES, Side, as_given, extremes, extremes_of_heads

Array = NDArray[Any]
Mask = NDArray[np.bool_]
Known = dict[str, Value]

#: bytes of pages up to which unquantized ones are tried
_PAINTED = 1 << 26


@dataclass(frozen=True)
class Piece:
    """What of each token is made: some dims of a head, of the K and V that lie where they should, or elsewhere."""

    start: int = 0
    stop: int | None = None
    source: Source = field(default_factory=Source)


class Bench:
    """A dump's tokens, widened, with what their per-tensor scales are made of."""

    def __init__(self, dump: Dump, declared: Recipe, tokens: NDArray[np.int64], piece: Piece | None = None) -> None:
        self.dump = dump
        self.declared = declared
        self.tokens = tokens
        self.piece = piece or Piece()
        self._x: dict[tuple[Side, int | None], tuple[Array, Mask | None]] = {}
        self._extremes: dict[tuple[Side, bool], Array] = {}
        self._heads: dict[Side, Array] = {}
        self._of: dict[Piece, Bench] = {}
        self._outers: dict[Any, Known | None] = {}
        self._scaled: dict[Any, Known | None] = {}

    def on(self, tokens: NDArray[np.int64]) -> Bench:
        """The same dump's other tokens; what was found out about all of them is kept."""
        return self._like(tokens, self.piece)

    def of(self, piece: Piece) -> Bench:
        """The same tokens, of each head some dims only, or made of the K and V of another place."""
        if piece not in self._of:
            self._of[piece] = self._like(self.tokens, piece)
        return self._of[piece]

    def _like(self, tokens: NDArray[np.int64], piece: Piece) -> Bench:
        other = Bench(self.dump, self.declared, tokens, piece)
        other._extremes, other._heads = self._extremes, self._heads
        return other

    def x(self, side: Side, step: int | None = 0) -> tuple[Array, Mask | None]:
        """The tokens `step` further, float32 (tokens, heads, dims), and which of them exist; None: the first token."""
        key = side, step
        if key not in self._x:
            at = self.piece.source
            wanted = np.zeros_like(self.tokens) if step is None else self.tokens + (step + at.tokens)
            exist = (wanted >= 0) & (wanted < self.dump.tokens)
            held = self.dump.key if (side == "k") != at.other_side else self.dump.value
            rows = held[np.where(exist, wanted, 0)]
            if at.heads:
                rows = rows[:, at.heads_of(rows.shape[1])]
            rows = np.ascontiguousarray(rows[..., self.piece.start : self.piece.stop]).astype(np.float32)
            if self.declared.prepare:
                rows = prepared(self.declared.prepare, rows).astype(np.float32)
            self._x[key] = rows, None if exist.all() else exist
        return self._x[key]

    def extremes(self, side: Side, *, written: bool = False) -> Array:
        """A few elements that reduce to what all rows of a side do; `written`: only rows that have a slot."""
        if (side, written) not in self._extremes:
            self._extremes[side, written] = extremes(self.dump, side, written=written)
        return self._extremes[side, written]

    def of_heads(self, side: Side) -> Array:
        """By head, elements that reduce to what its rows do: float32 (1, heads, 2 * dims + 3)."""
        if side not in self._heads:
            self._heads[side] = extremes_of_heads(self.dump, side)
        return self._heads[side]

    # --- one side by one variant --------------------------------------------------------------------------------

    def pieces(
        self, side: Side, recipe: Recipe, variant: Variant = RIGHT, fitted: np.float32 | None = None
    ) -> list[tuple[Segment, Rows]] | None:
        """What a writer makes of the tokens, by the recipes along a head; None where the variant does not apply.

        A variant is one of the page's recipe: dims that have a recipe of their own are made as that says, of the K and
        V that the variant takes.
        """
        made = []
        for segment in self.dump.layout.segments(side):
            bench = self.of(Piece(segment.dims.start, segment.dims.stop, variant.source))
            if variant.source.other_side and not self._sides_alike:
                return None
            how, _ = covering(segment, recipe, None)
            plain = bool(segment.recipe)
            rows = bench.rows(
                side, how.for_input(self.dump.key.dtype.name) if plain else how, RIGHT if plain else variant,
                None if plain else fitted, segment.codes[0].dtype,
            )  # fmt: skip
            if rows is None:
                return None
            made.append((segment, rows))
        return made

    @property
    def _sides_alike(self) -> bool:
        layout = self.dump.layout
        return len(layout.sides) == len(SIDES) and layout.head_size == layout.head_size_v

    def rows(
        self, side: Side, recipe: Recipe, variant: Variant = RIGHT, fitted: np.float32 | None = None, dtype: str = ""
    ) -> Rows | None:
        """What a writer makes of the tokens; None where the variant does not apply to the recipe.

        dtype: of the values, where the recipe stores those.
        """
        if variant.source.departs and not self.piece.source.departs:
            return self.of(replace(self.piece, source=variant.source)).rows(side, recipe, variant, fitted, dtype)
        how = edited(recipe, variant.edit)
        if variant.unquantized:
            return self._unquantized(side, recipe, variant.unquantized) if self.dump.layout.uniform else None
        if recipe.element is None:
            return self._values(side, variant, dtype or self.dump.layout.dtype or "bfloat16")
        if how is None:
            return None
        made = self._run(side, how, variant, fitted, bounds=False)
        if made is None:
            return None
        codes, stored, known = made
        assert how.element is not None
        fmt = element(how.element)
        x, _ = self.x(side)
        return Rows(
            np.broadcast_to(patterns(codes, fmt), _grouped(x, how).shape).reshape(x.shape),
            fmt.bits,
            _page_bytes(stored, how.inner, x.shape),
            "" if how.inner is None else how.inner.store.split()[0],
            how.element,
            known,
            variant.stored == "?",
        )

    def allowed(
        self, side: Side, recipe: Recipe, variant: Variant, found: Array, scales: Array
    ) -> tuple[Mask, Mask, int] | None:
        """Where found scales (tokens, heads, columns), as stored, and codes may be a recipe's with approximate words.

        Two masks of the shapes of `scales` and `found`, and how many scales and codes have several values to choose
        from. A code is judged with the scale that was found.
        """
        how = edited(recipe, variant.edit)
        if how is None or how.element is None:
            return None
        masks = []
        several = 0
        for settled in how.tried():
            made = self._run(side, settled, variant, None, bounds=True, found=scales)
            if made is None:
                return None
            codes, stored, _ = made
            good = codes_inside(_grouped(found, how), element(how.element), codes).reshape(found.shape)
            scale = np.ones(scales.shape, bool)
            if how.inner is not None and variant.stored != "?":
                scale = _scale_inside(scales, stored, how.inner)
            masks.append((scale, good))
            ranges = (codes,) if stored is None else (codes, stored)
            several = max(several, sum(int(np.count_nonzero(each.low != each.high)) for each in ranges))
        return np.any([scale for scale, _ in masks], axis=0), np.any([code for _, code in masks], axis=0), several

    def _run(
        self,
        side: Side,
        how: Recipe,
        variant: Variant,
        fitted: np.float32 | None,
        *,
        bounds: bool,
        found: Array | None = None,
    ) -> tuple[Interval, Interval | None, Mask | None] | None:
        """Keys of the codes, the stored scale (keys or float32), and which tokens are known."""
        x, known = self.x(side)
        outer = self._outer(side, how, variant, fitted)
        if outer is None:
            return None
        groups = _grouped(x, how)
        if how.inner is None:
            if variant.scope not in OUTER_SCOPES or variant.used or variant.stored or variant.borrow:
                return None
            return _code(how, {**outer, "x": points(groups)}, groups, bounds=bounds), None, known
        best: tuple[Interval, Interval, Interval] | None = None
        for settled in how.tried():
            made = self._inner(side, settled, outer, variant, bounds=bounds, found=found)
            if made is None:
                return None
            codes, stored, error, exist = made
            known = exist if known is None else known if exist is None else known & exist
            if best is None:
                best = codes, stored, error
            else:
                better = error.low < best[2].low
                best = where(better, codes, best[0]), where(better, stored, best[1]), where(better, error, best[2])
        assert best is not None
        return best[0], best[1], known

    def _inner(
        self, side: Side, how: Recipe, outer: Known, variant: Variant, *, bounds: bool, found: Array | None
    ) -> tuple[Interval, Interval, Interval, Mask | None] | None:
        """Codes, stored scale and error of one trial."""
        level = how.inner
        assert level is not None
        x, _ = self.x(side)
        groups = _grouped(x, how)
        own = self._scales(side, how, outer, variant, 0, bounds=bounds)
        if own is None:
            return None
        borrow, exist, other = variant.borrow, None, own
        if borrow is not None:
            taken = self._borrowed(side, how, outer, variant, own, bounds=bounds)
            if taken is None:
                return None
            other, exist = taken
        stored = (other if borrow and borrow.stage in ("stored", "both") else own)[_STORED]
        used = dict(other if borrow and borrow.stage in ("used", "both") else own)
        assert isinstance(stored, Interval)
        if variant.stored and variant.stored != "?":
            value = expression(variant.stored, {**outer, "s": used[level.name], "exact": used[_EXACT]}, bounds=bounds)
            stored = kept(level, value)
        elif found is not None and not borrow:
            used[level.name] = _found_value(found, level)
        if variant.used:
            inputs = {**outer, "s": used[level.name], "exact": used[_EXACT]}
            used[level.name] = expression(variant.used, inputs, bounds=bounds)
        stored = spread(stored, groups.shape[:-1])
        everything = {**used, **outer, "x": points(groups)}
        if len(level.trials) == 0:
            return _code(how, everything, groups, bounds=bounds), stored, points(np.zeros((1, 1, 1, 1))), exist
        error = trial_error(how, {**used, **outer, "x": points(groups)}, groups, bounds=bounds)
        return _code(how, everything, groups, bounds=bounds), stored, error, exist

    def _scales(
        self, side: Side, how: Recipe, outer: Known, variant: Variant, step: int | None, *, bounds: bool
    ) -> Known | None:
        """The level's program on the tokens `step` further: all its names, the stored scale and the one before it."""
        scope = variant.scope if variant.scope in SCOPES else ""
        # `outer` is one object for all variants that have the same, kept in `_outers`
        key = side, how.inner, id(outer), scope, step, bounds
        if key not in self._scaled:
            self._scaled[key] = self._run_scales(side, how, outer, scope, step, bounds=bounds)
        return self._scaled[key]

    def _run_scales(
        self, side: Side, how: Recipe, outer: Known, scope: str, step: int | None, *, bounds: bool
    ) -> Known | None:
        level = how.inner
        assert level is not None
        x, _ = self.x(side, step)
        groups = _grouped(x, how)
        elements = SCOPES[scope](Scene(self, side, step, groups)) if scope else groups
        if elements is None:
            return None
        known: Known = run(level.program, outer, elements, bounds=bounds)
        exact = known[level.name]
        assert isinstance(exact, Interval)
        known[_EXACT] = exact
        stored = known[_STORED] = kept(level, exact)
        known[level.name] = read(level, stored)
        return {name: spread(value, groups.shape[:-1]) for name, value in known.items() if name not in outer}

    def _borrowed(
        self, side: Side, how: Recipe, outer: Known, variant: Variant, own: Known, *, bounds: bool
    ) -> tuple[Known, Mask | None] | None:
        """The scales that the variant takes, and for which tokens there are some."""
        borrow = variant.borrow
        assert borrow is not None
        if borrow.axis == "token":
            step = borrow.step or None
            scales = self._scales(side, how, outer, variant, step, bounds=bounds)
            return None if scales is None else (scales, self.x(side, step)[1])
        if borrow.axis == "side":
            other = SIDES[1 - SIDES.index(side)]
            if not self._sides_alike:
                return None
            theirs = self._outer(other, how, RIGHT, None)
            if theirs is None:
                return None
            scales = self._scales(other, how, theirs, variant, 0, bounds=bounds)
            return None if scales is None else (scales, None)
        axis = {"head": 1, "block": 2}[borrow.axis]
        return {name: moved(value, axis, borrow.step) for name, value in own.items()}, None

    def _outer(self, side: Side, how: Recipe, variant: Variant, fitted: np.float32 | None) -> Known | None:
        """The per-tensor scales by name."""
        scope = variant.scope if variant.scope in OUTER_SCOPES else ""
        key = side, how.outer, variant.tensor, scope, fitted
        if key not in self._outers:
            self._outers[key] = self._run_outer(side, how, variant, fitted)
        return self._outers[key]

    def _run_outer(self, side: Side, how: Recipe, variant: Variant, fitted: np.float32 | None) -> Known | None:
        known: Known = {}
        other = SIDES[1 - SIDES.index(side)]
        borrows = variant.tensor == "other"
        if borrows and other not in self.dump.layout.sides:
            return None
        given = {"k": self.dump.k_scale, "v": self.dump.v_scale}[other if borrows else side]
        for level in how.outer:
            scale = as_given(how, self.declared, given)
            if scale is not None and level.may_be_given:
                known[level.name] = points(np.full((1, 1, 1), scale, np.float32))
            else:
                elements = self.extremes(other if borrows else side)
                if variant.scope == "both tensors":
                    elements = np.concatenate([self.extremes(each) for each in self.dump.layout.sides])
                if variant.scope == "written tokens":
                    elements = self.extremes(side, written=True)
                value = run(level.program, known, elements.reshape(1, 1, -1), bounds=False)[level.name]
                known[level.name] = narrowed(value)
        if variant.tensor and not borrows:
            if not how.outer or (variant.tensor == "?" and fitted is None):
                return None
            name = how.outer[-1].name
            if fitted is not None:
                known[name] = points(np.full((1, 1, 1), fitted, np.float32))
            else:
                known[name] = expression(variant.tensor, {"s": known[name]}, bounds=False)
        return known

    def _unquantized(self, side: Side, recipe: Recipe, dtype: str) -> Rows | None:
        """What the declared layout finds in pages of values: those of mode none, each block cut to a page's length."""
        right = self.rows(side, recipe)
        painted = self._painted(dtype)
        if right is None or painted is None:
            return None
        pages, written = painted
        at = right_places(self._frame()).at
        codes = at[side, "code"]
        scales = at.get((side, "scale"), np.zeros((*codes.shape[:2], 0), np.int64))
        layout = self.dump.layout
        (segment,) = layout.segments(side)  # a layout with several has no mode none
        stored = unpacked(segment, pages[codes], right.bits, "low first", high_first=layout.nibbles == "high_first")
        masks = written[codes], written[scales]
        return replace(right, codes=stored, scales=pages[scales], predicted=masks)

    def _painted(self, dtype: str) -> tuple[NDArray[np.uint8], Mask] | None:
        """The pages of a writer that stores values in that dtype, flat, and which bytes it wrote."""
        layout, size = self.dump.layout, self.dump.pages.size
        other = in_mode_none(layout, dtype)
        if other is None or size > _PAINTED:
            return None
        pages, written = np.zeros(size, np.uint8), np.zeros(size, bool)
        frame = self._frame()
        end = (frame.slots // layout.block_size + 1) * layout.page_bytes
        for (side, _), at in laid(other, frame).at.items():
            with np.errstate(all="ignore"):
                raw = np.ascontiguousarray(self.x(side)[0].astype(BINARY[dtype])).view(np.uint8)
            inside = at < end[:, None, None]
            pages[at[inside]] = raw.reshape(at.shape)[inside]
            written[at[inside]] = True
        return pages, written

    def _frame(self) -> Frame:
        return Frame(self.dump.layout, self.dump.slot_mapping[self.tokens], len(self.dump.pages))

    def _values(self, side: Side, variant: Variant, name: str) -> Rows | None:
        """Mode none: the values in the dtype of the layout, after the variant's `then` has been at them."""
        edit = variant.edit
        x, known = self.x(side)
        if variant != RIGHT and not (edit.then or edit.element or variant.source.departs):
            return None
        stored = edit.element or name
        if np.dtype(BINARY[stored]).itemsize != np.dtype(BINARY[name]).itemsize:
            return None
        value = x
        if edit.then:
            shape = binary_shape(name)
            program = parsed(edit.then.format(**{"q": "q", "x": "x", **shape}))
            result = run(program, {"q": points(x), "x": points(x)}, x, bounds=False)["q"]
            assert isinstance(result, Interval)
            value = result.low
        with np.errstate(all="ignore"):
            raw = np.ascontiguousarray(value.astype(BINARY[stored])).view(np.uint8)
        bits = np.dtype(BINARY[stored]).itemsize * 8
        return Rows(raw.reshape(*x.shape[:2], -1), bits, np.zeros((*x.shape[:2], 0), np.uint8), "", stored, known)


#: names for the scale before and after it is stored, which no recipe can use
_EXACT, _STORED = "exact'", "stored'"


def _grouped(x: Array, how: Recipe) -> Array:
    """(tokens, heads, scales of a row, elements that share one)."""
    columns = how.inner.granularity.columns(x.shape[2]) if how.inner else 1
    return x.reshape(*x.shape[:2], columns, x.shape[2] // columns)


def _code(how: Recipe, known: Known, groups: Array, *, bounds: bool) -> Interval:
    keys = run(how.code, known, groups, bounds=bounds)["c"]
    assert isinstance(keys, Interval)
    return keys


def _page_bytes(stored: Interval | None, level: Level | None, shape: Sequence[int]) -> NDArray[np.uint8]:
    if stored is None or level is None:
        return np.zeros((*shape[:2], 0), np.uint8)
    return np.ascontiguousarray(written(level, stored)).view(np.uint8).reshape(*shape[:2], -1)


def _scale_inside(found: Array, allowed: Interval | None, level: Level) -> Mask:
    assert allowed is not None
    apart = replace(allowed, low=allowed.low.reshape(found.shape), high=allowed.high.reshape(found.shape))
    return holds(level, found, apart)


def _found_value(found: Array, level: Level) -> Interval:
    return points(level.format.values(found)[..., None])

"""Makes a failing case small: fewer tokens, heads, dims and slots, then zeros wherever nothing else is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvformat.elements.formats import element
from kvformat.errors import InputError
from kvformat.fuzz.case import Case, resized, sequence_slots
from kvformat.fuzz.judge import Finding, Judge
from kvformat.layouts import layout

Array = NDArray[Any]

#: significant bits that a number is tried with
_BITS = (1, 2, 3, 5, 8, 12)


class Minimiser:
    """Repeats the simplest change that keeps the failure, until none does or the time is up."""

    def __init__(self, judge: Judge, finding: Finding, seconds: float, head_sizes: Sequence[int] | None = None) -> None:
        """head_sizes: the only ones that the candidate takes; None: any that the layout has."""
        self.judge = judge
        self.head_sizes = head_sizes
        self.best = finding
        self.tried = 0
        self._end = monotonic() + seconds

    def run(self) -> Finding:
        """The smallest failure found, of the same kind as the first one."""
        while True:
            before = self._size(self.best.case)
            for shrink in (
                self._tokens,
                self._heads,
                self._one_row,
                self._blocks,
                self._geometry,
                self._zero,
                self._rescale,
                self._simplify,
            ):
                shrink()
            self.zero_each()
            if self._size(self.best.case) >= before or self._over:
                return self.best

    @property
    def _over(self) -> bool:
        return monotonic() > self._end

    @staticmethod
    def _size(case: Case) -> tuple[int, ...]:
        rows = case.key.shape[0] * case.key.shape[1]
        slots = int(np.abs(case.slots).sum())
        return case.key.size, rows, case.nonzero, case.num_blocks, case.layout.page_bytes, slots

    def _keeps(self, make: Callable[[], Case]) -> bool:
        """Take a smaller case if it can be and still fails in the same way."""
        if self._over:
            return False
        try:
            case = make()
        except InputError:
            return False
        if self.head_sizes is not None and case.key.shape[2] not in self.head_sizes:
            return False
        self.tried += 1
        found = self.judge.judge(case)
        if found is None or found.fault != self.best.fault:
            return False
        self.best = found
        return True

    def _reduce(self, items: Sequence[int], make: Callable[[Sequence[int]], Case]) -> None:
        """Leave out as many items as the failure allows: halves first, then smaller parts, one in the end."""
        kept, part = list(items), max(1, len(items) // 2)
        while len(kept) > 1:
            start, removed = 0, False
            while start < len(kept) and len(kept) > 1:
                fewer = kept[:start] + kept[start + part :]
                if fewer and self._keeps(lambda fewer=fewer: make(fewer)):  # type: ignore[misc]
                    kept, removed = fewer, True
                else:
                    start += part
            if part == 1 and not removed:
                return
            part = max(1, part // 2) if part > 1 or removed else 0

    def _tokens(self) -> None:
        case = self.best.case
        self._reduce(range(case.tokens), lambda kept: self._fitted(case.with_tokens(kept)))

    def _heads(self) -> None:
        case = self.best.case
        self._reduce(range(case.key.shape[1]), case.with_heads)

    def _one_row(self) -> None:
        """Two rows side by side in one, where a scale is shared by both."""
        tokens, heads, dims = self.best.case.key.shape
        if self.judge.candidate.kind == "quantizer" and 1 < tokens * heads <= 4:
            self._keeps(lambda: _in_one_row(self.best.case, tokens * heads * dims))

    def _blocks(self) -> None:
        """Whole groups of 16 dims."""
        case = self.best.case
        dims = case.key.shape[2]
        if case.value.shape[2] != dims:
            return
        for group in (64, 16):
            if dims % group == 0 and dims > group:
                case = self.best.case
                groups = range(case.key.shape[2] // group)
                self._reduce(
                    groups,
                    lambda kept, case=case, group=group: case.with_dims(_members(kept, group)),  # type: ignore[misc]
                )

    def _fitted(self, case: Case) -> Case:
        """A quantizer's page is as long as it has tokens."""
        if self.judge.candidate.kind != "quantizer":
            return case
        return replace(case, slots=np.arange(case.tokens), layout=resized(case, block_size=case.tokens))

    def _geometry(self) -> None:
        """Fewer slots and blocks, no padding; the tokens keep their order."""
        if self.judge.candidate.kind == "quantizer":
            return
        self._keeps(lambda: replace(self.best.case, layout=layout(**_unpadded(self.best.case))))
        for size in (1, 2, 4):
            if size < self.best.case.layout.block_size:
                self._keeps(lambda size=size: _reblocked(self.best.case, size))  # type: ignore[misc]
        for count in (1, 2):
            if count < self.best.case.num_blocks:
                self._keeps(lambda count=count: _fewer_blocks(self.best.case, count))  # type: ignore[misc]
        for token in range(self.best.case.tokens):
            if self.best.case.blocks is None:
                self._lower_slot(token)

    def _lower_slot(self, token: int) -> None:
        slots = self.best.case.slots
        taken = set(slots.tolist())
        for slot in range(max(0, int(slots[token]))):
            if slot not in taken and self._keeps(lambda slot=slot: _moved(self.best.case, token, slot)):  # type: ignore[misc]
                return

    def _zero(self) -> None:
        """Zeros in halves, quarters and so on of what is left, on each side."""
        for side in ("key", "value"):
            flat = getattr(self.best.case, side).reshape(-1)
            part = max(1, int(np.count_nonzero(flat)) // 2)
            while part >= 1:
                places = np.flatnonzero(getattr(self.best.case, side).reshape(-1).view(f"u{flat.itemsize}"))
                for start in range(0, len(places), part):
                    self._set(side, places[start : start + part], 0)
                part //= 2

    def zero_each(self) -> None:
        """Zero each element in turn and keep what still fails: the last pass, from the end to the beginning."""
        for side in ("key", "value"):
            flat = getattr(self.best.case, side).reshape(-1)
            for place in np.flatnonzero(flat.view(f"u{flat.itemsize}"))[::-1]:
                self._set(side, np.array([place]), 0)

    def _rescale(self) -> None:
        """All numbers multiplied by one, so that the largest is the largest code's value or a small one."""
        how = self.judge.recipe
        top = element(how.element).max if how.element else 1.0
        for side in ("key", "value"):
            now = getattr(self.best.case, side)
            finite = np.abs(now[np.isfinite(now)].astype(np.float64))
            largest = float(finite.max(initial=0))
            if largest in (0.0, 1.0, top) or self.best.case.k_scale is not None:
                continue
            exponent = int(np.floor(np.log2(largest)))
            for factor in (top / largest, 2.0**-exponent):
                with np.errstate(all="ignore"):
                    moved = (now.astype(np.float64) * factor).astype(now.dtype)
                if moved.tobytes() != now.tobytes():
                    made = replace(self.best.case, **{side: moved})
                    if self._keeps(lambda made=made: made):  # type: ignore[misc]
                        break

    def _simplify(self) -> None:
        """Positive numbers with few significant bits, 1 first."""
        for side in ("key", "value"):
            places = np.flatnonzero(getattr(self.best.case, side).reshape(-1))
            for place in places[:32]:
                for number in _simpler(float(getattr(self.best.case, side).reshape(-1)[place])):
                    if self._set(side, np.array([place]), number):
                        break

    def _set(self, side: str, places: Array, number: float) -> bool:
        now = getattr(self.best.case, side)
        changed = now.copy()
        with np.errstate(over="ignore"):
            changed.reshape(-1)[places] = number
        if changed.tobytes() == now.tobytes():
            return False
        return self._keeps(lambda: replace(self.best.case, **{side: changed}))


def _in_one_row(case: Case, dims: int) -> Case:
    layout_ = resized(case, num_kv_heads=1, head_size=dims, head_size_v=dims, block_size=1)
    key, value = (side.reshape(1, 1, dims) for side in (case.key, case.value))
    return replace(case, key=key, value=value, slots=np.zeros(1, np.int64), layout=layout_)


def _members(groups: Sequence[int], size: int) -> list[int]:
    return [group * size + i for group in groups for i in range(size)]


def _unpadded(case: Case) -> dict[str, Any]:
    spec: dict[str, Any] = dict(case.layout.spec)
    if spec.pop("page_bytes") == case.layout.natural_bytes:
        raise InputError("the page has no padding")
    return spec


def _reblocked(case: Case, size: int) -> Case:
    """The same slots in smaller blocks."""
    smaller = resized(case, block_size=size)
    blocks = -(-case.num_blocks * case.layout.block_size // size)
    if case.blocks is None:
        return replace(case, layout=smaller, num_blocks=blocks)
    needed = -(-case.tokens // size)
    table = np.arange(needed)[::-1].copy() if needed > 1 else np.array([1])
    slots = sequence_slots(table, case.tokens, size)
    return replace(case, layout=smaller, num_blocks=max(2, needed), blocks=table, slots=slots)


def _fewer_blocks(case: Case, count: int) -> Case:
    """As many blocks; slots of later ones move down where they are free."""
    size = case.layout.block_size
    if case.blocks is not None:
        needed = -(-case.tokens // size)
        table = case.blocks[:needed]
        if len(table) > count:
            raise InputError("the sequence needs more blocks")
        order = np.argsort(np.argsort(table))
        shifted = order + (count - needed if count > needed else 0)
        return replace(case, blocks=shifted, num_blocks=count, slots=sequence_slots(shifted, case.tokens, size))
    if case.slots.max(initial=-1) >= count * size:
        raise InputError("a token lies in a later block")
    return replace(case, num_blocks=count)


def _moved(case: Case, token: int, slot: int) -> Case:
    slots = case.slots.copy()
    slots[token] = slot
    return replace(case, slots=slots)


def _simpler(number: float) -> Iterator[float]:
    if not np.isfinite(number):
        yield 1.0
        return
    yield 1.0
    yield abs(number)
    yield -1.0
    mantissa, exponent = np.frexp(number)
    for bits in _BITS:
        yield float(np.ldexp(np.round(mantissa * 2.0**bits), int(exponent) - bits))

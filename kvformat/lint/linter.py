"""`lint`: looks at pages alone, without the K and V they came from, for what right pages never show."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvformat import cache
from kvformat.dump.dump import Dump, Pages
from kvformat.elements.formats import element
from kvformat.errors import InputError
from kvformat.layouts import Layout, Segment
from kvformat.lint.rules import PADDING, RULES, Places, Rule, Slots, Whole
from kvformat.lint.traits import Traits, traits
from kvformat.recipes.catalogue import recipe as find_recipe
from kvformat.recipes.program import Recipe
from kvformat.recipes.store import store_format
from kvformat.slots import check_slots
from kvformat.verify.identify import Side

#: elements of a side that are looked at together
_CHUNK = 1 << 20
#: findings of a rule that a report lists
_LISTED = 20


@dataclass(frozen=True)
class Finding:
    """One place where a rule is broken. A slot is its position in the block; `byte` is the byte of the page."""

    rule: str
    block: int
    slot: int | None
    head: int | None
    side: str | None
    part: str
    byte: int
    text: str

    def __str__(self) -> str:
        where = f"block {self.block}, page byte {self.byte}"
        if self.side is not None:
            where = f"{self.side.upper()} {self.part}, slot {self.slot}, head {self.head}, {where}"
        return f"{self.rule}: {where}: {self.text}"


@dataclass(frozen=True)
class LintReport:
    """What was found in pages. `str(report)` is what `kvformat lint` prints."""

    findings: tuple[Finding, ...]
    #: how often each rule was broken
    counts: dict[str, int]
    #: slots that hold tokens, and blocks
    slots: int
    blocks: int
    layout: dict[str, Any]
    #: by whose traits the pages were judged
    recipe: str = ""
    #: how many rules apply to them
    rules: int = 0

    @property
    def ok(self) -> bool:
        """Nothing was found."""
        return not self.findings

    @property
    def status(self) -> int:
        """0: nothing was found; 1: something was."""
        return int(not self.ok)

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "layout": self.layout,
            "recipe": self.recipe,
            "rules": self.rules,
            "blocks": self.blocks,
            "slots": self.slots,
            "counts": self.counts,
            "findings": [asdict(each) for each in self.findings],
        }

    def __str__(self) -> str:
        judged = f"{self.slots:,} slots in {self.blocks:,} blocks of {self.layout['name']} {self.layout['mode']}"
        judged = f"{judged}, by {self.recipe}"
        if self.ok:
            return f"nothing found in {judged}; {self.rules} rules"
        lines = [f"{sum(self.counts.values()):,} findings in {judged}"]
        for rule, count in self.counts.items():
            lines.append(
                f"  {rule} ({count:,}): {RULES[rule].meaning}; {RULES[rule].reason}; as in {RULES[rule].source}"
            )
            listed = [each for each in self.findings if each.rule == rule]
            lines += [f"    {str(each).removeprefix(f'{rule}: ')}" for each in listed[:4]]
        return "\n".join(lines)


def lint(
    pages: ArrayLike | Dump,
    *,
    layout: Layout | None = None,
    slot_mapping: ArrayLike | None = None,
    recipe: str | Recipe | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> LintReport:
    """Look at pages for what right ones never show: every rule of `RULES` that applies to what they store.

    pages: uint8 (num_blocks, page_bytes) of `layout`, or a dump, whose K and V are not looked at. slot_mapping: the
    slots that hold tokens, integers; without it, those whose bytes are not all one and the same. recipe: what wrote
    them; without it what a dump declares, or what the layout's engine uses. progress: called with (blocks done, blocks
    in all). Raises InputError for pages that are none of the layout, that hold nothing, or of another recipe's mode.
    """
    if isinstance(pages, Dump):
        how = pages.recipe if recipe is None else recipe
        return _lint(pages.pages, pages.layout, pages.slot_mapping, how, progress)
    if layout is None:
        raise InputError("pages alone do not say how they are laid out: give a layout")
    array = np.asarray(pages)
    if array.dtype != np.uint8 or array.ndim != 2 or array.shape[1] != layout.page_bytes or not len(array):
        raise InputError(f"pages must be uint8 (num_blocks, {layout.page_bytes}); got {array.dtype} {array.shape}")
    mapped = None if slot_mapping is None else check_slots(slot_mapping, len(array) * layout.block_size)
    return _lint(array, layout, mapped, recipe, progress)


def lint_file(
    path: str | os.PathLike[str],
    recipe: str | Recipe | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> LintReport:
    """`lint` of a safetensors file: a dump, or its `pages` and metadata alone, with `slot_mapping` or without."""
    held = Pages.load(path)
    return _lint(held.pages, held.layout, held.slot_mapping, held.recipe if recipe is None else recipe, progress)


@dataclass(frozen=True)
class _Part:
    """Dims of a side that one recipe covers, and what right pages of it show."""

    segment: Segment
    recipe: Recipe
    traits: Traits
    leads: bool

    @property
    def side(self) -> Side:
        return self.segment.side


def _parts(layout: Layout, how: Recipe) -> Iterator[_Part]:
    for side in layout.sides:
        for segment in layout.segments(side):
            own, _ = cache.covering(segment, how, None)
            yield _Part(segment, own, traits(own), leads=side == layout.sides[0] and segment.dims.start == 0)


def _lint(
    pages: NDArray[np.uint8],
    layout: Layout,
    mapped: NDArray[np.int64] | None,
    recipe: str | Recipe | None,
    progress: Callable[[int, int], None] | None,
) -> LintReport:
    how = find_recipe(layout.recipe if recipe is None else recipe)
    if how.mode != layout.mode:
        raise InputError(f"recipe {how.name} is for mode {how.mode}, but the layout is for mode {layout.mode}")
    cache.check_fits(layout, how)
    found = _Found()
    parts = list(_parts(layout, how))
    wholes = [
        _Gathered(layout, part, rule, rule.whole())
        for rule in RULES.values()
        for part in parts
        if rule.whole is not None and rule.applies(part.traits)
    ]
    written = _mapped(layout, len(pages), mapped)
    slots = 0
    row = layout.block_size * layout.num_kv_heads * max(layout.head_size, layout.head_size_v)
    step = max(1, _CHUNK // row)
    for start in range(0, len(pages), step):
        some = np.ascontiguousarray(pages[start : start + step])
        mask = None if written is None else written[start * layout.block_size : (start + step) * layout.block_size]
        blank = _blank(layout, some)
        slots += int(np.count_nonzero(~blank if mask is None else mask))
        for part in parts:
            view = _view(layout, some, part, mask, blank)
            for broken in _broken(layout, part, view, start):
                found.add(*broken)
            for whole in wholes:
                if whole.part is part:
                    whole.add(view, start)
        _look_at_padding(layout, some, start, found)
        if progress is not None:
            progress(min(start + step, len(pages)), len(pages))
    if not slots:
        raise InputError("no slot of the pages was written, so there is nothing to judge")
    for whole in wholes:
        found.add(*whole.judged())
    ordered = {rule: found.counts[rule] for rule in RULES if found.counts.get(rule)}
    listed = tuple(each for rule in ordered for each in found.first[rule])
    applied = sum(any(rule.applies(part.traits) for part in parts) for rule in RULES.values())
    return LintReport(listed, ordered, slots, len(pages), layout.spec, how.name, applied)


class _Found:
    """What was found so far: all of it is counted, the first places of each rule are kept, block by block."""

    def __init__(self) -> None:
        self.first: dict[str, list[Finding]] = {}
        self.counts: dict[str, int] = {}

    def add(self, rule: Rule, count: int, found: list[Finding]) -> None:
        """found: the first _LISTED of them, in order."""
        self.counts[rule.id] = self.counts.get(rule.id, 0) + count
        self.first[rule.id] = sorted([*self.first.get(rule.id, []), *found], key=_place)[:_LISTED]


def _place(found: Finding) -> tuple[int, int, int, str, str, int]:
    return found.block, found.slot or 0, found.head or 0, found.side or "", found.part, found.byte


class _Gathered:
    """A rule that is judged over the whole cache: its evidence, and where it is broken if it is."""

    def __init__(self, layout: Layout, part: _Part, rule: Rule, whole: Whole) -> None:
        self.part = part
        self._layout, self._rule, self._whole = layout, rule, whole
        self._count = 0
        self._places: list[Finding] = []

    def add(self, view: Slots, first: int) -> None:
        """Take in some blocks; `first` is the number of the first one."""
        places: Places | None = self._whole.add(view)
        if places is not None:
            part, mask = places
            self._count += int(np.count_nonzero(mask))
            listed = np.argwhere(mask)[: _LISTED - len(self._places)]
            self._places += [_finding(self._layout, self._rule, self.part, part, each, "", first) for each in listed]

    def judged(self) -> tuple[Rule, int, list[Finding]]:
        """The rule, how often it is broken, and the first places."""
        text = self._whole.verdict()
        if text is None:
            return self._rule, 0, []
        return self._rule, self._count, [replace(each, text=text) for each in self._places]


def _mapped(layout: Layout, blocks: int, slots: NDArray[np.int64] | None) -> NDArray[np.bool_] | None:
    if slots is None:
        return None
    written = np.zeros(blocks * layout.block_size, bool)
    written[slots[slots >= 0]] = True
    return written


def _blank(layout: Layout, pages: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Which slots have one and the same byte throughout, on both sides: (slots,)."""
    block, slot = np.divmod(np.arange(len(pages) * layout.block_size), layout.block_size)
    rows = [region.read(pages, block, slot).reshape(len(block), -1) for region in layout.regions]
    whole = np.concatenate(rows, axis=1)
    blank: NDArray[np.bool_] = (whole == whole[:, :1]).all(axis=1)
    return blank


def _view(
    layout: Layout, pages: NDArray[np.uint8], part: _Part, mapped: NDArray[np.bool_] | None, blank: NDArray[np.bool_]
) -> Slots:
    slots = np.arange(len(pages) * layout.block_size)
    loaded = cache.load(layout, pages, slots, part.side, part.recipe, np.float32(1), part.segment)
    shape = loaded.codes.shape[:2]
    scales = np.zeros((*shape, 0), np.float32)
    if part.recipe.element is None:
        with np.errstate(invalid="ignore"):
            values = loaded.codes.astype(np.float32)
    else:
        fmt = element(part.recipe.element)
        values = fmt.values()[loaded.codes.view(np.uint8) & np.uint8(fmt.codes - 1)]
        if part.traits.scale_kind:
            raw = loaded.scales.reshape(*shape, -1)
            scales = store_format(part.traits.scale_kind).values(raw)
    return Slots(
        side=part.side,
        leads=part.leads,
        traits=part.traits,
        block_size=layout.block_size,
        written=~blank if mapped is None else mapped,
        known=mapped is not None,
        blank=blank,
        codes=loaded.codes,
        values=values,
        scales=scales,
        swizzled=part.side == "v" and layout.v_scales == "swizzled",
    )


def _broken(layout: Layout, part: _Part, view: Slots, first: int) -> Iterator[tuple[Rule, int, list[Finding]]]:
    for rule in RULES.values():
        for name, mask, text in rule.find(view) if rule.applies(part.traits) and rule is not PADDING else ():
            count = int(np.count_nonzero(mask))
            if count:
                places = np.argwhere(mask)[:_LISTED]
                yield rule, count, [_finding(layout, rule, part, name, place, text, first) for place in places]


def _look_at_padding(layout: Layout, pages: NDArray[np.uint8], first: int, found: _Found) -> None:
    padding = pages[:, layout.natural_bytes :]
    if padding.shape[1]:
        blocks = np.flatnonzero((padding != padding[:, :1]).any(axis=1))
        if len(blocks):
            listed = [_in_padding(layout, padding[block], int(block) + first) for block in blocks[:_LISTED]]
            found.add(PADDING, len(blocks), listed)


def _finding(
    layout: Layout, rule: Rule, held: _Part, part: str, place: NDArray[np.int64],
    text: str | Callable[[NDArray[np.int64]], str], first: int,
) -> Finding:  # fmt: skip
    block, slot = divmod(int(place[0]), layout.block_size)
    width = len(held.segment.dims) // held.recipe.inner.granularity.columns(len(held.segment.dims)) if (
        part == "scale" and held.recipe.inner is not None) else 1  # fmt: skip
    dim = held.segment.dims.start + int(place[2]) * width
    where = layout.locate(side=held.side, slot=slot, head=int(place[1]), dim=dim, part=part)
    said = text if isinstance(text, str) else text(place)
    return Finding(rule.id, block + first, slot, int(place[1]), held.side, part, where.byte, said)


def _in_padding(layout: Layout, padding: NDArray[np.uint8], block: int) -> Finding:
    values, counts = np.unique(padding, return_counts=True)
    usual = values[counts.argmax()]
    byte = layout.natural_bytes + int(np.flatnonzero(padding != usual)[0])
    text = f"0x{int(padding[byte - layout.natural_bytes]):02X} among 0x{int(usual):02X}"
    return Finding(PADDING.id, block, None, None, None, "padding", byte, text)

"""One hypothesis: who writes each side, where, and on which part of it; its bytes, and the bits that it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import log2
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvformat.diagnose import length
from kvformat.diagnose.bench import Bench, Piece
from kvformat.diagnose.canvas import Canvas, Image, Labels, Strip, labels, packed, sides_of, strip, unpacked
from kvformat.diagnose.fault import RIGHT, Fault, Variant
from kvformat.diagnose.remaps import Frame, Packing, Places, right_places
from kvformat.diagnose.rows import Rows
from kvformat.diagnose.scope import Axis, Scope
from kvformat.layouts import Segment
from kvformat.recipes.admissible import is_approximate
from kvformat.recipes.program import Recipe
from kvformat.verify.identify import Side

Mask = NDArray[np.bool_]
Ints = NDArray[np.int64]
Pieces = list[tuple[Segment, Rows]]


@dataclass(frozen=True)
class Writer:
    """A recipe, perhaps with a fault: what becomes of K and V."""

    recipe: Recipe
    fault: Fault | None = None
    variant: Variant = RIGHT
    #: the per-tensor scale that fits, by side, where the variant asks for one
    fitted: tuple[tuple[Side, np.float32], ...] = ()

    def pieces(self, bench: Bench, side: Side) -> Pieces | None:
        """Its rows of the bench's tokens."""
        return bench.pieces(side, self.recipe, self.variant, dict(self.fitted).get(side))


@dataclass(frozen=True)
class Geometry:
    """Where rows lie: the declared layout, perhaps with a fault, or another layout."""

    layout: str
    fault: Fault | None = None
    variant: Variant = RIGHT

    def places(self, frame: Frame) -> Places | None:
        """The addresses of the frame's tokens."""
        return right_places(frame) if self.variant.remap is None else self.variant.remap.places(frame)


@dataclass(frozen=True)
class Hypothesis:
    """Who writes each side and where. In a scope; what lies outside of it is as declared."""

    writers: tuple[tuple[Side, Writer], ...]
    geometries: tuple[tuple[Side, Geometry], ...]
    scope: Scope | None = None

    @property
    def approximate(self) -> bool:
        """Whether a recipe of it has approximate instructions."""
        return any(is_approximate(writer.recipe) for _, writer in self.writers)


class Kinds(NamedTuple):
    """How many hypotheses there are of each kind: what it costs to name one."""

    recipes: int
    variants: int
    geometries: int
    axes: Mapping[Axis, int]

    def bits(self, hypothesis: Hypothesis, declared: Hypothesis) -> float:
        """Bits to name a hypothesis: 1 for the declared one, else 1 and its choices; the sum of 2^-bits is <= 1."""
        bits = 1.0
        own = dict(declared.writers)
        writers = dict.fromkeys(each for side, each in hypothesis.writers if each != own[side])
        for writer in writers:
            bits += 2  # which of recipe, fault, both
            bits += log2(self.recipes) if writer.recipe != declared.writers[0][1].recipe else 0
            if writer.fault is not None:
                bits += log2(self.variants) + 32 * len(writer.fitted) + 8 * (writer.variant.unwritten == "constant")
        home = declared.geometries[0][1]
        places = dict.fromkeys(each for _, each in hypothesis.geometries if each != home)
        bits += sum(2 + log2(self.geometries) for _ in places)
        for chosen, right in ((hypothesis.writers, writers), (hypothesis.geometries, places)):
            if right and len(chosen) > 1:
                bits += log2(3)  # K, V or both
        if hypothesis.scope is not None:
            bits += log2(len(self.axes)) + hypothesis.scope.bits(self.axes[hypothesis.scope.axis])
        return bits


class Scene:
    """Some tokens of a dump on a canvas, with everything that was made of them."""

    def __init__(self, bench: Bench, canvas: Canvas) -> None:
        self.bench = bench
        self.canvas = canvas
        self.sides: tuple[Side, ...] = sides_of(bench.dump)
        self.frame = Frame(bench.dump.layout, bench.dump.slot_mapping[bench.tokens], len(bench.dump.pages))
        self._places: dict[Geometry, Places | None] = {}
        self._pieces: dict[tuple[Writer, Side], Pieces | None] = {}
        self._labels: dict[Side, Labels] = {}
        self._along: dict[Side, Mapping[Axis, Ints]] = {}
        self._numbers: dict[Side, Ints] = {}

    def places(self, geometry: Geometry) -> Places | None:
        """Where a geometry puts the tokens."""
        if geometry not in self._places:
            self._places[geometry] = geometry.places(self.frame)
        return self._places[geometry]

    def pieces(self, writer: Writer, side: Side) -> Pieces | None:
        """What a writer makes of the tokens, made once."""
        if (writer, side) not in self._pieces:
            self._pieces[writer, side] = writer.pieces(self.bench, side)
        return self._pieces[writer, side]

    def strip(self, writer: Writer, geometry: Geometry, side: Side) -> Strip | None:
        """What a writer leaves of a side where a geometry puts it; None where that cannot be."""
        places, pieces = self.places(geometry), self.pieces(writer, side)
        if places is None or pieces is None:
            return None
        return strip(self.canvas, pieces, side, places, writer.variant)

    def along(self, side: Side, right: Writer) -> Mapping[Axis, Ints]:
        """By axis the number of each byte of a strip of that side."""
        if side not in self._along:
            pieces = self.pieces(right, side)
            assert pieces is not None
            found = labels(pieces)
            block, slot = np.divmod(self.frame.slots, self.frame.layout.block_size)
            self._numbers[side] = found.token
            self._along[side] = {
                "token": self.bench.tokens[found.token], "slot": slot[found.token], "block": block[found.token],
                "head": found.head, "dim": found.dim,
            }  # fmt: skip
        return self._along[side]

    def numbers(self, side: Side, right: Writer) -> Ints:
        """The place among the bench's tokens of each byte of a strip of that side."""
        self.along(side, right)
        return self._numbers[side]

    def strips(self, hypothesis: Hypothesis, declared: Hypothesis) -> dict[Side, Strip] | None:
        """What a hypothesis leaves of each side."""
        made: dict[Side, Strip] = {}
        for (side, writer), (_, geometry) in zip(hypothesis.writers, hypothesis.geometries, strict=True):
            each = self.strip(writer, geometry, side)
            if each is None:
                return None
            made[side] = each
        if hypothesis.scope is None or hypothesis is declared:
            return made
        return self._scoped(made, hypothesis, hypothesis.scope, declared)

    def _scoped(
        self, made: Mapping[Side, Strip], hypothesis: Hypothesis, scope: Scope, declared: Hypothesis
    ) -> dict[Side, Strip] | None:
        base = self.strips(declared, declared)
        assert base is not None
        moved = hypothesis.geometries != declared.geometries
        if moved:
            image = Image(self.canvas)
            image.paint(list(made.values()))
        result = {}
        for side, writer in declared.writers:
            inside = scope.holds(self.along(side, writer))
            right, other = base[side], made[side]
            value, known = (image.value[right.at], image.known[right.at]) if moved else (other.value, other.known)
            result[side] = Strip(
                right.at, np.where(inside, value, right.value), np.where(inside, known, right.known)
            )  # fmt: skip
        return result

    def overlapping(self, hypothesis: Hypothesis) -> bool:
        """Whether rows may lie over each other."""
        places = [self.places(each) for _, each in hypothesis.geometries]
        return any(each is not None and each.overlapping for each in places)

    def allowed(self, hypothesis: Hypothesis, strips: dict[Side, Strip]) -> tuple[dict[Side, Strip], Allowance]:
        """The strips with what the bounds of approximate instructions allow as it is found, and what that was."""
        made, taken = dict(strips), Allowance(0, 0)
        for (side, writer), (_, geometry) in zip(hypothesis.writers, hypothesis.geometries, strict=True):
            pieces, places = self.pieces(writer, side), self.places(geometry)
            if pieces is not None and places is not None and is_approximate(writer.recipe):
                made[side], more = self._bounded(writer, side, pieces, places, strips[side])
                taken = Allowance(taken.several + more.several, taken.used + more.used)
        return made, taken

    def _bounded(
        self, writer: Writer, side: Side, pieces: Pieces, places: Places, strip: Strip
    ) -> tuple[Strip, Allowance]:
        found, layout = self.canvas.found[strip.at], self.bench.dump.layout
        wrong = strip.known & (strip.at >= 0) & (found != strip.value)
        value, taken, used = strip.value.copy(), 0, 0
        for segment, rows, codes, scales in _parts(pieces, strip):
            if segment.recipe:
                continue
            tokens = _any_token(wrong[codes.place].reshape(codes.shape))
            if scales is not None:
                tokens = tokens | _any_token(wrong[scales.place].reshape(scales.shape))
            if not tokens.any():
                continue
            high = layout.nibbles == "high_first"
            bytes_ = found[codes.place].reshape(codes.shape)[tokens]
            given = unpacked(segment, bytes_, rows.bits, places.packing, high_first=high)
            raw = rows.scales[tokens] if scales is None else np.ascontiguousarray(
                found[scales.place].reshape(scales.shape)[tokens][..., :: segment.scales[0].copies]
            )  # fmt: skip
            inner = writer.recipe.inner
            numbers = inner.format.of_bytes(raw) if inner else raw
            bench = self.bench.on(self.bench.tokens[tokens]).of(
                Piece(segment.dims.start, segment.dims.stop, writer.variant.source)
            )
            masks = bench.allowed(side, writer.recipe, writer.variant, given, numbers)
            if masks is None:
                continue
            good_scales, good_codes, several = masks
            good = np.zeros(codes.shape, bool)
            good[tokens] = _of_bytes(good_codes, segment, rows, places.packing)
            fits = [(codes, good)]
            if scales is not None:
                good = np.zeros(scales.shape, bool)
                good[tokens] = np.repeat(good_scales, scales.shape[2] // max(good_scales.shape[2], 1), axis=2)
                fits.append((scales, good))
            for part, mask in fits:
                now = wrong[part.place] & mask.reshape(-1)
                value[part.place] = np.where(now, found[part.place], value[part.place])
                used += int(np.count_nonzero(now))
            taken += round(several * len(tokens) / max(int(tokens.sum()), 1))
        return replace(strip, value=value), Allowance(max(taken, used), used)


class Allowance(NamedTuple):
    """How many operations have several admissible values, and how many of their bytes are not the nearest one's."""

    several: int
    used: int


class _Part(NamedTuple):
    """The bytes of one piece's codes, or scales, in a strip."""

    place: slice
    shape: tuple[int, int, int]


def _parts(pieces: Pieces, whole: Strip) -> list[tuple[Segment, Rows, _Part, _Part | None]]:
    sizes = []
    start = 0
    for part in ("code", "scale"):
        found = []
        for segment, rows in pieces:
            tokens, heads, columns = rows.codes.shape
            width = columns * rows.bits // 8 if rows.bits < 8 else columns
            if part == "scale":
                width = rows.scales.shape[2] * (segment.scales[0].copies if segment.scales else 1)
            place = slice(start, start + tokens * heads * width)
            found.append(_Part(place, (tokens, heads, width)) if width else None)
            start = place.stop
        sizes.append(found)
    assert start == len(whole.at)
    made = []
    for (segment, rows), code, scale in zip(pieces, *sizes, strict=True):
        assert code is not None
        made.append((segment, rows, code, scale))
    return made


def _any_token(mask: Mask) -> Mask:
    found: Mask = np.asarray(mask.any(axis=(1, 2)))
    return found


def _of_bytes(good: Mask, segment: Segment, rows: Rows, packing: Packing) -> Mask:
    """Which bytes hold good codes alone: those that are 0 where a code that is not good is all ones."""
    if rows.bits >= 8:
        return good
    ones = np.uint8((1 << rows.bits) - 1)
    whole: Mask = packed(segment, replace(rows, codes=np.where(good, np.uint8(0), ones)), packing) == 0
    return whole


@dataclass(frozen=True, eq=False)
class Verdict:
    """A hypothesis looked at byte by byte."""

    hypothesis: Hypothesis
    image: Image
    #: of all bytes of the canvas, ascending
    wrong: Ints
    #: bytes of the tokens that it explains, of `total`
    explained: int
    total: int
    allowance: int
    #: bits to name it, and to say what it leaves over
    name_bits: float
    rest_bits: float

    @property
    def bits(self) -> float:
        """The length of the whole description."""
        return self.name_bits + self.rest_bits

    @property
    def open(self) -> int:
        """Bytes of the tokens of which it says nothing."""
        return max(self.total - self.explained - len(self.wrong), 0)

    @property
    def complete(self) -> bool:
        """No byte contradicts it, and it speaks of more than an eighth of them."""
        return not len(self.wrong) and self.explained > self.total // 8

    @cached_property
    def digest(self) -> int:
        """What tells its bytes from those of another hypothesis."""
        return hash((self.image.value.tobytes(), self.image.known.tobytes()))


def judged(scene: Scene, hypothesis: Hypothesis, declared: Hypothesis, kinds: Kinds, *, bounds: bool) -> Verdict | None:
    """The verdict on a hypothesis; None where it does not apply. bounds: work out what approximate words allow."""
    strips = scene.strips(hypothesis, declared)
    if strips is None:
        return None
    allowance = Allowance(0, 0)
    if bounds and hypothesis.approximate and hypothesis.scope is None:
        strips, allowance = scene.allowed(hypothesis, strips)
    canvas, image = scene.canvas, Image(scene.canvas)
    image.paint(list(strips.values()), overlapping=scene.overlapping(hypothesis))
    wrong = image.wrong
    said = int(np.count_nonzero(image.known))
    silent = ~image.known
    rest = length.of_exceptions(wrong, canvas.found, said)
    rest += length.of_silence(canvas.found[silent], None if canvas.before is None else canvas.before[silent])
    rest += length.of_choices(allowance.several, allowance.used, 3)
    return Verdict(
        hypothesis, image, wrong, said - len(wrong), sum(map(_size, strips.values())), allowance.used,
        kinds.bits(hypothesis, declared), rest,
    )  # fmt: skip


def _size(strip: Strip) -> int:
    return len(strip.at)


def with_writers(hypothesis: Hypothesis, writers: Mapping[Side, Writer]) -> Hypothesis:
    """The hypothesis with other writers of some sides."""
    return replace(hypothesis, writers=tuple((side, writers.get(side, each)) for side, each in hypothesis.writers))


def with_geometries(hypothesis: Hypothesis, geometries: Mapping[Side, Geometry]) -> Hypothesis:
    """The hypothesis with other geometries of some sides."""
    chosen = tuple((side, geometries.get(side, each)) for side, each in hypothesis.geometries)
    return replace(hypothesis, geometries=chosen)


def counted(scene: Scene, hypothesis: Hypothesis, declared: Hypothesis) -> Sequence[int]:
    """Explained, wrong, unsaid and allowed bytes of the scene's tokens, without an image."""
    strips = scene.strips(hypothesis, declared)
    assert strips is not None
    used = 0
    if hypothesis.approximate and hypothesis.scope is None:
        strips, allowance = scene.allowed(hypothesis, strips)
        used = allowance.used
    said = right = total = 0
    for each in strips.values():
        known = each.known & (each.at >= 0)
        said += int(np.count_nonzero(known))
        right += int(np.count_nonzero(known & (scene.canvas.found[each.at] == each.value)))
        total += len(each.at)
    return right, said - right, total - said, used

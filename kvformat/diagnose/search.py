"""`diagnose`: tries every recipe, layout and fault on the bytes of a dump, and orders them by their bits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kvformat.cache import check_fits
from kvformat.diagnose import sample
from kvformat.diagnose.bench import Bench, Piece
from kvformat.diagnose.canvas import Canvas, Strip, commonest
from kvformat.diagnose.catalogue import rivals, variants
from kvformat.diagnose.diagnosis import Diagnosis
from kvformat.diagnose.fault import Fault, Variant
from kvformat.diagnose.fitting import fit
from kvformat.diagnose.hypothesis import (
    Geometry,
    Hypothesis,
    Kinds,
    Scene,
    Verdict,
    Writer,
    judged,
    with_geometries,
    with_writers,
)
from kvformat.diagnose.inseparable import inseparable
from kvformat.diagnose.length import MARGIN
from kvformat.diagnose.probe import PRODUCER
from kvformat.diagnose.remaps import OtherLayout
from kvformat.diagnose.scope import Change, gains
from kvformat.diagnose.telling import told
from kvformat.dump.dump import Dump
from kvformat.errors import InputError
from kvformat.layouts import LAYOUTS
from kvformat.recipes.catalogue import recipe as find_recipe
from kvformat.recipes.program import Recipe, needs_one_scale
from kvformat.verify.identify import Side

#: hypotheses of each kind that are looked at byte by byte: the ones that leave least over
_CLOSE = 24
#: hypotheses with approximate instructions whose bounds are worked out: some 20 ms each
_BOUNDED = 8
#: recipes and geometries besides the declared ones whose pairs with faults are tried where something is left over
_FURTHER = 3
#: tokens that are too few to say that a fault of them is none of all
_FEW = 8
#: bits that a byte costs which is not explained, about: what orders hypotheses before they are looked at
_PER_BYTE = 9.0


def diagnose(
    dump: Dump, *, recipe: str | Recipe | None = None, progress: Callable[[int, int], None] | None = None
) -> Diagnosis:
    """Name the recipe, the layout and the faults that reproduce the bytes of a dump.

    Every hypothesis describes the same bytes, whole pages. It costs the bits that it takes to name it among all that
    are tried, and to say every byte that it has wrong or says nothing of. What the dump declares is named where it is
    complete; another name needs 20 bits less. Of a large dump a sample that has its differences in it is tried, and the
    best hypotheses then on all of it. Of a dump made of a probe it also says what these K and V cannot tell apart.

    recipe: what the dump is taken to declare, whatever it says. progress: called with (tokens done, tokens in all).
    Raises InputError where the dump cannot be judged: no token has a slot, or its recipe cannot take its K and V.
    """
    if recipe is not None:
        dump = dump.declaring(recipe)
    declared = find_recipe(dump.layout.recipe if dump.recipe is None else dump.recipe).for_input(dump.key.dtype.name)
    slots = np.flatnonzero(dump.slot_mapping >= 0)
    if not len(slots):
        raise InputError(
            "no token of the dump has a slot (all of slot_mapping is negative), so there is nothing to judge"
        )
    needs_one_scale(declared, "diagnose")
    shared = [level.granularity.name for level in declared.outer]
    if shared not in ([], ["per_tensor"]):
        raise InputError(
            f"recipe {declared.name} has scales {', '.join(shared)} beside the pages; a dump has one scale per tensor"
        )
    check_fits(dump.layout, declared)
    blocks = sample.blocks(dump, declared, slots, progress)
    search = _Search(dump, declared, blocks)
    verdicts = search.run()
    return told(
        search.scene, verdicts, search.own, slots, progress,
        members=search.members, tried=search.tried, raw_bits=search.raw_bits,
        inseparable=inseparable(search.scene.bench, declared) if dump.producer.startswith(PRODUCER) else (),
    )  # fmt: skip


class _Search:
    """One dump's blocks, and everything that is tried on them."""

    def __init__(self, dump: Dump, declared: Recipe, blocks: NDArray[np.int64] | None) -> None:
        self.dump = dump
        self.declared = declared
        canvas = Canvas(dump, blocks)
        self.scene = Scene(Bench(dump, declared, canvas.tokens()), canvas)
        layout, sides = dump.layout, self.scene.sides
        self.right, self.home = Writer(declared), Geometry(layout.name)
        self.plain = Hypothesis(
            tuple((side, self.right) for side in sides), tuple((side, self.home) for side in sides)
        )  # fmt: skip
        self.faults = list(variants(dump.mode, "content", "arithmetic", "scale"))
        self.rivals = list(rivals(declared, dump.key.dtype.name))
        self.geometries = self._distinct_geometries()
        tokens = len(self.scene.bench.tokens)
        self.kinds = Kinds(
            recipes=len(self.rivals) + 1, variants=len(self.faults), geometries=len(self.geometries) + 1,
            axes={"token": tokens, "slot": layout.block_size, "block": len(canvas.blocks), "head": layout.num_kv_heads,
                  "dim": max(layout.head_size, layout.head_size_v)},
        )  # fmt: skip
        own = self._verdict(self.plain, bounds=True)
        assert own is not None
        self.own = own
        #: what the declared writer leaves, with what its bounds allow as it is found
        self.base = self._base()
        self.tried = 1
        #: by the strips that they leave, the writers of the sheet
        self._alike: dict[tuple[int, ...], list[Writer]] = {}
        self._place: dict[tuple[Side, tuple[bytes, bytes]], int] = {}
        self.verdicts: list[Verdict] = [own]

    @property
    def raw_bits(self) -> float:
        """What the bytes of the tokens cost without any hypothesis."""
        return 1 + 8.0 * self.own.total + (self.own.rest_bits - self._wrong_bits)

    @property
    def _wrong_bits(self) -> float:
        from kvformat.diagnose import length

        said = int(np.count_nonzero(self.own.image.known))
        return length.of_exceptions(self.own.wrong, self.scene.canvas.found, said)

    # --- the search ------------------------------------------------------------------------------------------------

    def run(self) -> list[Verdict]:
        """The verdicts on the best hypotheses, the shortest description first."""
        self._try(self._writers())
        if len(self.own.wrong):
            self._try_geometries()
            self._mixed()
            if self._left_over():
                self._try(self._faults_of_rivals())
        self._bound()
        return sorted(self.verdicts, key=lambda each: each.bits)

    def _bound(self) -> None:
        """Work out what approximate instructions allow, for the best hypotheses that have some."""
        open_ = [
            each for each in self.verdicts
            if each is not self.own and len(each.wrong) and each.hypothesis.approximate and not each.allowance
        ]  # fmt: skip
        for each in sorted(open_, key=lambda each: each.bits)[:_BOUNDED]:
            better = self._verdict(each.hypothesis, bounds=True)
            if better is not None:
                self.verdicts[self.verdicts.index(each)] = better

    def _left_over(self) -> bool:
        """Whether two departures together could still save bits.

        Another recipe, or other places, would be those of all tokens: where few have a wrong byte, they are not tried
        with a fault on top.
        """
        return min(each.bits for each in self.verdicts) > 3 * MARGIN and self._widespread

    @cached_property
    def _widespread(self) -> bool:
        """Whether more than an eighth of the tokens have a wrong byte by the declared writer, or there are few."""
        tokens, wrong = len(self.scene.bench.tokens), np.zeros(self.scene.canvas.size, bool)
        wrong[self.own.wrong] = True
        hit = np.zeros(tokens, bool)
        for side, strip in self.base.items():
            inside = strip.at >= 0
            hit[self.scene.numbers(side, self.right)[inside & wrong[strip.at]]] = True
        return tokens < _FEW or int(hit.sum()) * 8 > tokens

    def _verdict(self, hypothesis: Hypothesis, *, bounds: bool) -> Verdict | None:
        return judged(self.scene, hypothesis, self.plain, self.kinds, bounds=bounds)

    def _base(self) -> dict[Side, Strip]:
        strips = self.scene.strips(self.plain, self.plain)
        assert strips is not None
        return self.scene.allowed(self.plain, strips)[0] if self.plain.approximate else strips

    # --- writers ----------------------------------------------------------------------------------------------------

    def _writers(self) -> Iterable[Writer]:
        yield self.right
        for fault, variant in self.faults:
            yield from self._settled(self.declared, fault, variant)
        for each in self.rivals:
            yield Writer(each)

    def _settled(self, recipe: Recipe, fault: Fault, variant: Variant) -> Iterable[Writer]:
        """The writer that a variant is, with the number that it leaves open as these bytes have it."""
        if variant.tensor == "?":
            fitted = tuple((side, scale) for side in self.scene.sides if (scale := self._fit(side, recipe)) is not None)
            if len(fitted) == len(self.scene.sides):
                yield Writer(recipe, fault, variant, fitted)
            return
        if variant.unwritten == "constant":
            if not len(self.own.wrong):
                return
            fill = commonest(self.scene.canvas.found[self.own.wrong])
            of = f" of the {variant.unwritten_part}s" if variant.unwritten_part else ""
            variant = replace(variant, label=f"each byte{of} is 0x{fill:02X}", fill=fill)
        yield Writer(recipe, fault, variant)

    def _fit(self, side: Side, recipe: Recipe) -> np.float32 | None:
        segments = self.dump.layout.segments(side)
        if len(segments) != 1 or recipe.element is None or recipe.inner is not None or not recipe.outer:
            return None
        x, _ = self.scene.bench.of(Piece(segments[0].dims.start, segments[0].dims.stop)).x(side)
        at = self.base[side].at
        return fit(x, self.scene.canvas.found[at].reshape(x.shape), recipe.element) if at.size == x.size else None

    def _try(self, writers: Iterable[Writer]) -> None:
        """Take writers where the declared layout puts rows: look closely at those that gain something."""
        wanted: list[tuple[float, int, Hypothesis]] = []
        limited = _BOUNDED
        for writer in writers:
            strips = self._strips(writer)
            if strips is None:
                continue
            self.tried += 1
            places = tuple(self._placed(side, strips[side]) for side in self.scene.sides)
            if places in self._alike:
                self._alike[places].append(writer)
                continue
            self._alike[places] = [writer]
            if not len(self.own.wrong) or writer == self.right:
                continue
            for hypothesis, gain in self._hypotheses(writer, strips):
                estimate = self.kinds.bits(hypothesis, self.plain) + _PER_BYTE * (len(self.own.wrong) - gain)
                wanted.append((estimate, len(wanted), hypothesis))
        for _, _, hypothesis in sorted(wanted)[:_CLOSE]:
            self._look(hypothesis)
        if len(self.own.wrong):
            for writer in [Writer(each) for each in self.rivals if _approximate(each)][:limited]:
                self._look(self._everywhere(writer), bounds=True)

    def _strips(self, writer: Writer) -> dict[Side, Strip] | None:
        made = {}
        for side in self.scene.sides:
            strip = self.scene.strip(writer, self.home, side)
            if strip is None or len(strip.at) != len(self.base[side].at):
                return None
            made[side] = strip
        return made

    def _placed(self, side: Side, strip: Strip) -> int:
        return self._place.setdefault((side, strip.digest), len(self._place))

    def _hypotheses(self, writer: Writer, strips: Mapping[Side, Strip]) -> Iterable[tuple[Hypothesis, int]]:
        changes = {side: self._change(side, strip.value, strip.known) for side, strip in strips.items()}
        for gain in gains({side: change for side, change in changes.items() if len(change.delta)}):
            hypothesis = with_writers(self.plain, dict.fromkeys(gain.sides, writer))
            yield replace(hypothesis, scope=gain.scope), gain.bytes

    def _change(self, side: Side, value: NDArray[np.uint8], known: NDArray[np.bool_]) -> Change:
        base = self.base[side]
        found = self.scene.canvas.found[base.at]
        inside = base.at >= 0
        delta = (known & inside & (value == found)).view(np.int8) - (base.known & inside & (base.value == found)).view(
            np.int8
        )
        where = np.flatnonzero(delta)
        along = self.scene.along(side, self.right)
        chosen = {axis: numbers[where] for axis, numbers in along.items()}
        return Change(delta[where], chosen, {axis: int(numbers.max()) for axis, numbers in along.items()})

    def _everywhere(self, writer: Writer) -> Hypothesis:
        return with_writers(self.plain, dict.fromkeys(self.scene.sides, writer))

    def _look(self, hypothesis: Hypothesis, *, bounds: bool = False) -> None:
        if all(each.hypothesis != hypothesis for each in self.verdicts):
            verdict = self._verdict(hypothesis, bounds=bounds)
            if verdict is not None:
                self.verdicts.append(verdict)

    def _mixed(self) -> None:
        """K by one writer and V by another one, or in one place and in another."""
        best = sorted(self.verdicts, key=lambda each: each.bits)
        alone = []
        for side in self.scene.sides:
            other = [(s, w) for s, w in self.plain.writers if s != side]
            alone.append(next((
                each.hypothesis for each in best if each.hypothesis.scope is None and each is not self.own
                and all(pair in each.hypothesis.writers for pair in other)
                and each.hypothesis.geometries == self.plain.geometries
            ), None))  # fmt: skip
        if len(alone) == 2 and alone[0] is not None and alone[1] is not None:
            self._look(Hypothesis((alone[0].writers[0], alone[1].writers[1]), self.plain.geometries))

    def _faults_of_rivals(self) -> Iterable[Writer]:
        """The faults of the recipes that come nearest."""
        explained = {each.hypothesis: each.explained for each in self.verdicts}
        plain = [each for each in self.rivals if self._everywhere(Writer(each)) not in explained]
        for each in plain:
            strips = self._strips(Writer(each))
            if strips is not None:
                found = self.scene.canvas.found
                explained[self._everywhere(Writer(each))] = sum(
                    int(np.count_nonzero(strip.value == found[strip.at])) for strip in strips.values()
                )
        ranked = sorted(self.rivals, key=lambda each: -explained.get(self._everywhere(Writer(each)), 0))
        for each in ranked[:_FURTHER]:
            for fault, variant in self.faults:
                if fault.kind != "content":
                    yield from self._settled(each, fault, variant)

    # --- geometries -------------------------------------------------------------------------------------------------

    def _distinct_geometries(self) -> list[Geometry]:
        """Each layout fault that the declared layout leaves room for, and other layouts; the same addresses once."""
        layout = self.dump.layout
        wanted = [Geometry(layout.name, fault, variant) for fault, variant in variants(layout.mode, "layout")]
        for name, entry in LAYOUTS.items():
            form = dict(entry.modes).get(layout.mode)
            choices = [choice for choice, _ in form.v_scales] or [""] if form and name != layout.name else []
            wanted += [
                Geometry(name, None, Variant(name, remap=OtherLayout(name, layout.order, each))) for each in choices
            ]
        home = self.scene.places(self.home)
        assert home is not None
        kept, found = [], [home]
        for geometry in wanted:
            places = self.scene.places(geometry)
            sides = self.scene.sides
            if places is not None and not any(all(places.same_as(each, side) for side in sides) for each in found):
                kept.append(geometry)
                found.append(places)
        return kept

    def _try_geometries(self) -> None:
        """The declared writer in other places, and with a fault there in the best of them."""
        ranked: list[tuple[int, Geometry]] = []
        wanted: list[tuple[float, int, Hypothesis]] = []
        for geometry in self.geometries:
            self.tried += 1
            places, home = self.scene.places(geometry), self.scene.places(self.home)
            assert places is not None
            assert home is not None
            moved = [side for side in self.scene.sides if places.coupled or not places.same_as(home, side)]
            everywhere = with_geometries(self.plain, dict.fromkeys(moved, geometry))
            verdict = self._verdict(everywhere, bounds=False)
            if verdict is None:
                continue
            self.verdicts.append(verdict)
            ranked.append((verdict.explained, geometry))
            for scoped, gain in self._scoped(geometry, verdict, coupled=places.coupled or places.overlapping):
                estimate = self.kinds.bits(scoped, self.plain) + _PER_BYTE * (len(self.own.wrong) - gain)
                wanted.append((estimate, len(wanted), scoped))
        for _, _, hypothesis in sorted(wanted)[: _CLOSE // 2]:
            self._look(hypothesis)
        if self._left_over():
            best = sorted(ranked, key=lambda each: -each[0])[:_FURTHER]
            for _, geometry in best:
                self._pairs(geometry)

    def _scoped(self, geometry: Geometry, verdict: Verdict, *, coupled: bool) -> Iterable[tuple[Hypothesis, int]]:
        image = verdict.image
        changes = {
            side: self._change(side, image.value[strip.at], image.known[strip.at]) for side, strip in self.base.items()
        }
        for gain in gains(changes):
            moved = with_geometries(self.plain, dict.fromkeys(gain.sides, geometry))
            if gain.scope is not None:
                moved = with_geometries(self.plain, dict.fromkeys(self.scene.sides, geometry))
                if len(gain.sides) == len(self.scene.sides):
                    yield replace(moved, scope=gain.scope), gain.bytes
            elif not coupled and len(gain.sides) < len(self.scene.sides):
                yield moved, gain.bytes

    def _pairs(self, geometry: Geometry) -> None:
        """Every writer in one geometry: the closest ones are looked at."""
        found = self.scene.canvas.found
        counts: list[tuple[int, int, Writer, tuple[Side, ...]]] = []
        for group in self._alike.values():
            writer = group[0]
            if writer == self.right or writer.variant.unwritten:
                continue
            self.tried += 1
            right: dict[Side, int] = {}
            for side in self.scene.sides:
                strip = self.scene.strip(writer, geometry, side)
                if strip is not None:
                    hits = strip.known & (strip.at >= 0) & (strip.value == found[strip.at])
                    right[side] = int(np.count_nonzero(hits))
            if len(right) == len(self.scene.sides):
                counts.append((sum(right.values()), len(counts), writer, self.scene.sides))
        for _, _, writer, sides in sorted(counts, key=lambda each: (-each[0], each[1]))[: _CLOSE // 3]:
            moved = with_geometries(self.plain, dict.fromkeys(self.scene.sides, geometry))
            self._look(with_writers(moved, dict.fromkeys(sides, writer)))
            for side in sides if len(sides) > 1 else ():
                self._look(with_writers(moved, {side: writer}))

    # --- what leaves the same bytes -----------------------------------------------------------------------------------

    def members(self, verdict: Verdict) -> list[Hypothesis]:
        """The hypothesis and those like it that leave the same bytes, the plainest first."""
        hypothesis = verdict.hypothesis
        writer = next((each for _, each in hypothesis.writers if each != self.right), self.right)
        kept = [hypothesis]
        mine = next((key for key, group in self._alike.items() if writer in group), None)
        if mine is None or hypothesis.approximate:  # bytes within its bounds need not be those of others at its centre
            return kept
        writers = dict(hypothesis.writers)
        both = all(each == writer for each in writers.values())
        for key, group in self._alike.items():
            same = [a == b for a, b in zip(key, mine, strict=True)]
            same_there = [fits for fits, side in zip(same, self.scene.sides, strict=True) if writers[side] == writer]
            if not all(same_there):
                continue
            for other in group:
                if other == writer:
                    continue
                if both and not all(same):
                    continue
                changed = with_writers(
                    hypothesis, {side: other for side in self.scene.sides if writers[side] == writer}
                )  # fmt: skip
                plain = other.fault is None
                if plain or (writer.fault is not None and other.recipe == writer.recipe):
                    kept.append(changed)
        return kept


def _approximate(recipe: Recipe) -> bool:
    from kvformat.recipes.admissible import is_approximate

    return is_approximate(recipe)

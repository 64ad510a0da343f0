"""`check`: quantizes what a dump was given, reads what its pages hold, and compares bit for bit, in chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvformat import cache
from kvformat.attention.judge import judge
from kvformat.dump.dump import Dump
from kvformat.elements import threads
from kvformat.elements.formats import element
from kvformat.errors import InputError
from kvformat.layouts import Segment
from kvformat.recipes.admissible import is_approximate, within
from kvformat.recipes.catalogue import recipe as find_recipe
from kvformat.recipes.program import Recipe
from kvformat.recipes.quantizer import Quantized, checked, statistics, tensor_scale
from kvformat.verify.bounds import allowed_codes, count_consistent, outer_values
from kvformat.verify.explain import explain_code, explain_scale, pattern_name, with_code
from kvformat.verify.identify import SIDES, identify
from kvformat.verify.reach import Reach
from kvformat.verify.report import Report, Tally

Side = cache.Side
Progress = Callable[[int, int], None]

#: elements that the interval reader is given at once: it keeps some twenty arrays of them
_INTERVALS = 1 << 16


@dataclass(frozen=True)
class _Piece:
    """What is judged at once: the dims of a side that one recipe covers, and the per-tensor scale that they have."""

    segment: Segment
    recipe: Recipe
    scale: np.float32 | None

    @property
    def side(self) -> Side:
        return self.segment.side

    def rows(self, dump: Dump, start: int, stop: int) -> NDArray[Any]:
        """Its dims of rows start..stop-1."""
        dims = self.segment.dims
        return np.ascontiguousarray(dump.rows(self.side, start, stop)[..., dims.start : dims.stop])

    def expected(self, dump: Dump, x: NDArray[Any]) -> Quantized:
        """What its recipe makes of its dims."""
        return _expected(dump, x, self.recipe, self.scale, self.segment)

    def found(self, dump: Dump, slots: NDArray[np.int64]) -> Quantized:
        """What the pages hold of it."""
        return cache.load(dump.layout, dump.pages, slots, self.side, self.recipe, self.scale, self.segment)

    def copies_differ(self, dump: Dump, slots: NDArray[np.int64]) -> NDArray[np.bool_] | None:
        """Where a scale's further copies are not the first one: (tokens, heads, columns); None where there are none."""
        if not any(region.copies > 1 for region in self.segment.scales):
            return None
        (region,) = self.segment.scales
        block, slot = np.divmod(slots, dump.layout.block_size)
        rows = region.read(dump.pages, block, slot)
        copies = rows.reshape(*rows.shape[:2], region.columns, region.copies)
        differ: NDArray[np.bool_] = (copies != copies[..., :1]).any(axis=-1)
        return differ


@dataclass(frozen=True)
class Place:
    """Where the first difference is: the token's row in the dump, and which code or scale of its head."""

    token: int
    piece: _Piece
    part: str
    head: int
    #: the code's, or the scale's, column in its segment
    column: int


def check(dump: Dump, *, recipe: str | Recipe | None = None, progress: Progress | None = None) -> Report:
    """Judge a dump: every code and scale that its pages hold in the slots of its tokens, against its recipe.

    NaN codes and NaN scales compare as a class, everything else bit for bit. Bytes of slots that no token was written
    to are not judged. The work is done in chunks: beyond the mapped file it takes well under 1 GiB, however large the
    dump. recipe: judge by this one, whatever the dump declares. progress: called with (tokens done, tokens in all).
    A dump with `query` and `output` has its attention judged as well, by what its pages hold: `verify.attention`.

    Raises InputError where the dump cannot be judged: no token has a slot, or its recipe cannot take its K and V.
    """
    if recipe is not None:
        dump = dump.declaring(recipe)
    how = find_recipe(dump.layout.recipe if dump.recipe is None else dump.recipe).for_input(dump.key.dtype.name)
    cache.check_fits(dump.layout, how)
    slots = np.flatnonzero(dump.slot_mapping >= 0)
    if not len(slots):
        raise InputError(
            "no token of the dump has a slot (all of slot_mapping is negative), so there is nothing to judge"
        )
    scales: dict[Side, np.float32 | None] = {
        side: _tensor_scale(dump, side, how) for side in SIDES if side in dump.layout.sides
    }
    tallies = {
        piece: Tally(piece.side, *_labels(piece), reach=_reach(dump, piece)) for piece in _pieces(dump, how, scales)
    }
    first: Place | None = None
    chunks = _chunks(dump)
    made = threads.in_order(lambda start, stop: [_matches(dump, piece, start, stop) for piece in tallies], chunks)
    for chunk, matches in zip(chunks, made, strict=True):
        for match, (piece, tally) in zip(matches, tallies.items(), strict=True):
            if match is not None:
                tally.add_equal(match.compared, match.tokens)
                if tally.reach is not None and match.reach is not None:
                    tally.reach.join(match.reach)
                continue
            found = _compare(dump, piece, chunk, tally)
            if found is not None and (first is None or found.token < first.token):
                first = found
        if progress is not None:
            progress(chunk[1], dump.tokens)
    attention = None if dump.query is None else judge(dump, how, scales)
    if first is None:
        return Report.make(dump, how, scales, tuple(tallies.values()), attention=attention)
    explained = _explain(dump, first)
    by_main = next((tally for tally in tallies.values() if not tally.recipe and any(tally.wrong.values())), None)
    named = None if by_main is None else identify(dump, how, first.token)
    return Report.make(dump, how, scales, tuple(tallies.values()), explained, named, attention)


def _pieces(dump: Dump, how: Recipe, scales: dict[Side, np.float32 | None]) -> Iterator[_Piece]:
    for side, scale in scales.items():
        for segment in dump.layout.segments(side):
            own, its_scale = cache.covering(segment, how, scale)
            yield _Piece(segment, own.for_input(dump.key.dtype.name), its_scale)


def _labels(piece: _Piece) -> tuple[str, str, int]:
    return piece.segment.name, piece.segment.recipe, piece.segment.dims.start


def _reach(dump: Dump, piece: _Piece) -> Reach | None:
    """A count of what a given per-tensor scale does not reach; None where the piece has none, or it was computed."""
    given = dump.k_scale if piece.side == "k" else dump.v_scale
    if given is None or piece.scale is None or piece.recipe.element is None:
        return None
    return Reach.of(piece.recipe, piece.scale)


def wrong_tokens(dump: Dump, how: Recipe, *, progress: Progress | None = None) -> NDArray[np.bool_]:
    """Which tokens of a dump have a code or scale that is not what a recipe's engine gives: bool (tokens,).

    how: `for_input` of the dump's dtype. What the bounds of approximate instructions allow counts as wrong here.
    """
    scales: dict[Side, np.float32 | None] = {side: _tensor_scale(dump, side, how) for side in SIDES}
    wrong = np.zeros(dump.tokens, bool)
    for start, stop in _chunks(dump):
        slots = dump.slot_mapping[start:stop]
        tokens = np.flatnonzero(slots >= 0)
        for side in SIDES:
            if len(tokens):
                expected = _expected(dump, dump.rows(side, start, stop)[tokens], how, scales[side])
                found = cache.load(dump.layout, dump.pages, slots[tokens], side, how, scales[side])
                for mask in (*_wrong_parameters(expected, found).values(), _wrong_codes(expected, found)):
                    wrong[tokens + start] |= mask.any(axis=(1, 2))
        if progress is not None:
            progress(stop, dump.tokens)
    return wrong


def _chunks(dump: Dump) -> list[tuple[int, int]]:
    row = dump.layout.num_kv_heads * max(dump.layout.head_size, dump.layout.head_size_v)
    return threads.tiles(dump.tokens, row)


def _tensor_scale(dump: Dump, side: Side, how: Recipe) -> np.float32 | None:
    """The one scale per tensor that a recipe has: given by the dump, or computed over all rows, padding included."""
    given = dump.k_scale if side == "k" else dump.v_scale
    if given is not None or not how.outer:
        return given
    if len(how.outer) > 1 or how.outer[0].granularity.name != "per_tensor":
        shared = ", ".join(level.granularity.name for level in how.outer)
        raise InputError(f"recipe {how.name} has scales {shared} beside the pages; a dump has one scale per tensor")
    (level,) = how.outer
    main = next(segment for segment in dump.layout.segments(side) if not segment.recipe)
    whole = _Piece(main, how, None)
    parts = [statistics(level, checked(whole.rows(dump, *chunk))) for chunk in _chunks(dump)]
    return tensor_scale(level, np.maximum.reduce(parts))


@dataclass(frozen=True)
class _Match:
    """A piece of a chunk in which no byte differs from the expected ones."""

    tokens: int
    #: codes and parameters, by part
    compared: dict[str, int]
    reach: Reach | None


def _matches(dump: Dump, piece: _Piece, start: int, stop: int) -> _Match | None:
    """Compare a piece of a chunk of tokens as bytes; None where one differs, which `_compare` then judges."""
    slots = dump.slot_mapping[start:stop]
    tokens = np.flatnonzero(slots >= 0)
    x = piece.rows(dump, start, stop)
    if len(tokens) < len(x):
        x, slots = x[tokens], slots[tokens]
    if not len(tokens):
        return _Match(0, {}, None)
    expected, found = piece.expected(dump, x), piece.found(dump, slots)
    pairs = {
        part: [each.scales if part == "scale" else each.more[part] for each in (expected, found)]
        for part in expected.recipe.in_page
    } | {"code": [expected.codes, found.codes]}
    if not all(_same_bytes(*pair) for pair in pairs.values()):
        return None
    differ = piece.copies_differ(dump, slots)
    if differ is not None and differ.any():
        return None
    reach = _reach(dump, piece)
    if reach is not None:
        reach.add(x, found)
    return _Match(len(tokens), {"scale": 0} | {part: pair[0].size for part, pair in pairs.items()}, reach)


def _same_bytes(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Whether two arrays of one shape hold the same bytes."""
    first, second = (np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in (a, b))
    wide = len(first) // 8 * 8  # eight at a time
    return np.array_equal(first[:wide].view(np.uint64), second[:wide].view(np.uint64)) and np.array_equal(
        first[wide:], second[wide:]
    )


def _compare(dump: Dump, piece: _Piece, chunk: tuple[int, int], tally: Tally) -> Place | None:
    """Judge a piece of a chunk of tokens, count into `tally`, and give its first difference."""
    slots = dump.slot_mapping[slice(*chunk)]
    tokens = np.flatnonzero(slots >= 0)
    if not len(tokens):
        return None
    x = piece.rows(dump, *chunk)[tokens]
    expected, found = piece.expected(dump, x), piece.found(dump, slots[tokens])
    wrong = differences(x, expected, found, piece.scale, tally)
    count_consistent(x, found, piece.scale, wrong, tally)
    if tally.reach is not None:
        tally.reach.add(x, found)
    differ = piece.copies_differ(dump, slots[tokens])
    if differ is not None:
        wrong["scale"] = wrong["scale"] | differ
    places = []
    for part, mask in wrong.items():
        tally.add(part, mask, tokens + chunk[0])
        if mask.any():
            token, head, column = np.unravel_index(int(np.argmax(mask)), mask.shape)
            places.append(Place(int(tokens[token]) + chunk[0], piece, part, int(head), int(column)))
    return min(places, key=lambda place: (place.token, place.head), default=None)


def differences(
    x: NDArray[Any], expected: Quantized, found: Quantized, scale: np.float32 | None, tally: Tally
) -> dict[str, NDArray[np.bool_]]:
    """Which parameters and codes differ: masks (tokens, heads, columns) and (tokens, heads, dims) by part.

    x: the input that both were made from, scale: its per-tensor scale. NaN codes and NaN scales compare as a class; an
    approximate recipe allows what its bounds do, which is counted in `tally`.
    """
    wrong = {**_wrong_parameters(expected, found), "code": _wrong_codes(expected, found)}
    if is_approximate(expected.recipe):
        return _allow(x, expected.recipe, scale, found, wrong, tally)
    return wrong


def _allow(
    x: NDArray[Any],
    how: Recipe,
    scale: np.float32 | None,
    found: Quantized,
    wrong: dict[str, NDArray[np.bool_]],
    tally: Tally,
) -> dict[str, NDArray[np.bool_]]:
    """What is wrong beyond the bounds of the recipe's approximate instructions; worked out for rows in question."""
    judged = {part: mask.copy() for part, mask in wrong.items()}
    every = np.flatnonzero(wrong["scale"].any(axis=2) | wrong["code"].any(axis=2))
    step = max(1, _INTERVALS // x.shape[2])
    for start in range(0, len(every), step):
        _allow_rows(x, how, scale, found, judged, every[start : start + step], tally)
    return judged


def _allow_rows(
    x: NDArray[Any],
    how: Recipe,
    scale: np.float32 | None,
    found: Quantized,
    wrong: dict[str, NDArray[np.bool_]],
    suspect: NDArray[np.intp],
    tally: Tally,
) -> None:
    """Clear in `wrong` what is admissible in these (token, head) rows."""
    rows = {part: _by_row(mask)[suspect] for part, mask in wrong.items()}
    codes = found.codes.view(np.uint8).reshape(-1, x.shape[2])[suspect]
    stored = found.scales.reshape(x.shape[0] * x.shape[1], -1)[suspect] if how.inner else rows["scale"]
    elements = x.astype(np.float32).reshape(-1, x.shape[2])[suspect]
    outer = outer_values(how, scale)
    good = dict(zip(("scale", "code"), within(elements, how, outer, codes, stored), strict=True))
    for part, mask in wrong.items():
        tally.allowed += int(np.count_nonzero(rows[part] & good[part]))
        _by_row(mask)[suspect] = ~good[part]


def _by_row(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """A view (tokens * heads, columns), of no columns too."""
    return mask.reshape(mask.shape[0] * mask.shape[1], mask.shape[2])


def _expected(
    dump: Dump, x: NDArray[Any], how: Recipe, scale: np.float32 | None, segment: Segment | None = None
) -> Quantized:
    return cache.quantize_for(dump.layout, checked(x), how, scale, segment)


def _wrong_codes(expected: Quantized, found: Quantized) -> NDArray[np.bool_]:
    """Where codes differ: (tokens, heads, dims). Two NaN are equal."""
    how = expected.recipe
    if how.element is None:
        return _wrong_floats(expected.codes, found.codes)
    wrong: NDArray[np.bool_] = expected.codes != found.codes
    nan_codes = element(how.element).nan_codes
    if nan_codes and wrong.any():
        wrong[wrong] = ~(np.isin(expected.codes[wrong], nan_codes) & np.isin(found.codes[wrong], nan_codes))
    return wrong


def _wrong_parameters(expected: Quantized, found: Quantized) -> dict[str, NDArray[np.bool_]]:
    """Where a page's parameters differ, by part: (tokens, heads, columns). Two NaN are equal.

    "scale" is always there, of no columns where the page holds none.
    """
    tokens, heads = expected.codes.shape[:2]
    wrong = {"scale": np.zeros((tokens, heads, 0), bool)}
    for part, level in expected.recipe.in_page.items():
        here, there = (each.scales if part == "scale" else each.more[part] for each in (expected, found))
        wrong[part] = level.format.differs(here, there).reshape(tokens, heads, -1)
    return wrong


def _wrong_floats(expected: NDArray[Any], found: NDArray[Any]) -> NDArray[np.bool_]:
    unsigned = f"u{expected.dtype.itemsize}"
    wrong: NDArray[np.bool_] = expected.view(unsigned) != np.ascontiguousarray(found).view(unsigned)
    if wrong.any():
        with np.errstate(invalid="ignore"):  # ml_dtypes widens to ask, and a signalling NaN makes that "invalid"
            wrong &= ~(np.isnan(expected) & np.isnan(found))
    return wrong


def _explain(dump: Dump, place: Place) -> dict[str, Any]:
    token, piece = place.token, place.piece
    row = piece.rows(dump, token, token + 1)
    slot = int(dump.slot_mapping[token])
    expected, found = piece.expected(dump, row), piece.found(dump, dump.slot_mapping[token : token + 1])
    how = piece.recipe
    inner = how.inner.granularity.columns(row.shape[2]) if how.inner else 1
    width = row.shape[2] // inner
    start = piece.segment.dims.start
    dim = start + (place.column if place.part == "code" else place.column * width)
    block, position = divmod(slot, dump.layout.block_size)
    bit = 0
    if place.part == "code" and how.element is not None:  # where it lies apart, the lowest bit that differs
        differ = int(expected.codes[0, place.head, place.column]) ^ int(found.codes[0, place.head, place.column])
        bit = (differ & -differ).bit_length() - 1 if len(piece.segment.codes) > 1 else 0
    where = dump.layout.locate(side=piece.side, slot=position, head=place.head, dim=dim, part=place.part, bit=bit)
    allowed: dict[str, Any] = {}
    if place.part == "code" and is_approximate(how):
        # judged with the scale that is there, within the bounds: so that is what is shown as expected
        patterns = allowed_codes(row[0, place.head], found, piece.scale, place.head, place.column)
        expected = with_code(replace(expected, scales=found.scales), patterns, place.head, place.column)
        allowed = {"allowed": [pattern_name(str(how.element), pattern) for pattern in patterns]}
    at = (row[0, place.head], expected, found, place.head, place.column)
    explained = (explain_code(*at) if place.part == "code" else explain_scale(*at, place.part)) | allowed
    if start and "shared_by" in explained:
        explained["shared_by"] = [start + bound for bound in explained["shared_by"]]
    return {
        "side": piece.side,
        "part": place.part,
        "token": token,
        "head": place.head,
        "dim": dim,
        "slot": slot,
        "block": block,
        "position": position,
        "byte": where.byte,
        "bit": where.bit,
        **explained,
    }

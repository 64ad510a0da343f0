"""The rules of `lint` as data: what right pages never show, each with its reason and a public case of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from kvformat.elements.formats import element
from kvformat.lint import statistics
from kvformat.lint.traits import Traits
from kvformat.recipes.store import store_format
from kvformat.verify.identify import Side

Mask = NDArray[np.bool_]
Array = NDArray[Any]

#: (slots, heads, entries): where a rule is broken, and what to say of such a place
Breach = tuple[Literal["code", "scale"], Mask, str | Callable[[NDArray[np.int64]], str]]
#: the same for a rule that is judged when all pages have been seen
Places = tuple[Literal["code", "scale"], Mask]

#: rows that a majority is made of
_MANY = 4
#: distinct magnitudes that a row of a few constants does not show
_SPREAD = 4


@dataclass(frozen=True)
class Slots:
    """Dims of one side of some slots, as a reader finds them. `written` says which of them hold a token."""

    side: Side
    #: whether these dims stand for the whole slot: they are the first ones that its page stores
    leads: bool
    #: what right pages of the recipe show
    traits: Traits
    block_size: int
    #: slots of all blocks, block by block: (slots,)
    written: Mask
    #: whether that is known from a slot mapping, or guessed: a slot whose bytes are all one byte was never written
    known: bool
    #: slots whose bytes are all one byte
    blank: Mask
    #: patterns (slots, heads, dims), mode none: the values
    codes: Array
    #: values of the codes, float32 (slots, heads, dims)
    values: Array
    #: values (slots, heads, columns) of the scales in the page; no columns where there are none
    scales: Array
    #: whether the scales lie in the 4-token swizzle
    swizzled: bool

    @property
    def kind(self) -> str:
        """Element format of the codes; mode none: ""."""
        return self.traits.kind

    @property
    def scale_kind(self) -> str:
        """Format of the scales, "" where there are none."""
        return self.traits.scale_kind

    @property
    def groups(self) -> Array:
        """Magnitudes by scale: (slots, heads, columns, elements)."""
        slots, heads, dims = self.values.shape
        columns = max(self.scales.shape[2], 1)
        return np.abs(self.values).reshape(slots, heads, columns, dims // columns)


class Whole(Protocol):
    """One side of a whole cache, which is seen part by part."""

    def add(self, slots: Slots) -> Places | None:
        """Take in some more slots: where the rule is broken in them, if it is."""

    def verdict(self) -> str | None:
        """Whether the rule is broken in all that was seen, and what to say of each place."""


def _nothing(_: Slots) -> Iterator[Breach]:
    yield from ()


@dataclass(frozen=True)
class Rule:
    """Something that right pages never show."""

    id: str
    #: one line: what was found
    meaning: str
    #: one line: why that is no right page
    reason: str
    #: a public case
    source: str
    #: whose pages it looks at
    applies: Callable[[Traits], bool]
    #: where single slots break it
    find: Callable[[Slots], Iterator[Breach]] = _nothing
    #: or what gathers the evidence, where only the whole cache can break it
    whole: Callable[[], Whole] | None = None


def _scales_where(test: Callable[[Slots], Mask], text: str) -> Callable[[Slots], Iterator[Breach]]:
    def find(slots: Slots) -> Iterator[Breach]:
        yield "scale", test(slots) & slots.written[:, None, None], text

    return find


def _zero_scale(slots: Slots) -> Mask:
    others = (slots.groups.max(axis=3) > 0) & (slots.groups != slots.traits.zeros).any(axis=3)
    broken: Mask = (slots.scales == 0) & others
    return broken


def _magnitudes(rows: Array) -> Array:
    """How many magnitudes other than 0 each row shows: (rows, elements) to (rows,)."""
    ordered = np.sort(rows, axis=1)
    counts: Array = np.count_nonzero((np.diff(ordered, axis=1) > 0) & (ordered[:, 1:] > 0), axis=1)
    return counts + (ordered[:, 0] > 0)


class _OneForAll:
    """Scales of 1.0 by the majority: a single row may well have an amax of 127 or 448."""

    def __init__(self) -> None:
        self._ones = self._spread = 0
        self._largest: set[float] = set()
        self._in_floats = False

    def add(self, slots: Slots) -> Places | None:
        largest = slots.groups.max(axis=3)
        spread = (largest > 0) & slots.written[:, None, None]
        one = (slots.scales == 1) & spread
        one[one] = _magnitudes(slots.groups[one]) >= _SPREAD  # rows of constants may well have it
        self._ones += int(np.count_nonzero(one))
        self._spread += int(np.count_nonzero(spread))
        self._largest.update(np.unique(largest[spread]).tolist())
        self._in_floats = slots.scale_kind == "float32"
        return "scale", one

    def verdict(self) -> str | None:
        # block scales that are all alike do occur; that their largest codes are not does not
        many = self._ones >= _MANY and 2 * self._ones > self._spread
        if many and (self._in_floats or len(self._largest) > 1):
            return "the scale is exactly 1.0, as those of most rows"
        return None


def _below_top(slots: Slots) -> Iterator[Breach]:
    """The largest code of a row reaches what the recipe's scale makes of any amax."""
    least = slots.traits.least_top
    largest = slots.groups.max(axis=3)
    with np.errstate(invalid="ignore"):
        judged = (slots.scales > slots.traits.floor) & np.isfinite(slots.scales) & (largest > 0)
    if slots.scale_kind != "float32":
        judged &= slots.scales < store_format(slots.scale_kind).max
    broken = judged & (largest < least) & slots.written[:, None, None]
    if broken.any():
        yield (
            "scale",
            broken,
            lambda place: f"the largest magnitude under this scale is {float(largest[tuple(place)]):g}, not {least:g}",
        )


def _at_top(slots: Slots) -> Iterator[Breach]:
    """A scale that is too small makes most codes of a row the largest one, and the rest anything.

    Rows of a few constants have most of their codes at the top, too, and are right: they show few magnitudes.
    """
    top = element(slots.kind).max
    groups = slots.groups
    broken = (2 * np.count_nonzero(groups >= top, axis=3) > groups.shape[3]) & slots.written[:, None, None]
    broken[broken] = _magnitudes(groups[broken]) > _SPREAD
    if broken.any():
        yield "scale", broken, f"more than half of the codes under this scale are the largest, {top:g}"


def _nan_codes(slots: Slots) -> Iterator[Breach]:
    yield "code", np.isnan(slots.values) & slots.written[:, None, None], "the code is NaN"


def _not_finite(slots: Slots) -> Iterator[Breach]:
    yield "code", ~np.isfinite(slots.values) & slots.written[:, None, None], "the value is not finite"


def _unwritten(slots: Slots) -> Iterator[Breach]:
    """A slot that should hold a token and has one and the same byte throughout; or one before a written one.

    The bytes of a token of zeros are all 0, too, and such a one is right; but a float32 scale of zeros is 1 or a floor.
    A token of another constant may be right where others of its block are constants.
    """
    if not slots.leads:  # the bytes of all dims were compared
        return
    blocks = slots.written.reshape(-1, slots.block_size)
    if slots.known:
        missing = slots.written & slots.blank
    else:
        later = np.cumsum(blocks[:, ::-1], axis=1)[:, ::-1] > 0
        missing = (~blocks & later).reshape(-1)
    if slots.scale_kind != "float32":
        missing &= (slots.values != slots.traits.zero).any(axis=(1, 2))
        rows = (slots.values != slots.values[..., :1]).any(axis=(1, 2))
        varied = (rows & slots.written).reshape(blocks.shape).sum(axis=1)
        missing &= (varied > missing.reshape(blocks.shape).sum(axis=1) * _MANY).repeat(slots.block_size)
    if missing.any():
        mask = np.zeros(slots.codes.shape, bool)
        mask[missing, 0, 0] = True
        yield "code", mask, "all bytes of the slot are the same: it was never written"


def _poison(slots: Slots) -> Iterator[Breach]:
    """NaN or Inf in a slot that holds no token, in a block that has some: its weight is 0, and 0 * NaN is NaN."""
    if not slots.known:
        return
    used = slots.written.reshape(-1, slots.block_size).any(axis=1).repeat(slots.block_size)
    empty = (used & ~slots.written)[:, None, None]
    yield "code", ~np.isfinite(slots.values) & empty, "an unwritten slot holds NaN or Inf"
    yield "scale", ~np.isfinite(slots.scales) & empty, "the scale of an unwritten slot is NaN or Inf"


class _NegativeZeros:
    """Numbers of one sign that underflow leave zeros of one sign: both signs must be among the other codes."""

    def __init__(self) -> None:
        self._negative = self._zeros = self._above = 0

    def add(self, slots: Slots) -> Places | None:
        zero = (slots.values == 0) & slots.written[:, None, None]
        negative = np.signbit(slots.values) & zero
        self._zeros += int(np.count_nonzero(zero))
        self._negative += int(np.count_nonzero(negative))
        self._above += int(np.count_nonzero((slots.values > 0) & slots.written[:, None, None]))
        return "code", negative

    def verdict(self) -> str | None:
        every = self._negative >= 32 and self._negative == self._zeros and self._above >= 32
        return "this zero is negative, as are all of them" if every else None


class _OtherFormat:
    def __init__(self) -> None:
        self._spread: statistics.Spread | None = None

    def add(self, slots: Slots) -> Places | None:
        first = self._spread is None and slots.written.any()
        if first:
            self._spread = statistics.Spread(slots.kind)
        if self._spread is not None:
            self._spread.add(slots.codes[slots.written])
        return ("code", _entry(slots.codes.shape, np.flatnonzero(slots.written)[0])) if first else None

    def verdict(self) -> str | None:
        better = None if self._spread is None else self._spread.better_format()
        if self._spread is None or better is None:
            return None
        return f"the codes of these pages are spread like {better}, not like {self._spread.name}"


class _OtherSwizzle:
    def __init__(self) -> None:
        self._alike: statistics.Alike | None = None

    def add(self, slots: Slots) -> Places | None:
        full: Mask = np.asarray(slots.written.reshape(-1, slots.block_size).all(axis=1))
        if slots.block_size % 4 or not slots.scales.shape[2] or slots.scales.shape[2] % 4 or not full.any():
            return None
        first = self._alike is None
        if self._alike is None:
            self._alike = statistics.Alike(swizzled=slots.swizzled)
        self._alike.add(slots.scales.reshape(len(full), slots.block_size, *slots.scales.shape[1:])[full])
        place = np.flatnonzero(full)[0] * slots.block_size
        return ("scale", _entry(slots.scales.shape, place)) if first else None

    def verdict(self) -> str | None:
        better = None if self._alike is None else self._alike.better_swizzle()
        return f"neighbouring tokens have like scales only if these are {better}" if better else None


def _entry(shape: tuple[int, ...], slot: Any) -> Mask:
    """A single place: the first entry of a slot."""
    mask = np.zeros(shape, bool)
    mask[slot, 0, 0] = True
    return mask


def _any(_: Traits) -> bool:
    return True


def _scaled(traits: Traits) -> bool:
    return bool(traits.scale_kind)


def _codes_with_nan(traits: Traits) -> bool:
    return bool(traits.kind) and bool(element(traits.kind).nan_codes) and not traits.zeros_are_nan


_RULES = (
    Rule(
        "scale-not-finite",
        "a scale is NaN or Inf",
        "it makes every value that it covers NaN or Inf, zeros included",
        "NVIDIA/Model-Optimizer#1397",
        _scaled,
        _scales_where(lambda slots: ~np.isfinite(slots.scales), "the scale is not finite"),
    ),
    Rule(
        "scale-negative",
        "a scale has its sign bit set",
        "a scale is made of a magnitude; a sign bit says that these bytes are something else",
        "NVIDIA/Model-Optimizer#1397",
        lambda each: _scaled(each) and each.scale_kind != "e8m0fnu" and not each.signed,
        _scales_where(lambda slots: np.signbit(slots.scales) & ~np.isnan(slots.scales), "the scale is negative"),
    ),
    Rule(
        "scale-zero",
        "a scale is 0 where codes are not",
        "all values are read as 0: the scale was reset, or never set",
        "vllm-project/vllm#25800, InfiniTensor/InfiniLM#553",
        lambda each: _scaled(each) and each.scale_kind != "e8m0fnu" and not each.offset,
        _scales_where(_zero_scale, "the scale is 0, but codes are not"),
    ),
    Rule(
        "scale-one",
        "most scales are exactly 1.0 where codes are spread",
        "1.0 is what scales are before somebody sets them",
        "vllm-project/vllm#51091, #54624",
        lambda each: _scaled(each) and not each.powers,
        whole=_OneForAll,
    ),
    Rule(
        "top-not-reached",
        "the largest code under a scale is not the format's largest",
        "a scale is amax / QMAX, so amax itself becomes QMAX: another QMAX, a stale scale, or codes of other elements",
        "ROCm/aiter#3912; vllm-project/vllm#32201, #45681",
        lambda each: _scaled(each) and not each.offset,
        _below_top,
    ),
    Rule(
        "saturated",
        "most codes under a scale are the largest",
        "the scale is too small for what it covers",
        "weicj/vLLM-2080Ti-Definitive#106, #109; sgl-project/sglang#18373",
        lambda each: _scaled(each) and element(each.kind).bits == 8 and not each.offset,
        _at_top,
    ),
    Rule(
        "code-nan",
        "a code is NaN",
        "one NaN in a key makes its whole softmax row NaN; 0x7F in every row is the largest value of e4m3fnuz",
        "sgl-project/sglang#18373; vllm-project/vllm#45720, #3290",
        _codes_with_nan,
        _nan_codes,
    ),
    Rule(
        "value-not-finite",
        "a value is NaN or Inf",
        "one NaN in a key makes its whole softmax row NaN",
        "sgl-project/sglang#18373",
        lambda each: not each.kind,
        _not_finite,
    ),
    Rule(
        "other-format",
        "the codes are spread as in another format",
        "writer and reader take the dtype from different places",
        "vllm-project/vllm#54341, #45720",
        lambda each: statistics.has_rivals(each.kind),
        whole=_OtherFormat,
    ),
    Rule(
        "other-swizzle",
        "block scales of neighbouring tokens are alike only in another swizzle",
        "channels keep their size from token to token; the right order shows that",
        "vllm-project/vllm#50084; flashinfer-ai/flashinfer#2954",
        lambda each: each.swizzles,
        whole=_OtherSwizzle,
    ),
    Rule(
        "negative-zeros",
        "every zero is a negative zero",
        "a sign bit made of (2 - sign(x)) // 2 is 1 for 0",
        "NVIDIA Model Optimizer 0.47.0 mxfp4_tensor.py",
        lambda each: bool(each.kind) and element(each.kind).kind == "float" and not each.zero_is_negative,
        whole=_NegativeZeros,
    ),
    Rule(
        "unwritten-slot",
        "a slot that should hold a token was never written",
        "a reader takes what lies there for a token",
        "huggingface/transformers#46765; vllm-project/vllm#49716",
        _any,
        _unwritten,
    ),
    Rule(
        "poison",
        "NaN or Inf in a slot without a token, beside slots with one",
        "attention multiplies it by a weight of 0, and 0 * NaN is NaN",
        "Dao-AILab/flash-attention#1745, #2374; nod-ai/amd-shark-ai#665",
        _any,
        _poison,
    ),
)

#: what lies above a page's natural bytes belongs to no side, so `lint` itself looks there
PADDING = Rule(
    "padding-payload",
    "the padding of a page is not one and the same byte",
    "somebody wrote there: a stride or a row is longer than the reader's",
    "vllm-project/vllm#49716; FlashML-org/FreeToken#354",
    _any,
)

#: every rule by id
RULES: Mapping[str, Rule] = MappingProxyType({rule.id: rule for rule in (*_RULES, PADDING)})

"""The words of a recipe: what each operation takes, gives and means. The engines that run them are elsewhere."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from kvformat.elements.formats import ELEMENTS
from kvformat.errors import InputError, unknown_name

#: `group`: all elements that share a scale, which only a reduction reads
Kind = Literal["number", "flag", "code", "group"]

#: precisions an operation can have. `float32`, `float64`: IEEE binary32 or binary64, round to nearest even after the
#: operation, subnormals kept. `real`: no rounding; `kvformat.recipes.compose` says why float64 evaluates it exactly.
#: `float16`, `bfloat16`: each result rounded to that format; `input`: to the dtype of x.
PRECISIONS = ("float32", "float64", "real", "float16", "bfloat16", "input")


@dataclass(frozen=True)
class Word:
    """One operation. `operands` are values computed before; `attributes` are words fixed by the recipe."""

    name: str
    operands: tuple[Kind, ...]
    result: Kind
    meaning: str
    #: allowed words for each attribute, in order; the first `required` of them must be given
    attributes: tuple[Collection[str], ...] = ()
    required: int = 0
    #: an instruction that is not correctly rounded: its result is within so many units in the last place of the IEEE
    #: one. The engines give the IEEE one, `kvformat.recipes.admissible` the set.
    ulps: int = 0
    #: reads all elements that share a scale instead of one value
    reduces: bool = False
    #: its two operands may be exchanged
    commutative: bool = False
    #: the word that it is, with that constant as the first operand
    short_for: tuple[str, str] | None = None


#: an attribute that is any number
NUMBER = ("a number",)

#: orders in which a sum can go
ORDERS = ("sequential", "lanes_4", "lanes_8", "lanes_16")

#: what an `encode` does with overflow and Inf, as `kvformat.encode` takes it
OVERFLOWS = ("saturate", "ieee")

_POLICIES = (*OVERFLOWS, "nearest_even", "nearest_away", "nearest_toward_zero", "up", "down")

#: how many low bits of a binary32 pattern a word may speak of
_LOW_BITS = tuple(map(str, range(1, 23)))

_N: Kind = "number"
_F: Kind = "flag"
_G: Kind = "group"

_WORDS = (
    Word("amax_finite", (_G,), _N, "the largest |x| over the finite elements, 0 if there are none", reduces=True),
    Word("amax_number", (_G,), _N, "the largest |x|, Inf included; NaN is passed over, 0 if all are", reduces=True),
    Word("amax", (_G,), _N, "the largest |x|; NaN if any element is NaN", reduces=True),
    Word("any_nan", (_G,), _F, "whether any element is NaN", reduces=True),
    Word("all_nan", (_G,), _F, "whether every element is NaN", reduces=True),
    Word("largest", (_G,), _N, "the largest x, signed; NaN is passed over, 0 if all are; a zero is +0", reduces=True),
    Word("smallest", (_G,), _N, "the smallest x, signed, likewise; for scales within a row", reduces=True),
    Word("signed_amax", (_G,), _N, "the x of largest magnitude, signed, the first of equals; NaN is passed over",
         reduces=True),
    Word("max_from", (_G,), _N, "that number, then each x that is larger, in order; NaN is passed over",
         (NUMBER,), 1, reduces=True),
    Word("min_from", (_G,), _N, "that number, then each x that is smaller, in order; NaN is passed over",
         (NUMBER,), 1, reduces=True),
    Word("sum", (_G,), _N, "the sum of x from 0, each addition rounded to binary32; `lanes_n`: n sums, element i into "
         "sum i mod n, then the upper half of the sums added to the lower until one is left", (ORDERS,), 1,
         reduces=True),
    Word("sum_squares", (_G,), _N, "the sum of x * x, likewise, each product rounded to binary32", (ORDERS,), 1,
         reduces=True),
    Word("add", (_N, _N), _N, "a + b", commutative=True),
    Word("sub", (_N, _N), _N, "a - b"),
    Word("mul", (_N, _N), _N, "a * b", commutative=True),
    Word("div", (_N, _N), _N, "a / b, correctly rounded; x / 0 is Inf, 0 / 0 NaN"),
    Word("rcp", (_N,), _N, "1 / a, correctly rounded", short_for=("div", "1")),
    Word("neg", (_N,), _N, "-a, the sign bit flipped"),
    Word("abs", (_N,), _N, "|a|, the sign bit cleared"),
    Word("copysign", (_N, _N), _N, "|a| with the sign of b, zeros and NaN included"),
    Word("max", (_N, _N), _N, "the larger one; NaN if either is NaN (IEEE maximum); -0 < +0", commutative=True),
    Word("min", (_N, _N), _N, "the smaller one; NaN if either is NaN (IEEE minimum); -0 < +0", commutative=True),
    Word("max_number", (_N, _N), _N, "the larger one; a NaN gives way to the other operand (CUDA fmaxf); -0 < +0"),
    Word("min_number", (_N, _N), _N, "the smaller one; a NaN gives way to the other operand (CUDA fminf); -0 < +0"),
    Word("clamp", (_N, _N, _N), _N, "a limited to b .. c; NaN stays NaN"),
    Word("round", (_N,), _N, "to an integer in that direction; the sign of a zero result is a's",
         (("half_even", "half_away", "toward_zero", "up", "down"),), 1),
    Word("fma", (_N, _N, _N), _N, "a * b + c, rounded once"),
    Word("pow2", (_N,), _N, "the power of two at, below or above |a|; 0, Inf and NaN as they are",
         (("down", "up"),), 1),
    Word("to", (_N,), _N, "rounded to nearest even in that format; `input`: the format of x",
         (("float16", "bfloat16", "float32", "input"),), 1),
    Word("cast_int32", (_N,), _N,
         "toward zero to a 32-bit integer; NaN, Inf and what is beyond give -2^31 (x86 cvttps2dq)"),
    Word("wrap", (_N,), _N, "the low bits of the integer a, read as a two's complement number; 0 for NaN and Inf",
         (("4", "5", "6", "8", "16"),), 1),
    Word("flush", (_N,), _N, "a; a subnormal binary32 number becomes a zero of its sign (PTX .ftz)"),
    Word("splice", (_N, _N), _N,
         "a with its low bits, as binary32, replaced by the integer b, by 0 if b does not fit; NaN stays NaN",
         (_LOW_BITS,), 1),
    Word("low_bits", (_N,), _N, "the integer in the low bits of a, as binary32; 0 for Inf and NaN", (_LOW_BITS,), 1),
    Word("rcp_approx", (_N,), _N, "1 / a within 1 ulp (PTX rcp.approx.f32); `ftz`: subnormals in and out are zeros",
         (("ftz",),), ulps=1),
    Word("div_approx", (_N, _N), _N, "a / b within 2 ulp (PTX div.approx.f32), 2^-126 <= |b| <= 2^126",
         (("ftz",),), ulps=2),
    Word("div_full", (_N, _N), _N, "a / b within 2 ulp (PTX div.full.f32)", (("ftz",),), ulps=2),
    Word("pow2_approx", (_N,), _N,
         "exp2(ceil(l)), l = log2 |a| rounded to binary32, then to that format if one is named; a real log2 is within "
         "2 ulp of the binary32 one (CUDA, Triton, torch)",
         (("up",), ("float16", "bfloat16", "float32", "input")), 1, ulps=2),
    Word("encode", (_N,), "code", "the code of a; overflow saturates unless `ieee`",
         (ELEMENTS, _POLICIES, _POLICIES), 1),
    Word("eq", (_N, _N), _F, "a == b", commutative=True),
    Word("ne", (_N, _N), _F, "a != b; true if either is NaN", commutative=True),
    Word("lt", (_N, _N), _F, "a < b"),
    Word("le", (_N, _N), _F, "a <= b"),
    Word("isnan", (_N,), _F, "whether a is NaN"),
    Word("isinf", (_N,), _F, "whether a is Inf"),
    Word("select", (_F, _N, _N), _N, "b where a holds, else c"),
)  # fmt: skip

#: every word by name
WORDS: Mapping[str, Word] = MappingProxyType({word.name: word for word in _WORDS})


#: the axes of K and V, in the order of their arrays
AXES = ("tokens", "heads", "dims")


@dataclass(frozen=True)
class Granularity:
    """What shares a parameter: a block of so many tokens, heads and dims (0: all of them), the last one partial.

    With `order`, not a block but `run` consecutive elements of x flattened in that order of axes.
    """

    name: str
    tokens: int
    heads: int
    dims: int = 0
    order: tuple[str, ...] = ()
    run: int = 0

    @property
    def block(self) -> tuple[int, int, int]:
        """Elements along (tokens, heads, dims) that share one; 0: all of them."""
        return self.tokens, self.heads, self.dims

    @property
    def shares_tokens(self) -> bool:
        """Whether all tokens share one."""
        return self.tokens == 0 and not self.order

    @property
    def shares_heads(self) -> bool:
        """Whether all heads share one."""
        return self.heads == 0 and not self.order

    @property
    def within_row(self) -> bool:
        """True if the elements that share one all lie in one (token, head) row."""
        return (self.tokens, self.heads) == (1, 1) and not self.order

    @property
    def of_rows(self) -> bool:
        """True if whole (token, head) rows share one: all tokens or one, all heads or one, all dims."""
        return max(self.block) <= 1 and self.dims == 0 and not self.order

    def covers(self, other: Granularity) -> bool:
        """Whether each group of `other` lies in one group of this one, whatever the shape of x."""
        if self.order or other.order:
            return self == other or not any(self.block)
        return all(
            wide == 0 or (narrow and wide % narrow == 0) for wide, narrow in zip(self.block, other.block, strict=True)
        )

    def columns(self, head_dim: int) -> int:
        """Parameters per row of head_dim elements, where they lie within rows."""
        return head_dim // self.dims if self.dims else 1


_GRANULARITIES = (
    Granularity("per_tensor", 0, 0),
    Granularity("per_head", 0, 1),
    Granularity("per_channel", 0, 1, 1),
    Granularity("per_token", 1, 0),
    Granularity("per_token_head", 1, 1),
    Granularity("per_block", 1, 1, 16),
    Granularity("per_block_32", 1, 1, 32),
    Granularity("per_block_64", 1, 1, 64),
    Granularity("per_tile", 1, 1, 128),
)

#: every granularity that has a name; others are written as their block, `(32, 1, 1)`, `*` for all of an axis
GRANULARITIES: Mapping[str, Granularity] = MappingProxyType({each.name: each for each in _GRANULARITIES})

_BLOCK = re.compile(r"\((\*|[1-9]\d{0,8}), (\*|[1-9]\d{0,8}), (\*|[1-9]\d{0,8})\)")
_RUN = re.compile(r"([1-9]\d{0,8}) of \((\w+), (\w+), (\w+)\)")


def granularity(text: str) -> Granularity:
    """The granularity of a name, of a block such as `(32, 1, 1)` or of a run such as `64 of (heads, tokens, dims)`.

    Raises InputError, naming the close names, for anything else.
    """
    if text in GRANULARITIES:
        return GRANULARITIES[text]
    if match := _BLOCK.fullmatch(text):
        tokens, heads, dims = (0 if each == "*" else int(each) for each in match.groups())
        found = Granularity(text, tokens, heads, dims)
        return next((each for each in _GRANULARITIES if each.block == found.block), found)
    if (match := _RUN.fullmatch(text)) and sorted(match.groups()[1:]) == sorted(AXES):
        return Granularity(text, 0, 0, 0, match.groups()[1:], int(match[1]))
    if "(" in text:
        shown = "'(32, 1, 1)' (tokens, heads, dims; * for all) or '64 of (heads, tokens, dims)'"
        raise InputError(f"a granularity is a name, a block or a run of elements, as {shown}; got {text!r}")
    raise unknown_name("granularity", text, GRANULARITIES)

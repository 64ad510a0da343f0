"""The element formats as frozen data: field widths, special codes, and the value of every code."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from kvformat.errors import unknown_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

Overflow = Literal["saturate", "ieee"]
#: `nearest_away`, `nearest_toward_zero`: to nearest, ties away from or toward zero; recipes of some libraries need them
Rounding = Literal["nearest_even", "up", "down", "nearest_away", "nearest_toward_zero"]


@dataclass(frozen=True)
class ElementFormat:
    """A finite set of codes and the value of each. Bit patterns here are unsigned; `int8` -1 is pattern 0xFF."""

    #: the name ml_dtypes and torch use
    name: str
    #: `float`: sign, exponent, mantissa. `exponent`: a power of two, no sign. `integer`: two's complement.
    kind: Literal["float", "exponent", "integer"]
    bits: int
    exponent_bits: int
    mantissa_bits: int
    bias: int
    #: pattern of the largest finite value
    max_code: int
    #: patterns that are NaN, and the one that a NaN input becomes (where there are none: the finite code it becomes)
    nan_codes: tuple[int, ...]
    nan_input_code: int
    inf_codes: tuple[int, ...]
    #: pattern of positive overflow and +Inf under `overflow="ieee"`; the sign bit is OR-ed in
    overflow_code: int
    #: False: a zero drops its sign, because the pattern of -0 is the NaN (fnuz)
    has_negative_zero: bool
    #: the roundings `encode` knows; the first one is the default, unless `rounding_required`
    roundings: tuple[Rounding, ...]
    rounding_required: bool
    source: str

    @property
    def codes(self) -> int:
        """How many codes there are."""
        return 1 << self.bits

    @property
    def sign_bit(self) -> int:
        """The mask of the sign bit, 0 where the format has none."""
        return 0 if self.kind == "exponent" else 1 << (self.bits - 1)

    @property
    def max(self) -> float:
        """The largest finite value."""
        return self.value(self.max_code)

    @property
    def min_normal(self) -> float:
        """The smallest positive normal value."""
        return self.value(1 << self.mantissa_bits) if self.kind == "float" else self.value(self._smallest_code)

    @property
    def min_subnormal(self) -> float:
        """The smallest positive value."""
        return self.value(self._smallest_code)

    @property
    def _smallest_code(self) -> int:
        return 0 if self.kind == "exponent" else 1

    @property
    def code_dtype(self) -> str:
        """NumPy dtype of unpacked codes: int8 for the integers, else uint8; 4-bit codes one per byte."""
        return "int8" if self.kind == "integer" else "uint8"

    def value(self, code: int) -> float:
        """The value of a bit pattern, exact in float32 for every format here. NaN and Inf codes give NaN and Inf."""
        if not 0 <= code < self.codes:
            raise ValueError(f"{self.name} has no code {code}; its codes are 0..{self.codes - 1}")
        if code in self.nan_codes:
            return math.nan
        negative = bool(code & self.sign_bit)
        if self.kind == "integer":
            return float(code - self.codes if negative else code)
        if self.kind == "exponent":
            return math.ldexp(1.0, code - self.bias)
        magnitude = math.inf if code in self.inf_codes else self._magnitude(code & ~self.sign_bit)
        return -magnitude if negative else magnitude

    def _magnitude(self, pattern: int) -> float:
        # OCP OFP8 1.0 section 5: a zero exponent field has no implicit 1 and the exponent of field 1
        exponent, mantissa = divmod(pattern, 1 << self.mantissa_bits)
        implicit = 1 << self.mantissa_bits if exponent else 0
        return math.ldexp(implicit + mantissa, max(exponent, 1) - self.bias - self.mantissa_bits)

    def values(self) -> NDArray[np.float32]:
        """The value of every bit pattern in order: float32, shape (2**bits,), read-only."""
        return self._values

    @cached_property
    def _values(self) -> NDArray[np.float32]:
        import numpy as np

        table = np.array([self.value(code) for code in range(self.codes)], np.float32)
        table.flags.writeable = False
        return table


_OCP = "OCP OFP8 1.0, tables 1 and 2"
_FNUZ = "Noune et al., 8-bit Numerical Formats for Deep Neural Networks (arXiv 2206.02915); AMD CDNA3 ISA"
_MX = "OCP Microscaling Formats (MX) 1.0, section 5.3"

_FORMATS = (
    ElementFormat(
        name="e4m3fn",
        kind="float",
        bits=8,
        exponent_bits=4,
        mantissa_bits=3,
        bias=7,
        max_code=0b0_1111_110,  # 448
        nan_codes=(0b0_1111_111, 0b1_1111_111),
        nan_input_code=0b0_1111_111,
        inf_codes=(),
        overflow_code=0b0_1111_111,  # no Inf: overflow is NaN
        has_negative_zero=True,
        roundings=("nearest_even",),
        rounding_required=False,
        source=_OCP,
    ),
    ElementFormat(
        name="e5m2",
        kind="float",
        bits=8,
        exponent_bits=5,
        mantissa_bits=2,
        bias=15,
        max_code=0b0_11110_11,  # 57344
        nan_codes=(0b0_11111_01, 0b0_11111_10, 0b0_11111_11, 0b1_11111_01, 0b1_11111_10, 0b1_11111_11),
        nan_input_code=0b0_11111_11,
        inf_codes=(0b0_11111_00, 0b1_11111_00),
        overflow_code=0b0_11111_00,
        has_negative_zero=True,
        roundings=("nearest_even",),
        rounding_required=False,
        source=_OCP,
    ),
    ElementFormat(
        name="e4m3fnuz",
        kind="float",
        bits=8,
        exponent_bits=4,
        mantissa_bits=3,
        bias=8,
        max_code=0b0_1111_111,  # 240
        nan_codes=(0b1_0000_000,),
        nan_input_code=0b1_0000_000,
        inf_codes=(),
        overflow_code=0b1_0000_000,
        has_negative_zero=False,
        roundings=("nearest_even",),
        rounding_required=False,
        source=_FNUZ,
    ),
    ElementFormat(
        name="e5m2fnuz",
        kind="float",
        bits=8,
        exponent_bits=5,
        mantissa_bits=2,
        bias=16,
        max_code=0b0_11111_11,  # 57344
        nan_codes=(0b1_00000_00,),
        nan_input_code=0b1_00000_00,
        inf_codes=(),
        overflow_code=0b1_00000_00,
        has_negative_zero=False,
        roundings=("nearest_even",),
        rounding_required=False,
        source=_FNUZ,
    ),
    ElementFormat(
        name="e2m1fn",
        kind="float",
        bits=4,
        exponent_bits=2,
        mantissa_bits=1,
        bias=1,
        max_code=0b0_11_1,  # 6
        nan_codes=(),
        nan_input_code=0b0_11_1,  # +6: PTX ISA, cvt.rn.satfinite.e2m1x2
        inf_codes=(),
        overflow_code=0b0_11_1,  # always saturates
        has_negative_zero=True,
        roundings=("nearest_even",),
        rounding_required=False,
        source=_MX,
    ),
    ElementFormat(
        name="e8m0fnu",
        kind="exponent",
        bits=8,
        exponent_bits=8,
        mantissa_bits=0,
        bias=127,
        max_code=0b11111110,  # 2^127
        nan_codes=(0b11111111,),
        nan_input_code=0b11111111,
        inf_codes=(),
        overflow_code=0b11111111,
        has_negative_zero=False,
        roundings=("nearest_even", "up", "down"),
        rounding_required=True,
        source=_MX,
    ),
    ElementFormat(
        name="int8",
        kind="integer",
        bits=8,
        exponent_bits=0,
        mantissa_bits=7,
        bias=-6,  # only "subnormals", 1 apart: 2^(1 - bias - mantissa_bits) = 1
        max_code=0b0_1111111,
        nan_codes=(),
        nan_input_code=0b0_0000000,
        inf_codes=(),
        overflow_code=0b0_1111111,  # always saturates, at -128 below
        has_negative_zero=False,
        roundings=("nearest_even",),
        rounding_required=False,
        source="two's complement",
    ),
    ElementFormat(
        name="int4",
        kind="integer",
        bits=4,
        exponent_bits=0,
        mantissa_bits=3,
        bias=-2,
        max_code=0b0_111,
        nan_codes=(),
        nan_input_code=0b0_000,
        inf_codes=(),
        overflow_code=0b0_111,
        has_negative_zero=False,
        roundings=("nearest_even",),
        rounding_required=False,
        source="two's complement",
    ),
)


def _binary(name: str, exponent_bits: int, mantissa_bits: int) -> ElementFormat:
    top = ((1 << exponent_bits) - 1) << mantissa_bits  # exponent field of Inf and NaN
    sign = 1 << (exponent_bits + mantissa_bits)
    payloads = range(1, 1 << mantissa_bits)
    return ElementFormat(
        name=name,
        kind="float",
        bits=1 + exponent_bits + mantissa_bits,
        exponent_bits=exponent_bits,
        mantissa_bits=mantissa_bits,
        bias=(1 << (exponent_bits - 1)) - 1,
        max_code=top - 1,
        nan_codes=tuple(s + top + payload for s in (0, sign) for payload in payloads),
        nan_input_code=top + (1 << (mantissa_bits - 1)),
        inf_codes=(top, sign + top),
        overflow_code=top,
        has_negative_zero=True,
        roundings=("nearest_even",),
        rounding_required=False,
        source="IEEE 754-2019 section 3.4" if name == "float16" else "the upper half of IEEE binary32",
    )


#: binary formats that arithmetic may round through on its way; caches of mode none hold them, no codes do
BINARIES: Mapping[str, ElementFormat] = MappingProxyType(
    {"float16": _binary("float16", 5, 10), "bfloat16": _binary("bfloat16", 8, 7)}
)

#: every element format by name
ELEMENTS: Mapping[str, ElementFormat] = MappingProxyType({fmt.name: fmt for fmt in _FORMATS})


def element(name: str | ElementFormat) -> ElementFormat:
    """The element format of that name. Raises InputError, naming the close names, for an unknown one."""
    if isinstance(name, ElementFormat):
        return name
    if name not in ELEMENTS:
        raise unknown_name("element format", name, ELEMENTS)
    return ELEMENTS[name]

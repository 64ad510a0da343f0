"""What an element format is: field widths, special codes, and the value of every code; any width from 1 to 8 bits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Overflow = Literal["saturate", "ieee"]
#: `nearest_away`, `nearest_toward_zero`: to nearest, ties away from or toward zero; some libraries need them.
#: `nearest_up`, `nearest_down`: to nearest, ties to the larger or the smaller value; codebooks know these two
Rounding = Literal["nearest_even", "up", "down", "nearest_away", "nearest_toward_zero", "nearest_up", "nearest_down"]
#: what a format keeps of a negative number: its sign; nothing, it becomes the lowest value; its magnitude
Negatives = Literal["kept", "lowest", "magnitude"]


@dataclass(frozen=True)
class ElementFormat:
    """A finite set of codes and the value of each. Bit patterns here are unsigned; `int8` -1 is pattern 0xFF."""

    #: the name ml_dtypes and torch use, where they have the format
    name: str
    #: `float`: sign, exponent, mantissa. `exponent`: a power of two, no sign. `integer`: two's complement, or unsigned.
    #: `codebook`: a table of values, ascending; code i stands for the i-th one
    kind: Literal["float", "exponent", "integer", "codebook"]
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
    negatives: Negatives = "kept"
    #: the values of a codebook, ascending; empty for the other kinds. Codes beyond them stand for nothing: NaN
    table: tuple[float, ...] = ()
    #: what the format is for: the first sentence of its page
    purpose: str = ""

    @property
    def codes(self) -> int:
        """How many codes there are."""
        return 1 << self.bits

    @property
    def sign_bit(self) -> int:
        """The mask of the sign bit, 0 where the format has none."""
        signed = self.negatives == "kept" and self.kind != "codebook"
        return 1 << (self.bits - 1) if signed else 0

    @property
    def digits(self) -> int:
        """How many hex digits a code takes."""
        return -(-self.bits // 4)

    @property
    def always_saturates(self) -> bool:
        """True if both overflow policies give the same codes: there is no Inf and no NaN to overflow to."""
        return self.overflow_code == self.max_code

    @property
    def max(self) -> float:
        """The largest finite value."""
        return self.value(self.max_code)

    @property
    def lowest(self) -> float:
        """The lowest finite value: -448 of e4m3fn, -128 of int8, 0 of uint4."""
        if self.kind == "codebook":
            return self.table[0]
        if self.kind == "integer":
            return self.value(self.sign_bit)
        return -self.max if self.sign_bit else self.value(0)

    @property
    def min_normal(self) -> float:
        """The smallest positive normal value."""
        return self.value(1 << self.mantissa_bits) if self.kind == "float" else self.value(self._smallest_code)

    @property
    def min_subnormal(self) -> float:
        """The smallest positive value; of a format without one (int1) the largest, which is 0."""
        return self.value(self._smallest_code)

    @property
    def _smallest_code(self) -> int:
        if self.kind == "codebook":
            return next((code for code, value in enumerate(self.table) if value > 0), self.max_code)
        return 0 if self.kind == "exponent" else min(1, self.max_code)

    @property
    def code_dtype(self) -> str:
        """NumPy dtype of unpacked codes, one per byte: int8 for the signed integers, else uint8."""
        return "int8" if self.signed_integer else "uint8"

    @property
    def signed_integer(self) -> bool:
        """True for two's complement: patterns whose top bit counts negative."""
        return self.kind == "integer" and self.negatives == "kept"

    def value(self, code: int) -> float:
        """The value of a bit pattern, exact in float32 for every format here. NaN and Inf codes give NaN and Inf."""
        if not 0 <= code < self.codes:
            raise ValueError(f"{self.name} has no code {code}; its codes are 0..{self.codes - 1}")
        if code in self.nan_codes:
            return math.nan
        if self.kind == "codebook":
            return self.table[code]
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

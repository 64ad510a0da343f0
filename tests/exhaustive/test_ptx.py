"""All 2^32 float32 operands of the instructions that make codes (pytest -m exhaustive), and slices of it."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from kvformat import ptx
from tests.exhaustive.ptx_sweep import CONVERSIONS, QUOTIENTS, conversion, quotient


@pytest.mark.exhaustive
@pytest.mark.parametrize("opcode", CONVERSIONS)
def test_every_float32_is_converted_as_the_authority_does(opcode):
    wrong, rows = conversion(opcode)
    assert wrong == 0, rows


@pytest.mark.exhaustive
@pytest.mark.parametrize(("opcode", "divisor"), QUOTIENTS)
def test_every_float32_is_divided_by_the_constant(opcode, divisor):
    wrong, row = quotient(opcode, divisor)
    assert wrong == 0, row


#: the last finite numbers, Inf and the first NaNs of both signs; 1; zero and subnormals
SLICES = (0x7F80_0000 - 0x8000, 0xFF80_0000 - 0x8000, 0x3F80_0000, 0)


@pytest.mark.slow
@pytest.mark.parametrize("opcode", CONVERSIONS)
def test_a_slice_is_converted_as_the_authority_does(opcode):
    for start in SLICES:
        wrong, rows = conversion(opcode, start, start + 0x10000)
        assert wrong == 0, rows


@pytest.mark.slow
@pytest.mark.parametrize(("opcode", "divisor"), QUOTIENTS)
def test_a_slice_is_divided_by_the_constant(opcode, divisor):
    for start in SLICES:
        wrong, row = quotient(opcode, divisor, start, start + 0x10000)
        assert wrong == 0, row


def test_the_sweep_sees_a_wrong_quotient():
    # rounded once, and times a rounded reciprocal, differ: what one expects is wrong of the other
    wrong, _ = quotient("div.full.f32", 127.0, 0x3F80_0000, 0x3F81_0000)
    assert wrong == 0
    bits = np.arange(0x3F80_0000, 0x3F81_0000, dtype=np.uint32)
    assert (ptx.evaluate("div.rn.f32", [bits, 0x42FE_0000]) != ptx.evaluate("div.full.f32", [bits, 0x42FE_0000])).any()


#: second operands of 16 bits: zeros, subnormals, normal numbers, Inf, quiet and signalling NaN, of both signs
SECOND = [0, 1, 0x0080, 0x0400, 0x3C00, 0x3F80, 0x7BFF, 0x7C00, 0x7F7F, 0x7F80, 0x7F81, 0x7FC0, 0x7FFF]
SECOND += [each | 0x8000 for each in SECOND]


@pytest.mark.slow
@pytest.mark.parametrize("words", ["", ".NaN", ".xorsign.abs", ".NaN.xorsign.abs"])
@pytest.mark.parametrize("name", ["min", "max"])
@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_every_16_bit_operand_beside_each_special_one(kind, name, words):
    dtype = np.float16 if kind == "f16" else ml_dtypes.bfloat16
    first = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    for each in SECOND:
        second = np.full_like(first, each)
        for a, b in ((first, second), (second, first)):
            found = ptx.evaluate(f"{name}{words}.{kind}", [a, b])
            np.testing.assert_array_equal(found, smallest(a, b, dtype, name, words), f"{each:04X}")


def smallest(a, b, dtype, name, words):
    """The ISA's text in NumPy: by value, -0 below +0, a NaN gives way unless .NaN, magnitudes with the signs' xor."""
    sign = (a ^ b) & 0x8000
    if "abs" in words:
        a, b = a & 0x7FFF, b & 0x7FFF
    with np.errstate(invalid="ignore"):  # signalling NaN
        p, q = (x.view(dtype).astype(np.float64) for x in (a, b))
    # equal values are zeros, whose patterns as signed integers are in order
    less = (p < q) | ((p == q) & (a.view(np.int16) < b.view(np.int16)))
    out = np.where(less == (name == "min"), a, b)
    out = np.where(np.isnan(p), b, np.where(np.isnan(q), a, out))
    neither = np.isnan(p) | np.isnan(q) if "NaN" in words else np.isnan(p) & np.isnan(q)
    out = out | sign if "xorsign" in words else out
    return np.where(neither, 0x7FFF, out).astype(np.uint16)

"""The integer codecs of the kernels, enumerated: all 16-bit inputs, all midpoints and their neighbours, all codes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
import triton
import triton.language as tl

import kvformat as kvf
from kvformat.elements.codec import conversion, encode_by
from kvformat.elements.formats import BINARIES, element
from kvformat.torch import codec

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter computes on NumPy arrays

FORMATS = ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e2m1fn", "int8", "int4")
POLICIES = [(name, "saturate", "nearest_even") for name in FORMATS]
POLICIES += [(name, "ieee", "nearest_even") for name in FORMATS]
POLICIES += [(name, "saturate", rounding) for name in ("e4m3fn", "e2m1fn", "int8")
             for rounding in ("nearest_away", "nearest_toward_zero")]  # fmt: skip
EVERY_16_BITS = np.arange(1 << 16, dtype=np.uint16)
BOTH_DTYPES = {
    "bfloat16": EVERY_16_BITS.view(ml_dtypes.bfloat16).astype(np.float32),
    "float16": EVERY_16_BITS.view(np.float16).astype(np.float32),
}
TILE = 1 << 14


@triton.jit
def encode_all(x, codes, HOW: tl.constexpr, TILE: tl.constexpr):
    index = tl.program_id(0) * TILE + tl.arange(0, TILE)
    tl.store(codes + index, codec.encode(tl.load(x + index), HOW))


@triton.jit
def decode_all(codes, values, HOW: tl.constexpr, TILE: tl.constexpr):
    index = tl.arange(0, TILE)
    tl.store(values + index, codec.decode(tl.load(codes + index), HOW))


@triton.jit
def widen_all(bits, values, DTYPE: tl.constexpr, TILE: tl.constexpr):
    index = tl.program_id(0) * TILE + tl.arange(0, TILE)
    tl.store(values + index, codec.widen(tl.load(bits + index), DTYPE))


def encoded(x, how, out=torch.uint8):
    padded = np.resize(x, -(-x.size // TILE) * TILE)
    codes = torch.empty(padded.size, dtype=out)
    wanted = codec.encoding(how, x.dtype.name)
    encode_all[(padded.size // TILE,)](torch.from_numpy(padded), codes, wanted, TILE)
    return codes.numpy()[: x.size]


def expected(x, how):
    return encode_by(x, how).view(np.uint8) & np.uint8(how.format.codes - 1)


def policy(name, overflow, rounding):
    return conversion(name, overflow)._replace(rounding=rounding)


def midpoints(name):
    """All float32 halfway between neighbouring values, beyond the largest too, and the numbers 1 ulp beside them."""
    values = element(name).values()
    finite = np.unique(np.abs(values[np.isfinite(values)]).astype(np.float64))
    beyond = np.append(finite, 2 * finite[-1] - finite[-2])
    middle = np.concatenate([(beyond[1:] + beyond[:-1]) / 2, beyond]).astype(np.float32)
    near = [middle, np.nextafter(middle, np.float32(np.inf)), np.nextafter(middle, np.float32(-np.inf))]
    return np.concatenate([*near, *(-each for each in near)])


@pytest.mark.parametrize("dtype", BOTH_DTYPES)
@pytest.mark.parametrize(("name", "overflow", "rounding"), POLICIES)
def test_every_16_bit_input_gets_the_golden_code(name, overflow, rounding, dtype):
    how, x = policy(name, overflow, rounding), BOTH_DTYPES[dtype]
    np.testing.assert_array_equal(encoded(x, how), expected(x, how))


@pytest.mark.parametrize("real", [np.float32, np.float64])
@pytest.mark.parametrize(("name", "overflow", "rounding"), POLICIES)
def test_every_midpoint_and_its_neighbours_get_the_golden_code(name, overflow, rounding, real):
    how, x = policy(name, overflow, rounding), midpoints(name).astype(real)
    np.testing.assert_array_equal(encoded(x, how), expected(x, how))


@pytest.mark.parametrize("name", FORMATS)
def test_random_bits_get_the_golden_code(name):
    x = np.random.default_rng(5).integers(0, 1 << 32, 1 << 16, dtype=np.uint32).view(np.float32)
    how = policy(name, "saturate", "nearest_even")
    np.testing.assert_array_equal(encoded(x, how), expected(x, how))


@pytest.mark.parametrize("name", FORMATS)
def test_every_code_has_its_value(name):
    fmt = element(name)
    values = torch.empty(fmt.codes)
    codes = torch.arange(fmt.codes, dtype=torch.uint8)
    decode_all[(1,)](codes, values, codec.decoding(fmt), fmt.codes)
    np.testing.assert_array_equal(values.numpy().view(np.uint32), fmt.values().view(np.uint32))


@pytest.mark.parametrize("dtype", BOTH_DTYPES)
def test_every_16_bit_number_is_widened_exactly(dtype):
    values = torch.empty(1 << 16)
    bits = torch.from_numpy(EVERY_16_BITS.view(np.int16).copy())
    widen_all[((1 << 16) // TILE,)](bits, values, dtype, TILE)
    np.testing.assert_array_equal(values.numpy(), BOTH_DTYPES[dtype])  # NaN equals NaN here


@pytest.mark.parametrize(("dtype", "numpy"), [("bfloat16", ml_dtypes.bfloat16), ("float16", np.float16)])
def test_float32_is_narrowed_as_numpy_does(dtype, numpy):
    random = np.random.default_rng(6).integers(0, 1 << 32, 1 << 18, dtype=np.uint32).view(np.float32)
    steps = EVERY_16_BITS.view(numpy).astype(np.float64)
    ties = ((steps[1:] + steps[:-1]) / 2).astype(np.float32)
    x = np.concatenate([random, ties, np.nextafter(ties, np.float32(np.inf))])
    codes = torch.empty(-(-x.size // TILE) * TILE, dtype=torch.uint16)
    padded = np.resize(x, codes.numel())
    encode_all[(padded.size // TILE,)](torch.from_numpy(padded), codes, codec.narrowing(dtype, "float32"), TILE)
    found, wanted = codes.numpy()[: x.size].view(numpy), x.astype(numpy)
    number = ~np.isnan(x)
    np.testing.assert_array_equal(found.view(np.uint16)[number], wanted.view(np.uint16)[number])
    assert np.isnan(found.astype(np.float32)[~number]).all()


def test_formats_without_a_sign_are_refused():
    with pytest.raises(kvf.InputError, match="e8m0fnu has no Triton kernel"):
        codec.encoding(conversion("e8m0fnu", rounding="up"), "float32")
    with pytest.raises(kvf.InputError, match="e8m0fnu has no Triton kernel"):
        codec.decoding(element("e8m0fnu"))


def test_bfloat16_subnormals_have_no_hidden_bit():
    assert codec.narrowing("bfloat16", "float32").same_range
    assert BINARIES["bfloat16"].bias == 127

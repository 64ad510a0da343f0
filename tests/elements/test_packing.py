"""Two 4-bit codes in a byte, the first one low."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as hnp

import kvformat as kvf

_PATTERNS = hnp.arrays(np.uint8, hnp.array_shapes(max_dims=3, max_side=6), elements={"max_value": 15})


def test_first_element_lies_in_the_low_nibble():
    packed = kvf.pack_nibbles(kvf.encode([1.0, -2.0], "e2m1fn"))
    assert packed.dtype == np.uint8
    assert packed.tolist() == [0xC2]
    assert kvf.unpack_nibbles(packed).tolist() == [0x2, 0xC]


def test_nvidia_s_example_packs_as_its_header_does():
    assert kvf.pack_nibbles(kvf.encode([1.0, 6.0], "e2m1fn")).tolist() == [0x72]  # float2{x=1, y=6}: facts 2.1


def test_int4_codes_pack_their_low_four_bits():
    codes = kvf.encode([-1.0, 7.0, -8.0, 0.0], "int4")
    assert codes.tolist() == [-1, 7, -8, 0]
    packed = kvf.pack_nibbles(codes)
    assert packed.tolist() == [0x7F, 0x08]
    assert kvf.decode(kvf.unpack_nibbles(packed), "int4").tolist() == [-1, 7, -8, 0]


def test_every_byte_unpacks_and_packs_again():
    packed = np.arange(256, dtype=np.uint8).reshape(2, 4, 32)
    codes = kvf.unpack_nibbles(packed)
    assert codes.shape == (2, 4, 64)
    np.testing.assert_array_equal(codes[..., 0::2], packed % 16)
    np.testing.assert_array_equal(codes[..., 1::2], packed // 16)
    np.testing.assert_array_equal(kvf.pack_nibbles(codes), packed)


@given(_PATTERNS)
def test_unpack_inverts_pack(codes):
    codes = np.concatenate([codes, codes[..., ::-1]], axis=-1)  # an even number of them
    packed = kvf.pack_nibbles(codes)
    assert packed.shape == (*codes.shape[:-1], codes.shape[-1] // 2)
    np.testing.assert_array_equal(kvf.unpack_nibbles(packed), codes)


def test_strided_codes_pack_as_their_copy_does():
    codes = np.arange(16, dtype=np.uint8).repeat(2)[::-1][::2]
    assert not codes.flags.c_contiguous
    np.testing.assert_array_equal(kvf.pack_nibbles(codes), kvf.pack_nibbles(codes.copy()))
    packed = np.arange(12, dtype=np.uint8).reshape(3, 4).T
    np.testing.assert_array_equal(kvf.unpack_nibbles(packed), kvf.unpack_nibbles(packed.copy()))


def test_nothing_packs_to_nothing():
    assert kvf.pack_nibbles(np.zeros((3, 0), np.uint8)).shape == (3, 0)
    assert kvf.unpack_nibbles(np.zeros((3, 0), np.uint8)).shape == (3, 0)


@pytest.mark.parametrize(
    "codes, message",
    [
        (np.zeros(3, np.uint8), r"packed in pairs along the last axis; got shape \(3,\)"),
        (np.uint8(1), r"packed in pairs along the last axis; got shape \(\)"),
        (np.array([0, 16], np.uint8), r"lie in 0\.\.15; got 0\.\.16"),
        (np.array([0, 8], np.int8), r"lie in -8\.\.7; got 0\.\.8"),
        (np.array([-9, 0], np.int8), r"lie in -8\.\.7; got -9\.\.0"),
        (np.zeros(2, np.int64), "must be int8 or uint8, one code per byte; got int64"),
        (np.zeros(2, np.float32), "must be int8 or uint8, one code per byte; got float32"),
    ],
)
def test_codes_that_do_not_pack_are_refused_in_one_line(codes, message):
    with pytest.raises(kvf.InputError, match=message) as error:
        kvf.pack_nibbles(codes)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("packed, message", [(np.zeros(2, np.int8), "uint8"), (np.uint8(3), "at least one axis")])
def test_bytes_that_do_not_unpack_are_refused(packed, message):
    with pytest.raises(kvf.InputError, match=message):
        kvf.unpack_nibbles(packed)


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 31, 32, 100])
def test_packed_codes_of_any_width_are_one_number_written_lsb_first(bits, count):
    codes = np.random.default_rng(bits).integers(0, 1 << bits, (2, count), np.uint8)
    packed = kvf.pack_bits(codes, bits)
    assert packed.shape == (2, -(-count * bits // 8))
    for row, held in zip(codes.tolist(), packed, strict=True):
        assert int.from_bytes(held.tobytes(), "little") == sum(code << bits * place for place, code in enumerate(row))
    np.testing.assert_array_equal(kvf.unpack_bits(packed, bits, count), codes)


def test_signed_codes_pack_their_low_bits_and_four_bits_are_nibbles():
    codes = np.arange(-4, 4, dtype=np.int8)
    assert int.from_bytes(kvf.pack_bits(codes, 3).tobytes(), "little") == sum(
        (code & 7) << 3 * place for place, code in enumerate(codes.tolist())
    )
    nibbles = np.random.default_rng(0).integers(0, 16, (3, 10), np.uint8)
    np.testing.assert_array_equal(kvf.pack_bits(nibbles, 4), kvf.pack_nibbles(nibbles))
    np.testing.assert_array_equal(kvf.unpack_bits(kvf.pack_nibbles(nibbles), 4), nibbles)


@pytest.mark.parametrize(
    "codes, bits, says",
    [
        (np.array([8], np.uint8), 3, "3-bit codes of dtype uint8 lie in 0..7; got 8..8"),
        (np.array([4], np.int8), 3, "3-bit codes of dtype int8 lie in -4..3; got 4..4"),
        (np.array([1], np.uint8), 0, "1 to 8 bits; got 0"),
        (np.array([1], np.uint8), 9, "1 to 8 bits; got 9"),
        (np.array([1.0]), 3, "int8 or uint8"),
        (np.uint8(1), 3, "at least one axis"),
    ],
)
def test_what_cannot_be_packed_is_refused(codes, bits, says):
    with pytest.raises(kvf.InputError, match=says):
        kvf.pack_bits(codes, bits)


@pytest.mark.parametrize("bits, count, says", [(3, 3, "hold 2 codes of 3 bits; got count 3"), (9, 1, "1 to 8 bits")])
def test_what_cannot_be_unpacked_is_refused(bits, count, says):
    with pytest.raises(kvf.InputError, match=says):
        kvf.unpack_bits(np.zeros(1, np.uint8), bits, count)

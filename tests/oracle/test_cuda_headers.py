"""kvformat against NVIDIA's cuda_fp8.h and cuda_fp4.h, which convert on the CPU through g++."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import kvformat as kvf
from tests.oracle.compare import assert_same_codes, assert_same_conversion, assert_same_values
from tests.oracle.inputs import DOMAINS, codes_of, inputs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tests.oracle.cuda_headers.build import CudaHeaders

POLICIES = [
    ("e4m3fn", "saturate"),
    ("e4m3fn", "ieee"),
    ("e5m2", "saturate"),
    ("e5m2", "ieee"),
    ("e2m1fn", "saturate"),
]


def _header_narrows_first(x: NDArray[np.float64]) -> NDArray[np.bool_]:
    return (np.abs(x) >= 2.0**128) & np.isfinite(x)


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize(("name", "overflow"), POLICIES)
def test_encode_gives_nvidias_code_for_every_number(cuda: CudaHeaders, name: str, overflow: str, domain: str) -> None:
    x = inputs(name, domain)
    found = kvf.encode(x, name, overflow=overflow)
    assert_same_conversion(found, cuda.encode(x, name, overflow=overflow), x, name)


@pytest.mark.parametrize("domain", [domain for domain in DOMAINS if domain != "all float16"])
@pytest.mark.parametrize("overflow", ["saturate", "ieee"])
@pytest.mark.parametrize("rounding", ["up", "down"])
def test_e8m0fnu_rounds_as_nvidia_does(cuda: CudaHeaders, rounding: str, overflow: str, domain: str) -> None:
    x = inputs("e8m0fnu", domain)
    if (rounding, overflow, x.dtype) == ("down", "ieee", np.float64):
        x = x[~_header_narrows_first(x)]
    found = kvf.encode(x, "e8m0fnu", overflow=overflow, rounding=rounding)
    assert_same_conversion(found, cuda.encode(x, "e8m0fnu", overflow=overflow, rounding=rounding), x, "e8m0fnu")


def test_e8m0fnu_overflow_of_float64_is_ieee_even_where_the_header_narrows_first(cuda: CudaHeaders) -> None:
    # the header rounds a double toward zero to float before it looks: 2^128 becomes FLT_MAX, which has a code
    x = inputs("e8m0fnu", "float64 boundaries")
    x = x[_header_narrows_first(x)]
    assert x.size
    assert set(kvf.encode(x, "e8m0fnu", rounding="down", overflow="ieee").tolist()) == {0xFF}
    assert set(cuda.encode(x, "e8m0fnu", rounding="down", overflow="ieee").tolist()) == {0xFE}


@pytest.mark.parametrize("overflow", ["saturate", "ieee"])
@pytest.mark.parametrize("rounding", ["up", "down"])
def test_e8m0fnu_of_float16_is_that_of_the_same_float32(cuda: CudaHeaders, rounding: str, overflow: str) -> None:
    # the headers have no float16 to e8m0; every float16 is a float32 (NumPy warns about signalling NaNs)
    x = inputs("e8m0fnu", "all float16")
    with np.errstate(invalid="ignore"):
        wide = x.astype(np.float32)
    found = kvf.encode(x, "e8m0fnu", overflow=overflow, rounding=rounding)
    assert_same_conversion(found, cuda.encode(wide, "e8m0fnu", overflow=overflow, rounding=rounding), x, "e8m0fnu")


@pytest.mark.parametrize("domain", DOMAINS)
def test_e2m1fn_saturates_under_either_policy(domain: str) -> None:
    x = inputs("e2m1fn", domain)
    assert_same_codes(kvf.encode(x, "e2m1fn", overflow="ieee"), kvf.encode(x, "e2m1fn", overflow="saturate"), x)


@pytest.mark.parametrize("name", ["e4m3fn", "e5m2", "e2m1fn", "e8m0fnu"])
def test_decode_gives_nvidias_value_for_every_code(cuda: CudaHeaders, name: str) -> None:
    codes = codes_of(name)
    assert_same_values(kvf.decode(codes, name), cuda.decode(codes, name))


@pytest.mark.parametrize(
    ("x", "code"),
    [(1.0625 + 2**-40, 0x39), (1.0625, 0x38), (1.0625 - 2**-40, 0x38), (-1.0625 - 2**-40, 0xB9)],
)
def test_float64_is_rounded_once(cuda: CudaHeaders, x: float, code: int) -> None:
    # through float32 the hair above the tie is lost, and 1.0625 + 2^-40 becomes 0x38
    wide = np.array([x], np.float64)
    assert kvf.encode(wide, "e4m3fn")[0] == cuda.encode(wide, "e4m3fn")[0] == code


def test_nibbles_are_packed_in_nvidias_order(cuda: CudaHeaders) -> None:
    # every pair of codes: the first number lies in the low nibble
    values: NDArray[np.float32] = kvf.decode(codes_of("e2m1fn"), "e2m1fn")
    pairs = np.stack(np.meshgrid(values, values, indexing="ij"), axis=-1).reshape(-1, 2)
    packed = kvf.pack_nibbles(kvf.encode(pairs, "e2m1fn"))
    assert_same_codes(packed.reshape(-1), cuda.pack(pairs), pairs[:, 0])
    assert cuda.pack(np.array([1, 6], np.float32))[0] == 0x72

"""kvformat against ml_dtypes.

ml_dtypes never saturates, so saturation is made explicit by clipping first. It rounds float64 through float32, twice,
so float64 is not compared. It turns a NaN into a zero of e2m1fn, e2m3fn and e3m2fn, and follows another policy in
e8m0fnu: neither is judged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

import kvformat as kvf
from tests.oracle.compare import assert_same_codes, assert_same_conversion, assert_same_values
from tests.oracle.inputs import ML_DTYPES, NARROW_DOMAINS, codes_of, inputs, largest

if TYPE_CHECKING:
    from numpy.typing import NDArray

FLOATS = ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e2m1fn", "e4m3", "e2m3fn", "e3m2fn")
#: they have no NaN; ml_dtypes turns one into a zero
WITHOUT_NAN = ("e2m1fn", "e2m3fn", "e3m2fn")


def _float32(x: NDArray) -> NDArray[np.float32]:
    with np.errstate(invalid="ignore"):  # a signalling NaN among all patterns
        return x.astype(np.float32)


def _cast(x: NDArray, name: str) -> NDArray[np.uint8]:
    with np.errstate(invalid="ignore", over="ignore"):  # ml_dtypes reports what it does with NaN and overflow
        return x.astype(ML_DTYPES[name]).view(np.uint8)


def _clip(x: NDArray[np.float32], name: str) -> NDArray[np.float32]:
    limit = np.float32(largest(name))
    return np.clip(x, -limit, limit)


@pytest.mark.parametrize("domain", NARROW_DOMAINS)
@pytest.mark.parametrize("name", FLOATS)
def test_saturating_encode_is_clip_then_astype(name: str, domain: str) -> None:
    x = inputs(name, domain)
    authority = _cast(_clip(_float32(x), name), name)
    assert_same_conversion(kvf.encode(x, name), authority, x, name, nan=name not in WITHOUT_NAN)


@pytest.mark.parametrize("domain", NARROW_DOMAINS)
@pytest.mark.parametrize("name", FLOATS)
def test_ieee_encode_is_astype(name: str, domain: str) -> None:
    x = inputs(name, domain)
    assert_same_conversion(kvf.encode(x, name, overflow="ieee"), _cast(x, name), x, name, nan=name not in WITHOUT_NAN)


@pytest.mark.parametrize("domain", NARROW_DOMAINS)
def test_e8m0fnu_nearest_even_is_astype_away_from_ties(domain: str) -> None:
    # ml_dtypes sends ties up or to even, by version, and has no code for 0, negatives and overflow
    x = inputs("e8m0fnu", domain)
    wide = np.abs(_float32(x))
    mantissa = wide.view(np.uint32) & np.uint32(0x7FFFFF)
    judged = np.isfinite(wide) & (wide >= np.float32(2.0**-126)) & (wide <= largest("e8m0fnu")) & (mantissa != 0x400000)
    assert np.count_nonzero(judged) > 1000 or domain == "float32 boundaries"
    found = kvf.encode(x, "e8m0fnu", rounding="nearest_even")
    assert_same_codes(found[judged], _cast(wide, "e8m0fnu")[judged], x[judged])


@pytest.mark.parametrize("name", [*FLOATS, "e8m0fnu"])
def test_decode_gives_the_same_value_for_every_code(name: str) -> None:
    codes = codes_of(name)
    assert_same_values(kvf.decode(codes, name), codes.view(ML_DTYPES[name]).astype(np.float32))

"""Groups whose scales, and codes under them, lie where a library's answer turns: what the tests against it are fed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.engines import inputs
from tests.oracle.libraries import HEAD_DIM, HEADS, adversarial

#: global scales of NVFP4 and FP8, decode multipliers; none is a power of two
DECODE = (0.0013, 7.7e-5, 3.3)
#: encode multipliers
ENCODE = (769.3, 12987.1, 0.303)
#: every divisor that a row can lead to, and those of float16 rows
RANDOM_UNITS = np.exp2(np.random.default_rng(3).uniform(-150, 118, 4096))
NARROW_UNITS = np.exp2(np.random.default_rng(4).uniform(-30, 7, 4096))
#: the powers of two that scale blocks of 32
EXPONENTS = np.exp2(np.arange(-136.0, 126))
#: of microscaling: the element, and the largest magnitudes of a block, over its unit
MX = {"mxfp4": ("e2m1fn", (4, 5, 6, 7, 8)), "mxfp8": ("e4m3fn", (256, 448, 464, 480, 496, 512))}


def groups(
    element: str, dtype: str, width: int, units: NDArray, tops: tuple[float, ...], *, count: int = 400_000
) -> NDArray[Any]:
    """The special rows, then those of `adversarial`, about `count` values as (tokens, heads, dims)."""
    many = adversarial(element, dtype, width=width, units=units, tops=tops).reshape(-1, width)[: count // width]
    return inputs.shaped(np.concatenate([inputs.special_rows(dtype, width), many]), HEADS, HEAD_DIM)


def around(dtype: str, unit: float) -> NDArray[Any]:
    """Values around every code and tie of e4m3fn under one scale, and all 16-bit patterns."""
    near = adversarial("e4m3fn", dtype, width=64, units=np.array([unit]), tops=(448, 464, 480))[:4000]
    return np.concatenate([inputs.patterns(dtype, HEADS, HEAD_DIM), near])


def one_nan(scales: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Scales in e4m3fn with one NaN: its sign depends on the width of the vectors that torch was built for."""
    return np.where(scales == 0xFF, np.uint8(0x7F), scales)


def unsigned(x: NDArray, codes: NDArray[np.uint8], scales: NDArray[np.uint8], nan: int) -> NDArray[np.uint8]:
    """Codes in e2m1fn where a zero that was made of a NaN has no sign: of Inf, of NaN, or under a scale that is NaN."""
    width = codes.size // scales.size
    under = np.repeat(scales.reshape(-1) == nan, width).reshape(codes.shape)
    made = under | ~np.isfinite(x.astype(np.float32)).reshape(codes.shape)
    return np.where(made & (codes & 7 == 0), np.uint8(0), codes)

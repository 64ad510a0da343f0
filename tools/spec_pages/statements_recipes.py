"""What each golden and exact recipe answers to special inputs; every statement is checked with `kvformat.quantize`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import ml_dtypes
import numpy as np

import kvformat
from kvformat.recipes.program import Recipe
from kvformat.recipes.quantizer import Quantized
from spec_pages.text import Statement

_NAN, _INF = math.nan, math.inf
_LARGEST = float(np.finfo(np.float32).max)


class _Run:
    """One row or several through a recipe, and what came out, ready to compare."""

    def __init__(self, recipe: Recipe, *rows: Sequence[float], scale: float | None = None) -> None:
        x = np.array(rows, np.float32)[:, None, :]
        self.result: Quantized = kvformat.quantize(x, recipe, scale=scale)

    @property
    def codes(self) -> list[int]:
        """All codes as unsigned patterns."""
        return [int(code) for code in self.result.codes.view(np.uint8).reshape(-1)]

    @property
    def scales(self) -> list[float]:
        """All scales as stored: float32, or codes."""
        return [float(scale) for scale in self.result.scales.reshape(-1)]

    @property
    def values(self) -> list[float]:
        """What the codes stand for."""
        return [float(value) for value in self.result.dequantize().reshape(-1)]


def _refused(recipe: Recipe, scale: float) -> bool:
    try:
        _Run(recipe, (1.0, 2.0), scale=scale)
    except kvformat.InputError:
        return True
    return False


def _signs(values: Sequence[float]) -> list[float]:
    return [math.copysign(1, value) for value in values]


# --- none ------------------------------------------------------------------------------------------------------------


def _none(recipe: Recipe) -> tuple[Statement, ...]:
    def kept() -> bool:
        bits = np.array([0x7FC00001, 0xFF800000, 0x80000000, 0x00000001], np.uint32)
        codes = kvformat.quantize(bits.view(np.float32).reshape(1, 1, -1), recipe).codes
        return bool(np.array_equal(codes.view(np.uint32).reshape(-1), bits))

    def to_inf() -> bool:
        x = np.array([65520.0, -1e30, 65519.0], np.float32).reshape(1, 1, -1)
        return kvformat.quantize(x, recipe).dequantize(np.float16).reshape(-1).tolist() == [_INF, -_INF, 65504.0]

    def largest() -> bool:
        x = np.array([_LARGEST], np.float32).reshape(1, 1, -1)
        return float(kvformat.quantize(x, recipe).dequantize(ml_dtypes.bfloat16).astype(np.float32).item()) == _INF

    return (
        Statement(
            "Where the cache has the dtype of the input, the bits are kept: NaN payloads, Inf, -0 and subnormals.", kept
        ),
        Statement(
            "To another dtype each number is rounded once, to nearest even. What lies beyond the largest value "
            "becomes Inf: 65520 does so in float16, 65519 becomes 65504.",
            to_inf,
        ),
        Statement("The largest float32 becomes Inf in bfloat16.", largest),
    )


# --- fp8 -------------------------------------------------------------------------------------------------------------


def _fp8(recipe: Recipe, covered: str) -> tuple[Statement, ...]:
    return (
        Statement(
            "NaN becomes `0x7F` in its own element, whatever its sign, and does not take part in amax. "
            "No other element and no scale changes.",
            lambda: (
                _Run(recipe, (1, _NAN, -2, 0.5)).codes[1] == 0x7F
                and _Run(recipe, (1, -_NAN, -2, 0.5)).codes[1] == 0x7F
                and _Run(recipe, (1, _NAN, -2, 0.5)).scales == _Run(recipe, (1, 0, -2, 0.5)).scales
                and _Run(recipe, (1, _NAN, -2, 0.5)).codes[2:] == _Run(recipe, (1, 0, -2, 0.5)).codes[2:]
            ),
        ),
        Statement(
            "Inf becomes `0x7E`, -Inf `0xFE`: 448 times the scale when it is read. It does not take part in amax.",
            lambda: (
                _Run(recipe, (_INF, -_INF, 2, 0)).codes[:2] == [0x7E, 0xFE]
                and _Run(recipe, (_INF, -_INF, 2, 0)).scales == _Run(recipe, (0, 0, 2, 0)).scales
            ),
        ),
        Statement(
            f"Where {covered} has no finite number but zeros, the scale is 1.0. Zeros keep their sign: `0x00`, `0x80`.",
            lambda: (
                _Run(recipe, (0.0, -0.0, _NAN, _INF)).scales == [1]
                and _Run(recipe, (0.0, -0.0, _NAN, _INF)).codes == [0x00, 0x80, 0x7F, 0x7E]
            ),
        ),
        Statement(
            "Where amax / 448 rounds to 0, the scale is 1.0 and every finite element becomes a zero with its sign. "
            "That is so for amax up to 448 * 2^-150; above it the scale is at least 2^-149.",
            lambda: (
                _Run(recipe, (448 * 2.0**-150, -(2.0**-149))).scales == [1]
                and _Run(recipe, (448 * 2.0**-150, -(2.0**-149))).codes == [0x00, 0x80]
                and _Run(recipe, (449 * 2.0**-149, 0)).scales == [2.0**-149]
                and _Run(recipe, (225 * 2.0**-149, 0)).scales == [2.0**-149]
            ),
        ),
        Statement(
            "A scale that is a subnormal float32 is kept as it is. It has few bits, so the largest element may miss "
            "code 448: amax = 225 * 2^-149 has the scale 2^-149 and the code of 224.",
            lambda: (
                _Run(recipe, (225 * 2.0**-149, 0)).scales == [2.0**-149]
                and _Run(recipe, (225 * 2.0**-149, 0)).codes[0] == int(kvformat.encode(np.float32(224), "e4m3fn"))
            ),
        ),
        Statement(
            "An element too small for its scale becomes a zero with its sign: up to s * 2^-10, the tie included.",
            lambda: _Run(recipe, (448, 2.0**-10, -(2.0**-10), 2.0**-10 + 2.0**-30)).codes[1:] == [0x00, 0x80, 0x01],
        ),
    )


def _fp8_per_tensor(recipe: Recipe) -> tuple[Statement, ...]:
    return (
        *_fp8(recipe, "the tensor"),
        Statement(
            "A given scale is rounded once to float32; it must then be finite and greater than 0. 0, negative "
            "numbers, NaN, Inf and numbers that round to one of these are refused. Subnormal scales are taken.",
            lambda: (
                all(_refused(recipe, scale) for scale in (0.0, -1.0, _NAN, _INF, 1e-50, 1e39))
                and _Run(recipe, (1, 2), scale=2.0**-149).scales == [2.0**-149]
                and _Run(recipe, (1, 2), scale=0.1).scales == [float(np.float32(0.1))]
            ),
        ),
        Statement(
            "Under a given scale, what lies beyond 448 * s saturates with its sign.",
            lambda: _Run(recipe, (1000, -1000), scale=1.0).codes == [0x7E, 0xFE],
        ),
        Statement(
            "One outlier changes the scale of the whole tensor.",
            lambda: _Run(recipe, (1, 2), (1, 1000)).codes[:2] != _Run(recipe, (1, 2), (1, 1)).codes[:2],
        ),
    )


def _fp8_per_token_head(recipe: Recipe) -> tuple[Statement, ...]:
    return (
        *_fp8(recipe, "a row"),
        Statement(
            "An outlier changes nothing outside its own row.",
            lambda: (
                _Run(recipe, (1, 2), (1, 1000)).codes[:2] == _Run(recipe, (1, 2), (1, 1)).codes[:2]
                and _Run(recipe, (1, 2), (1, 1000)).scales[0] == _Run(recipe, (1, 2), (1, 1)).scales[0]
            ),
        ),
    )


# --- int8 ------------------------------------------------------------------------------------------------------------


def _int8(recipe: Recipe) -> tuple[Statement, ...]:
    return (
        Statement(
            "NaN makes the scale of its row NaN (`0x7FC00000`) and all codes of the row 0, so the whole row is NaN "
            "when it is read: int8 has no NaN, and a NaN must not come back as a number. Other rows are untouched.",
            lambda: (
                _Run(recipe, (1, _NAN), (3, 1)).codes == [0, 0, *_Run(recipe, (3, 1)).codes]
                and all(math.isnan(value) for value in _Run(recipe, (1, _NAN)).values)
                and _Run(recipe, (1, _NAN)).result.scales.view(np.uint32).item() == 0x7FC00000
                and _Run(recipe, (1, _NAN), (3, 1)).scales[1:] == _Run(recipe, (3, 1)).scales
            ),
        ),
        Statement(
            "Inf becomes 127, -Inf -127. It does not take part in amax.",
            lambda: (
                _Run(recipe, (_INF, -_INF, 2)).codes == [0x7F, 0x81, 0x7F]
                and _Run(recipe, (_INF, -_INF, 2)).scales == _Run(recipe, (0, 0, 2)).scales
            ),
        ),
        Statement(
            "-128 never arises: codes are -127 .. 127.",
            lambda: (
                min(_Run(recipe, (-3, 3, -_INF)).result.codes.reshape(-1).tolist()) == -127
                and "clamp(q, -127, 127)" in recipe.code.text
            ),
        ),
        Statement(
            "Where a row has no finite number but zeros, the scale is 1.0. The sign of a zero is lost.",
            lambda: (
                _Run(recipe, (0.0, -0.0, _INF)).scales == [1]
                and _Run(recipe, (0.0, -0.0, _INF)).codes == [0, 0, 0x7F]
                and _signs(_Run(recipe, (-0.0, 1)).values)[0] == 1
            ),
        ),
        Statement(
            "Where amax / 127 rounds to 0, the scale is 1.0 and every finite element becomes 0. "
            "That is so for amax up to 63 * 2^-149, the last float32 below 127 * 2^-150.",
            lambda: (
                _Run(recipe, (63 * 2.0**-149, -(2.0**-149))).scales == [1]
                and _Run(recipe, (63 * 2.0**-149, -(2.0**-149))).codes == [0, 0]
                and _Run(recipe, (64 * 2.0**-149, 0)).scales == [2.0**-149]
            ),
        ),
        Statement(
            "Halves go to the even integer: with the scale 1, 0.5 becomes 0, 1.5 and 2.5 become 2.",
            lambda: _Run(recipe, (127, 0.5, 1.5, 2.5)).codes[1:] == [0, 2, 2],
        ),
    )


# --- nvfp4 -----------------------------------------------------------------------------------------------------------


def _block(*values: float) -> tuple[float, ...]:
    return (*values, *[0.0] * (16 - len(values)))


def _nvfp4(recipe: Recipe) -> tuple[Statement, ...]:
    golden = recipe.name.startswith("golden/")
    return (
        Statement(
            "NaN makes the scale of its block NaN (`bs` = `0x7F`) and all 16 codes 0, so the whole block is NaN "
            "when it is read: e2m1fn has no NaN. It takes part in no amax, so g and the other blocks are untouched.",
            lambda: _nan_stays_in_its_block(recipe),
        ),
        Statement(
            "Inf becomes `0x7`, -Inf `0xF`: 6 * bs * g when it is read. It takes part in no amax.",
            lambda: (
                _Run(recipe, _block(_INF, -_INF, 3)).codes[:2] == [0x7, 0xF]
                and _Run(recipe, _block(_INF, -_INF, 3)).scales == _Run(recipe, _block(0, 0, 3)).scales
                and _Run(recipe, _block(_INF, 3)).result.global_scale == _Run(recipe, _block(3)).result.global_scale
            ),
        ),
        Statement(
            "Where bs is 0, every element of the block becomes a zero with its sign, Inf included: `0x0` or `0x8`.",
            lambda: (
                _Run(recipe, _block(_INF, -_INF, -0.0)).codes[:4] == [0x0, 0x8, 0x8, 0x0]
                and _Run(recipe, _block(_INF, -_INF, -0.0)).scales == [0]
            ),
        ),
        Statement(
            "-0, and every negative number that rounds to zero, becomes `0x8`.",
            lambda: _Run(recipe, _block(6, -0.0, -0.25), scale=1.0).codes[1:3] == [0x8, 0x8],
        ),
        Statement(
            "Where the tensor has no finite number but zeros, or amax / 2688 rounds to 0, g is 1.0. A bs of 0 stays 0.",
            lambda: (
                _Run(recipe, _block(0.0, _NAN, _INF)).result.global_scale == 1
                and _Run(recipe, _block(2.0**-149)).result.global_scale == 1
                and _Run(recipe, _block(0.0)).scales == [0]
            ),
        ),
        Statement(
            "bs rounds to 0 where amax / (6 * g) is at most 2^-10 (a tie, to even). amax is that of the block. The "
            "whole block is then lost.",
            lambda: (
                _Run(recipe, _block(6 * 2.0**-10, 1e-5), scale=1.0).scales == [0]
                and set(_Run(recipe, _block(6 * 2.0**-10, 1e-5), scale=1.0).codes) == {0}
                and _Run(recipe, _block(6 * 2.0**-10 * 1.0001), scale=1.0).scales == [1]
            ),
        ),
        Statement(
            "Under a given g, bs saturates at 448 (`0x7E`) and the codes at 6: what lies beyond 2688 * g is cut off.",
            lambda: (
                _Run(recipe, _block(1e6, -1e6), scale=1.0).scales == [0x7E]
                and _Run(recipe, _block(1e6, -1e6), scale=1.0).codes[:2] == [0x7, 0xF]
                and _Run(recipe, _block(1e6), scale=1.0).values[0] == 2688
            ),
        ),
        Statement(
            "A given g is rounded once to float32; it must then be finite and greater than 0.",
            lambda: _g_is_judged(recipe),
        ),
        *(_nvfp4_golden(recipe) if golden else _nvfp4_exact(recipe)),
    )


def _nan_stays_in_its_block(recipe: Recipe) -> bool:
    with_nan = _Run(recipe, _block(1, _NAN) + _block(3, -2))
    without = _Run(recipe, _block(1, 0) + _block(3, -2))
    return (
        with_nan.scales[0] == 0x7F
        and set(with_nan.codes[:16]) == {0}
        and all(math.isnan(value) for value in with_nan.values[:16])
        and with_nan.result.global_scale == without.result.global_scale
        and with_nan.scales[1] == without.scales[1]
        and with_nan.codes[16:] == without.codes[16:]
    )


def _g_is_judged(recipe: Recipe) -> bool:
    def refused(scale: float) -> bool:
        try:
            _Run(recipe, _block(1), scale=scale)
        except kvformat.InputError:
            return True
        return False

    rounded = _Run(recipe, _block(1), scale=0.1).result.global_scale == np.float32(0.1)
    return all(map(refused, (0.0, -1.0, _NAN, _INF, 1e-50, 1e39))) and bool(rounded)


def _nvfp4_golden(recipe: Recipe) -> tuple[Statement, ...]:
    return (
        Statement(
            "6 * g overflows to Inf for g above about 5.67e37, the largest float32 / 6. bs is then 0, and every "
            "block is lost.",
            lambda: (
                _Run(recipe, _block(_LARGEST), scale=5.68e37).scales == [0]
                and _Run(recipe, _block(_LARGEST), scale=5.67e37).scales == [0x38]
            ),
        ),
        Statement(
            "bs * g may underflow to 0 although bs is not 0. Every element then becomes a zero with its sign; bs is "
            "kept as it is: g = 2^-149 and a block of 2^-149 give bs = 0.171875 (`0x23`) and codes 0.",
            lambda: (
                _Run(recipe, _block(2.0**-149, -(2.0**-149)), scale=2.0**-149).scales == [0x23]
                and float(kvformat.decode(np.uint8(0x23), "e4m3fn")) == 0.171875
                and _Run(recipe, _block(2.0**-149, -(2.0**-149)), scale=2.0**-149).codes[:2] == [0x0, 0x8]
            ),
        ),
    )


def _nvfp4_exact(recipe: Recipe) -> tuple[Statement, ...]:
    return (
        Statement(
            "6 * g cannot overflow here: with g = 1e38 and the largest float32 in a block, bs is 0.5625 (`0x31`).",
            lambda: (
                _Run(recipe, _block(_LARGEST), scale=1e38).scales == [0x31]
                and float(kvformat.decode(np.uint8(0x31), "e4m3fn")) == 0.5625
            ),
        ),
        Statement(
            "bs * g cannot underflow here: with g = 2^-149 and a block of 2^-149, bs is 0.171875 (`0x23`) and the "
            "code is 6.",
            lambda: (
                _Run(recipe, _block(2.0**-149), scale=2.0**-149).scales == [0x23]
                and _Run(recipe, _block(2.0**-149), scale=2.0**-149).codes[0] == 0x7
            ),
        ),
        Statement(
            "Decoding is golden's, in float32: (code value * bs) * g.",
            lambda: recipe.value.precision == "float32" and recipe.value.text == "v = mul(mul(c, bs), g)",
        ),
    )


STATEMENTS: dict[str, Callable[[Recipe], tuple[Statement, ...]]] = {
    "none": _none,
    "fp8_per_tensor": _fp8_per_tensor,
    "fp8_per_token_head": _fp8_per_token_head,
    "int8_per_token_head": _int8,
    "nvfp4": _nvfp4,
}

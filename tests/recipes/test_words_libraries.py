"""The words of library recipes in binary32: the compiled ones are their exact twins', and a few results by hand."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from kvformat.elements import exact
from kvformat.elements.exact import Number, number
from kvformat.elements.static import static
from kvformat.fuzz import strategies
from kvformat.recipes import Program, engine
from kvformat.recipes.exact import evaluate
from tests.elements.compare import assert_same_values
from tests.recipes.library_words import LINES, PARTS
from tests.recipes.words_kernel import run_all

_TINY, _NORMAL, _MAX = 2.0**-149, 2.0**-126, float(np.finfo(np.float32).max)
_POSITIVE = (
    *(0.0, 1.0, 3.0, 7.0, 15.0, 16.0, 2.5, 0.25, 0.75, 1.25, 5.0, 6.0, 0.5, 127.5, 464.0, 65504.0, 65520.0),
    *(float(np.float32(value)) for value in (1 / 3, 1e-6, 1e30)),
    *(np.nextafter(np.float32(value), np.float32(np.inf)) for value in (0.25, 2.5, 16.0, 2.0**64)),
    *(np.nextafter(np.float32(value), np.float32(0)) for value in (0.25, 2.5, 16.0, _NORMAL)),
    *(_TINY, 3 * _TINY, 2.0**-133, _NORMAL, 2.0**-127, 2.0**126, 2.0**127, _MAX, np.inf),
)
NUMBERS = np.array([*_POSITIVE, *(-value for value in _POSITIVE), np.nan], np.float32)
NAMES = tuple(line.target for line in LINES)


@pytest.fixture(scope="module")
def results():
    a, b = (np.array(side, np.float32) for side in zip(*product(NUMBERS, NUMBERS), strict=True))
    d = np.resize(NUMBERS[5:][::-1], a.shape)
    parts = []
    for text in PARTS:
        program = Program.parse(text)
        parts.append(np.empty((len(program.operations), a.size)))
        run_all(static(program), a, b, d, parts[-1])
    program = Program.parse("\n".join(PARTS))
    expected = np.empty((len(NAMES), a.size))
    for i, numbers in enumerate(zip(a, b, d, strict=True)):
        values = evaluate(program, {name: number(float(value)) for name, value in zip("abd", numbers, strict=True)})
        expected[:, i] = [float(values[name]) for name in NAMES]
    return np.concatenate(parts), expected


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_compiled_word_is_its_exact_twin(results, name):
    found, expected = (each[NAMES.index(name)] for each in results)
    assert_same_values(found, expected)


ONE, INF, NAN = 0x3F80_0000, np.inf, np.nan


def _float(pattern):
    return float(np.uint32(pattern).view(np.float32))


@pytest.mark.parametrize(
    "text, inputs, expected",
    [
        ("r = splice(a, b, 4)", {"a": 1.0, "b": 5.0}, _float(ONE | 5)),
        (
            "r = splice(a, b, 4)",
            {"a": -_float(ONE | 0xABCDEF & 0x7FFFFF), "b": 0.0},
            -_float(ONE | 0xABCDE0 & 0x7FFFFF),
        ),
        ("r = splice(a, b, 4)", {"a": 0.0, "b": 15.0}, 15 * _TINY),
        ("r = splice(a, b, 4)", {"a": -0.0, "b": 0.0}, -0.0),
        ("r = splice(a, b, 4)", {"a": _float(ONE | 3), "b": 16.0}, 1.0),  # 16 does not fit
        ("r = splice(a, b, 4)", {"a": _float(ONE | 3), "b": NAN}, 1.0),
        ("r = splice(a, b, 4)", {"a": INF, "b": 0.0}, INF),
        ("r = splice(a, b, 4)", {"a": INF, "b": 1.0}, NAN),  # 0x7F800001
        ("r = splice(a, b, 4)", {"a": NAN, "b": 1.0}, NAN),
        ("r = low_bits(a, 4)", {"a": -_float(ONE | 0x7B)}, 11.0),
        ("r = low_bits(a, 4)", {"a": INF}, 0.0),
        ("r = flush(a)", {"a": -(2.0**-127)}, -0.0),
        ("r = flush(a)", {"a": _NORMAL}, _NORMAL),
        ("r = rcp_approx(a, ftz)", {"a": _TINY}, INF),  # 1 / 0
        ("r = rcp_approx(a, ftz)", {"a": -(2.0**127)}, -0.0),
        ("r = div_full(a, b, ftz)", {"a": _TINY, "b": _TINY}, NAN),  # 0 / 0
        ("r = pow2_approx(a, up)", {"a": 1.0000001}, 2.0),
        ("r = pow2_approx(a, up, bfloat16)", {"a": 1025.0}, 1024.0),  # log2 is 10.0014, in bfloat16 10
        ("r = pow2_approx(a, up, bfloat16)", {"a": 1100.0}, 2048.0),  # 10.1033, in bfloat16 10.125
    ],
)
def test_twin_s_words_by_hand(text, inputs, expected):
    values = {name: number(float(np.float32(value))) for name, value in inputs.items()}
    assert_same_values(np.float64(float(evaluate(Program.parse(text), values)["r"])), np.float64(expected))


@pytest.mark.parametrize(
    "value, away, toward_zero",
    [(0.25, 1, 0), (-0.25, 9, 8), (0.75, 2, 1), (1.25, 3, 2), (2.5, 5, 4), (-3.5, 14, 13), (5.0, 7, 6), (0.26, 1, 1)],
)
def test_ties_of_e2m1fn_by_hand(value, away, toward_zero):
    for rounding, code in (("nearest_away", away), ("nearest_toward_zero", toward_zero)):
        assert exact.encode(value, "e2m1fn", rounding=rounding) == code


EXTREMES = Program.parse("high = largest(x)\nlow = smallest(x)")


@pytest.mark.parametrize("dtype", strategies.DTYPES, ids=strategies.DTYPE_IDS)
@pytest.mark.parametrize(
    "group, high, low",
    [
        ([1.0, -3.0, 2.0], 2.0, -3.0),
        ([-1.0, -3.0], -1.0, -3.0),
        ([0.0, -0.0], 0.0, 0.0),
        ([-0.0, -0.0], 0.0, 0.0),
        ([-0.0, 5.0], 5.0, 0.0),
        ([INF, 1.0], INF, 1.0),
        ([-INF, -INF], -INF, -INF),
        ([NAN, -2.0, NAN], -2.0, -2.0),
        ([NAN, NAN], 0.0, 0.0),
        ([2.0**-24, -(2.0**-24)], 2.0**-24, -(2.0**-24)),
    ],
)
def test_signed_extremes_by_hand(dtype, group, high, low):
    row = np.array([group], np.float32).astype(dtype)
    found = np.empty((1, 2), np.float32)
    plan = static(engine.ReducePlan(dtype.name, EXTREMES.reductions))
    engine.reduce_rows(plan, row.view(f"u{dtype.itemsize}"), found)
    assert_same_values(found[0], np.array([high, low], np.float32))
    twin = evaluate(EXTREMES, {}, [number(float(value)) for value in row[0].astype(np.float32)])
    assert all(isinstance(twin[name], Number) for name in ("high", "low"))
    assert_same_values(np.array([float(twin["high"]), float(twin["low"])], np.float32), found[0])

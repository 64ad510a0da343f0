"""Every word of the vocabulary: the compiled one is the exact twin's, on the numbers that tell them apart."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from kvformat.elements import exact
from kvformat.elements.exact import BINARIES, Number, number
from kvformat.elements.static import static
from kvformat.fuzz import strategies
from kvformat.recipes import Program, engine
from kvformat.recipes.exact import evaluate
from kvformat.recipes.vocabulary import GRANULARITIES, WORDS
from tests.elements.compare import assert_same_values
from tests.recipes import library_words
from tests.recipes.words_kernel import run_all

#: one line per word, and per direction and policy where it has some; results are named after them
PARTS = {
    "arithmetic": """
    add = add(a, b)
    sub = sub(a, b)
    mul = mul(a, b)
    div = div(a, b)
    rcp = rcp(a)
    neg = neg(a)
    abs = abs(a)
    copysign = copysign(a, b)
    """,
    "extremes": """
    max = max(a, b)
    min = min(a, b)
    max_number = max_number(a, b)
    min_number = min_number(a, b)
    clamp = clamp(a, b, d)
    clamp_constants = clamp(a, -127, 127)
    """,
    "roundings": """
    half_even = round(a, half_even)
    half_away = round(a, half_away)
    toward_zero = round(a, toward_zero)
    up = round(a, up)
    down = round(a, down)
    cast = cast_int32(a)
    wrapped = wrap(a, 8)
    """,
    "flags": """
    eq = eq(a, b)
    ne = ne(a, b)
    lt = lt(a, b)
    le = le(a, b)
    isnan = isnan(a)
    isinf = isinf(a)
    select = select(le, a, d)
    select_nan = select(isnan, 0, b)
    """,
    "encodings": """
    e4m3fn = encode(a, e4m3fn)
    e5m2_ieee = encode(a, e5m2, ieee)
    e2m1fn = encode(a, e2m1fn, saturate)
    int8 = encode(a, int8)
    e8m0fnu = encode(a, e8m0fnu, ieee, up)
    """,
}
#: `real` is the same code on float64: the words that exact/* is made of
CASES = [
    *(("float32", part) for part in PARTS),
    *(pytest.param("real", part, marks=pytest.mark.slow) for part in ("arithmetic", "roundings", "encodings")),
]
_LINES = Program.parse("\n".join(PARTS.values())).operations

#: zeros, halves and what lies just beside them, subnormals, the ends of the range, Inf, NaN
_MAX, _TINY = float(np.finfo(np.float32).max), 2.0**-149
POSITIVE = (
    0.0,
    0.5,
    0.49999997,
    1.0,
    1.5,
    2.5,
    3.0,
    127.5,
    464.0,
    8388607.5,
    1e-6,
    _TINY,
    3 * _TINY,
    1e30,
    _MAX,
    np.inf,
)
NUMBERS = np.array([*POSITIVE, *(-value for value in POSITIVE), np.nan], np.float32)


@pytest.mark.parametrize("precision, part", CASES)
def test_compiled_words_are_their_exact_twins(precision, part):
    program = Program.parse(PARTS[part], precision)
    # every pair of numbers, the third operand going round
    a, b = (np.array(side, np.float32) for side in zip(*product(NUMBERS, NUMBERS), strict=True))
    d = np.resize(NUMBERS[3:][::-1], a.shape)
    found = np.empty((len(program.operations), a.size))
    run_all(static(program), a, b, d, found)
    expected = np.empty_like(found)
    for i, numbers in enumerate(zip(a, b, d, strict=True)):
        values = evaluate(program, {name: number(float(value)) for name, value in zip("abd", numbers, strict=True)})
        for index, operation in enumerate(program.operations):
            value = values[operation.target]
            # `real` runs in float64: one operation of it is the exact result, rounded to float64
            wide = exact.round_binary(value, BINARIES["float64"]) if isinstance(value, Number) else value
            expected[index, i] = float(wide)
    for index, operation in enumerate(program.operations):
        assert_same_values(found[index], expected[index], str(operation))


def test_every_word_is_tested():
    reductions = {name for name, word in WORDS.items() if word.reduces}
    lines = (*_LINES, *library_words.LINES)  # those of test_words_libraries
    assert {operation.word for operation in lines} | reductions == set(WORDS)
    policies = {policy for operation in lines if operation.word == "encode" for policy in operation.attributes[1:]}
    assert policies >= set(WORDS["encode"].attributes[1]) - {"nearest_even", "down"}
    directions = {operation.attributes[0] for operation in _LINES if operation.word == "round"}
    assert directions == set(WORDS["round"].attributes[0])


@pytest.mark.parametrize(
    "text, inputs, expected",
    [
        ("r = round(a, half_away)", {"a": 0.49999997}, 0.0),  # trunc(a + 0.5) is 1
        ("r = round(a, half_away)", {"a": -2.5}, -3.0),
        ("r = round(a, half_away)", {"a": 8388607.5}, 8388608.0),
        ("r = round(a, half_even)", {"a": 2.5}, 2.0),
        ("r = round(a, half_even)", {"a": -0.5}, -0.0),
        ("r = round(a, toward_zero)", {"a": -0.9}, -0.0),
        ("r = round(a, up)", {"a": -0.9}, -0.0),
        ("r = round(a, down)", {"a": -0.1}, -1.0),
        ("r = max(a, b)", {"a": -0.0, "b": 0.0}, 0.0),
        ("r = min(a, b)", {"a": 0.0, "b": -0.0}, -0.0),
        ("r = max(a, b)", {"a": np.nan, "b": 1.0}, np.nan),
        ("r = max_number(a, b)", {"a": np.nan, "b": 1.0}, 1.0),
        ("r = min_number(a, b)", {"a": 1.0, "b": np.nan}, 1.0),
        ("r = max_number(a, b)", {"a": np.nan, "b": np.nan}, np.nan),
        ("r = clamp(a, -127, 127)", {"a": np.nan}, np.nan),
        ("r = clamp(a, -127, 127)", {"a": -128.0}, -127.0),
        ("r = div(a, b)", {"a": 1.0, "b": -0.0}, -np.inf),
        ("r = div(a, b)", {"a": 0.0, "b": 0.0}, np.nan),
        ("r = div(a, b)", {"a": 1.0, "b": 3.0}, float.fromhex("0x1.555556p-2")),
        ("r = rcp(a)", {"a": 3.0}, float.fromhex("0x1.555556p-2")),
        ("r = mul(a, b)", {"a": 2.0**-75, "b": 2.0**-75}, 0.0),  # half of the smallest subnormal: to even
        ("r = mul(a, b)", {"a": 2.0**-75, "b": -1.5 * 2.0**-75}, -(2.0**-149)),
        ("r = add(a, b)", {"a": 16777216.0, "b": 1.0}, 16777216.0),
        ("r = sub(a, b)", {"a": 1.0, "b": 1.0}, 0.0),
        ("r = copysign(a, b)", {"a": 0.0, "b": -3.0}, -0.0),
        ("r = neg(a)", {"a": 0.0}, -0.0),
        ("r = add(a, 0.1)", {"a": 0.0}, float.fromhex("0x1.99999ap-4")),  # a constant is rounded to float32
        ("r = select(a != a, 1, 2)", {"a": np.nan}, 1.0),
        ("r = select(a <= a, 1, 2)", {"a": np.nan}, 2.0),
    ],
)
def test_twin_s_words_by_hand(text, inputs, expected):
    values = {name: number(float(np.float32(value))) for name, value in inputs.items()}
    assert_same_values(np.float64(float(evaluate(Program.parse(text), values)["r"])), np.float64(expected))


# --- reductions ------------------------------------------------------------------------------------------------------

REDUCTIONS = ("amax_finite", "amax_number", "amax", "any_nan", "all_nan")
INF, NAN = np.inf, np.nan
#: a group and what the five reductions make of it, by hand
GROUPS = [
    ([1.0, -3.0, 2.0], (3.0, 3.0, 3.0, 0, 0)),
    ([0.0, -0.0], (0.0, 0.0, 0.0, 0, 0)),
    ([-0.0], (0.0, 0.0, 0.0, 0, 0)),
    ([1.0, -INF], (1.0, INF, INF, 0, 0)),
    ([INF, -INF], (0.0, INF, INF, 0, 0)),
    ([NAN, 1.0], (1.0, 1.0, NAN, 1, 0)),
    ([-NAN, -2.0, 1.0], (2.0, 2.0, NAN, 1, 0)),
    ([NAN, NAN], (0.0, 0.0, NAN, 1, 1)),
    ([NAN, -0.0], (0.0, 0.0, NAN, 1, 0)),
    ([NAN, INF, 0.5], (0.5, INF, NAN, 1, 0)),
    ([2.0**-24, -(2.0**-23)], (2.0**-23, 2.0**-23, 2.0**-23, 0, 0)),
    ([65504.0, -1.0] * 40, (65504.0, 65504.0, 65504.0, 0, 0)),
    ([1.0] * 40 + [-7.0], (7.0, 7.0, 7.0, 0, 0)),
]


def _reduce(dtype, rows):
    plan = engine.ReducePlan(
        dtype.name, Program.parse("\n".join(f"{word} = {word}(x)" for word in REDUCTIONS)).reductions
    )
    found = np.empty((len(rows), len(REDUCTIONS)), np.float32)
    engine.reduce_rows(static(plan), rows.view(f"u{dtype.itemsize}"), found)
    return found


@pytest.mark.parametrize("dtype", strategies.DTYPES, ids=strategies.DTYPE_IDS)
def test_reductions_by_hand(dtype):
    for group, expected in GROUPS:
        with np.errstate(over="ignore"):
            row = np.array([group], np.float32).astype(dtype)
        wide = [number(float(value)) for value in row[0].astype(np.float32)]
        largest = np.array(expected, np.float32).astype(dtype).astype(np.float32)  # 65504 is 65536 in bfloat16
        assert_same_values(_reduce(dtype, row)[0], largest)
        program = Program.parse("\n".join(f"{word} = {word}(x)" for word in REDUCTIONS))
        twin = evaluate(program, {}, wide)
        assert_same_values(np.array([float(twin[word]) for word in REDUCTIONS], np.float32), largest)


@pytest.mark.parametrize("dtype", strategies.DTYPES[1:], ids=strategies.DTYPE_IDS[1:])
def test_reductions_widen_every_half_precision_pattern_exactly(dtype):
    x = np.arange(1 << 16, dtype=np.uint16).view(dtype)[:, None]
    with np.errstate(invalid="ignore"):  # signalling NaNs
        size = np.abs(x[:, 0].astype(np.float32))
    found = _reduce(dtype, x)
    assert_same_values(found[:, 0], np.where(np.isfinite(size), size, np.float32(0)))
    assert_same_values(found[:, 1], np.where(np.isnan(size), np.float32(0), size))
    assert_same_values(found[:, 2], size)
    np.testing.assert_array_equal(found[:, 3], np.isnan(size))


def test_granularities_say_what_shares_a_scale():
    shared = {name: (each.shares_tokens, each.shares_heads, each.columns(128)) for name, each in GRANULARITIES.items()}
    assert shared == {
        "per_tensor": (True, True, 1),
        "per_head": (True, False, 1),
        "per_channel": (True, False, 128),
        "per_token": (False, True, 1),
        "per_token_head": (False, False, 1),
        "per_block": (False, False, 8),
        "per_block_32": (False, False, 4),
        "per_block_64": (False, False, 2),
        "per_tile": (False, False, 1),
    }

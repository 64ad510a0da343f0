"""Recipes with several parameters for each group, made up for what each needs; and the comparison with the twin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kvformat as kvf
from kvformat.elements.exact import BINARIES, number, round_binary
from kvformat.recipes import exact
from kvformat.recipes.entry import parse_recipe
from kvformat.recipes.program import Recipe


def _recipe(name: str, scales: list[dict[str, Any]], code: str, value: str, **more: Any) -> dict[str, Any]:
    top = {"name": f"test/{name}", "mode": "none", "element": "int8", "source": "a test"}
    return {**top, "scales": scales, "code": code, "value": value, **more}


def _both(granularity: str, store: str, program: str, names: tuple[str, str], **more: Any) -> list[dict[str, Any]]:
    first, second = names
    return [
        {"name": first, "granularity": granularity, "store": store, "program": program, **more},
        {"name": second, "granularity": granularity, "store": store, "program": "", **more},
    ]


#: scale and minimum; codes are made with the unrounded ones
TWO_IN_ONE = parse_recipe(_recipe(
    "two-in-one",
    _both("per_block_32", "input", """
        low = smallest(x)
        wide = max(div(sub(largest(x), low), 15), 1e-7)
        s = to(wide, input)
        b = to(low, input)
    """, ("s", "b")),
    "c = encode(clamp(round(div(sub(x, low), wide), half_even), 0, 15), int8)",
    "v = add(mul(c, s), b)",
))  # fmt: skip

ZERO_POINT_TEXT = _recipe(
    "zero-point",
    [
        {"name": "s", "granularity": "per_token_head", "program": """
            low = min(smallest(x), 0)
            s = max(div(sub(max(largest(x), 0), low), 255), 1e-9)
        """},
        {"name": "zp", "granularity": "per_token_head", "store": "int8", "program": "zp = sub(neg(div(low, s)), 128)"},
    ],
    "c = encode(add(div(x, s), zp), int8)",
    "v = mul(sub(c, zp), s)",
)  # fmt: skip
ZERO_POINT = parse_recipe(ZERO_POINT_TEXT)

BY_CHANNEL = parse_recipe(_recipe(
    "by-channel",
    _both("(32, 1, 1)", "float32", """
        low = smallest(x)
        s = mul(sub(largest(x), low), div(1, 255))
        s = select(s == 0, 1e-4, s)
        zp = neg(div(low, s))
    """, ("s", "zp")),
    "c = encode(sub(clamp(round(fma(x, rcp(s), zp), half_even), 0, 255), 128), int8)",
    "v = mul(sub(add(c, 128), zp), s)",
))  # fmt: skip

FLAT = parse_recipe(_recipe(
    "flat",
    _both("64 of (heads, tokens, dims)", "input", """
        low = smallest(x)
        s = div(sub(largest(x), low), 15)
        z = neg(low)
    """, ("s", "z"), precision="input"),
    "c = encode(clamp(round(div(add(x, z), s), half_even), 0, 15), int8)",
    "v = sub(mul(s, c), z)",
    precision="input",
    value_precision="input",
))  # fmt: skip

FROM_CODES = parse_recipe(_recipe(
    "from-codes",
    [
        {"name": "h", "granularity": "per_block_32", "store": "float16", "program": """
            a = amax_number(x)
            tiny = lt(a, 1e-3)
            h = div(a, 127)
        """},
        {"name": "d", "granularity": "per_block_32", "store": "float16", "after": True, "sums": """
            w = mul(x, x)
            qx = add(qx, mul(mul(w, c), x))
            qq = add(qq, mul(mul(w, c), c))
        """, "program": "d = select(qq == 0, 0, div(qx, qq))"},
    ],
    "c = encode(div(x, h), int8)",
    "v = mul(c, d)",
    undefined="tiny",
))  # fmt: skip

GIVEN_BY_CHANNEL = parse_recipe(_recipe(
    "given",
    [{"name": "s", "granularity": "per_channel", "program": "s = amax(x)", "may_be_given": True}],
    "c = encode(round(mul(x, rcp(s)), half_even), int8)",
    "v = mul(c, s)",
))  # fmt: skip


def same(x: NDArray[Any], recipe: Recipe, params: Mapping[str, Any] | None = None) -> kvf.Quantized:
    """What the engine gives, after asserting that the exact twin gives the same codes, parameters and values."""
    made = kvf.quantize(x, recipe, params=params)
    twin = exact.quantize_all(x, recipe, params)
    assert (made.codes == twin.codes).all()
    assert made.params.keys() == twin.params.keys()
    for name, each in made.params.items():
        assert (each.shape, each.dtype) == (twin.params[name].shape, twin.params[name].dtype)
        wrong = next(level for level in recipe.levels if level.name == name).format
        assert not wrong.for_input(x.dtype.name).differs(each, twin.params[name]).any()
    assert (made.undefined is None) == (twin.undefined is None)
    assert made.undefined is None or (made.undefined == twin.undefined).all()
    _same_values(made)
    return made


def _same_values(made: kvf.Quantized) -> None:
    """A few values as the exact twin reads them."""
    values, how = made.dequantize(), made.recipe
    fmt = kvf.element(how.element)
    for place in np.random.default_rng(5).integers(0, made.codes.shape, (20, 3)):
        at = tuple(map(int, place))
        scales = {}
        for level in how.levels:
            _, groups = exact._groups(level.granularity, made.codes.shape)
            index = next(i for i, group in enumerate(groups) if at in group)
            stored = level.format.values(made.params[level.name].reshape(-1))[index]
            scales[level.name] = number(float(stored))
        wanted = exact.dequantize(int(made.codes[at]) % fmt.codes, scales, how)
        assert float(round_binary(wanted, BINARIES["float32"])) == values[at] or np.isnan(values[at])

"""What rounding alone costs, and what the scale adds: each format with its recipe's scale and with the best one."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvformat.elements.codec import decode, encode
from kvformat.recipes.quantizer import quantize
from kvformat.simulate.experiments.result import Progress, Result, Settings
from kvformat.simulate.experiments.scale import sqnr
from kvformat.simulate.profiles import PROFILES

Array = NDArray[Any]

#: candidates for the best scale, as factors of amax / the largest value; above 1 nothing saturates
FACTORS = np.exp2(np.linspace(-1, 1, 33))
#: format and the elements that share a scale: 0 = the whole row
FORMATS = (
    ("golden/fp8_per_tensor", "e4m3fn", 448.0, None),
    ("golden/fp8_per_token_head", "e4m3fn", 448.0, 0),
    ("golden/int8_per_token_head", "int8", 127.0, 0),
    ("golden/nvfp4", "e2m1fn", 6.0, 16),
)


def best_scale(x: Array, element: str, largest: float, shared: int | None) -> Array:
    """The values of x under the scale, of FACTORS and in float64, that has the least squared error per group."""
    groups = x.reshape(1, -1) if shared is None else x.reshape(-1, shared or x.shape[-1])
    amax = np.abs(groups).max(axis=1, keepdims=True).astype(np.float64)
    best, least = np.zeros(groups.shape), np.full((len(groups), 1), np.inf)
    for factor in FACTORS:
        scale = np.where(amax > 0, amax / largest * factor, 1)
        values = decode(encode(groups / scale, element), element, np.float64) * scale
        error = np.square(values - groups).sum(axis=1, keepdims=True)
        best, least = np.where(error < least, values, best), np.minimum(error, least)
    return best.reshape(x.shape)


def run(settings: Settings, progress: Progress) -> Result:
    """SQNR of real-looking keys and values: recipe, best scale, and what the recipe's scale costs."""
    rows: list[dict[str, Any]] = []
    everything: NDArray[np.bool_]
    total, done = len(PROFILES) * 2 * len(FORMATS), 0
    for profile in PROFILES.values():
        sample = profile.sample(settings.seed, settings.tokens)
        for side, x in (("K", sample.key), ("V", sample.value)):
            everything = np.ones(x.shape, bool)
            for recipe, element, largest, shared in FORMATS:
                with_recipe = sqnr(x, quantize(x, recipe).dequantize(np.float64), everything)
                ideal = sqnr(x, best_scale(x, element, largest, shared), everything)
                rows.append({
                    "profile": profile.name, "side": side, "mode": recipe.rpartition("/")[2],
                    "recipe dB": with_recipe, "best scale dB": ideal, "cost of the scale dB": ideal - with_recipe,
                })  # fmt: skip
                done += 1
                progress(done, total)
    worst = max(rows, key=lambda row: row["cost of the scale dB"])
    return Result(
        "rounding",
        "SQNR in dB: rounding alone, and with the recipe's scale",
        rows,
        [
            (
                f"the recipe's scale costs at most {worst['cost of the scale dB']:.2f} dB against the best one"
                f" ({worst['mode']}, {worst['profile']} {worst['side']}): the error is rounding, not the choice"
                " of scale"
            ),
        ],
    )

"""What a real sink token looks like in the cache, and what its scale does: two layers of SmolLM2-135M."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from kvformat.checkpoint.states import read_states
from kvformat.data import Sample, sample
from kvformat.errors import InputError
from kvformat.recipes.quantizer import quantize
from kvformat.simulate.experiments.result import Progress, Result, Settings, mode_name

RECIPES = ("golden/fp8_per_tensor", "golden/fp8_per_token_head", "golden/int8_per_token_head", "golden/nvfp4")


def run(settings: Settings, progress: Progress) -> Result:
    """Norms of token 0 over the median token's, and the relative error that each mode makes on both."""
    rows: list[dict[str, Any]] = []
    layers = sample() if settings.kv is None else _own(settings.kv)
    for done, (layer, key, value) in enumerate(layers, 1):
        for side, x in (("K", key), ("V", value)):
            exact = x.astype(np.float64)
            norms = np.linalg.norm(exact, axis=2)
            amax = np.abs(exact).max(axis=(1, 2))
            row: dict[str, Any] = {
                "layer": layer,
                "side": side,
                "norm 0 / median": float(np.mean(norms[0] / np.median(norms[1:], axis=0))),
                "amax 0 / largest other": float(amax[0] / amax[1:].max()),
            }
            for recipe in RECIPES:
                error = np.linalg.norm(quantize(x, recipe).dequantize(np.float64) - exact, axis=2) / norms
                row[f"{mode_name(recipe)} at 0"] = float(error[0].mean())
                row[f"{mode_name(recipe)} others"] = float(error[1:].mean())
            rows.append(row)
        progress(done, len(layers))
    deep = next(row for row in reversed(rows) if row["side"] == "K")
    return Result(
        "sink",
        "The sink token in the cache",
        rows,
        [
            (
                f"where the sink exists its key has {deep['norm 0 / median']:.2f} of the median norm, and its"
                f" largest element {deep['amax 0 / largest other']:.2f} of the largest of the others: it sets no scale"
            ),
        ],
    )


def _own(path: Path) -> tuple[Sample, ...]:
    """The layers of a file of K and V, for which token 0 begins the text as well."""
    layers = tuple(Sample(layer, key, value) for layer, (key, value) in read_states(path).items())
    short = [each.layer for each in layers if len(each.key) < 2]
    if short:
        raise InputError(
            f"{path}: layer {short[0]} has {len(layers[0].key)} token; a sink is told from the tokens after it"
        )
    return layers

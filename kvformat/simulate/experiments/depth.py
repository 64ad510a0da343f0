"""How an error grows through 80 layers of attention: with RMSNorm, with LayerNorm, and with no norm at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvformat.attention.definition import attend
from kvformat.simulate.experiments.result import Plot, Progress, Result, Settings, mode_name
from kvformat.simulate.storage import Storage

Array = NDArray[Any]

LAYERS, WIDTH, Q_HEADS, KV_HEADS, HEAD_DIM, TOKENS = 80, 128, 2, 1, 64, 32
RECIPES = ("golden/int8_per_token_head", "golden/fp8_per_token_head", "golden/nvfp4")


def _rms_norm(x: Array) -> Array:
    normal: Array = x / np.sqrt((x * x).mean(axis=1, keepdims=True))
    return normal


def _layer_norm(x: Array) -> Array:
    return _rms_norm(x - x.mean(axis=1, keepdims=True))


NORMS: Mapping[str, Callable[[Array], Array]] = MappingProxyType(
    {"RMSNorm": _rms_norm, "LayerNorm": _layer_norm, "none": lambda x: x}
)


def stack(seed: int, norm: Callable[[Array], Array], storage: Storage | None) -> list[Array]:
    """The residual stream (tokens, width) after each layer, float64; K and V through pages, or not at all (None)."""
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 1, (TOKENS, WIDTH))
    sizes = {"query": Q_HEADS, "key": KV_HEADS, "value": KV_HEADS}
    states = []
    for _ in range(LAYERS):
        weights = {name: rng.normal(0, WIDTH**-0.5, (WIDTH, heads * HEAD_DIM)) for name, heads in sizes.items()}
        back = rng.normal(0, (Q_HEADS * HEAD_DIM) ** -0.5, (Q_HEADS * HEAD_DIM, WIDTH))
        normal = norm(x)
        q, k, v = ((normal @ weights[name]).reshape(TOKENS, heads, HEAD_DIM) for name, heads in sizes.items())
        if storage is not None:
            k, v = storage.through_pages(k.astype(np.float32), v.astype(np.float32))
        output = attend(q, k, v).output.transpose(1, 0, 2).reshape(TOKENS, -1)
        x = x + output @ back
        states.append(x)
    return states


def run(settings: Settings, progress: Progress) -> Result:
    """The relative error of the residual stream after 1, 10, 20, 40 and 80 layers."""
    rows: list[dict[str, Any]] = []
    series: dict[str, list[tuple[float, float]]] = {}
    total, done = len(NORMS) * len(RECIPES), 0
    for name, norm in NORMS.items():
        exact = stack(settings.seed, norm, None)
        for recipe in RECIPES:
            other = stack(settings.seed, norm, Storage.of(recipe))
            errors = [float(np.linalg.norm(b - a) / np.linalg.norm(a)) for a, b in zip(exact, other, strict=True)]
            mode = mode_name(recipe)
            after = {f"after {layer}": errors[layer - 1] for layer in (1, 10, 20, 40, 80)}
            rows.append({"norm": name, "mode": mode, **after, "growth": errors[-1] / errors[0]})
            series[f"{mode}, {name}"] = [(float(layer + 1), error) for layer, error in enumerate(errors)]
            done += 1
            progress(done, total)
    growth = {(row["norm"], row["mode"]): row["growth"] for row in rows}
    return Result(
        "depth",
        "Relative error of the residual stream by depth",
        rows,
        [
            (
                f"over 80 layers the error of INT8 grows {growth['RMSNorm', 'int8_per_token_head']:.1f} times"
                f" with RMSNorm, {growth['LayerNorm', 'int8_per_token_head']:.1f} times with LayerNorm,"
                f" and {growth['none', 'int8_per_token_head']:.3g} times without a norm"
            ),
        ],
        [Plot("Error by depth", "layer", "relative error", series, log_y=True)],
    )

"""Where a scale hurts: a growing outlier token and a growing outlier channel, under each granularity."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvformat.simulate.experiments.result import Plot, Progress, Result, Settings
from kvformat.simulate.storage import Storage

Array = NDArray[Any]

#: the format is the same in a pair of rows, the granularity differs; per_channel has no mode of its own
RECIPES = (
    "golden/fp8_per_tensor",
    "golden/fp8_per_token_head",
    "golden/int8_per_token_head",
    "golden/nvfp4",
)
SIZES = (0.0, 2.0, 4.0, 8.0, 10.0, 12.0, 14.0, 16.0, 32.0, 64.0, 128.0, 512.0, 4096.0)
OUTLIER_TOKEN, OUTLIER_CHANNELS = 5, (40, 104)
INT8_PER_TENSOR = "INT8 per tensor"
INT8_PER_CHANNEL = "INT8 per channel"


def keys(settings: Settings, token: float, channel: float) -> tuple[Array, NDArray[np.bool_]]:
    """Standard normal keys (tokens, 1, 128) with an outlier token and channels that size, and which elements are plain.

    An outlier token is that many times as large as the others; an outlier channel has that constant added.
    """
    rng = np.random.default_rng(settings.seed)
    x = rng.normal(0, 1, (settings.tokens, 1, 128))
    plain = np.ones(x.shape, bool)
    if token:
        x[OUTLIER_TOKEN] *= token
        plain[OUTLIER_TOKEN] = False
    if channel:
        x[:, :, OUTLIER_CHANNELS] = channel + x[:, :, OUTLIER_CHANNELS] / 8
        plain[:, :, OUTLIER_CHANNELS] = False
    return x.astype(np.float32), plain


def sqnr(x: Array, stored: Array, kept: NDArray[np.bool_]) -> float:
    """Signal over quantization noise of the kept elements, dB."""
    exact = x.astype(np.float64)
    noise = np.square(stored - exact)[kept].sum()
    signal = np.square(exact)[kept].sum()
    return float(10 * np.log10(signal / noise)) if noise else float("inf")


def one_scale(x: Array, axis: tuple[int, ...] | None) -> Array:
    """INT8 with one scale over `axis` (all axes: None), in the arithmetic of golden/int8_per_token_head."""
    amax = np.abs(x).max(axis=axis, keepdims=True) if axis is not None else np.abs(x).max()
    scale = (amax / np.float32(127)).astype(np.float32)
    stored: Array = np.rint(x / scale) * scale
    return stored


def stored_by(x: Array) -> Mapping[str, Array]:
    """The keys under every granularity: real pages for those that are modes."""
    through = {recipe.rpartition("/")[2]: Storage.of(recipe).through_pages(x, x)[0] for recipe in RECIPES}
    return through | {INT8_PER_TENSOR: one_scale(x, None), INT8_PER_CHANNEL: one_scale(x, (0,))}


def run(settings: Settings, progress: Progress) -> Result:
    """SQNR of the elements beside the outliers; each cell of the 2 x 2 is a series over the outlier's size."""
    rows: list[dict[str, Any]] = []
    cells = (("token", (1, 0)), ("channel", (0, 1)), ("token and channel", (1, 1)))
    done, total = 0, len(cells) * len(SIZES)
    for outlier, (of_token, of_channel) in cells:
        for size in SIZES:
            x, plain = keys(settings, of_token * size, of_channel * size)
            found = {name: sqnr(x, stored, plain) for name, stored in stored_by(x).items()}
            rows.append({"outlier": outlier, "size": size, **found})
            done += 1
            progress(done, total)
    return Result("scale", "SQNR in dB beside an outlier", rows, _says(rows), _plots(rows))


def crossover(rows: list[dict[str, Any]]) -> float | None:
    """The outlier channel, in sigma, from which FP8 per token head is better than INT8; linear between sizes."""
    points = [
        (row["size"], row["int8_per_token_head"] - row["fp8_per_token_head"])
        for row in rows
        if row["outlier"] == "channel"
    ]
    for (left, above), (right, below) in itertools.pairwise(points):
        if above > 0 >= below:
            return float(left + (right - left) * above / (above - below))
    return None


def _says(rows: list[dict[str, Any]]) -> list[str]:
    def at(outlier: str, size: float) -> dict[str, Any]:
        return next(row for row in rows if (row["outlier"], row["size"]) == (outlier, size))

    plain, token, channel = at("token", 0.0), at("token", 4096.0), at("channel", 512.0)
    both = at("token and channel", 512.0)
    cross = crossover(rows)
    pth, tensor, by_channel = "int8_per_token_head", INT8_PER_TENSOR, INT8_PER_CHANNEL
    return [
        (
            f"an outlier token leaves INT8 per token head at {token[pth]:.1f} dB, whatever its size; per tensor"
            f" falls from {plain[tensor]:.1f} to {token[tensor]:.1f} dB and per channel from {plain[by_channel]:.1f} to"
            f" {token[by_channel]:.1f} dB"
        ),
        (
            f"an outlier channel leaves INT8 per channel at {channel[by_channel]:.1f} dB, and takes per token head from"
            f" {plain[pth]:.1f} to {channel[pth]:.1f} dB: the granularities cut along different axes"
        ),
        f"with both, per token head is at {both[pth]:.1f} dB and per channel at {both[by_channel]:.1f} dB",
        f"FP8 per token head overtakes INT8 at an outlier channel of {cross:.1f} sigma"
        if cross
        else "FP8 per token head does not overtake INT8 here",
    ]


def _plots(rows: list[dict[str, Any]]) -> list[Plot]:
    plots = []
    for outlier in dict.fromkeys(row["outlier"] for row in rows):
        chosen = [row for row in rows if row["outlier"] == outlier]
        names = [name for name in chosen[0] if name not in ("outlier", "size")]
        series = {name: [(max(row["size"], 1.0), row[name]) for row in chosen] for name in names}
        plots.append(Plot(f"Outlier {outlier}", "size (sigma)", "SQNR elsewhere (dB)", series, log_x=True))
    return plots

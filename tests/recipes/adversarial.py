"""Small tensors that hit every edge of a recipe: ties, zeros of both signs, NaN, Inf, tiny and huge rows."""

from __future__ import annotations

import numpy as np

from kvformat.fuzz import strategies

TIES = (0.25, -0.25, 0.75, -0.75, 1.25, -1.25, 1.75, -1.75, 2.5, -2.5, 3.5, -3.5, 5.0, -5.0, 6.0, -0.0)


def finite(dtype=strategies.FLOAT32):
    """(3, 2, 128): finite rows, each of one kind."""
    rng = np.random.default_rng(17)
    ordinary = rng.standard_normal(128)
    ties = np.tile(TIES, 8) * np.repeat(2.0 ** np.arange(-4, 4), 16)
    steps = rng.integers(-254, 255, 128) / 2
    steps[::32] = 127
    tiny = rng.integers(-3000, 3000, 128) * 2.0**-149
    huge = rng.standard_normal(128) * 2.0**122
    huge[5] = 3.0e38
    zeros = rng.choice([0.0, -0.0], 128)
    zeros[40], zeros[70] = -1e-30, 6 * 2.0**-10  # a lone negative speck, and a block whose scale is a tie with 0
    return strategies.cast(np.array([ordinary, ties, steps, tiny, huge, zeros]).reshape(3, 2, 128), dtype)


def anything(dtype=strategies.FLOAT32):
    """The same with NaN, Inf and -Inf in some blocks of ordinary rows, and a row of nothing else."""
    x = finite(dtype)
    x[0, 0, [3, 40]], x[0, 1, 20], x[1, 0, [64, 65]] = np.nan, np.inf, (-np.inf, np.nan)
    x[2, 0] = strategies.cast(np.resize([np.nan, np.inf, -np.inf, 1.0], 128), dtype)
    x[2, 1, :32] = np.nan
    return x


def ordinary(dtype=strategies.FLOAT32):
    """(4, 2, 128): rows whose arithmetic meets no subnormal number, no overflow and no zero."""
    rng = np.random.default_rng(23)
    x = rng.standard_normal((4, 2, 128)) * 2.0 ** rng.integers(-3, 4, (4, 2, 1))
    return strategies.cast(x + np.copysign(2.0**-6, x), dtype)

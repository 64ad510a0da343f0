"""Means with honest intervals: tokens that follow each other are not independent, so blocks of them are drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: tokens that are drawn together; a block is longer than the reach of one hard word
BLOCK = 64
#: fewer blocks than these say nothing about how the mean varies
FEWEST_BLOCKS = 8
DRAWS = 2000


@dataclass(frozen=True)
class Mean:
    """A mean over tokens.

    se: standard error, and low, high: 95 % interval, by the block bootstrap; NaN where there are too few blocks to
    tell. tokens, blocks: what they are from.
    """

    mean: float
    se: float
    low: float
    high: float
    tokens: int
    blocks: int

    @property
    def known(self) -> bool:
        """Whether there were blocks enough for an interval."""
        return self.blocks >= FEWEST_BLOCKS

    def __str__(self) -> str:
        if not self.known:
            return f"{self.mean:.3g} (too few tokens for an interval)"
        return f"{self.mean:.3g} ({self.low:.3g} .. {self.high:.3g})"


def block_mean(pieces: Sequence[NDArray[Any]], *, block: int = BLOCK, draws: int = DRAWS, seed: int = 0) -> Mean:
    """The mean over all tokens, with its standard error and interval.

    Parameters
    ----------
    pieces : sequence of arrays (tokens,)
        One per document or chunk; no block reaches from one into the next.
    block : int
        Tokens per block. The last block of a piece is shorter.
    draws, seed : int
        Of the bootstrap: blocks are drawn with replacement, as many as there are, and weighted by their tokens.

    Returns
    -------
    Mean

    Source: Kuensch, The jackknife and the bootstrap for general stationary observations, 1989, with blocks that do not
    overlap (Carlstein 1986).

    """
    blocks = [piece[start : start + block] for piece in pieces for start in range(0, len(piece), block)]
    sums = np.array([each.sum(dtype=np.float64) for each in blocks])
    sizes = np.array([len(each) for each in blocks], np.float64)
    tokens = int(sizes.sum())
    mean = float(sums.sum() / tokens)
    if len(blocks) < FEWEST_BLOCKS:
        return Mean(mean, np.nan, np.nan, np.nan, tokens, len(blocks))
    drawn = np.random.default_rng(seed).integers(len(blocks), size=(draws, len(blocks)))
    means = sums[drawn].sum(axis=1) / sizes[drawn].sum(axis=1)
    low, high = np.quantile(means, (0.025, 0.975))
    return Mean(mean, float(means.std(ddof=1)), float(low), float(high), tokens, len(blocks))

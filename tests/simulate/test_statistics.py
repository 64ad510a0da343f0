"""A mean's interval counts blocks of tokens, not tokens."""

from __future__ import annotations

import numpy as np
import pytest

from kvformat.simulate.statistics import BLOCK, FEWEST_BLOCKS, block_mean


def test_the_mean_is_that_of_all_tokens_whatever_the_pieces():
    pieces = [np.arange(10.0), np.arange(100.0), np.array([7.0])]
    assert block_mean(pieces).mean == np.concatenate(pieces).mean()


def test_too_few_blocks_give_no_interval():
    made = block_mean([np.arange(BLOCK * (FEWEST_BLOCKS - 1.0))])
    assert not made.known
    assert np.isnan([made.se, made.low, made.high]).all()
    assert "too few tokens" in str(made)
    assert block_mean([np.arange(BLOCK * FEWEST_BLOCKS - 1.0)]).known


def test_what_does_not_vary_has_no_error():
    made = block_mean([np.full(1000, 0.25)])
    assert (made.mean, made.se, made.low, made.high) == (0.25, 0, 0.25, 0.25)


def test_tokens_that_follow_each_other_alike_do_not_count_as_many():
    """Blocks of one value each: the mean is one of 100 independent values, whatever the number of tokens.

    The standard error of the mean of 100 unit normals is 0.1; the bootstrap finds it within a quarter (its own relative
    error at 100 blocks is about 1 / sqrt(2 * 100) = 7 %).
    """
    values = np.random.default_rng(0).standard_normal(100)
    made = block_mean([np.repeat(values, BLOCK)])
    assert made.se == pytest.approx(values.std() / 10, rel=0.25)
    naive = np.repeat(values, BLOCK).std() / np.sqrt(100 * BLOCK)
    assert made.se > 6 * naive  # sqrt(64) = 8 were they exact


def test_the_interval_covers_the_truth_as_often_as_it_says():
    """95 % of 400 intervals, each from 40 blocks: 360 or more, where 380 are expected with a deviation of 4.4."""
    noise = np.random.default_rng(1)
    covered = 0
    for _ in range(400):
        made = block_mean([np.repeat(noise.standard_normal(40), 8)], block=8, draws=400)
        covered += made.low <= 0 <= made.high
    assert covered >= 360


def test_a_seed_gives_the_same_bytes_again():
    x = np.random.default_rng(2).standard_normal(5000)
    assert block_mean([x]) == block_mean([x])
    assert block_mean([x]) != block_mean([x], seed=1)

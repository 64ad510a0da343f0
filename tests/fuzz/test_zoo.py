"""The zoo: what its kernels say of themselves, and that the search catches each fault and accuses nothing right."""

from __future__ import annotations

import os

import pytest

from kvformat.fuzz.zoo import scoreboard
from kvformat.fuzz.zoo.catalogue import kernels
from kvformat.fuzz.zoo.entry import EVERY

KERNELS = kernels()
BROKEN = [kernel for kernel in KERNELS if kernel.fault is not None]
RIGHT = [kernel for kernel in KERNELS if kernel.fault is None]
#: what a scale, or memory, is shared by: these faults need two tokens or two heads to show
SHARED = {
    "scale of previous token": (2, 1),
    "scale of first head": (1, 2),
    "one scale per token": (1, 2),
    "scale of first tokens": (2, 1),
    "scale of first token": (2, 1),
    "scale of slot zero": (2, 1),
    "order exchanged": (1, 2),
}


def _id(kernel):
    return f"{kernel.name}-{kernel.kind}-{kernel.mode}"


def _one_per_fault():
    """One kernel of each fault, each in another mode or of another kind than the one before where it can be."""
    chosen = {}
    for kernel in BROKEN:
        chosen.setdefault(kernel.fault, []).append(kernel)
    return [found[3 * number % len(found)] for number, found in enumerate(chosen.values())]


def test_the_zoo_is_as_large_as_it_says():
    assert len({(kernel.name, kernel.kind) for kernel in BROKEN}) >= 45
    assert len(RIGHT) >= 12
    assert {kernel.mode for kernel in BROKEN} == set(EVERY)
    for kind in ("quantizer", "writer", "reader"):
        assert any(kernel.kind == kind for kernel in BROKEN)
        assert any(kernel.kind == kind for kernel in RIGHT)


def test_every_broken_kernel_has_a_source_and_says_what_is_wrong():
    for kernel in BROKEN:
        assert kernel.source, kernel
        assert kernel.meaning.endswith("."), kernel
        assert len(kernel.meaning) < 160, kernel
    assert len({_id(kernel) for kernel in KERNELS}) == len(KERNELS)


def small_enough(row):
    """A per-element fault needs one row of two numbers; three in nvfp4, where the largest block sets the tensor's."""
    tokens, heads = SHARED.get(row.name, (1, 1))
    if row.kind != "quantizer":  # addresses: the fewest tokens, heads as the order needs them
        return row.tokens <= tokens and row.heads <= 2 and row.nonzero <= 4
    return row.tokens <= tokens and row.heads <= heads and row.nonzero <= (3 if row.mode == "nvfp4" else 2)


@pytest.mark.parametrize("kernel", _one_per_fault(), ids=_id)
def test_the_search_catches_each_fault_in_a_small_counterexample(kernel):
    (row,) = scoreboard.run((0,), chosen=[kernel]).rows
    assert row.ok, row
    assert small_enough(row), row


@pytest.mark.parametrize("kernel", [kernel for kernel in RIGHT if not kernel.slow][::2], ids=_id)
def test_no_right_kernel_is_accused(kernel):
    (row,) = scoreboard.run((2,), chosen=[kernel], examples=30).rows
    assert row.ok, row


@pytest.mark.exhaustive
@pytest.mark.parametrize("kernel", BROKEN, ids=_id)
def test_the_search_catches_every_broken_kernel(kernel):
    (row,) = scoreboard.run((1,), chosen=[kernel]).rows
    assert row.ok, row
    assert small_enough(row), row
    assert row.slowest < (60 if kernel.slow else 20)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kernel", RIGHT, ids=_id)
def test_no_right_kernel_is_accused_in_a_thousand_examples(kernel):
    (row,) = scoreboard.run((3,), chosen=[kernel], examples=100 if kernel.slow else 1000).rows
    assert row.ok, row


def test_a_kernel_that_raises_is_not_counted_as_caught():
    from dataclasses import replace

    def raises(_):
        raise ZeroDivisionError

    (row,) = scoreboard.run((0,), chosen=[replace(BROKEN[0], function=raises)], budget=1).rows
    assert not row.ok
    assert row.caught == "0/1"


def test_a_right_kernel_with_differences_that_the_twin_denies_is_not_counted_as_right(monkeypatch):
    from dataclasses import replace

    from kvformat.fuzz import twin
    from tests.fuzz.kernels import only_zeros_fail

    monkeypatch.setattr(twin, "agrees", lambda *_: False)
    kernel = next(each for each in RIGHT if (each.kind, each.mode) == ("quantizer", "int8_per_token_head"))
    board = scoreboard.run((0,), chosen=[replace(kernel, function=only_zeros_fail)], examples=60)
    (row,) = board.rows
    assert row.found == 0
    assert row.unconfirmed > 0
    assert not row.ok
    assert not board.ok
    assert row.caught == f"DENIED {row.unconfirmed}"
    assert "0 of 1 right kernels accused" in board.verdict
    assert f"{row.unconfirmed} differences that the exact twin denies" in board.verdict


def test_triton_kernels_are_tried_where_triton_is():
    if not any(kernel.slow for kernel in KERNELS):
        assert os.environ.get("KVFORMAT_ORACLES") != "1", "Triton is one of the oracles"
        pytest.skip("Triton is not in the test extra; CI installs it with the oracles")
    (row, *_) = scoreboard.run((0,), chosen=[kernel for kernel in KERNELS if kernel.slow], examples=10).rows
    assert row.ok, row

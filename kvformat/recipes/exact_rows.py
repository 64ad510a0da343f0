"""The slow twin of `rows`: the words on whole rows from their definitions, on exact numbers."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from kvformat.elements.exact import BINARIES, Number, round_binary
from kvformat.recipes.rows import RowStep

Sum = Callable[[Number, Number], Number]


def prepared(steps: tuple[RowStep, ...], elements: Any, add: Sum) -> Any:
    """An object array (..., head_dim) of numbers as the steps leave it; `add` is the rounded sum."""
    out = elements.copy()
    for place in np.ndindex(*elements.shape[:-1]):
        row = list(elements[place])
        for step in steps:
            row = _stepped(row, step, add)
        out[place] = row
    return out


def _stepped(row: list[Number], step: RowStep, add: Sum) -> list[Number]:
    if step.word == "to":
        return [round_binary(x, BINARIES[step.argument]) for x in row]
    if step.word == "flip_signs":
        flips = _flips(int(step.argument), len(row))
        return [_negated(x) if flip else x for x, flip in zip(row, flips, strict=True)]
    size = 1
    while len(row) % (2 * size) == 0:
        size *= 2
    return [x for start in range(0, len(row), size) for x in _hadamard(row[start : start + size], add)]


def _negated(x: Number) -> Number:
    return Number(not x.negative and not x.nan, x.magnitude, x.nan)


def _hadamard(row: list[Number], add: Sum) -> list[Number]:
    for distance in (1 << bit for bit in range(len(row).bit_length() - 1)):
        row = [
            add(row[i ^ distance], _negated(x)) if i & distance else add(x, row[i ^ distance])
            for i, x in enumerate(row)
        ]
    return row


@cache
def _flips(seed: int, count: int) -> tuple[bool, ...]:
    # MT19937 (Matsumoto and Nishimura, 1998) from init_genrand; the state is renewed one word per output
    state = [seed & 0xFFFF_FFFF]
    for i in range(1, 624):
        state.append((1812433253 * (state[-1] ^ state[-1] >> 30) + i) & 0xFFFF_FFFF)
    outputs = []
    for i in range(count):
        place, after, ahead = i % 624, (i + 1) % 624, (i + 397) % 624
        mixed = (state[place] & 0x8000_0000) | (state[after] & 0x7FFF_FFFF)
        state[place] = state[ahead] ^ (mixed >> 1) ^ (0x9908_B0DF if mixed & 1 else 0)
        y = state[place]
        y ^= y >> 11
        y ^= (y << 7) & 0x9D2C_5680
        y ^= (y << 15) & 0xEFC6_0000
        outputs.append(y ^ y >> 18)
    return tuple(bool(output >> 23 & 1) for output in outputs)

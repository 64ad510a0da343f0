"""Rows of attention whose right output, rounded to bfloat16, is known whatever the order, the split, the exponential.

A row is exact where its logits say so, which is looked up here and not believed:

* *one-hot*: one key's logit is 200 above all others, the sink included: their weights, e^-200, are lost in every format
  and the output is that key's V.
* *equal pair*: two keys are 200 above all others, and the query is 0 in each dim in which they differ. Their products
  are then the same numbers, so their logits are equal bit for bit in any order, and the output is the mean of their V.
* *sink*: one key is 200 above all others and within 2^-9 of the sink logit: V / 2.
* *known distance*: two keys are 200 above all others and their logits 4 ln 2 apart within 2^-9. Where V is 25.5 and 0
  the output is 25.5 / 17 = 1.5 or 24, right within one unit in the last place of bfloat16.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from kvformat.errors import InputError

Array = NDArray[Any]

MARGIN = 200.0
DISTANCE, NEAR = 4 * math.log(2), 2.0**-9
KINDS = ("one-hot", "equal pair", "known distance", "sink")


@dataclass(frozen=True)
class Exact:
    """What was found about an exact probe."""

    compared: int
    wrong: int
    first: dict[str, Any] | None
    kinds: dict[str, int]


def judge_exactly(
    query: Array, output: Array, key: Array, value: Array, scale: float, sinks: Array | None, output_scale: float
) -> Exact:
    """Judge the output of an exact probe, rounded to bfloat16. Raises InputError for a row that is not exact."""
    queries, heads = query.shape[:2]
    group = heads // key.shape[1]
    counts = dict.fromkeys(KINDS, 0)
    wrong = 0
    first: dict[str, Any] | None = None
    for row, head in np.ndindex(queries, heads):
        own, keys = head // group, len(key) - queries + row + 1
        sink = None if sinks is None else float(sinks[head])
        kind, right = right_row(query[row, head].astype(np.float64), key[:keys, own], value[:keys, own], scale, sink)
        if kind is None:
            raise InputError(f"query {row}, head {head} of the exact probe has no exact output: K, V or query changed")
        counts[kind] += 1
        found = output[row, head].astype(np.float64) * output_scale
        beyond = _steps(found, right) > (1 if kind == "known distance" else 0)
        wrong += int(beyond.sum())
        if first is None and beyond.any():
            dim = int(np.argmax(beyond))
            first = {"query": row, "head": head, "dim": dim, "kind": kind}
            first |= {"found": float(found[dim]), "right": float(right[dim])}
    return Exact(output.size, wrong, first, counts)


def right_row(query: Array, key: Array, value: Array, scale: float, sink: float | None) -> tuple[str | None, Array]:
    """The kind of one row and its right output, float64 (head_size_v,): None where it has no exact one."""
    logits = key @ query * scale
    order = np.argsort(logits)[::-1]
    top = order[0]
    highest = logits[top]
    third = logits[order[2]] if len(order) > 2 else -math.inf
    second = logits[order[1]] if len(order) > 1 else -math.inf
    below = -math.inf if sink is None else sink
    if highest - max(second, below) >= MARGIN:
        return KINDS[0], value[top]
    if sink is not None and abs(highest - sink) <= NEAR and min(highest, sink) - second >= MARGIN:
        return KINDS[3], value[top] / 2
    pair = order[:2]
    if second - max(third, below) < MARGIN:
        return None, value[top]
    if np.array_equal(*(key[j][query != 0] for j in pair)):
        return KINDS[1], value[pair].mean(axis=0)
    if abs(highest - second - DISTANCE) <= NEAR:
        return KINDS[2], (16 * value[top] + value[order[1]]) / 17
    return None, value[top]


def _steps(found: Array, right: Array) -> Array:
    """How many values of bfloat16 lie between two numbers rounded to it; NaN and Inf are far from all."""
    places = []
    with np.errstate(over="ignore", invalid="ignore"):
        for numbers in (found, right):
            bits = numbers.astype(np.float32).astype(ml_dtypes.bfloat16).view(np.int16).astype(np.int64)
            places.append(np.where(bits < 0, -(bits & 0x7FFF), bits))
    return np.where(np.isfinite(found), np.abs(places[0] - places[1]), 1 << 16)

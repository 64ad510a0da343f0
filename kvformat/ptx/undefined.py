"""Undefined bits: registers that were never written hold random bits, and every bit that depends on them is known."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvformat.elements.static import compiled
from kvformat.ptx import native
from kvformat.ptx import steps as s
from kvformat.ptx.columns import (
    DEFINED,
    GUARD,
    INSTRUCTION,
    MIXED,
    NOTHING,
    RULE,
    UNKNOWN,
    UNKNOWN2,
    UNTOUCHED,
    A,
    B,
    C,
    D,
    E,
    G,
    X,
    Y,
    Z,
)  # fmt: skip

U = np.uint64
ZERO, ONES = U(0), U(0xFFFF_FFFF_FFFF_FFFF)


@compiled
def mixed_bits(a: Any) -> Any:
    """A well mixed function of a number (splitmix64): random bits that depend on seed, thread and place alone."""
    a = (a + U(0x9E37_79B9_7F4A_7C15)) & ONES
    a = (a ^ (a >> U(30))) * U(0xBF58_476D_1CE4_E5B9)
    a = (a ^ (a >> U(27))) * U(0x94D0_49BB_1331_11EB)
    return a ^ (a >> U(31))


@compiled
def materialised(
    key: Any, R: Any, T: Any, state: Any, widths: Any, row: int, n: int, seed: Any, first_thread: int
) -> None:
    """Give an untouched row its random bits, all undefined; give a defined one its list of none."""
    if state[row] == DEFINED:
        T[row, :n] = ZERO
    elif state[row] == UNTOUCHED:
        for i in range(n):
            R[row, i] = mixed_bits(seed + (U(row) << U(40)) + U(first_thread + i)) & widths[row]
            T[row, i] = widths[row]
    state[row] = MIXED


@compiled
def _source(R: Any, T: Any, state: Any, widths: Any, row: Any, n: Any, seed: Any, first_thread: Any, key: Any) -> Any:
    if row < 0 or state[row] == DEFINED:
        return NOTHING
    if state[row] == UNTOUCHED:
        materialised(key, R, T, state, widths, row, n, seed, first_thread)
    return row


@compiled
def _any(T: Any, row: Any, mask: Any, n: Any) -> Any:
    found = ZERO
    if row != NOTHING:
        for i in range(n):
            found |= T[row, i] if mask[i] else ZERO
    return found != ZERO


@compiled
def tracked(
    key: Any, loop: Any, marks: Any, base: Any, stride: Any, step: Any, R: Any, T: Any, state: Any, widths: Any,
    active: Any, lanes: Any, full: bool, n: int, seed: Any, first_thread: int, counts: Any,
) -> None:  # fmt: skip
    """The undefined bits of a step's results, before it runs. active: lanes that count, lanes: that are written."""
    a = _source(R, T, state, widths, step[A], n, seed, first_thread, key)
    b = _source(R, T, state, widths, step[B], n, seed, first_thread, key)
    c = _source(R, T, state, widths, step[C], n, seed, first_thread, key)
    g = _source(R, T, state, widths, step[G], n, seed, first_thread, key)
    guard = NOTHING
    if step[GUARD] >= 0:
        guard = _source(R, T, state, widths, step[GUARD], n, seed, first_thread, key)
    some = (
        _any(T, a, active, n) or _any(T, b, active, n) or _any(T, c, active, n) or _any(T, g, active, n)
        or _any(T, guard, active, n)
    )  # fmt: skip
    for d in (step[D], step[E]):
        if d <= NOTHING:
            continue
        if not some:
            if full:
                state[d] = DEFINED
                continue
            if state[d] == UNTOUCHED:
                materialised(key, R, T, state, widths, d, n, seed, first_thread)
            if state[d] == MIXED:
                for i in range(n):
                    if lanes[i]:
                        T[d, i] = ZERO
            continue
        if not full or state[d] == UNTOUCHED:
            materialised(key, R, T, state, widths, d, n, seed, first_thread)
        _spread(loop, marks, base, stride, step, R, T, a, b, c, g, widths[d], n)
        for i in range(n):
            if lanes[i]:
                T[d, i] = widths[d] if T[guard, i] else T[UNKNOWN, i] & widths[d]
        state[d] = MIXED
    if some:
        counts[step[INSTRUCTION]] += 1


@compiled
def _spread(
    loop: Any, marks: Any, base: Any, stride: Any, step: Any, R: Any, T: Any, a: Any, b: Any, c: Any, g: Any,
    width: Any, n: Any,
) -> None:  # fmt: skip
    """Into T[UNKNOWN]: the result's undefined bits, by the step's rule."""
    rule, out = step[RULE], T[UNKNOWN]
    if rule == s.XORS:
        for i in range(n):
            out[i] = T[a, i] | T[b, i] | T[c, i]
    elif rule == s.ANDS:
        p, q = max(step[A], 0), max(step[B], 0)
        for i in range(n):
            out[i] = (T[a, i] | T[b, i]) & (R[p, i] | T[a, i]) & (R[q, i] | T[b, i])
    elif rule == s.ORS:
        p, q = max(step[A], 0), max(step[B], 0)
        for i in range(n):
            out[i] = (T[a, i] | T[b, i]) & (~R[p, i] | T[a, i]) & (~R[q, i] | T[b, i])
    elif rule == s.ALL:
        for i in range(n):
            out[i] = width if T[a, i] | T[b, i] | T[c, i] | T[g, i] else ZERO
    else:
        # bits that move: the same step moves their marks; a control that is undefined decides nothing
        second = marks + U(b) * stride if rule != s.MOVE1 else base + U(step[B]) * stride
        third = marks + U(c) * stride if rule == s.MOVE4 else base + U(step[C]) * stride
        fourth = marks + U(g) * stride if rule == s.MOVE4 else base + U(step[G]) * stride
        native.call(
            loop, n, marks + U(UNKNOWN) * stride, marks + U(UNKNOWN2) * stride, marks + U(a) * stride,
            second, third, fourth, U(step[X]), U(step[Y]), U(step[Z]),
        )  # fmt: skip
        for i in range(n):
            control = ZERO
            if rule == s.MOVE1:
                control |= T[b, i]
            if rule != s.MOVE4:
                control |= T[c, i] | T[g, i]
            if control:
                out[i] = width

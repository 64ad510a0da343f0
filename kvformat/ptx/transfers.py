"""Loads, stores and atomics of the lanes in a mask, lane by lane."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvformat.elements.static import compiled
from kvformat.ptx import access
from kvformat.ptx import steps as s
from kvformat.ptx.columns import (
    AUX,
    COUNT,
    DEFINED,
    INSTRUCTION,
    NOTHING,
    OP,
    TRACKED,
    UNTOUCHED,
    A,
    B,
    C,
    D,
    G,
    X,
    Y,
    Z,
)
from kvformat.ptx.undefined import materialised

U = np.uint64
I = np.int64
ZERO, ONE = U(0), U(1)


@compiled
def touched(
    key: Any, step: Any, aux: Any, R: Any, T: Any, state: Any, widths: Any, n: int, seed: Any, first_thread: int
) -> None:
    """Give the rows that an access reads their random bits, where nothing was ever written."""
    for row in (step[A], step[B]):
        if state[row] == UNTOUCHED:
            materialised(key, R, T, state, widths, row, n, seed, first_thread)
    if step[OP] in (s.ST, s.STMATRIX):
        for k in range(step[COUNT]):
            row = aux[step[AUX] + k]
            if state[row] == UNTOUCHED:
                materialised(key, R, T, state, widths, row, n, seed, first_thread)


@compiled
def loaded(
    key: Any, step: Any, aux: Any, R: Any, T: Any, state: Any, widths: Any, segments: Any, mask: Any, full: bool, n:
    int, threads: int, first_thread: int, seed: Any, fault: Any,
) -> Any:  # fmt: skip
    """A load of every lane in the mask: `COUNT` elements of X bytes at a + G; Z: extend the sign; Y: the register."""
    count, size, space = step[COUNT], U(step[X]), step[C]
    whole, keep = size * U(count), U(step[Y])
    track, extend = step[TRACKED] != 0, step[Z] != 0
    shift = U(64) - (size << U(3))
    if track:
        for k in range(count):
            row = aux[step[AUX] + k]
            if row >= 0 and widths[row]:
                materialised(key, R, T, state, widths, row, n, seed, first_thread)
    seen, first, last = False, step[AUX], step[AUX] + count
    place, offsets, wide, doubtful = R[step[A]], U(step[G]), step[X], track and state[step[A]] != DEFINED
    thread, block = -1, 0  # counted: a division costs more than the access
    for i in range(n):
        thread, block = (thread + 1, block) if thread + 1 < threads else (0, block + 1)
        if not mask[i]:
            continue
        if doubtful and T[step[A], i]:
            fault[1] = i
            return access.UNDEFINED_ADDRESS
        address = place[i] + offsets
        wrong, segment, offset = access.located(segments, space, address, whole, whole, i, block)
        if wrong:
            fault[1], fault[2] = i, I(address)
            return wrong
        host, bits = segments[segment, access.HOST] + offset, segments[segment, access.UNDEFINED]
        bits = bits + offset if bits else bits
        for k in range(first, last):
            row = aux[k]
            if row >= 0:
                value = access.load_bytes(host, wide)
                if extend:
                    value = U(I(value << shift) >> I(shift)) & keep
                R[row, i] = value
                if track and widths[row]:
                    unknown = access.load_bytes(bits, wide) if bits else ZERO
                    if extend:
                        unknown = U(I(unknown << shift) >> I(shift)) & keep
                    T[row, i] = unknown
                    seen |= unknown != ZERO
            host += size
            bits = bits + size if bits else bits
    if track and full and not seen:
        for k in range(count):
            row = aux[step[AUX] + k]
            if row >= 0:
                state[row] = DEFINED
    return 0


@compiled
def stored(
    key: Any, step: Any, aux: Any, R: Any, T: Any, state: Any, segments: Any, mask: Any, n: int, threads: int,
    first_thread: int, epochs: Any, fault: Any,
) -> Any:  # fmt: skip
    """A store of every lane in the mask, lanes in order: `COUNT` elements of X bytes at a + G."""
    count, size, space = step[COUNT], step[X], step[C]
    whole = U(size) * U(count)
    track = step[TRACKED] != 0
    mine = (ONE << U(8 * size)) - ONE if size < 8 else ~ZERO
    place, offsets, first, last = R[step[A]], U(step[G]), step[AUX], step[AUX] + count
    thread, block = -1, 0
    for i in range(n):
        thread, block = (thread + 1, block) if thread + 1 < threads else (0, block + 1)
        if not mask[i]:
            continue
        if track and state[step[A]] and T[step[A], i]:
            fault[1] = i
            return access.UNDEFINED_ADDRESS
        address = place[i] + offsets
        wrong, segment, offset = access.located(segments, space, address, whole, whole, i, block)
        tag = (U(first_thread + i + 1) << access.EPOCH_BITS) | (U(epochs[block]) & access.EPOCH)
        k = first
        while not wrong and k < last:
            row = aux[k]
            unknown = T[row, i] & mine if track and state[row] else ZERO
            wrong = access.put(segments, segment, offset, R[row, i], unknown, size, tag, U(threads))
            offset += U(size)
            k += 1
        if wrong:
            fault[1], fault[2] = i, I(address)
            return wrong
    return 0


@compiled
def atomics(
    key: Any, step: Any, R: Any, T: Any, state: Any, segments: Any, mask: Any, n: int, threads: int,
    first_thread: int, epochs: Any, fault: Any, ordered: Any,
) -> Any:  # fmt: skip
    """An atomic of every lane in the mask, lanes in order; Z: the operation, D: the row of the old value or none."""
    size, space, track = step[X], step[C], step[TRACKED] != 0
    answer = np.zeros(2, np.uint64)
    thread, block = -1, 0
    for i in range(n):
        thread, block = (thread + 1, block) if thread + 1 < threads else (0, block + 1)
        if not mask[i]:
            continue
        if track and state[step[A]] and T[step[A], i]:
            fault[1] = i
            return access.UNDEFINED_ADDRESS
        address, value = R[step[A], i] + U(step[G]), R[step[B], i]
        unknown = T[step[B], i] if track and state[step[B]] else ZERO
        tag = (U(first_thread + i + 1) << access.EPOCH_BITS) | (U(epochs[block]) & access.EPOCH)
        answer[1] = ZERO
        wrong = access.atomic(
            key, segments, space, address, value, unknown, size, i, block, tag, U(threads), step[Z], answer
        )
        if wrong:
            fault[1], fault[2] = i, I(address)
            return wrong
        if step[D] > NOTHING:
            R[step[D], i] = answer[0]
        if answer[1] or step[D] > NOTHING:
            ordered[step[INSTRUCTION]] += 1
    return 0

"""Instructions of a whole warp: shuffles, reductions, votes, and 8 x 8 matrices in shared memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvformat.elements.static import compiled, inlined
from kvformat.ptx import access
from kvformat.ptx import steps as s
from kvformat.ptx.columns import (
    AT_WARP,
    AUX,
    COUNT,
    DEFINED,
    EXITED,
    MIXED,
    NOTHING,
    OP,
    SCRATCH,
    SCRATCH2,
    TRACKED,
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
from kvformat.ptx.floats import chosen32
from kvformat.ptx.undefined import materialised, mixed_bits

U = np.uint64
I = np.int64
ZERO, ONE = U(0), U(1)
ALL_LANES = U(0xFFFF_FFFF)

#: modes of shfl
UP, DOWN, BUTTERFLY, INDEXED = range(4)
#: operations of redux and vote
RADD, RMIN_U, RMAX_U, RMIN_S, RMAX_S, RAND, ROR, RXOR, RMIN_F, RMAX_F = range(10)
VALL, VANY, VUNI, VBALLOT = range(4)


@inlined
def members(step: Any, R: Any, i: Any) -> Any:
    """The lanes that an instruction names as taking part; without an operand all of the warp."""
    return R[step[G], i] & ALL_LANES if step[G] > NOTHING else ALL_LANES


@compiled
def complete(key: Any, step: Any, R: Any, status: Any, pcs: Any, chosen: Any, n: int, threads: int, pc: int) -> Any:
    """Keep in `chosen` the lanes whose partners are all here or exited; the others wait. Returns how many are kept."""
    kept = 0
    for i in range(n):
        if not chosen[i]:
            continue
        block, thread = i // threads, i % threads
        base, mask = block * threads + thread // 32 * 32, members(step, R, i)
        here = True
        for j in range(32):
            other = base + j
            if (mask >> U(j)) & ONE and thread // 32 * 32 + j < threads:
                late = not chosen[other] and status[other] != EXITED
                here = here and not late
        if here:
            kept += 1
        else:
            status[i], pcs[i] = AT_WARP, pc
    for i in range(n):
        if chosen[i] and status[i] == AT_WARP:
            chosen[i] = 0
    return kept


@compiled
def run(
    key: Any, step: Any, aux: Any, R: Any, T: Any, state: Any, widths: Any, segments: Any, chosen: Any, full: bool,
    n: int, threads: int, seed: Any, first_thread: int, epochs: Any, fault: Any,
) -> Any:  # fmt: skip
    """One instruction of the warps in `chosen`, which are complete. Returns the fault."""
    op = step[OP]
    if op == s.WARPSYNC:
        for i in range(0, n, threads):
            epochs[i // threads] += 1
        return 0
    thread = -1
    for i in range(n):
        thread = thread + 1 if thread + 1 < threads else 0
        if chosen[i] and not (members(step, R, i) >> U(thread & 31)) & ONE:
            fault[1] = i
            return access.SHUFFLE
    if op == s.LDMATRIX or op == s.STMATRIX:
        return _matrices(
            key, step, aux, R, T, state, widths, segments, chosen, full, n, threads, seed, first_thread, epochs, fault
        )
    track = step[TRACKED] != 0
    unknown = False
    if track:
        for row in (step[A], step[B], step[C], step[G], step[D], step[E]):
            if row > NOTHING and widths[row] and (state[row] != DEFINED or row == step[D] or row == step[E]):
                materialised(key, R, T, state, widths, row, n, seed, first_thread)
    out, second = R[SCRATCH], R[SCRATCH2]
    marks, marks2 = T[SCRATCH], T[SCRATCH2]
    for i in range(n):
        marks[i] = ZERO
        marks2[i] = ZERO
    if op == s.SHFLSYNC:
        _shuffle(step, R, T, state, chosen, n, threads, seed, first_thread)
    else:
        _reduce(step, R, T, state, chosen, n, threads)
    for i in range(n):
        if not chosen[i]:
            continue
        if step[D] > NOTHING:
            R[step[D], i] = out[i]
            if track and widths[step[D]]:
                T[step[D], i] = marks[i]
                unknown |= marks[i] != ZERO
        if step[E] > NOTHING:
            R[step[E], i] = second[i]
            if track and widths[step[E]]:
                T[step[E], i] = marks2[i]
                unknown |= marks2[i] != ZERO
    if track and full and not unknown:
        if step[D] > NOTHING:
            state[step[D]] = DEFINED
        if step[E] > NOTHING:
            state[step[E]] = DEFINED
    return 0


@inlined
def _shuffle(
    step: Any, R: Any, T: Any, state: Any, chosen: Any, n: Any, threads: Any, seed: Any, first_thread: Any
) -> None:
    a, b, c, mode = step[A], step[B], step[C], step[Z]
    marked = state[a] == MIXED
    controls = state[b] == MIXED or state[c] == MIXED
    thread = -1
    for i in range(n):
        thread = thread + 1 if thread + 1 < threads else 0
        if not chosen[i]:
            continue
        lane = I(thread & 31)
        base = i - lane
        operand, limits = I(R[b, i] & U(31)), I(R[c, i])
        segment, clamp = (limits >> 8) & 31, limits & 31
        highest = (lane & segment) | (clamp & ~segment)
        lowest = lane & segment
        if mode == UP:
            source = lane - operand
            inside = source >= highest
        elif mode == DOWN:
            source = lane + operand
            inside = source <= highest
        elif mode == BUTTERFLY:
            source = lane ^ operand
            inside = source <= highest
        else:
            source = lowest | (operand & ~segment)
            inside = source <= highest
        if not inside:
            source = lane
        R[SCRATCH2, i] = ONE if inside else ZERO
        there = thread - lane + source < threads and chosen[base + source]
        if there:
            R[SCRATCH, i] = R[a, base + source]
            T[SCRATCH, i] = T[a, base + source] if marked else ZERO
        else:  # a lane that does not take part has nothing to give
            R[SCRATCH, i] = mixed_bits(seed + (U(step[D]) << U(40)) + U(first_thread + i)) & ALL_LANES
            T[SCRATCH, i] = ALL_LANES
        if controls:
            unknown = (T[b, i] if state[b] == MIXED else ZERO) | (T[c, i] if state[c] == MIXED else ZERO)
            if unknown:
                T[SCRATCH, i] = ALL_LANES
                T[SCRATCH2, i] = ONE


@inlined
def _joined(operation: Any, how: Any, p: Any, q: Any) -> Any:
    if operation == RADD:
        return (p + q) & ALL_LANES
    if operation == RMIN_U:
        return min(p, q)
    if operation == RMAX_U:
        return max(p, q)
    if operation == RMIN_S:
        return p if np.int32(p) < np.int32(q) else q
    if operation == RMAX_S:
        return p if np.int32(p) > np.int32(q) else q
    if operation == RAND:
        return p & q
    if operation == ROR:
        return p | q
    if operation == RXOR:
        return p ^ q
    return chosen32(p, q, how, operation == RMAX_F)


@inlined
def _reduce(step: Any, R: Any, T: Any, state: Any, chosen: Any, n: Any, threads: Any) -> None:
    a, operation, how, vote = step[A], step[Z], U(step[Y]), step[OP] == s.VOTE
    marked = state[a] == MIXED
    negated = U(step[X]) if vote else ZERO
    for i in range(n):
        if not chosen[i]:
            continue
        thread = i % threads
        base, mask = i - thread % 32, members(step, R, i)
        first, result, unknown = True, ZERO, ZERO
        ballot, present = ZERO, ZERO
        for j in range(32):
            other = base + j
            if not (mask >> U(j)) & ONE or thread - thread % 32 + j >= threads or not chosen[other]:
                continue
            value = R[a, other]
            unknown |= T[a, other] if marked else ZERO
            if vote:
                present |= ONE << U(j)
                ballot |= (value ^ negated) << U(j)
            elif first:
                # a first operand joined with itself: .abs and the canonical NaN apply to one lane as to many
                result = _joined(operation, how, value, value) if operation >= RMIN_F else value
                first = False
            else:
                result = _joined(operation, how, result, value)
        if vote:
            if operation == VALL:
                result = ONE if ballot == present else ZERO
            elif operation == VANY:
                result = ONE if ballot else ZERO
            elif operation == VUNI:
                result = ONE if ballot == present or ballot == ZERO else ZERO
            else:
                result = ballot
        R[SCRATCH, i] = result
        T[SCRATCH, i] = ALL_LANES if unknown else ZERO


@inlined
def _matrices(
    key: Any, step: Any, aux: Any, R: Any, T: Any, state: Any, widths: Any, segments: Any, chosen: Any, full: Any,
    n: Any, threads: Any, seed: Any, first_thread: Any, epochs: Any, fault: Any,
) -> Any:  # fmt: skip
    """A lane holds of matrix m the two 16-bit elements 2 (lane % 4) + k of row lane / 4; transposed: of that column.

    The addresses of matrix m's rows are those of lanes 8 m to 8 m + 7, 16 bytes each.
    """
    count, space, transposed, loads = step[COUNT], step[C], step[Z] != 0, step[OP] == s.LDMATRIX
    track = step[TRACKED] != 0
    if track:
        for m in range(count):
            row = aux[step[AUX] + m]
            if widths[row] and (loads or state[row] != DEFINED):
                materialised(key, R, T, state, widths, row, n, seed, first_thread)
    seen = False
    for i in range(n):
        if not chosen[i]:
            continue
        lane = i % threads % 32
        base = i - lane
        for m in range(count):
            row, value, unknown = aux[step[AUX] + m], ZERO, ZERO
            if not loads:
                value = R[row, i]
                unknown = T[row, i] if track and state[row] == MIXED else ZERO
            for k in range(2):
                line, column = lane // 4, 2 * (lane % 4) + k
                if transposed:
                    line, column = column, line
                holder = base + 8 * m + line
                if track and state[step[A]] == MIXED and T[step[A], holder]:
                    fault[1] = holder
                    return access.UNDEFINED_ADDRESS
                start = R[step[A], holder] + U(step[X])
                wrong, _, _ = access.located(segments, space, start, U(16), U(16), i, i // threads)
                if not wrong:
                    address = start + U(2 * column)
                    wrong, segment, offset = access.located(segments, space, address, U(2), U(2), i, i // threads)
                    if not wrong and loads:
                        value |= access.load_bytes(segments[segment, access.HOST] + offset, 2) << U(16 * k)
                        bits = segments[segment, access.UNDEFINED]
                        if bits:
                            unknown |= access.load_bytes(bits + offset, 2) << U(16 * k)
                    elif not wrong:
                        tag = (U(first_thread + i + 1) << access.EPOCH_BITS) | (U(epochs[i // threads]) & access.EPOCH)
                        wrong = access.store(
                            key, segments, space, address, value >> U(16 * k), unknown >> U(16 * k), 2, i, i // threads,
                            tag, U(threads),
                        )  # fmt: skip
                if wrong:
                    fault[1], fault[2] = i, I(start)
                    return wrong
            if loads:
                R[row, i] = value
                if track and widths[row]:
                    T[row, i] = unknown
                    seen |= unknown != ZERO
    if loads and track and full and not seen:
        for m in range(count):
            state[aux[step[AUX] + m]] = DEFINED
    return 0

"""The machine: threads of whole blocks as lanes, one loop over decoded steps, the lowest program counter first."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvformat.elements.static import compiled, inlined
from kvformat.ptx import access, native, warps
from kvformat.ptx import steps as s
from kvformat.ptx.columns import (
    ALIAS,
    AT_BARRIER,
    AT_WARP,
    AUX,
    COUNT,
    DEFINED,
    EXITED,
    FAMILY,
    FIRST,
    GUARD,
    INSTRUCTION,
    NEGATED,
    NOTHING,
    OP,
    RUNNING,
    SCRATCH,
    SCRATCH2,
    TEMPORARY,
    TRACKED,
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
from kvformat.ptx.undefined import materialised, tracked

U = np.uint64
I = np.int64
ZERO, ONE = U(0), U(1)

#: entries of the state of a tile that functions share
PC, ACTIVE, LIVE, NEXT, FAILED = range(5)


@compiled
def select(now: Any, pcs: Any, status: Any, mask: Any, n: Any) -> Any:
    """The running lanes with the lowest counter become active. Returns whether there are any."""
    far = I(1 << 62)
    low, second = far, far
    for i in range(n):
        if status[i] == RUNNING:
            p = pcs[i]
            if p < low:
                second, low = low, p
            elif low < p < second:
                second = p
    count = 0
    for i in range(n):
        chosen = status[i] == RUNNING and pcs[i] == low
        mask[i] = 1 if chosen else 0
        count += 1 if chosen else 0
    now[PC], now[ACTIVE], now[NEXT] = low, count, second
    return count > 0


@compiled
def release(key: Any, now: Any, pcs: Any, status: Any, waits: Any, epochs: Any, n: int, threads: int) -> bool:
    """Let the blocks go on whose threads have all reached a barrier, or exited. waits: barrier << 32 | threads."""
    moved = False
    for block in range(n // threads):
        first = block * threads
        for i in range(first, first + threads):
            if status[i] != AT_BARRIER:
                continue
            arrived, missing = 0, False
            for j in range(first, first + threads):
                if status[j] == AT_BARRIER and waits[j] == waits[i]:
                    arrived += 1
                elif status[j] != EXITED:
                    missing = True
            wanted = waits[i] & 0xFFFF_FFFF
            if arrived == wanted if wanted else not missing:
                what = waits[i]
                for j in range(first, first + threads):
                    if status[j] == AT_BARRIER and waits[j] == what:
                        status[j] = RUNNING
                        pcs[j] += 1
                epochs[block] += 1
                moved = True
                break
    return moved


@compiled
def resume(key: Any, now: Any, pcs: Any, status: Any, mask: Any, waits: Any, epochs: Any, n: int, threads: int) -> Any:
    """Nobody runs: take up lanes that wait for their warp, then barriers. 0: all exited, 1: go on, -1: stuck."""
    low, any_left = I(1 << 62), False
    for i in range(n):
        if status[i] != EXITED:
            any_left = True
        if status[i] == AT_WARP and now[FAILED] < pcs[i] < low:
            low = pcs[i]
    if not any_left:
        return 0
    if low < I(1 << 62):
        for i in range(n):
            if status[i] == AT_WARP and pcs[i] == low:
                status[i] = RUNNING
        select(now, pcs, status, mask, n)
        return 1
    if release(key, now, pcs, status, waits, epochs, n, threads):
        now[FAILED] = -1
        select(now, pcs, status, mask, n)
        return 1
    return -1


@compiled
def jump(now: Any, pcs: Any, status: Any, mask: Any, n: Any, target: Any) -> None:
    """All active lanes go on at `target`, after the others if those are further back."""
    if target < now[NEXT]:
        now[PC] = target
    else:
        for i in range(n):
            if mask[i]:
                pcs[i] = target
        select(now, pcs, status, mask, n)


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


@inlined
def computed(family: Any, base: Any, stride: Any, step: Any, n: Any, d: Any, e: Any) -> None:
    """One step of arithmetic on all lanes, active or not; base, stride: where the rows lie."""
    native.call(
        family, step[OP], n, base + U(d) * stride, base + U(e) * stride, base + U(step[A]) * stride,
        base + U(step[B]) * stride, base + U(step[C]) * stride, base + U(step[G]) * stride,
        U(step[X]), U(step[Y]), U(step[Z]),
    )  # fmt: skip


@compiled
def straight(key: Any, families: Any, code: Any, R: Any, n: int) -> None:
    """Steps of arithmetic one after the other, on all lanes: one instruction by itself."""
    base, stride = U(R.ctypes.data), U(8 * R.shape[1])
    for pc in range(code.shape[0]):
        step = code[pc]
        computed(families[step[FAMILY]], base, stride, step, n, step[D], step[E])


@compiled
def specials(R: Any, rows: Any, n: Any, shape: Any, first_block: Any) -> None:
    """%tid and the like, of this tile. shape: block x, y, z, grid x, y, z."""
    threads = shape[0] * shape[1] * shape[2]
    for k in range(rows.shape[0]):
        row, kind = rows[k, 0], rows[k, 1]
        thread, block = -1, first_block
        for i in range(n):
            thread, block = (thread + 1, block) if thread + 1 < threads else (0, block + 1)
            lane = thread & 31
            value = 0
            if kind == 0:
                value = thread % shape[0]
            elif kind == 1:
                value = thread // shape[0] % shape[1]
            elif kind == 2:
                value = thread // (shape[0] * shape[1])
            elif kind < 6:
                value = shape[kind - 3]
            elif kind == 6:
                value = block % shape[3]
            elif kind == 7:
                value = block // shape[3] % shape[4]
            elif kind == 8:
                value = block // (shape[3] * shape[4])
            elif kind < 12:
                value = shape[kind - 6]
            elif kind == 12:
                value = lane
            elif kind == 13:
                value = thread // 32
            elif kind == 14:
                value = (threads + 31) // 32
            elif kind == 15:
                value = 1 << lane
            elif kind == 16:
                value = (1 << lane) - 1
            elif kind == 17:
                value = (2 << lane) - 1
            elif kind == 18:
                value = 0xFFFF_FFFF & ~((1 << lane) - 1)
            elif kind == 19:
                value = 0xFFFF_FFFF & ~((2 << lane) - 1)
            R[row, i] = U(value)


@compiled
def run(
    key: Any, families: Any, code: Any, aux: Any, R: Any, T: Any, state: Any, initial: Any, widths: Any, special_rows:
    Any, shape: Any, segments: Any, first_block: int, blocks: int, seed: Any, limit: int, counts: Any, undefined: Any,
    ordered: Any, totals: Any, fault: Any,
) -> Any:  # fmt: skip
    """Run the blocks from first_block on, together. Returns the fault; fault[]: pc, lane, address."""
    threads = shape[0] * shape[1] * shape[2]
    n = threads * blocks
    first_thread = first_block * threads
    base, stride = U(R.ctypes.data), U(8 * R.shape[1])
    marks = U(T.ctypes.data)
    specials(R, special_rows, n, shape, first_block)
    for k in range(state.size):
        state[k] = initial[k]
    pcs, waits = np.zeros(n, np.int64), np.zeros(n, np.int64)
    status = np.full(n, RUNNING, np.int64)
    mask, guarded = np.ones(n, np.uint8), np.ones(n, np.uint8)
    everyone = np.ones(n, np.uint8)
    epochs = np.zeros(blocks, np.int64)
    now = np.zeros(5, np.int64)
    now[ACTIVE], now[LIVE], now[NEXT], now[FAILED] = n, n, I(1 << 62), -1
    number = 0
    while True:
        if now[ACTIVE] == 0:
            on = resume(key, now, pcs, status, mask, waits, epochs, n, threads)
            if on == 0:
                return 0
            if on < 0:
                for i in range(n):
                    if status[i] > RUNNING:
                        fault[0], fault[1] = pcs[i], i
                        return access.SHUFFLE if status[i] == AT_WARP else access.BARRIER
        pc = now[PC]
        if pc == now[NEXT]:  # others wait here
            for i in range(n):
                if mask[i]:
                    pcs[i] = pc
            select(now, pcs, status, mask, n)
        step = code[pc]
        op, family = step[OP], step[FAMILY]
        fault[0] = pc
        chosen, count = mask, now[ACTIVE]
        guard = step[GUARD]
        if guard >= 0:
            if step[TRACKED] and state[guard]:
                if state[guard] == UNTOUCHED:
                    materialised(key, R, T, state, widths, guard, n, seed, first_thread)
                if family >= s.MEMORY:
                    for i in range(n):
                        if mask[i] and T[guard, i]:
                            fault[1] = i
                            return access.UNDEFINED_PREDICATE
            negated = U(step[NEGATED])
            count = 0
            row = R[guard]
            for i in range(n):
                taken = np.uint8(mask[i] & np.uint8(row[i] ^ negated))
                guarded[i] = taken
                count += taken
            chosen = guarded
        if step[FIRST]:
            number += 1
            counts[step[INSTRUCTION]] += count
            if number > limit:
                return access.STEP_LIMIT
        if count == 0 and op != s.BRA:
            jump(now, pcs, status, mask, n, pc + 1)
            continue
        full = count == now[LIVE]
        if family < s.MEMORY:
            d = step[D]
            if op in (s.DIVU, s.DIVS, s.REMU, s.REMS):
                for i in range(n):
                    if chosen[i] and R[step[B], i] == ZERO:
                        fault[1] = i
                        return access.DIVISION_BY_ZERO
            if step[TRACKED]:
                lanes = everyone if step[TEMPORARY] else chosen
                tracked(
                    key, families[s.INTEGER], marks, base, stride, step, R, T, state, widths, mask, lanes, full or
                    step[TEMPORARY] != 0, n, seed, first_thread, undefined,
                )  # fmt: skip
            if step[TEMPORARY] or (full and not step[ALIAS]):
                computed(families[family], base, stride, step, n, d, step[E])
            else:
                computed(families[family], base, stride, step, n, SCRATCH, SCRATCH2)
                target, source = R[d], R[SCRATCH]
                for i in range(n):
                    target[i] = source[i] if chosen[i] else target[i]
                if step[E] > NOTHING:
                    target, source = R[step[E]], R[SCRATCH2]
                    for i in range(n):
                        target[i] = source[i] if chosen[i] else target[i]
            now[PC] = pc + 1
            continue
        if family == s.MEMORY:
            if step[TRACKED]:
                touched(key, step, aux, R, T, state, widths, n, seed, first_thread)
            if op == s.LD:
                wrong = loaded(
                    key, step, aux, R, T, state, widths, segments, chosen, full, n, threads, first_thread, seed, fault
                )
            elif op == s.ST:
                wrong = stored(key, step, aux, R, T, state, segments, chosen, n, threads, first_thread, epochs, fault)
            else:
                wrong = atomics(
                    key, step, R, T, state, segments, chosen, n, threads, first_thread, epochs, fault, ordered
                )
            if wrong:
                return wrong
            now[PC] = pc + 1
            continue
        if op == s.BRA:
            if count == now[ACTIVE]:
                jump(now, pcs, status, mask, n, step[X])
            elif count == 0:
                now[PC] = pc + 1
            else:
                for i in range(n):
                    if mask[i]:
                        pcs[i] = step[X] if chosen[i] else pc + 1
                select(now, pcs, status, mask, n)
        elif op == s.RET:
            for i in range(n):
                if chosen[i]:
                    status[i] = EXITED
                elif mask[i]:
                    pcs[i] = pc + 1
            now[LIVE] -= count
            now[FAILED] = -1
            select(now, pcs, status, mask, n)
        elif op == s.TRAP:
            for i in range(n):
                if chosen[i]:
                    fault[1] = i
                    return step[X]
        elif op == s.NOP:
            now[PC] = pc + 1
        elif op == s.BAR:
            if full and step[Y] == 0:
                for k in range(blocks):
                    epochs[k] += 1
                now[PC] = pc + 1
            else:
                for i in range(n):
                    if chosen[i]:
                        status[i] = AT_BARRIER
                        barrier = R[step[A], i]
                        waits[i] = I(barrier << U(32)) | step[Y]
                    if mask[i]:
                        pcs[i] = pc if chosen[i] else pc + 1
                now[FAILED] = -1
                select(now, pcs, status, mask, n)
        else:
            if step[TRACKED]:
                touched(key, step, aux, R, T, state, widths, n, seed, first_thread)
            if not full:
                # only the warps that are complete here go on; the others wait for their late lanes
                for i in range(n):
                    here = status[i] == AT_WARP and pcs[i] == pc
                    guarded[i] = 1 if here else chosen[i]
                    if here or mask[i]:
                        status[i], pcs[i] = RUNNING, pc + 1
                chosen = guarded
                count = warps.complete(key, step, R, status, pcs, chosen, n, threads, pc)
                now[FAILED] = -1 if count else pc
            wrong = 0
            if count:
                wrong = warps.run(
                    key, step, aux, R, T, state, widths, segments, chosen, full, n, threads, seed, first_thread, epochs,
                    fault,
                )  # fmt: skip
            if wrong:
                return wrong
            if full:
                now[PC] = pc + 1
            else:
                select(now, pcs, status, mask, n)
        totals[0] = number

"""The machine: threads of whole blocks as lanes, one loop over decoded steps, the lowest program counter first."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvformat.elements.static import compiled
from kvformat.ptx import access, warps
from kvformat.ptx import steps as s
from kvformat.ptx.columns import (
    ALIAS,
    AT_BARRIER,
    AT_WARP,
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
    D,
    E,
    X,
    Y,
)  # fmt: skip
from kvformat.ptx.lanes import computed
from kvformat.ptx.transfers import atomics, loaded, stored, touched
from kvformat.ptx.turns import ACTIVE, FAILED, LIVE, NEXT, PC, jump, resume, select
from kvformat.ptx.undefined import materialised, tracked

U = np.uint64
I = np.int64
ZERO, ONE = U(0), U(1)


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
    key: Any, loops: Any, code: Any, aux: Any, R: Any, T: Any, state: Any, initial: Any, widths: Any, special_rows:
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
                    key, loops[op], marks, base, stride, step, R, T, state, widths, mask, lanes, full or
                    step[TEMPORARY] != 0, n, seed, first_thread, undefined,
                )  # fmt: skip
            if step[TEMPORARY] or (full and not step[ALIAS]):
                computed(loops[op], base, stride, step, n, d, step[E])
            else:
                computed(loops[op], base, stride, step, n, SCRATCH, SCRATCH2)
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

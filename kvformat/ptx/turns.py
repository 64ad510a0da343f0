"""Whose turn it is: the lanes with the lowest counter run, the others wait, at barriers and for their warp."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvformat.elements.static import compiled
from kvformat.ptx.columns import AT_BARRIER, AT_WARP, EXITED, RUNNING

I = np.int64

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

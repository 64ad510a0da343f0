"""Runs one kernel over a range on all cores. Kernels release the GIL, so plain threads are enough."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

#: elements under which starting threads (about 0.1 ms) costs more than it brings
SERIAL = 1 << 17


def count() -> int:
    """Threads to use: KVFORMAT_NUM_THREADS if set, else the cores this process may run on."""
    wanted = os.environ.get("KVFORMAT_NUM_THREADS", "")
    if wanted.isdecimal() and int(wanted) > 0:
        return int(wanted)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def over(items: int, size: int, kernel: Callable[[int, int], object]) -> None:
    """Call `kernel(start, stop)` on pieces that cover 0..items; `size` is the number of elements in all.

    The pieces never depend on each other, so the bytes are the same for every number of threads.
    """
    threads = min(count(), items) if size > SERIAL else 1
    if threads <= 1:
        if items:
            kernel(0, items)
        return
    # pieces of about a million elements, so that nobody waits for the thread whose core has other work (1.2x)
    pieces = min(items, threads * max(1, min(16, size // threads >> 20)))
    borders = [items * i // pieces for i in range(pieces + 1)]
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(kernel, borders[:-1], borders[1:]):
            pass

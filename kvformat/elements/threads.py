"""Runs one kernel over a range on all cores. Kernels release the GIL, so plain threads are enough."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from kvformat.tasks.runner import in_task
from kvformat.tasks.team import cores

#: elements under which starting threads (about 0.1 ms) costs more than it brings
SERIAL = 1 << 17


def count() -> int:
    """Threads to use: those of `kvformat.tasks.team.cores`, and one where a task of an executor runs."""
    return 1 if in_task.get() else cores()


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

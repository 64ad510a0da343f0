"""Runs work over a range on all cores. Kernels and NumPy release the GIL, so plain threads are enough."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from kvformat.tasks.runner import in_task
from kvformat.tasks.team import cores

T = TypeVar("T")

#: elements under which starting threads (about 0.1 ms) costs more than it brings
SERIAL = 1 << 17
#: elements of a tile: what one step makes of it is still in the cache when the next one reads it
TILE = 1 << 20


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


def tiles(items: int, each: int) -> list[tuple[int, int]]:
    """Borders (start, stop) of tiles that cover 0..items; `each` is the number of elements of an item."""
    step = max(1, TILE // max(1, each))
    return [(start, min(start + step, items)) for start in range(0, items, step)]


def in_order(work: Callable[[int, int], T], pieces: list[tuple[int, int]]) -> Iterator[T]:
    """What `work(start, stop)` gives for each piece, in their order. A piece has one core, pieces have all of them.

    A single piece is worked on here, and may use all cores itself.
    """
    threads = min(count(), len(pieces))
    if threads <= 1:
        yield from (work(*piece) for piece in pieces)
        return

    def alone(piece: tuple[int, int]) -> T:
        in_task.set(True)  # a thread of the pool, which has a context of its own
        return work(*piece)

    with ThreadPoolExecutor(threads) as pool:
        begun: deque[Future[T]] = deque()
        for piece in pieces:  # few are begun ahead: their results wait in memory
            begun.append(pool.submit(alone, piece))
            if len(begun) > 2 * threads:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()

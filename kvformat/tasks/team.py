"""Who works: processes of this machine, a Dask cluster, or any other executor that the user has."""

from __future__ import annotations

import contextvars
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager, suppress
from threading import Thread
from types import ModuleType
from typing import Any

from kvformat.errors import InputError

#: tasks that are with an executor at a time, for each of its workers: none waits for the next one
_AHEAD = 3
#: of an executor that does not say how many workers it has
_IN_FLIGHT = 64


def cores() -> int:
    """Workers or threads to use: KVFORMAT_NUM_THREADS if set, else the cores this process may run on."""
    wanted = os.environ.get("KVFORMAT_NUM_THREADS", "")
    if wanted.isdecimal() and int(wanted) > 0:
        return int(wanted)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Team:
    """An executor and how many tasks it is given at a time. The user's own: it is left running."""

    def __init__(self, executor: Executor, in_flight: int = _IN_FLIGHT) -> None:
        self._executor = executor
        self.in_flight = in_flight
        #: seconds of work that are done here before the team is called
        self.warm_up = 0.0

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Give it a task."""
        return self._executor.submit(function, *arguments)

    def take_back(self, futures: Iterable[Future[Any]]) -> None:
        """Tasks whose results nobody waits for any more."""
        for future in futures:
            future.cancel()

    def renew(self) -> bool:
        """Get a new executor in place of a broken one. False: there is none."""
        return False

    def close(self) -> None:
        """Let the workers go, in the middle of a task too."""


class Processes(Team):
    """Processes of this machine. They start with the first task, and again where one of them was killed."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool: ProcessPoolExecutor | None = None
        self._others: list[Any] = []
        self.in_flight = count * _AHEAD
        self.warm_up = 3.0  # so long they take to start and load their kernels: less work is done sooner here

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Give it a task."""
        if self._pool is None:
            # not by fork: a process with threads, or with torch in it, cannot be copied
            methods = multiprocessing.get_all_start_methods()
            context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
            context.set_forkserver_preload(["numpy"])
            self._others = multiprocessing.active_children()
            self._pool = ProcessPoolExecutor(self._count, context, _begin)
        with _main_hidden():
            return self._pool.submit(function, *arguments)

    def take_back(self, futures: Iterable[Future[Any]]) -> None:
        """End the workers in the middle of their tasks, if there are any."""
        if list(futures):
            self.close()

    def renew(self) -> bool:
        """The next task starts a new pool."""
        self.close()
        return True

    def close(self) -> None:
        """End the workers. Their futures are left alone: a pool of Python 3.11 cannot break with cancelled ones."""
        if self._pool is None:
            return
        pool, self._pool = self._pool, None
        for process in multiprocessing.active_children():
            if process not in self._others:
                process.terminate()
        pool.shutdown(wait=True)


@contextmanager
def _main_hidden() -> Iterator[None]:
    """Workers that start here do not run the program's main module again: no task needs it.

    A console script has no `if __name__ == "__main__":`, and would be run whole in each of them.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _begin() -> None:
    """What a worker does first: it ends without a word on Ctrl-C, and when the process that it works for is gone."""
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))
    parent = multiprocessing.parent_process()
    if parent is not None:

        def watch() -> None:
            parent.join()
            os._exit(1)

        Thread(target=watch, daemon=True).start()


#: who works for the commands and functions that are called here; None: this process does
_team: contextvars.ContextVar[Team | None] = contextvars.ContextVar("team", default=None)


def current() -> Team | None:
    """Who works here."""
    return _team.get()


@contextmanager
def parallel(
    executor: Executor | None = None, *, workers: int | None = None, in_flight: int | None = None
) -> Iterator[None]:
    """Give the long work inside the `with` block to an executor: `kvf.check_files`, `prove`, `sweep`, ...

    Parameters
    ----------
    executor : concurrent.futures.Executor, optional
        Any: `dask.distributed.Client(...).get_executor()`, one of MPI or Ray, a pool of your own. It is left running.
        Without one, processes of this machine.
    workers : int, optional
        How many processes; the cores that this process may use if not given. Not with an executor.
    in_flight : int, optional
        Tasks that the executor is given at a time: 64, or 3 for each process.

    Raises
    ------
    InputError
        For numbers below 1, and workers beside an executor.

    Notes
    -----
    Results are the same bytes for every executor and any number of workers. Workers do not run the main module of your
    program again, so what tasks are given must be importable.

    """
    for name, number in (("workers", workers), ("in_flight", in_flight)):
        if number is not None and number < 1:
            raise InputError(f"{name} must be 1 or more; got {number}")
    if executor is not None and workers is not None:
        raise InputError("an executor has its own number of workers; leave workers out")
    team = Processes(workers or cores()) if executor is None else Team(executor)
    team.in_flight = in_flight or team.in_flight
    token = _team.set(team)
    try:
        yield
    finally:
        _team.reset(token)
        team.close()


@contextmanager
def scheduler(address: str) -> Iterator[None]:
    """Give the work to the Dask cluster whose scheduler is there. Dask pickles tasks: name only one that is yours."""
    try:
        from distributed import Client
    except ModuleNotFoundError as error:
        raise InputError(f"--scheduler needs {error.name}: pip install 'kvformat[dask]'") from None
    try:
        client = Client(address, timeout=10)
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"no Dask scheduler answers at {address}: {' '.join(str(error).split())}") from error
    try:
        threads = sum(client.nthreads().values())
        with parallel(client.get_executor(), in_flight=max(1, threads) * _AHEAD):
            yield
    finally:
        with suppress(Exception):
            client.close(timeout=5)


def is_lost(error: BaseException) -> bool:
    """Whether a task ended because its worker did: not the task's own error."""
    return isinstance(error, BrokenExecutor) or type(error).__name__ == "KilledWorker"

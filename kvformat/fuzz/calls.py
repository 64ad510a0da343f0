"""Calls somebody else's function and stops waiting: in a child process, whose death is an answer, or in a thread."""

from __future__ import annotations

import ctypes
import faulthandler
import multiprocessing
import os
import queue
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import numpy as np

#: what is called: it gets what `Caller.call` was given, and returns or raises anything
Function = Callable[..., Any]


class CandidateError(Exception):
    """The candidate did something else than answer; its message says what, in one line."""


class Caller(Protocol):
    """Runs calls one after the other."""

    def call(self, arguments: tuple[Any, ...], limit: float) -> Any:
        """What the function returns; CandidateError where it raises, dies, or takes more than `limit` seconds."""

    def close(self) -> None:
        """Nothing is called any more."""


def caller(function: Function, *, isolated: bool) -> Caller:
    """A caller of `function`: a child process where that is asked for and possible, else a thread.

    A forked child cannot use a GPU that this process has used before.
    """
    return Child(function) if isolated and can_fork() else Worker(function)


def can_fork() -> bool:
    """Whether a child process can run what this one has loaded."""
    torch: Any = sys.modules.get("torch")
    used = torch is not None and torch.cuda.is_initialized()
    return (
        "fork" in multiprocessing.get_all_start_methods() and not used and not multiprocessing.current_process().daemon
    )


def described(error: BaseException) -> str:
    """An exception as one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


class Child:
    """Calls in a child process, which is forked for the first call and again after it has died or was stopped."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._process: Any = None
        self._connection: Any = None

    def call(self, arguments: tuple[Any, ...], limit: float) -> Any:
        """As `Caller.call`. What crosses the border between the processes must be plain data."""
        if self._process is None:
            self._start()
        try:
            self._connection.send(arguments)
            if not self._connection.poll(limit):
                self.close()
                raise CandidateError(f"has not returned after {limit:g} s")
            done, result = self._connection.recv()
        except (EOFError, ConnectionError):
            raise CandidateError(self._death()) from None
        except BaseException:
            self.close()
            raise
        if done:
            return result
        raise CandidateError(f"raises {result}")

    def close(self) -> None:
        """End the process, whatever it does."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._connection.close()
            self._process = None

    def _start(self) -> None:
        context = multiprocessing.get_context("fork")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._function, os.getpid()), daemon=True)
        with warnings.catch_warnings():  # from Python 3.12 on: threads are not forked. The child uses none of them
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        theirs.close()

    def _death(self) -> str:
        self._process.join(5)
        code = self._process.exitcode
        self.close()
        if code is not None and code < 0:
            with suppress(ValueError):
                return f"its process dies of {signal.Signals(-code).name}"
        return f"ends its process with status {code}"


def _serve(connection: Any, function: Function, parent: int) -> None:
    """The child's life: answers calls until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this process
    for name in ("SIGTERM", "SIGHUP"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    faulthandler.disable()  # that it died is said once, not with a stack for every smaller input
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG, on Linux: no orphan hangs for ever
        if os.getppid() != parent:
            return
    with suppress(OSError):
        os.dup2(2, 1)  # what the function prints is no part of the answer
    while True:
        try:
            arguments = connection.recv()
        except (EOFError, OSError):
            return
        try:
            # what a kernel does with 0 / 0 is judged by its bytes
            with np.errstate(all="ignore"):
                answer = True, function(*arguments)
        except BaseException as error:  # noqa: BLE001 whatever it raises is reported
            answer = False, described(error)
        connection.send(answer)


class Worker:
    """Calls in a thread of this process: for a function whose state is looked at, and where no child is possible."""

    def __init__(self, function: Function) -> None:
        self._function = function
        self._thread: _Thread | None = None

    def call(self, arguments: tuple[Any, ...], limit: float) -> Any:
        """As `Caller.call`. A call into a library that does not return goes on."""
        thread = self._thread = self._thread or _Thread()
        thread.calls.put(lambda: self._function(*arguments))
        try:
            done, result = thread.results.get(timeout=limit)
        except queue.Empty:
            thread.abandon()
            self._thread = None
            raise CandidateError(f"has not returned after {limit:g} s") from None
        if done:
            return result
        raise CandidateError(f"raises {described(result)}") from result

    def close(self) -> None:
        """The thread waits for ever, which costs nothing."""


class _Thread(threading.Thread):
    """Runs calls one after the other, so that whoever waits for one can stop waiting."""

    def __init__(self) -> None:
        super().__init__(daemon=True, name="kvformat-candidate")
        self.calls: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        self.results: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
        self.start()

    def run(self) -> None:
        while True:
            call = self.calls.get()
            try:
                with np.errstate(all="ignore"):
                    self.results.put((True, call()))
            except BaseException as error:  # noqa: BLE001 whatever it raises is reported
                self.results.put((False, error))

    def abandon(self) -> None:
        """Stop what runs, if it is Python; a call into a library goes on until it returns."""
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.ident or 0), ctypes.py_object(SystemExit))

"""Numba's cache on disk, which may be full, cut or out of reach: then code is compiled again and answers as always."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import Any

from numba.core.caching import FunctionCache

fcntl: Any = None  # Windows has none
with suppress(ModuleNotFoundError):
    import fcntl

#: seconds to wait for another process's kernel before compiling it too: one that fails to compile is never kept
PATIENCE = 60.0


class DiskCache(FunctionCache):  # type: ignore[misc]  # numba has no type information
    """The cache of one kernel. What cannot be read or written is as if it were not there.

    Of several processes that need a kernel which is not there yet, one compiles it and the others wait: four workers of
    a test run would each compile the same minute of kernels.
    """

    _lock: int | None = None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The compiled code, or None; then nobody else compiles the kernel until it is kept, or this process ends."""
        found = self._found(sig, target_context)
        if found is None and self._lock is None:
            self._acquire()
            found = self._found(sig, target_context)
            if found is not None:
                self._release()
        return found

    def _acquire(self) -> None:
        with suppress(OSError):
            self._impl.locator.ensure_cache_path()
            path = f"{self._cache_file._index_path}.lock"  # noqa: SLF001 beside the index
            self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            until = time.monotonic() + PATIENCE
            while fcntl is not None and time.monotonic() < until:
                with suppress(BlockingIOError):
                    fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # let go when a process ends, however
                    break
                time.sleep(0.02)

    def _release(self) -> None:
        handle, self._lock = self._lock, None
        if handle is not None:
            os.close(handle)

    def _found(self, sig: Any, target_context: Any) -> Any:
        """The compiled code, or None. A cut or foreign index or data file is emptied."""
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # noqa: BLE001 pickle raises whatever the bytes make it raise
            with suppress(Exception):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep the compiled code, where there is room."""
        try:
            super().save_overload(sig, data)
        except Exception:  # noqa: BLE001 a full disk, or an index that another process has cut meanwhile
            with suppress(Exception):
                self.flush()
        finally:
            self._release()


def attach(dispatcher: Any) -> None:
    """Give a dispatcher its cache; none where no folder can be written to."""
    with suppress(RuntimeError, OSError):  # "no locator available"
        dispatcher._cache = DiskCache(dispatcher.py_func)  # noqa: SLF001 what enable_caching() does

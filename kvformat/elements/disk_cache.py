"""Numba's cache on disk, which may be full, cut or out of reach: then code is compiled again and answers as always."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from numba.core.caching import FunctionCache


class DiskCache(FunctionCache):  # type: ignore[misc]  # numba has no type information
    """The cache of one kernel. What cannot be read or written is as if it were not there."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
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


def attach(dispatcher: Any) -> None:
    """Give a dispatcher its cache; none where no folder can be written to."""
    with suppress(RuntimeError, OSError):  # "no locator available"
        dispatcher._cache = DiskCache(dispatcher.py_func)  # noqa: SLF001 what enable_caching() does

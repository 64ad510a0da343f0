"""Kernels run in Triton's interpreter here, or as compiled, with --kvformat-emulate=sm_90,sm_100.

Without torch or triton, which engines pin, one line says what is left out.

Ahead-of-time compilation, which the interpreter rules out, is left to a process of its own: test_contracts.py.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

_MISSING = [name for name in ("torch", "triton") if find_spec(name) is None]
_LEFT_OUT = f"tests/torch (the GPU kernels), for want of {' and '.join(_MISSING)}; get it: pip install torch triton"

if _MISSING and os.environ.get("KVFORMAT_TORCH"):
    pytest.exit(f"KVFORMAT_TORCH is set, but {_LEFT_OUT}", returncode=1)
# what imports torch cannot even be collected without it
collect_ignore_glob = ["test_*.py"] if _MISSING else []


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Before a test module is imported: TRITON_INTERPRET is read when a kernel is made."""
    emulated = bool(config.getoption("kvformat_emulate", None))
    if not emulated:
        os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported, which no other test's process does
    return True if collection_path.name == "test_emulated.py" and not emulated else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _MISSING:
        terminalreporter.write_line(f"left out: {_LEFT_OUT}")

"""torch and triton are no test requirement: engines pin them exactly. Without them one line says what is left out."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

_MISSING = [name for name in ("torch", "triton") if find_spec(name) is None]
_LEFT_OUT = f"tests/torch: the GPU kernels, as {' and '.join(_MISSING)} is missing; get it: pip install torch"

# what imports torch cannot even be collected without it
collect_ignore_glob = ["test_*.py"] if _MISSING else []


def pytest_report_header() -> str | None:
    return f"left out: {_LEFT_OUT}" if _MISSING else None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _MISSING:
        terminalreporter.write_line(f"left out: {_LEFT_OUT}")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    if _MISSING and os.environ.get("KVFORMAT_TORCH") and collection_path.name.startswith("test_"):
        pytest.exit(f"KVFORMAT_TORCH is set, but {_LEFT_OUT}", returncode=1)
    return None

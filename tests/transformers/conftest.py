"""Models of transformers, tiny and random. Without the library, one line says what is left out."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest

_MISSING = [name for name in ("torch", "transformers") if find_spec(name) is None]
_LEFT_OUT = f"tests/transformers, for want of {' and '.join(_MISSING)}; get it: pip install 'kvformat[transformers]'"

if _MISSING and os.environ.get("KVFORMAT_TRANSFORMERS"):
    pytest.exit(f"KVFORMAT_TRANSFORMERS is set, but {_LEFT_OUT}", returncode=1)
# what imports transformers cannot even be collected without it
collect_ignore_glob = ["test_*.py"] if _MISSING else []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _MISSING:
        terminalreporter.write_line(f"left out: {_LEFT_OUT}")

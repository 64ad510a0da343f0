"""The plugin needs torch and Triton; without them one line says what is left out. vLLM itself is not needed."""

from __future__ import annotations

from importlib.util import find_spec

_MISSING = [name for name in ("torch", "triton", "safetensors") if find_spec(name) is None]
# what imports torch cannot even be collected without it
collect_ignore_glob = ["test_*.py"] if _MISSING else []


def pytest_report_header() -> str | None:
    """The line, where something is missing."""
    return f"not run: tests/vllm (the vLLM plugin), for want of {' and '.join(_MISSING)}" if _MISSING else None

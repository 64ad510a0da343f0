"""A vLLM plugin: it captures the engine's cache writes as dumps, or judges them while the engine runs.

vLLM calls `register` in each of its processes (entry point `vllm.general_plugins`). Without KVFORMAT_DUMP and
KVFORMAT_WATCH in the environment it does nothing. Nothing here imports vLLM before vLLM does.
"""

from __future__ import annotations

import os


def register() -> None:
    """Hook vLLM's worker where the environment asks for it; else nothing happens and nothing is imported."""
    if not os.environ.get("KVFORMAT_DUMP") and not os.environ.get("KVFORMAT_WATCH"):
        return
    from kvformat.vllm.hook import install

    install()

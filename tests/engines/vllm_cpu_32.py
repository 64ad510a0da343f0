"""vLLM 0.32's FP8 cache writer of its CPU backend, which truncates: compiled and called as 0.33's is."""

from __future__ import annotations

from collections.abc import Iterator

from tests.engines import sources, vllm_cpu
from tests.engines.judging import Pages

SOURCE = sources.VLLM_032


def answers() -> Iterator[Pages]:
    """What 0.33 is given."""
    yield from vllm_cpu.written(SOURCE, "0.32")

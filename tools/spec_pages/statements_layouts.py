"""What the layouts are for, where they are defined, and what they refuse, each refusal checked."""

from __future__ import annotations

from typing import Any

from kvformat import InputError
from kvformat.layouts import layout
from spec_pages.text import Statement

PURPOSES = {
    "vllm-0.33": "The page of one layer's cache block in vLLM 0.33: what a cache writer, an attention kernel or a "
    "transfer of blocks between machines has to agree on.",
    "flashinfer": "The page of FlashInfer's stacked cache tensors: K and V of a page on dimension 1. In mode nvfp4 "
    "the page of the scale tensor stands behind the page of the data tensor.",
}

CITED = {
    "vllm-0.33": (
        "cells of K and V: vllm/v1/kv_cache_interface.py L552-602, flash_attn.py L1446-1448",
        "inline scales: vllm/v1/attention/backends/triton_attn.py L308-319, L414-475",
        "nvfp4 pages: csrc/nvfp4_kv_cache_kernels.cu L339-370; the V scale swizzle: L34-48",
    ),
    "flashinfer": (
        "data: flashinfer/page.py L587",
        "nvfp4 scales: flashinfer/page.py L716-760",
    ),
}

_SIZES: dict[str, Any] = {"block_size": 4, "num_kv_heads": 2, "head_size": 64}


def _refused(what: str, name: str, **changes: Any) -> Statement:
    """What is refused, with the answer itself as the text."""
    arguments = {**_SIZES, **changes}
    try:
        layout(name, **arguments)
    except InputError as error:
        return Statement(f'{what}: "{error}"', lambda: True)
    return Statement(what, lambda: False)


def _scaled(name: str, mode: str) -> tuple[Statement, ...]:
    return (
        _refused(f"`{mode}`, head_size 66", name, mode=mode, head_size=66),
        _refused(f"`{mode}`, head_size 64, head_size_v 128", name, mode=mode, head_size_v=128),
    )


BOUNDS = {
    "vllm-0.33": (
        *_scaled("vllm-0.33", "fp8_per_token_head"),
        *_scaled("vllm-0.33", "int8_per_token_head"),
        _refused("`nvfp4`, head_size 72", "vllm-0.33", mode="nvfp4", head_size=72),
        _refused("`nvfp4`, swizzled, head_size 80", "vllm-0.33", mode="nvfp4", head_size=80),
        _refused("`nvfp4`, swizzled, block_size 6", "vllm-0.33", mode="nvfp4", block_size=6),
        _refused("page_bytes below the natural size", "vllm-0.33", mode="none", page_bytes=1000),
        Statement(
            "`page_bytes` above the natural size is padding at the end of the page.",
            lambda: layout("vllm-0.33", mode="nvfp4", page_bytes=1000, **_SIZES).explain(byte=999).part == "padding",
        ),
    ),
    "flashinfer": (
        _refused("`int8_per_token_head`", "flashinfer", mode="int8_per_token_head"),
        _refused("`nvfp4`, head_size 72", "flashinfer", mode="nvfp4", head_size=72),
        _refused("a choice of V scales", "flashinfer", mode="nvfp4", v_scales="swizzled"),
        _refused("page_bytes below the natural size", "flashinfer", mode="none", page_bytes=1000),
        Statement(
            "`page_bytes` above the natural size is padding at the end of the page.",
            lambda: layout("flashinfer", mode="nvfp4", page_bytes=1000, **_SIZES).explain(byte=999).part == "padding",
        ),
    ),
}

"""vLLM 0.33's Triton cache writers as compiled for several targets, executed by `kvformat.torch.emulate`."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

import kvformat as kvf
from kvformat.torch import emulate
from tests.engines import importing, inputs, sources
from tests.engines.judging import Codes, Pages
from tests.oracle.libraries import tensor

SOURCE = sources.VLLM
_HEADS, _BLOCK_SIZE, _DIMS = 2, 16, 64
_OPS = "vllm.v1.attention.ops"


def _yes(*_: Any) -> bool:
    return True


def _no(*_: Any) -> bool:
    return False


_PLATFORM = SimpleNamespace(
    fp8_dtype=lambda: torch.float8_e4m3fn, is_cuda=_yes, is_cuda_alike=_yes, has_device_capability=_yes,
    is_rocm=_no, is_xpu=_no, is_fp8_fnuz=_no,
)  # fmt: skip
_GIVEN = {
    "vllm.platforms": {"current_platform": _PLATFORM},
    "vllm.triton_utils": {"tl": tl, "triton": triton},
    "vllm.model_executor.layers.quantization.utils.quant_utils": {
        "FP8_DTYPE": torch.float8_e4m3fn,
        "get_fp8_min_max": lambda: (-448.0, 448.0),
    },
    "vllm.v1.kv_cache_interface": {"is_quantized_kv_cache": lambda name: name.startswith("fp8")},
}


def _module(name: str) -> ModuleType:
    root = next(sources.fetch(SOURCE).glob("vllm-*"))
    with importing.package(root, "vllm", {name, "vllm.utils.math_utils"}, _GIVEN):
        return importlib.import_module(name)


def answers() -> Iterator[Codes | Pages]:
    """Everything that is run, one answer at a time."""
    for target in ("sm_80", "sm_90", "sm_100"):
        yield from per_token_head(target, "int8_per_token_head")
    for target in ("sm_89", "sm_90", "sm_100"):
        yield from per_token_head(target, "fp8_per_token_head")
    for target in ("sm_90", "sm_100"):
        yield per_tensor(target)


def _rows(element: str, top: float, dtype: str) -> NDArray[Any]:
    return inputs.shaped(inputs.hard(element, dtype, _DIMS, (top,), 500), _HEADS, _DIMS)


def per_token_head(target: str, mode: str) -> Iterator[Pages]:
    """`triton_reshape_and_cache_flash_per_token_head_quant` on cells of K, scale, V, scale."""
    module = _module(f"{_OPS}.triton_reshape_and_cache_flash")
    element, top, stored = (
        ("int8", 127.0, torch.int8) if mode.startswith("int8") else ("e4m3fn", 448.0, torch.float8_e4m3fn)
    )
    for dtype in ("bfloat16", "float32"):
        key = _rows(element, top, dtype)
        value = key[::-1].copy()
        layout = kvf.layout("vllm-0.33", mode=mode, block_size=_BLOCK_SIZE, num_kv_heads=_HEADS, head_size=_DIMS)
        blocks = -(-len(key) // _BLOCK_SIZE)
        slots = np.random.default_rng(1).permutation(blocks * _BLOCK_SIZE)[: len(key)].astype(np.int64)
        slots[::9] = -1
        before = np.random.default_rng(2).integers(0, 256, (blocks, layout.page_bytes), np.uint8)
        pages = torch.from_numpy(before.copy())
        cells = pages.view(blocks, _BLOCK_SIZE, _HEADS, 2, _DIMS + 4)
        codes = [cells[..., side, :_DIMS].view(stored) for side in (0, 1)]
        scales = [pages.view(torch.float32).view(blocks, _BLOCK_SIZE, _HEADS, 2, -1)[..., side, -1] for side in (0, 1)]
        with emulate(target):
            module.triton_reshape_and_cache_flash_per_token_head_quant(
                tensor(key), tensor(value), *codes, *scales, torch.from_numpy(slots), mode
            )
        path = "triton-sm89" if target == "sm_89" else "triton"
        yield Pages(
            f"vllm-0.33/{path}/{mode}", f"Triton {triton.__version__}, {target}", "_reshape_cache_per_token_head",
            layout,
            key, value, slots, pages.numpy(), before,
        )  # fmt: skip


def per_tensor(target: str) -> Codes:
    """`triton_reshape_and_cache_flash` with a given scale; what div.full gives is taken as the nearest value."""
    module = _module(f"{_OPS}.triton_reshape_and_cache_flash")
    x = inputs.patterns("bfloat16", _HEADS, _DIMS)
    blocks = -(-len(x) // _BLOCK_SIZE)
    caches = [torch.zeros((blocks, _BLOCK_SIZE, _HEADS, _DIMS), dtype=torch.uint8) for _ in range(2)]
    scale = torch.tensor(0.037, dtype=torch.float32)
    capability = (int(target.removeprefix("sm_")[:-1]), 0)
    with emulate(target), patch.object(torch.cuda, "get_device_capability", lambda _: capability):
        module.triton_reshape_and_cache_flash(tensor(x), tensor(x), *caches, torch.arange(len(x)), "fp8", scale, scale)
    return Codes(
        "vllm-0.33/triton/fp8_per_tensor", f"Triton {triton.__version__}, {target}, div.full to the nearest",
        "reshape_and_cache_kernel_flash", x, caches[0].view(-1, _HEADS, _DIMS)[: len(x)].numpy(), None,
        np.float32(0.037), "every pattern",
    )  # fmt: skip

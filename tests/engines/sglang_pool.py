"""SGLang 0.5.23's pool of K and V, whose write is plain torch without a GPU, executed on the CPU."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from tests.engines import importing, inputs, sources
from tests.engines.judging import Codes
from tests.oracle.libraries import array, tensor

SOURCE = sources.SGLANG
_POOL = "sglang.srt.mem_cache.memory_pool"
_HEADS, _DIMS = 2, 64
_ASKED = ("cuda", "npu", "cpu", "xpu", "hip", "gfx95_supported")


def _no(*_: Any) -> bool:
    return False


class _Unquantized:
    """The method of a pool whose elements have no scales of their own."""


_GIVEN = {
    "sglang.srt.utils": {**{f"is_{name}": _no for name in _ASKED}, "cpu_has_amx_support": _no},
    "sglang.kernels.ops.quantization.fp8_kernel": {"is_fp8_fnuz": _no, "fp8_dtype": torch.float8_e4m3fn},
    "sglang.srt.layers.quantization.fp4_kv_cache_quant_method": {"UnquantizedKVCacheMethod": _Unquantized},
    "sglang.srt.model_executor.runner": {"get_is_capture_mode": _no},
}


def answers() -> Iterator[Codes]:
    """`set_kv_buffer` with a scale of the host for K and another for V: every pattern of three dtypes."""
    with importing.package(sources.fetch(SOURCE), "sglang", {_POOL}, _GIVEN):
        pool = importlib.import_module(_POOL).MHATokenToKVPool
        for dtype in ("bfloat16", "float16", "float32"):
            yield from _written(pool, dtype, (np.float32(0.037), np.float32(0.05078125)))
            yield from _written(pool, dtype, (np.float32(1), np.float32(3e-5)))


def _written(kind: Any, dtype: str, scales: tuple[np.float32, np.float32]) -> Iterator[Codes]:
    x = inputs.patterns(dtype, _HEADS, _DIMS)
    buffers = [torch.zeros(x.shape, dtype=torch.uint8) for _ in range(2)]
    # a class of its own with the pool's methods: its constructor allocates on a device
    pool = object.__new__(type("pool", (kind,), {"__abstractmethods__": frozenset()}))
    vars(pool).update(
        quant_method=_Unquantized(), dtype=torch.float8_e4m3fn, store_dtype=torch.uint8, start_layer=0, use_hnd=False,
        kv_cache_layout="nhd", k_buffer=buffers[:1], v_buffer=buffers[1:], size=len(x), page_size=1,
        row_dim=_HEADS * _DIMS, v_row_dim=_HEADS * _DIMS, device_module=None, alt_stream=None,
    )  # fmt: skip
    slots = np.random.default_rng(6).permutation(len(x))
    layer = SimpleNamespace(layer_id=0)
    pool.set_kv_buffer(layer, torch.from_numpy(slots), tensor(x), tensor(x), *map(float, scales))
    for buffer, scale in zip(buffers, scales, strict=True):
        yield Codes(
            "sglang-0.5/pool/fp8_per_tensor", "CPU, torch", "MHATokenToKVPool.set_kv_buffer", x, array(buffer)[slots],
            None, scale, "every pattern", nan_as_class=True,
        )  # fmt: skip

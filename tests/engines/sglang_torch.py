"""SGLang 0.5.23's cache quantizers that are plain torch, executed on the CPU, eager."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import torch

from tests.engines import importing, inputs, sources
from tests.engines.judging import Codes
from tests.oracle.libraries import array, nibbles, tensor

SOURCE = sources.SGLANG
_FP4 = "sglang.srt.layers.quantization.kvfp4_tensor"
_METHODS = "sglang.srt.layers.quantization.fp4_kv_cache_quant_method"


def answers() -> Iterator[Codes]:
    """FP8 on the CPU with given scales; FP4 in blocks of 16."""
    given = {"sglang.srt.runtime_context": {"get_platform": lambda: SimpleNamespace(is_cuda=lambda: False)}}
    with importing.package(sources.fetch(SOURCE), "sglang", {_FP4, _METHODS}, given):
        fp4, methods = (importlib.import_module(name) for name in (_FP4, _METHODS))
    method = object.__new__(type("method", (), dict(vars(methods.CPUFP8KVCacheMethod))))
    for dtype in ("bfloat16", "float16", "float32"):
        x = inputs.patterns(dtype, 2, 64)
        for scale in (np.float32(1), np.float32(0.037)):
            buffers = [torch.zeros(x.shape, dtype=torch.float8_e4m3fn) for _ in range(2)]
            method.quantize_and_store(
                *buffers, None, None, torch.arange(len(x)), tensor(x), tensor(x), torch.tensor(scale), float(scale)
            )
            yield Codes(
                "sglang-0.5/cpu/fp8_per_tensor", "CPU, torch", "CPUFP8KVCacheMethod.quantize_and_store", x,
                array(buffers[0]), None, scale, "every pattern", nan_as_class=True,
            )  # fmt: skip
    eager = fp4.FP4MXBlock16KVQuantizeUtil.batched_quantize._torchdynamo_orig_callable
    for dtype in ("bfloat16", "float32"):
        x = inputs.shaped(inputs.hard("e2m1fn", dtype, 16, (6.0,), 8000), 2, 64)
        x = x[np.isfinite(x.astype(np.float32)).all(axis=(1, 2))]
        codes, scales = eager(tensor(x))
        yield Codes(
            "sglang-0.5/fp4-kv/fp4_mx_block16", "CPU, torch, eager", "FP4MXBlock16KVQuantizeUtil.batched_quantize", x,
            nibbles(codes), scales.numpy().reshape(*x.shape[:2], -1), None, "hard rows without NaN and Inf",
        )  # fmt: skip

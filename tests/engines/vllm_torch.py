"""vLLM 0.33's torch reference of NVFP4, executed on the CPU."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import torch

from tests.engines import importing, inputs, sources
from tests.engines.judging import Codes
from tests.oracle.libraries import rows

SOURCE = sources.VLLM
_EMULATION = "vllm.model_executor.layers.quantization.utils.nvfp4_emulation_utils"


def answers() -> Iterator[Codes]:
    """`ref_nvfp4_quant` gives values; each is that of a code."""
    import triton
    import triton.language as tl

    given = {"vllm.triton_utils": {"tl": tl, "triton": triton}}
    root = next(sources.fetch(SOURCE).glob("vllm-*"))
    with importing.package(root, "vllm", {_EMULATION, "vllm.scalar_type"}, given):
        module = importlib.import_module(_EMULATION)
    x = inputs.shaped(inputs.numbers(inputs.hard("e2m1fn", "bfloat16", 16, (6.0,), 8000)), 2, 64)
    x = np.where(np.isinf(x.astype(np.float32)), x.dtype.type(0), x)
    for encode in (np.float32(1), np.float32(81.3), np.float32(1e-20)):
        values, scales = module.ref_nvfp4_quant(rows(x), torch.tensor([encode]), 16)
        codes = values.numpy().astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
        yield Codes(
            "vllm-0.33/emulation/nvfp4", "CPU, torch", "ref_nvfp4_quant", x, codes.reshape(x.shape),
            scales.numpy().astype(ml_dtypes.float8_e4m3fn).view(np.uint8), encode, "hard rows without NaN and Inf",
        )  # fmt: skip

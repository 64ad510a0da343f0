"""FlashInfer 0.7.4's torch reference of NVFP4, which its traces carry, executed on the CPU."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import numpy as np
import torch

from tests.engines import importing, inputs, sources
from tests.engines.judging import Codes
from tests.oracle.libraries import nibbles, rows

SOURCE = sources.FLASHINFER
_TEMPLATE = "flashinfer.trace.templates.quantize"


def answers() -> Iterator[Codes]:
    """`_nvfp4_quantize_reference`, with encode scales of several sizes."""
    with importing.package(sources.fetch(SOURCE), "flashinfer", {_TEMPLATE}, {}):
        module = importlib.import_module(_TEMPLATE)
    for dtype in ("bfloat16", "float16", "float32"):
        x = inputs.shaped(inputs.hard("e2m1fn", dtype, 16, (6.0,), 8000), 2, 64)
        for encode in (np.float32(1), np.float32(81.3), np.float32(1e-20)):
            codes, scales = module._nvfp4_quantize_reference(rows(x), torch.tensor([encode]))
            yield Codes(
                "flashinfer-0.7/trace-reference/nvfp4", "CPU, torch", "_nvfp4_quantize_reference", x,
                nibbles(codes).reshape(x.shape), scales.view(torch.uint8).numpy(), encode,
            )  # fmt: skip

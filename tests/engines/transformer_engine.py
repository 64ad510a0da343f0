"""TransformerEngine 2.20.2's NVFP4 reference, which its kernels are tested against, executed on the CPU."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import numpy as np
import torch

from tests.engines import importing, inputs, sources
from tests.engines.judging import Codes
from tests.oracle.libraries import array, nibbles, rows

SOURCE = sources.TRANSFORMER_ENGINE
_REFERENCE = "transformer_engine.pytorch.custom_recipes.reference_nvfp4"


def answers() -> Iterator[Codes]:
    """The default and both searches of 4over6, with given magnitudes of the tensor."""
    with importing.package(sources.fetch(SOURCE), "transformer_engine", {_REFERENCE}, {}):
        quantizer = importlib.import_module(_REFERENCE).NVFP4QuantizerRef
    x = inputs.shaped(inputs.hard("e2m1fn", "bfloat16", 16, (6.0,), 8000), 2, 64)
    for path, more in (
        ("reference", {}),
        ("reference-4over6-mae", {"nvfp4_use_4over6": True, "nvfp4_4over6_err_mode": "MAE"}),
        ("reference-4over6-mse", {"nvfp4_use_4over6": True, "nvfp4_4over6_err_mode": "MSE"}),
    ):
        for amax in (np.float32(2688), np.float32(57.3), np.float32(1e30)):
            codes, scales = quantizer._quantize_blockwise_reference(
                rows(x), torch.tensor(amax), 16, 1, pow_2_scales=False, eps=0.0, **more
            )
            stored = array(scales)  # a NaN has the sign that the CPU's vectors gave it
            yield Codes(
                f"transformer-engine-d0067d0d/{path}/nvfp4", "CPU, torch",
                "NVFP4QuantizerRef._quantize_blockwise_reference", x, nibbles(codes).reshape(x.shape),
                np.where(stored == 0xFF, np.uint8(0x7F), stored), amax, nan_as_class=True,
            )  # fmt: skip

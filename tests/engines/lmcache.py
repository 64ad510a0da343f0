"""LMCache 0.5.6's serializers, which are plain torch, executed on the CPU."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.engines import importing, inputs, sources
from tests.engines.judging import Codes
from tests.oracle.libraries import tensor, tensors

SOURCE = sources.LMCACHE
_CODEC = "lmcache.v1.kv_codec"
_SERDE = "lmcache.v1.distributed.serde"
_HOW = "CPU, torch"


def answers() -> Iterator[Codes]:
    """Scales of a tensor, of its heads, and given ones; the plain cast on every pattern."""
    root = sources.fetch(SOURCE)
    yield from _cast(root)
    real = {f"{_CODEC}.{name}" for name in ("asym_k16_v8", "encoded_kv", "errors")}
    with importing.package(root, "lmcache", real, {}):
        codec = importlib.import_module(f"{_CODEC}.asym_k16_v8")
        scopes = importlib.import_module(f"{_CODEC}.encoded_kv").ScaleScope
    for x in tensors("bfloat16"):
        for mode, scope in (("per_tensor", scopes.PER_TENSOR), ("per_head", scopes.PER_LAYER_HEAD)):
            scales = codec.compute_v_scales(tensor(x), scope)
            codes = codec.quantize_v_fp8(tensor(x), scales, scope)
            yield _codes(mode, x, codes, scales.reshape(-1).numpy(), None)
    x = inputs.patterns("bfloat16", 2, 64)
    for scale in inputs.SCALES:
        codes = codec.quantize_v_fp8(tensor(x), tensor(np.array(scale)), scopes.PER_TENSOR)
        yield _codes("per_tensor", x, codes, None, scale)


def _cast(root: Path) -> Iterator[Codes]:
    """The serializer "fp8", which has no scale."""
    import torch

    bases = {"Serializer": object, "Deserializer": object, "SerdeProcessor": object}
    with importing.package(root, "lmcache", {f"{_SERDE}.fp8"}, {f"{_SERDE}.base": bases}):
        serializer = importlib.import_module(f"{_SERDE}.fp8").Fp8QuantizationSerializer()
    for dtype in ("bfloat16", "float16", "float32"):
        x = inputs.patterns(dtype, 2, 64)
        made = torch.zeros(x.size, dtype=torch.uint8)
        assert serializer.serialize(SimpleNamespace(tensor=tensor(x)), SimpleNamespace(tensor=made), None) == x.size
        yield Codes(
            "lmcache-0.5/serde/fp8_unscaled", _HOW, "Fp8QuantizationSerializer.serialize", x,
            made.numpy().reshape(x.shape), None, None, "every pattern", nan_as_class=True,
        )  # fmt: skip


def _codes(mode: str, x: NDArray[Any], codes: Any, scales: NDArray[np.float32] | None, given: Any) -> Codes:
    return Codes(
        f"lmcache-0.5/asym-k16-v8/fp8_{mode}", _HOW, "compute_v_scales, quantize_v_fp8", x, _bytes(codes), scales,
        given,
        "every pattern" if given is not None else "tensors of all sizes", nan_as_class=True,
    )  # fmt: skip


def _bytes(codes: Any) -> NDArray[np.uint8]:
    import torch

    array: NDArray[np.uint8] = codes.contiguous().view(torch.uint8).numpy()
    return array

"""(b) `quantize` and `dequantize` against the CPU engine: all modes, dtypes and head sizes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import torch

import kvformat as kvf
from kvformat.torch import launch
from kvformat.torch import ops as operators
from tools.device.pages import DTYPES, HEADS, MODES, rows
from tools.device.run import Run, compiled

HEAD_SIZES = (64, 128, 256)


class Quantizing(NamedTuple):
    """A quantizer, and what it is given."""

    mode: str
    dtype: str
    head_size: int
    scale: float | None

    def __str__(self) -> str:
        how = "" if self.scale is None else f", scale {self.scale:g}"
        return f"{self.mode}, {self.dtype}, head size {self.head_size}{how}"


def check_operators(run: Run) -> None:
    """`quantize` and `dequantize` in every mode, dtype and head size, on the rows that pages are written from."""
    wanted = list(quantizers())
    if not run.dry:
        run.compare("operators", [str(each) for each in wanted], _quantized)
        return
    for each in wanted:
        if each.head_size == 64:
            run.add("operators", str(each), compiled=compiled(_kernels, each))


def quantizers() -> Iterator[Quantizing]:
    """Every mode, dtype and head size; where a mode has a scale of the tensor, it is computed and given."""
    for mode, dtype, head_size in product(MODES, DTYPES, HEAD_SIZES):
        for scale in (None, 0.0625) if kvf.recipe(mode).outer else (None,):
            yield Quantizing(mode, dtype, head_size, scale)


def _quantized(number: int, device: str) -> dict[str, int]:
    mode, dtype, head_size, scale = list(quantizers())[number]
    fused = rows(200, 3 * HEADS, head_size, dtype, 1)  # K of QKV: strided, as an engine hands it over
    given = None if scale is None else torch.tensor([scale])
    results = []
    for place in ("cpu", device):
        x = fused.to(place)[:, HEADS : 2 * HEADS]
        made = operators.quantize(x, mode, None if given is None else given.to(place))
        values = [operators.dequantize(*made, mode, getattr(torch, out)) for out in DTYPES]
        results.append([each.cpu() for each in (*made, *values)])
    wrong = sum(_different(cpu, gpu) for cpu, gpu in zip(*results, strict=True))
    return {"compared": sum(each.numel() for each in results[0]), "wrong": wrong}


def _different(cpu: torch.Tensor, gpu: torch.Tensor) -> int:
    """Elements that differ, all of them where the shape or dtype does; NaN compare as a class, -0 is not 0."""
    if cpu.shape != gpu.shape or cpu.dtype != gpu.dtype:
        return cpu.numel()
    if not cpu.is_floating_point():
        return int((cpu != gpu).sum())
    same = (cpu == gpu) & (cpu.signbit() == gpu.signbit()) | cpu.isnan() & gpu.isnan()
    return int((~same).sum())


def _kernels(how: Quantizing) -> None:
    recipe = kvf.recipe(how.mode)
    if recipe.element is None:
        return  # a copy
    x = rows(32, HEADS, how.head_size, how.dtype, 1)
    codes, scales, shared = launch.quantize(x, recipe, None if how.scale is None else torch.tensor([how.scale]))
    launch.dequantize(codes, scales, shared, recipe, x.dtype)

"""Right quantizers in eager torch."""

from __future__ import annotations

from typing import Any

import torch

from kvformat.fuzz.zoo.entry import FP8_ROW, FP8_TENSOR, INT8, NVFP4, Kernel

_ONE = torch.tensor(1.0)


def _amax(x: Any, dims: Any) -> Any:
    return torch.where(torch.isfinite(x), x.abs(), 0.0).amax(dim=dims, keepdim=True)


def _no_zero(scale: Any) -> Any:
    return torch.where(scale == 0, _ONE, scale)


def _fp8(q: Any) -> Any:
    # clamp keeps NaN; without it the cast of what is too large depends on torch's version
    return q.clamp(-448, 448).to(torch.float8_e4m3fn)


def fp8_per_tensor(x: Any) -> Any:
    """e4m3fn(x / s), s = amax / 448 of the tensor."""
    wide = x.float()
    scale = _no_zero(_amax(wide, (0, 1, 2)) / 448)
    return _fp8(wide / scale), scale.reshape(1)


def fp8_per_token_head(x: Any) -> Any:
    """e4m3fn(x / s), s = amax / 448 of each (token, head)."""
    wide = x.float()
    scale = _no_zero(_amax(wide, 2) / 448)
    return _fp8(wide / scale), scale[..., 0]


def int8_per_token_head(x: Any) -> Any:
    """round(x / s) in -127..127, s = amax / 127 of each (token, head); NaN spoils the scale."""
    wide = x.float()
    scale = _no_zero(_amax(wide, 2) / 127)
    scale = torch.where(wide.isnan().any(dim=2, keepdim=True), torch.nan, scale)
    q = (wide / scale).round().clamp(-127, 127).nan_to_num(nan=0.0)
    return q.to(torch.int8), scale[..., 0]


def nvfp4(x: Any) -> Any:
    """e2m1 of x / (bs * g), bs = e4m3(amax / (6 * g)) of 16 dims, g = amax / 2688; packed, the even code low."""
    wide = x.float()
    g = _no_zero(_amax(wide, (0, 1, 2)) / 2688).reshape(())
    blocks = wide.unflatten(2, (-1, 16))
    raw = _amax(blocks, 3) / (6 * g)
    stored = _fp8(torch.where(blocks.isnan().any(dim=3, keepdim=True), torch.nan, raw))
    d = stored.float() * g
    q = torch.where(d == 0, torch.copysign(torch.zeros(()), blocks), blocks / d)
    size = q.abs()
    borders = ((0.25, False), (0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True), (5.0, False))
    code = sum((size >= border if closed else size > border).to(torch.uint8) for border, closed in borders)
    code = torch.where(d.isnan(), torch.zeros((), dtype=torch.uint8), code | (q.signbit().to(torch.uint8) << 3))
    code = code.flatten(2)
    return code[..., 0::2] | code[..., 1::2] << 4, stored[..., 0], g


def kernels() -> list[Kernel]:
    """Every kernel, fed with torch tensors on the CPU."""
    by_mode = {FP8_TENSOR: fp8_per_tensor, FP8_ROW: fp8_per_token_head, INT8: int8_per_token_head, NVFP4: nvfp4}
    return [
        Kernel("torch eager", "quantizer", mode, function, None, "", str(function.__doc__), {"torch": "cpu"})
        for mode, function in by_mode.items()
    ]

"""(b) Every kernel against the CPU engine: all modes, layouts, dtypes, head sizes and block sizes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

import kvformat as kvf
from kvformat.layouts import LAYOUTS
from kvformat.torch import launch
from kvformat.torch import ops as operators
from tools.device.run import Run, compiled

MODES = ("none", "fp8_per_tensor", "fp8_per_token_head", "int8_per_token_head", "nvfp4")
KERNELS = {name: dict(LAYOUTS[name].modes) for name in ("vllm-0.33", "flashinfer")}
#: by mode, the layouts that have it
FORMS = {mode: {name: forms[mode] for name, forms in KERNELS.items() if mode in forms} for mode in MODES}
HEADS = 4
DTYPES = ("bfloat16", "float16", "float32")


def check_bytes(run: Run) -> None:
    """Write and gather in every mode, layout, order, dtype, head size and block size, on nasty and random rows."""
    wanted = list(configurations())
    if not run.dry:
        run.compare("bytes", [named(*each) for each in wanted], _bytes)
        return
    for made, dtype in wanted:
        if (made.head_size, made.block_size) == (64, 16):
            run.add("bytes", named(made, dtype), compiled=compiled(_kernels, made, dtype))


def named(made: kvf.Layout, dtype: str) -> str:
    """A configuration in words."""
    how = f" {made.v_scales}" if made.v_scales else ""
    return f"{made.name} {made.mode}{how} {made.order}, {dtype}, head size {made.head_size}, block {made.block_size}"


def configurations() -> Iterator[tuple[kvf.Layout, str]]:
    """Pages and the dtype of what is written there."""
    index = 0
    for head_size in (128, 64, 256):
        for block_size in (16, 32, 64):
            for mode in MODES:
                for name, form in FORMS[mode].items():
                    for v_scales in [choice for choice, _ in form.v_scales] or [None]:
                        for order in ("HND", "NHD"):
                            made = kvf.layout(
                                name, mode=mode, order=order, block_size=block_size, num_kv_heads=HEADS,
                                head_size=head_size, v_scales=v_scales,
                            )  # fmt: skip
                            # all dtypes at head size 128; elsewhere they take turns, since they share all but the load
                            index += 1
                            for dtype in DTYPES if head_size == 128 else (DTYPES[index % 3],):
                                yield made, dtype


def rows(tokens: int, heads: int, dims: int, dtype: str, seed: int) -> torch.Tensor:
    """Rows that hurt: random ones of all sizes, ties, zeros of both signs, subnormals, outliers, Inf and NaN."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((tokens, heads, dims)) * 2.0 ** rng.integers(-30, 30, (tokens, heads, 1))
    x[0] *= 100
    x[1] = rng.integers(-254, 255, (heads, dims)) / 2  # multiples of half a step: ties where the scale is exact
    x[1, :, 0] = 127
    x[2] = rng.choice([0.0, -0.0], (heads, dims))
    x[3] = rng.integers(-3000, 3000, (heads, dims)) * 2.0**-149
    x[4, :, ::5], x[4, :, 3] = np.inf, -np.inf
    x[5, :, 7] = np.nan
    with np.errstate(over="ignore", invalid="ignore"):
        return torch.from_numpy(x.astype(np.float32)).to(getattr(torch, dtype))


def _bytes(number: int, device: str) -> dict[str, int]:
    """Compare one configuration on the device with the CPU engine."""
    made, dtype = list(configurations())[number]
    tokens, blocks = 200, 200 // made.block_size + 2
    sides = [rows(tokens, made.num_kv_heads, made.head_size, dtype, seed) for seed in (1, 2)]
    slots = torch.randperm(blocks * made.block_size, generator=torch.Generator().manual_seed(3))[:tokens]
    slots[7] = -1
    names = (made.name, made.mode, made.order, made.block_size)
    scale = torch.tensor([0.0625]) if kvf.recipe(made.mode).outer else None
    last = (made.v_scales or "", made.dtype or "")
    pages = [torch.full((blocks, made.page_bytes), 0xA5, dtype=torch.uint8, device=each) for each in ("cpu", device)]
    values = []
    for each in pages:
        key, value = (side.to(each.device) for side in sides)
        fused = torch.cat([value, key, value], 1)[:, made.num_kv_heads : 2 * made.num_kv_heads]  # strided, as vLLM's
        given = None if scale is None else scale.to(each.device)
        operators.write_pages(
            fused, value, each, slots.to(each.device), given, given, *names, made.head_size, made.mode, *last
        )
        table = torch.arange(blocks, device=each.device)
        values += operators.gather_pages(
            pages[0].to(each.device), table, blocks * made.block_size, given, given, *names, made.num_kv_heads,
            made.head_size, made.mode, 0, *last, getattr(torch, dtype),
        )  # fmt: skip
    operators.check_errors()
    wrong = _different(pages[0], pages[1].cpu(), made, dtype)
    for cpu, gpu in zip(values[:2], values[2:], strict=True):
        wrong += int(((cpu != gpu.cpu()) & ~(cpu.isnan() & gpu.cpu().isnan())).sum())
    return {"compared": pages[0].numel() + 2 * values[0].numel(), "wrong": wrong}


def _different(cpu: torch.Tensor, gpu: torch.Tensor, made: kvf.Layout, dtype: str) -> int:
    """Bytes that differ; of stored floats that another dtype was rounded to, the NaN compare as a class."""
    if made.dtype in (None, dtype):
        return int((cpu != gpu).sum())
    stored = getattr(torch, str(made.dtype))
    one, other = (pages[:, : made.natural_bytes].contiguous().view(stored) for pages in (cpu, gpu))
    return int(((one != other) & ~(one.isnan() & other.isnan())).sum())


def _kernels(made: kvf.Layout, dtype: str) -> None:
    x = rows(32, made.num_kv_heads, made.head_size, dtype, 1)
    pages, errors = torch.zeros((4, made.page_bytes), dtype=torch.uint8), torch.zeros(1, dtype=torch.int64)
    how = kvf.recipe(made.mode)
    scale = torch.ones(1) if how.outer else None
    launch.write(made, x, "k", pages, torch.arange(32), how, scale, errors)
    launch.gather(made, pages, "k", torch.arange(2), 32, how, scale, errors, x.dtype)

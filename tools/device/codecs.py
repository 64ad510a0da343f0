"""(a) Every float32 pattern through both encode paths."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import kvformat as kvf
from kvformat.elements.codec import conversion
from kvformat.elements.exact import encode as encode_exactly
from kvformat.elements.exact import magnitudes
from kvformat.torch import codec, launch
from kvformat.torch.aot import compile_for
from tools.device.kernels import encode_patterns
from tools.device.run import Run

CHUNK = 1 << 26


def borders(name: str) -> np.ndarray:
    """The first float32 pattern of each code's magnitude, in order: int64 (codes,). From exact fractions, by search."""
    steps = magnitudes(kvf.element(name))
    found = [0]
    for code in range(1, len(steps) - 1):
        low, high = found[-1], 0x7F80_0000
        while low < high:
            middle = (low + high) // 2
            value = np.uint32(middle).view(np.float32)
            reached = bool(np.isinf(value)) or encode_exactly(float(value), name) >= code
            low, high = (low, middle) if reached else (middle + 1, high)
        found.append(low)
    return np.array(found, np.int64)


def check_codecs(run: Run) -> None:
    """Every float32 pattern through the integer path and the instruction, against borders from exact arithmetic."""
    for name in ("e4m3fn", "e2m1fn", "int8", "e5m2"):
        how = codec.encoding(conversion(name), "float32")
        paths = [("integer", 0)]
        major = 0 if run.dry else torch.cuda.get_device_capability()[0]
        if (name == "e4m3fn" and (run.dry or torch.cuda.get_device_capability() >= (8, 9))) or (
            name == "e2m1fn" and major in (10, 12)
        ):
            paths.append(("instruction", 1))
        edges = torch.from_numpy(borders(name)).to(run.device)
        for path, hardware in paths:
            if run.late(10):
                run.add("codec", f"{name} {path}", result="not run: no time left")
                continue
            wrong = sum(_wrong_codes(run, name, how, edges, hardware, start) for start in range(0, 1 << 32, CHUNK))
            if not run.dry:
                run.add("codec", f"{name} {path}", inputs=1 << 32, wrong=wrong)


def _wrong_codes(run: Run, name: str, how: Any, edges: torch.Tensor, hardware: int, start: int) -> int:
    fmt = kvf.element(name)
    if run.dry:
        if start == 0:
            codes = torch.empty(1024, dtype=torch.uint8)
            with launch.recorded() as launches:
                launch.start(encode_patterns, (1,), (codes, 0), {"HOW": how, "HARDWARE": hardware, "TILE": 1024})
            compile_for(launches[0], "sm_90")
            run.add("codec", f"{name} {'instruction' if hardware else 'integer'}", result="compiled", codes=len(edges))
        return 0
    codes = torch.empty(CHUNK, dtype=torch.uint8, device=run.device)
    first = start - (1 << 32) if start >= 1 << 31 else start  # as the int32 that the kernel counts from
    constants = {"HOW": how, "HARDWARE": hardware, "TILE": 1024}
    launch.start(encode_patterns, (CHUNK // 1024,), (codes, first), constants)
    pattern = torch.arange(start & 0x7FFF_FFFF, (start & 0x7FFF_FFFF) + CHUNK, device=run.device)
    code = torch.searchsorted(edges, pattern, right=True) - 1
    if start >= 1 << 31:
        if fmt.kind == "integer":
            code = (-torch.clamp(code + (pattern >= _negative_edge(name)).long(), max=fmt.max_code + 1)) % fmt.codes
        else:
            code = code | fmt.sign_bit
    code = torch.where(pattern > 0x7F80_0000, fmt.nan_input_code, code)
    return int((code != codes.long()).sum())


def _negative_edge(name: str) -> int:
    """Integers reach one further below zero: the pattern from which the magnitude rounds to max + 1."""
    top = kvf.element(name).max_code
    return int(np.float32(top + 0.5).view(np.uint32))

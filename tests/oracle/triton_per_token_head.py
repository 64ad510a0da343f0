"""A Triton kernel that quantizes rows as vLLM's per-token-head writer does, and the script that runs it interpreted.

    python triton_per_token_head.py INPUTS.npz OUTPUTS.npz

INPUTS: float32 arrays (rows, head_dim) by name. OUTPUTS: "<name> <mode> <part>", mode int8 or fp8, part scales,
quotients (clamped, not yet cast) or codes (int8 only).
"""

from __future__ import annotations

import os
import sys

os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported

import numpy as np
import torch
import triton
import triton.language as tl


@triton.jit
def _quantize_row(rows, scales, quotients, codes, top, lowest, DIMS: tl.constexpr, INTEGER: tl.constexpr):
    row = tl.program_id(0)
    dims = tl.arange(0, DIMS)
    x = tl.load(rows + row * DIMS + dims).to(tl.float32)
    # compiled, a division by a constant is the product with its reciprocal
    scale = tl.maximum(tl.max(tl.abs(x), axis=0) * (1.0 / top), 1e-6)
    tl.store(scales + row, scale)
    q = x * (1.0 / scale)
    if INTEGER:
        q = tl.where(q >= 0, q + 0.5, q - 0.5)
    q = tl.clamp(q, lowest, top)
    tl.store(quotients + row * DIMS + dims, q)
    if INTEGER:
        tl.store(codes + row * DIMS + dims, q.to(tl.int8))


def quantize(x: np.ndarray, *, integer: bool) -> dict[str, np.ndarray]:
    """Scales (rows,), the numbers that are cast and, for INT8, the codes (rows, head_dim) of float32 rows."""
    rows = torch.from_numpy(x)
    scales, quotients = torch.empty(len(x)), torch.empty_like(rows)
    codes = torch.zeros(rows.shape, dtype=torch.int8)
    top, lowest = (127.0, -128.0) if integer else (448.0, -448.0)
    _quantize_row[(len(x),)](rows, scales, quotients, codes, top, lowest, DIMS=x.shape[1], INTEGER=integer)
    return {"scales": scales.numpy(), "quotients": quotients.numpy(), "codes": codes.numpy()}


def main() -> None:
    """Run the kernel on every array of the first file, and write what it stores into the second."""
    outputs = {
        f"{name} {mode} {part}": stored
        for name, x in np.load(sys.argv[1]).items()
        for mode in ("int8", "fp8")
        for part, stored in quantize(x, integer=mode == "int8").items()
    }
    np.savez(sys.argv[2], **outputs)


if __name__ == "__main__":
    main()

"""An int8 cache writer in Triton with vLLM's arithmetic: compiled for a GPU, or timed in Triton's interpreter.

python tools/ptx_writer.py ptx TARGET          writes its PTX to stdout
TRITON_INTERPRET=1 python tools/ptx_writer.py time TOKENS    writes the seconds that the interpreter takes
"""

from __future__ import annotations

import sys
import time
from typing import Any

import triton
import triton.language as tl

HEADS, HEAD_DIM = 8, 128


@triton.jit
def write_int8(key, value, k_codes, v_codes, k_scales, v_scales, slots, H: tl.constexpr, D: tl.constexpr):  # noqa: ANN001, ANN201
    """A program per token and head: its K and its V, to the slot of the token."""
    token, head = tl.program_id(0), tl.program_id(1)
    slot = tl.load(slots + token)
    if slot < 0:
        return
    dims = tl.arange(0, D)
    source, target = token * H + head, slot * H + head
    _row(key + source * D, k_codes + target * D, k_scales + target, dims)
    _row(value + source * D, v_codes + target * D, v_scales + target, dims)


@triton.jit
def _row(x, codes, scale, dims):  # noqa: ANN001, ANN202
    row = tl.load(x + dims).to(tl.float32)
    s = tl.maximum(tl.max(tl.abs(row)) / 127.0, 1e-6)
    q = row * (1.0 / s)
    q = tl.where(q >= 0, q + 0.5, q - 0.5)
    tl.store(codes + dims, tl.clamp(q, -128.0, 127.0).to(tl.int8))
    tl.store(scale, s)


def assembly(target: str) -> str:
    """Its PTX for a target: bfloat16 in, int8 and float32 out, int64 slots."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    types = ["*bf16", "*bf16", "*i8", "*i8", "*fp32", "*fp32", "*i64", "constexpr", "constexpr"]
    signature = dict(zip(write_int8.arg_names, types, strict=True))
    aligned: dict[Any, Any] = {(k,): [["tt.divisibility", 16]] for k in range(7)}
    source = ASTSource(write_int8, signature, {(7,): HEADS, (8,): HEAD_DIM}, aligned)
    return str(triton.compile(source, target=GPUTarget("cuda", int(target[3:]), 32)).asm["ptx"])


def interpreted(tokens: int) -> float:
    """Seconds that Triton's interpreter takes."""
    import torch

    key, value = torch.randn(2, tokens, HEADS, HEAD_DIM).to(torch.bfloat16)
    codes = torch.zeros(2, tokens, HEADS, HEAD_DIM, dtype=torch.int8)
    scales = torch.zeros(2, tokens, HEADS)
    start = time.perf_counter()
    write_int8[tokens, HEADS](key, value, *codes, *scales, torch.arange(tokens), H=HEADS, D=HEAD_DIM)
    return time.perf_counter() - start


if __name__ == "__main__":
    what, argument = sys.argv[1:]
    print(assembly(argument) if what == "ptx" else interpreted(int(argument)))

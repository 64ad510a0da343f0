"""Four faults of kernels that Triton's interpreter cannot see.

TRITON_INTERPRET=1 python spec/emulate/faults.py      what the interpreter computes
python spec/emulate/faults.py                         what the compiled kernel computes, on four GPUs that are not there
"""

from __future__ import annotations

import os

import torch
import triton
import triton.language as tl


@triton.jit
def fused(x, y, n, N: tl.constexpr):
    """a * a - c: one rounding where the source has two."""
    i = tl.arange(0, N)
    a = tl.load(x + i, mask=i < n)
    tl.store(y + i, a * a - 1.0000002384185791015625, mask=i < n)


@triton.jit
def quotient(x, y, n, N: tl.constexpr):
    """x / amax: `/` is div.full, up to 2 ulp off; a kernel that needs the nearest number writes tl.div_rn."""
    i = tl.arange(0, N)
    a = tl.load(x + i, mask=i < n, other=0.0)
    tl.store(y + i, 448.0 / tl.max(a, axis=0) * a, mask=i < n)


@triton.jit
def clamped(x, y, n, N: tl.constexpr):
    """clamp(x * s, -448, 448): from sm_90 on min.xorsign.abs, which turns a NaN into a number."""
    i = tl.arange(0, N)
    a = tl.load(x + i, mask=i < n)
    tl.store(y + i, tl.clamp(a * 0.5, -448.0, 448.0), mask=i < n)


@triton.jit
def flushed(x, y, n, N: tl.constexpr):
    """2 ** x: a subnormal result becomes 0."""
    i = tl.arange(0, N)
    tl.store(y + i, tl.exp2(tl.load(x + i, mask=i < n)), mask=i < n)


KERNELS = {
    fused: [1.0 + 2.0**-23, 1.0],
    quotient: [3.0, 1.9],
    clamped: [float("nan"), 1000.0],
    flushed: [-130.0, -10.0],
}


def run(kernel, values):
    """The patterns that a kernel stores."""
    x, y = torch.tensor(values), torch.zeros(len(values))
    kernel[(1,)](x, y, len(values), N=32, num_warps=1)
    return " ".join(f"{pattern & 0xFFFF_FFFF:08X}" for pattern in y.view(torch.int32).tolist())


def main():
    """Print them."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        for kernel, values in KERNELS.items():
            print(f"{kernel.__name__:9} interpreter  {run(kernel, values)}")
        return
    from kvformat.torch import emulate

    for kernel, values in KERNELS.items():
        # an approximate quotient is any number within its bound: the lowest and the highest show what may come out
        policies = ("ptxas", "lowest", "highest") if kernel is quotient else ("ptxas",)
        for target in ("sm_80", "sm_90", "sm_100", "sm_120"):
            for policy in policies:
                with emulate(target, approximate=policy) as emulation:
                    patterns = run(kernel, values)
                words = sorted({spot.opcode for spot in emulation.launches[-1].run.approximate})
                how = f"{' '.join(words)} {policy if len(policies) > 1 else ''}".strip()
                print(f"{kernel.__name__:9} {target:12} {patterns}  {how}".rstrip())


if __name__ == "__main__":
    main()

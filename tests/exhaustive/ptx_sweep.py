"""All 2^32 float32 operands through instructions of `kvformat.ptx`, against ml_dtypes, NVIDIA's headers and NumPy.

python -m tests.exhaustive.ptx_sweep [INSTRUCTION ...] prints the log that spec/evidence keeps.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from numpy.typing import NDArray

from kvformat import ptx
from tests.exhaustive.sweep import ALL, HEADINGS, Case, compare, lines

#: the conversions from float32 to 8 and 4 bits, and who says what they give
CONVERSIONS = {
    "cvt.rn.satfinite.e4m3x2.f32": Case("e4m3fn", "saturate", None, "clip, ml_dtypes"),
    "cvt.rn.satfinite.e5m2x2.f32": Case("e5m2", "saturate", None, "clip, ml_dtypes"),
    "cvt.rn.satfinite.e2m1x2.f32": Case("e2m1fn", "saturate", None, "clip, ml_dtypes"),
    "cvt.rn.satfinite.e2m3x2.f32": Case("e2m3fn", "saturate", None, "clip, ml_dtypes"),
    "cvt.rn.satfinite.e3m2x2.f32": Case("e3m2fn", "saturate", None, "clip, ml_dtypes"),
    "cvt.rz.satfinite.ue8m0x2.f32": Case("e8m0fnu", "saturate", "down", "CUDA header"),
    "cvt.rp.satfinite.ue8m0x2.f32": Case("e8m0fnu", "saturate", "up", "CUDA header"),
}
#: the constants that writers divide by: the largest code of fp8, int8, e2m1, and of nvfp4's second scale
DIVISORS = (448.0, 127.0, 6.0, 2688.0)
#: `/` of a compiler, and IEEE's
QUOTIENTS = tuple((opcode, divisor) for opcode in ("div.full.f32", "div.rn.f32") for divisor in DIVISORS)
BLOCK = 1 << 20


def by_instruction(opcode: str, x: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Codes of x: its first half through the high half of the result, the other through the low one."""
    bits = x.view(np.uint32)
    high, low = bits[: bits.size // 2], bits[bits.size // 2 :]
    pairs = ptx.evaluate(opcode, [high, low])
    assert isinstance(pairs, np.ndarray)
    width = 8 * pairs.itemsize // 2
    return np.concatenate([pairs >> width, pairs & ((1 << width) - 1)]).astype(np.uint8)


def conversion(opcode: str, start: int = 0, stop: int = ALL) -> tuple[int, list[str]]:
    """(wrong results, rows of the log) of one conversion."""
    case = CONVERSIONS[opcode]
    count = compare(case, start, stop, lambda x, *_, **__: by_instruction(opcode, x))
    return count.mismatches + count.nan_mismatches, [f"{opcode}:", *lines({case: count})]


def quotient(opcode: str, divisor: float, start: int = 0, stop: int = ALL) -> tuple[int, str]:
    """(wrong results, row of the log) of every number over a constant: NumPy's, or times the rounded reciprocal."""
    constant = np.float32(divisor)
    reciprocal = np.float32(1) / constant
    wrong, began = 0, time.perf_counter()
    for first in range(start, stop, BLOCK):
        bits = np.arange(first, min(first + BLOCK, stop), dtype=np.uint64).astype(np.uint32)
        x = bits.view(np.float32)
        with np.errstate(all="ignore"):
            expected = (x / constant if opcode.startswith("div.rn") else x * reciprocal).view(np.uint32)
        expected = np.where(np.isnan(x), np.uint32(0x7FFF_FFFF), expected)
        found = ptx.evaluate(opcode, [bits, int(constant.view(np.uint32))])
        wrong += int(np.count_nonzero(found != expected))
    said = "NumPy's quotient" if opcode.startswith("div.rn") else "times the rounded reciprocal, by NumPy"
    seconds = time.perf_counter() - began
    return wrong, f"{opcode} by {divisor:g}: {said}: {stop - start:,} operands, {wrong} wrong, {seconds:.0f} s"


def main(names: list[str]) -> int:
    """Run what is named, or all of it."""
    total = 0
    print(f"python -m tests.exhaustive.ptx_sweep, NumPy {np.__version__}\n")  # noqa: T201
    print("\n".join(HEADINGS), flush=True)  # noqa: T201
    for opcode in CONVERSIONS:
        if not names or opcode in names:
            wrong, rows = conversion(opcode)
            print("\n".join(rows), flush=True)  # noqa: T201
            total += wrong
    for opcode, divisor in QUOTIENTS:
        if not names or opcode in names:
            wrong, row = quotient(opcode, divisor)
            print(row, flush=True)  # noqa: T201
            total += wrong
    print(f"\n{total} wrong in all")  # noqa: T201
    return int(total > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Single instructions agree with the constant folders of every ptxas that is installed, and of LLVM.

`-m slow` takes 500 rows of operands for each instruction, `-m exhaustive` 10,000.
"""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np
import pytest

from kvformat.errors import InputError
from kvformat.ptx import toolchain
from tests.ptx import folders

SPECIAL = [0, 1, 0x7FFFFF, 0x800000, 0x3F800000, 0x3F800001, 0x3F7FFFFF, 0x43E00000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000,
           0x3B124925, 0x4B800000, 0x33800000, 0x40C00000, 0x42FE0000]  # fmt: skip
SPECIAL += [each | 0x8000_0000 for each in SPECIAL]


def rows(count, arity, seed=0):
    """Specials, numbers of like size whose sums are ties, subnormals, and random bits."""
    rng = np.random.default_rng(seed)
    made = rng.integers(0, 1 << 32, (count, arity), np.uint64).astype(np.uint32)
    near = rng.integers(0x3F00_0000, 0x4C00_0000, (count, arity), np.uint64).astype(np.uint32)
    near |= rng.integers(0, 2, near.shape, np.uint64).astype(np.uint32) << 31
    kind = rng.integers(0, 4, count)
    made[kind == 1] = near[kind == 1]
    made[kind == 2] = rng.choice(np.array(SPECIAL, np.uint32), (int((kind == 2).sum()), arity))
    small = kind == 3
    made[small] = (made[small] & 0x807F_FFFF) | (made[small] & 0x0080_0000)  # subnormal and the smallest normal numbers
    made[: len(SPECIAL), 0] = SPECIAL[:count]
    return made


class Case(NamedTuple):
    opcode: str
    arity: int
    letter: str = "f"


FOLDED = [
    *(Case(f"{name}{ftz}.f32", 2) for name in ("add.rn", "sub.rn", "mul.rn", "min", "max") for ftz in ("", ".ftz")),
    *(Case(f"{name}.f32", 2) for name in ("min.NaN", "max.NaN", "div.full", "div.approx.ftz")),
    Case("rcp.approx.ftz.f32", 1),
    *(Case(name, 2, "r") for name in ("shl.b32", "shr.u32", "shr.s32")),
]


class Intrinsic(NamedTuple):
    name: str
    arity: int

    @property
    def declaration(self):
        return f"float @{self.name}({', '.join(['float'] * self.arity)})"


LLVM = {
    "fma.rn.f32": Intrinsic("llvm.nvvm.fma.rn.f", 3),
    "fma.rn.ftz.f32": Intrinsic("llvm.nvvm.fma.rn.ftz.f", 3),
    "div.rn.f32": Intrinsic("llvm.nvvm.div.rn.f", 2),
    "rcp.rn.f32": Intrinsic("llvm.nvvm.rcp.rn.f", 1),
    "sqrt.rn.f32": Intrinsic("llvm.nvvm.sqrt.rn.f", 1),
    "mul.rz.f32": Intrinsic("llvm.nvvm.mul.rz.f", 2),
    "mul.rn.ftz.f32": Intrinsic("llvm.nvvm.mul.rn.ftz.f", 2),
    "min.xorsign.abs.f32": Intrinsic("llvm.nvvm.fmin.xorsign.abs.f", 2),
    "max.xorsign.abs.f32": Intrinsic("llvm.nvvm.fmax.xorsign.abs.f", 2),
}


def _missing():
    try:
        toolchain.nvdisasm()
    except InputError as error:
        return str(error)
    return "" if toolchain.assemblers() else "no ptxas is installed"


MISSING = _missing()
needs_ptxas = pytest.mark.skipif(bool(MISSING) and not os.environ.get("KVFORMAT_CUDA"), reason=MISSING)
ASSEMBLERS = [] if MISSING else toolchain.assemblers()


def nan(patterns):
    return (patterns & 0x7FFF_FFFF) > 0x7F80_0000


def ties(opcode, operands):
    """Exact ties of effective subtractions, which two versions of ptxas round toward zero: IEEE judges them."""
    if not opcode.startswith(("add", "sub")):
        return np.zeros(len(operands), bool)
    a, b = (operands[:, i].view(np.float32).astype(np.float64) for i in (0, 1))
    with np.errstate(over="ignore", invalid="ignore"):
        b = -b if opcode.startswith("sub") else b
        exact = a + b
        near = exact.astype(np.float32)
        other = np.nextafter(near, np.where(exact > near, np.float32(np.inf), np.float32(-np.inf)))
        return (np.signbit(a) != np.signbit(b)) & (np.abs(exact - near) == np.abs(other - exact)) & (exact != near)


def compare(case, count, answers):
    """Wrong rows, and how many there were to judge; payloads of NaN are not."""
    operands = rows(count, case.arity)
    found, known = answers(operands)
    mine = folders.machine(case.opcode, operands, case.letter)
    differ = known & (found != mine)
    if case.letter == "f":
        differ &= ~(nan(found) & nan(mine))
    return operands, differ, known


def judge(case, count, answers):
    operands, differ, known = compare(case, count, answers)
    assert known.sum() > count // 20, "the folder folds too little to judge"
    differ &= ~ties(case.opcode, operands)
    assert not differ.any(), [f"{value:08X}" for value in operands[differ][0]]


@needs_ptxas
@pytest.mark.slow
@pytest.mark.parametrize("assembler", ASSEMBLERS, ids=[f"{each.path.name}-{each.version}" for each in ASSEMBLERS])
@pytest.mark.parametrize("case", FOLDED, ids=lambda case: case.opcode)
def test_ptxas_folds_to_the_same_bits(case, assembler):
    judge(case, 500, lambda operands: folders.ptxas(assembler, case.opcode, operands, case.letter))


@needs_ptxas
@pytest.mark.exhaustive
@pytest.mark.parametrize("assembler", ASSEMBLERS, ids=[f"{each.path.name}-{each.version}" for each in ASSEMBLERS])
@pytest.mark.parametrize("case", FOLDED, ids=lambda case: case.opcode)
def test_ptxas_folds_ten_thousand_rows_to_the_same_bits(case, assembler):
    judge(case, 10_000, lambda operands: folders.ptxas(assembler, case.opcode, operands, case.letter))


@pytest.mark.slow
@pytest.mark.parametrize("opcode", LLVM)
def test_llvm_folds_to_the_same_bits(opcode):
    pytest.importorskip("llvmlite")
    how = LLVM[opcode]
    judge(Case(opcode, how.arity), 2000, lambda operands: folders.llvm(how, operands))

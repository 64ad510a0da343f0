"""(e) Single instructions on the GPU against kvformat.ptx: every bit of their results, NaN payloads included."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray

from kvformat import ptx
from kvformat.torch import launch
from kvformat.torch.aot import compile_for
from tools.device.kernels import instruction
from tools.device.run import Run

#: zeros, the smallest and largest of each kind, 1 and its neighbours, largest codes, Inf, quiet and signalling NaN
SPECIAL = [0, 1, 0x7FFFFF, 0x800000, 0x33800000, 0x3F7FFFFF, 0x3F800000, 0x3F800001, 0x40C00000, 0x42FE0000, 0x43E00000,
           0x4B800000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000, 0x7FFFFFFF]  # fmt: skip
SPECIAL += [each | 0x8000_0000 for each in SPECIAL]
TILE = 1024
RANDOM = 1 << 20


@dataclass(frozen=True)
class Entry:
    """An instruction of the table: its sources, the bits of its result, the first target that has it."""

    opcode: str
    sources: int
    bits: int = 32
    first: int = 80

    @property
    def assembly(self) -> str:
        """What the kernel runs: the result in a register of 32 bits, whatever it is."""
        sources = ", ".join(f"${k + 1}" for k in range(self.sources))
        if self.bits == 1:
            return f"{{.reg .pred t; {self.opcode} t, {sources}; selp.b32 $0, 1, 0, t;}}"
        if self.bits == 8:
            return f"{{.reg .b8 t; {self.opcode} t, {sources}; mov.b32 $0, {{t, t, t, t}};}}"
        if self.bits == 16:
            return f"{{.reg .b16 t; {self.opcode} t, {sources}; cvt.u32.u16 $0, t;}}"
        return f"{self.opcode} $0, {sources};"


def _entries() -> list[Entry]:
    plain = ["add", "sub", "mul", "min", "max"]
    made = [Entry(f"{name}{ftz}.f32", 2) for name in plain for ftz in ("", ".ftz")]
    made += [Entry(f"{name}.{how}.f32", 2) for name in plain[:3] for how in ("rn", "rz", "rm", "rp")]
    made += [Entry(f"{name}.NaN.f32", 2) for name in ("min", "max")]
    made += [Entry(f"{name}.xorsign.abs.f32", 2, first=86) for name in ("min", "max")]
    made += [Entry(f"fma.{how}.f32", 3) for how in ("rn", "rz", "rn.ftz")]
    made += [Entry("div.rn.f32", 2), Entry("rcp.rn.f32", 1), Entry("sqrt.rn.f32", 1), Entry("copysign.f32", 2)]
    made += [Entry(f"{name}.f32", 1) for name in ("abs", "neg", "abs.ftz", "cvt.rpi.f32", "cvt.rni.ftz.f32")]
    made += [Entry(f"cvt.{how}.{to}.f32", 1) for how in ("rzi", "rni") for to in ("s32", "u32")]
    made += [Entry(f"cvt.rn.{to}.f32", 1, bits=16) for to in ("f16", "bf16")]
    made += [Entry(f"cvt.rn.{to}.f32", 2) for to in ("f16x2", "bf16x2")]
    made += [
        Entry(f"{name}.{kind}", 2) for name in ("min", "max", "min.NaN", "max.NaN") for kind in ("f16x2", "bf16x2")
    ]
    made += [Entry(f"setp.{how}.f32", 2, bits=1) for how in ("lt", "ltu", "eq", "equ", "ne", "neu", "nan", "num")]
    made += [Entry(name, 2) for name in ("shl.b32", "shr.u32", "shr.s32", "mul.hi.u32", "mul.hi.s32")]
    made += [Entry("prmt.b32", 3), Entry("bfe.s32", 3), Entry("bfe.u32", 3), Entry("brev.b32", 1), Entry("clz.b32", 1)]
    made += [Entry(f"cvt.rn.satfinite.{to}.f32", 2, bits=16, first=89) for to in ("e4m3x2", "e5m2x2")]
    made += [Entry(f"cvt.rn.satfinite.{to}.f32", 2, bits=16, first=100) for to in ("e2m3x2", "e3m2x2")]
    made += [Entry("cvt.rn.satfinite.e2m1x2.f32", 2, bits=8, first=100)]
    made += [Entry(f"cvt.{how}.satfinite.ue8m0x2.f32", 2, bits=16, first=100) for how in ("rz", "rp")]
    return made


ENTRIES = _entries()


def operands(count: int, random: int = RANDOM, seed: int = 0) -> NDArray[np.uint32]:
    """(count, rows): all pairs of special patterns, then random ones, close to each other, and subnormal."""
    pairs = np.array(list(product(SPECIAL, repeat=2)), np.uint32).T
    rng = np.random.default_rng(seed)
    some = rng.integers(0, 1 << 32, (count, random), np.uint64).astype(np.uint32)
    third = random // 3
    some[:, :third] = (some[:, :third] & 0x81FF_FFFF) | 0x3E00_0000  # 2^-3 to 2: ties, cancellation
    some[:, third : 2 * third] &= 0x80FF_FFFF  # subnormal, and next to it
    made = np.resize(pairs, (count, pairs.shape[1])) if count != 3 else np.stack([*pairs, np.roll(pairs[0], 7)])
    made = np.concatenate([made, some], axis=1)
    return made[:, : made.shape[1] // TILE * TILE]


def judged(entry: Entry, found: NDArray[np.uint32], given: NDArray[np.uint32]) -> int:
    """How many results are not kvformat's."""
    wanted = ptx.evaluate(entry.opcode, list(given))
    assert isinstance(wanted, np.ndarray)
    if entry.bits == 8:
        found = found & 0xFF
    return int(np.count_nonzero(found != wanted.astype(np.uint32)))


def on_device(entry: Entry, given: NDArray[np.uint32], device: str) -> NDArray[np.uint32]:
    """The results of the instruction, from the device, or from whatever launches Triton kernels there."""
    rows = [torch.from_numpy(each.view(np.int32).copy()).to(device) for each in given]
    rows += [rows[0]] * (3 - len(rows))
    out = torch.empty_like(rows[0])
    constants = {"ASSEMBLY": entry.assembly, "SOURCES": entry.sources, "TILE": TILE}
    launch.start(instruction, (out.numel() // TILE,), (out, *rows), constants)
    return out.cpu().numpy().view(np.uint32)


def check_table(run: Run) -> None:
    """Every instruction that the device has."""
    capability = 120 if run.dry else 10 * torch.cuda.get_device_capability()[0] + torch.cuda.get_device_capability()[1]
    for entry in ENTRIES:
        if entry.first > capability:
            run.add("table", entry.opcode, result=f"not run: from sm_{entry.first} on")
        elif run.dry:
            with launch.recorded() as launches:
                on_device(entry, operands(entry.sources, TILE), "cpu")
            text = compile_for(launches[0], "sm_120" if entry.first > 90 else "sm_90").assembly
            present = re.search(rf"{re.escape(entry.opcode)}\s", text) is not None
            run.add("table", entry.opcode, result="compiled" if present else "not in what was compiled")
        elif run.late(5):
            run.add("table", entry.opcode, result="not run: no time left")
        else:
            given = operands(entry.sources)
            found = on_device(entry, given, run.device)
            run.add("table", entry.opcode, compared=given.shape[1], wrong=judged(entry, found, given))

"""Builds the steps of an entry: rows for registers and constants, operands read, results written under their guard."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvformat.ptx import columns as col
from kvformat.ptx import steps as s
from kvformat.ptx.access import LOCAL, PARAM, SEGMENT_BITS, SHARED
from kvformat.ptx.syntax import SIZES, Statement, immediate

#: special registers, in the order that `machine.specials` knows them by
SPECIALS = (
    "%tid.x", "%tid.y", "%tid.z", "%ntid.x", "%ntid.y", "%ntid.z", "%ctaid.x", "%ctaid.y", "%ctaid.z", "%nctaid.x",
    "%nctaid.y", "%nctaid.z", "%laneid", "%warpid", "%nwarpid", "%lanemask_eq", "%lanemask_lt", "%lanemask_le",
    "%lanemask_gt", "%lanemask_ge",
)  # fmt: skip

WINDOWS = {"shared": SHARED << SEGMENT_BITS, "local": LOCAL << SEGMENT_BITS, "param": PARAM << SEGMENT_BITS}


class NotModelled(Exception):  # noqa: N818 it never leaves the decoder, which collects them as refusals
    """An instruction, or a word of one, that the table does not have."""


def bits_of(kind: str) -> int:
    """The bits of a type; a predicate has one."""
    return 1 if kind == "pred" else 8 * SIZES[kind]


def mask_of(kind: str) -> int:
    """All bits of a type."""
    return (1 << bits_of(kind)) - 1


@dataclass
class Rows:
    """The rows of the register file: registers, constants, specials and temporaries."""

    registers: Mapping[str, str]
    symbols: Mapping[str, int]
    count: int = col.FIRST_ROW
    by_name: dict[str, int] = field(default_factory=dict)
    constants: dict[int, int] = field(default_factory=dict)
    specials: dict[int, int] = field(default_factory=dict)
    temporaries: list[int] = field(default_factory=list)
    widths: dict[int, int] = field(default_factory=dict)

    def new(self, mask: int) -> int:
        """Another row."""
        self.count += 1
        self.widths[self.count - 1] = mask
        return self.count - 1

    def register(self, name: str) -> int:
        """The row of a register."""
        if name not in self.by_name:
            self.by_name[name] = self.new(1 if name == CARRY else mask_of(self.registers[name]))
        return self.by_name[name]

    def constant(self, value: int) -> int:
        """The row of a constant."""
        if value not in self.constants:
            self.constants[value] = self.new(0)
        return self.constants[value]


#: the carry flag of add.cc and the like: a register without a name in PTX
CARRY = "%cc"
_ADDRESS = re.compile(r"\[\s*([\w$%@.]+)\s*(?:([+-])\s*(-?\w+))?\s*\]$")


class Emitter:
    """The steps of one entry, in the making."""

    def __init__(self, rows: Rows, policy: str, constants: Mapping[str, int], labels: Mapping[str, int]) -> None:
        self.rows, self.policy, self.known, self.labels = rows, policy, constants, labels
        self.code: list[list[int]] = []
        self.aux: list[int] = []
        self.index = 0
        self.statement: Statement | None = None
        self.used = 0
        self.start = 0
        self.dirty: set[int] = set()

    # --- one instruction -------------------------------------------------------------------------------------------

    def begin(self, index: int, statement: Statement) -> None:
        """Start the steps of a statement."""
        self.index, self.statement, self.used, self.start = index, statement, 0, len(self.code)

    def step(
        self, op: int, d: int = col.NOTHING, a: int = col.NOTHING, b: int = col.NOTHING, c: int = col.NOTHING,
        g: int = col.NOTHING, *, e: int = col.SCRATCH2, x: int = 0, y: int = 0, z: int = 0, rows: Sequence[int] = (),
    ) -> list[int]:  # fmt: skip
        """Append a step; one that writes a temporary is not guarded."""
        known = s.STEPS[op]
        line = [0] * col.COLUMNS
        line[col.OP], line[col.FAMILY], line[col.RULE] = op, known.family, known.rule
        line[col.D], line[col.E], line[col.A], line[col.B], line[col.C], line[col.G] = d, e, a, b, c, g
        line[col.X], line[col.Y], line[col.Z] = (_signed(value) for value in (x, y, z))
        line[col.GUARD] = -1
        line[col.INSTRUCTION] = self.index
        line[col.AUX], line[col.COUNT] = len(self.aux), len(rows)
        self.aux.extend(rows)
        line[col.TEMPORARY] = 1
        self.code.append(line)
        return line

    def temporary(self, op: int, *operands: int, e: int = col.SCRATCH2, x: int = 0, y: int = 0, z: int = 0) -> int:
        """A step whose result is a temporary; its row."""
        if self.used == len(self.rows.temporaries):
            self.rows.temporaries.append(self.rows.new((1 << 64) - 1))
        row = self.rows.temporaries[self.used]
        self.used += 1
        self.step(op, row, *operands, e=e, x=x, y=y, z=z)
        return row

    def end(self) -> None:
        """Put the guard on what the statement leaves behind, and mark its first step."""
        assert self.statement is not None
        guard = self.statement.guard
        if len(self.code) == self.start:
            self.step(s.NOP)
        self.code[self.start][col.FIRST] = 1
        temporaries = set(self.rows.temporaries)
        for line in self.code[self.start :]:
            writes = line[col.D] not in temporaries
            line[col.TEMPORARY] = 0 if writes or line[col.FAMILY] >= s.MEMORY else 1
            read = (line[col.A], line[col.B], line[col.C], line[col.G])
            line[col.ALIAS] = int(line[col.D] in read or line[col.E] in read)
            if guard and not line[col.TEMPORARY]:
                line[col.GUARD] = self.rows.register(self._known(guard.lstrip("!")))
                line[col.NEGATED] = int(guard.startswith("!"))

    def result(self, text: str, row: int) -> None:
        """Let the register named `text` have what the last step left in the temporary `row`."""
        if text == "_":
            return
        target = self.rows.register(self._known(text))
        last = self.code[-1] if len(self.code) > self.start else None
        if last and last[col.D] == row and row in self.rows.temporaries:
            last[col.D] = target
        else:
            self.step(s.MOV, target, row, x=(1 << 64) - 1)

    # --- operands --------------------------------------------------------------------------------------------------

    def _known(self, name: str) -> str:
        if name not in self.rows.registers:
            raise NotModelled(f"{name} is no register")
        return name

    def kind(self, text: str) -> str | None:
        """The type of a register; None for what is none."""
        return self.rows.registers.get(text)

    def target(self, text: str) -> int:
        """The row of a register that is written; NOTHING for the sink `_`."""
        return -1 if text == "_" else self.rows.register(self._known(text))

    def source(self, text: str, kind: str) -> int:
        """The row of an operand that is read: a register, an immediate, a special register, a symbol's address."""
        negated = text.startswith("!")
        name = text[1:].strip() if negated else text
        if name in self.rows.registers:
            row = self.rows.register(name)
            if negated:
                return self.temporary(s.XOR, row, self.rows.constant(1))
            have, want = mask_of(self.rows.registers[name]), mask_of(kind)
            return row if have <= want else self.temporary(s.MOV, row, x=want)
        if name in SPECIALS:
            special = SPECIALS.index(name)
            if special not in self.rows.specials:
                self.rows.specials[special] = self.rows.new(0)
            return self.rows.specials[special]
        return self.rows.constant(self.constant(name, kind))

    def constant(self, text: str, kind: str) -> int:
        """The bits of an immediate operand, or a symbol's address."""
        if text == "WARP_SZ":
            return 32
        symbol, plus, rest = text.partition("+")
        if symbol.strip() in self.rows.symbols:
            return (self.rows.symbols[symbol.strip()] + (int(rest, 0) if plus else 0)) & mask_of(kind)
        if text.startswith("%"):
            raise NotModelled(f"the special register {text} is not modelled")
        try:
            return immediate(text, kind) & mask_of(kind)
        except ValueError:
            raise NotModelled(f"cannot read the operand {text!r}") from None

    def divisor(self, text: str, kind: str) -> int | None:
        """The bits of an operand that is a constant, written as one or in a register that has no other value."""
        if text in self.rows.registers:
            return self.known.get(text)
        return self.constant(text, kind)

    def address(self, text: str) -> tuple[int, int]:
        """(row, offset) of `[register + offset]`, `[symbol + offset]` or `[number]`."""
        match = _ADDRESS.match(text)
        if match is None:
            raise NotModelled(f"cannot read the address {text!r}")
        base, sign, rest = match.groups()
        offset = (-1 if sign == "-" else 1) * int(rest, 0) if rest else 0
        if base in self.rows.registers:
            return self.rows.register(base), offset
        return self.rows.constant(self.constant(base, "u64")), offset

    def vector(self, text: str) -> tuple[str, ...]:
        """The elements of `{a, b}`; of a plain operand itself."""
        if not text.startswith("{"):
            return (text,)
        return tuple(each.strip() for each in text.strip("{} \t\n").split(","))

    def label(self, text: str) -> int:
        """The statement that a label stands before."""
        if text not in self.labels:
            raise NotModelled(f"there is no label {text}")
        return self.labels[text]


def _signed(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def float_constant(value: float) -> int:
    """The bits of a binary64 constant of a step."""
    return int(np.float64(value).view(np.uint64))


def binary32(bits: int) -> Any:
    """The binary32 number of a pattern."""
    return np.uint32(bits).view(np.float32)

"""An entry decoded for the machine: its statements as steps, its registers as rows, what may be undefined marked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvformat.errors import InputError
from kvformat.ptx import columns as col
from kvformat.ptx import steps as s
from kvformat.ptx.access import GENERIC, IN_LOCAL, IN_SHARED
from kvformat.ptx.arithmetic import fused, packed, parts_of, scalar
from kvformat.ptx.contraction import Contraction, contractible
from kvformat.ptx.emit import Emitter, NotModelled, Rows
from kvformat.ptx.errors import Refusal, Refused
from kvformat.ptx.memory import variable_addresses
from kvformat.ptx.syntax import Body, Statement, Variable, immediate
from kvformat.ptx.table import Call, table

if TYPE_CHECKING:
    from kvformat.ptx.module import Kernel


@dataclass(frozen=True)
class Program:
    """What the machine runs.

    code: int64 (steps, columns); aux: rows of vectors; initial: the state of each row at the start; widths: the bits of
    each row that undefinedness is known of; constants: (row, value); specials: (row, special register)
    """

    statements: tuple[Statement, ...]
    code: NDArray[np.int64]
    aux: NDArray[np.int64]
    initial: NDArray[np.int64]
    widths: NDArray[np.uint64]
    constants: tuple[tuple[int, int], ...]
    specials: NDArray[np.int64]
    shared_bytes: int
    local_bytes: int
    approximate: frozenset[int]
    contractible: frozenset[int]

    @property
    def rows(self) -> int:
        """Rows of the register file."""
        return len(self.widths)


def decode(kernel: Kernel, approximate: str = "ptxas", *, contract: bool = False) -> Program:
    """Decode an entry. Raises Refused with every instruction that is not modelled."""
    body = kernel.body
    symbols, shared, local = _places(kernel)
    rows = Rows(body.registers, symbols)
    emitter = Emitter(rows, approximate, _constants(body), body.labels)
    joined = contractible(body)
    bounded, refusals, starts = _emit(emitter, body, joined if contract else {})
    if refusals:
        raise Refused(kernel.name, tuple(refusals))
    starts.append(len(emitter.code))
    emitter.begin(len(body.statements), body.statements[-1] if body.statements else Statement("", "ret", (), None))  # type: ignore[arg-type]
    emitter.step(s.RET)[col.FIRST] = 0
    code = np.array(emitter.code, np.int64)
    jumps = code[:, col.OP] == s.BRA
    code[jumps, col.X] = np.array(starts, np.int64)[code[jumps, col.X]]
    aux = np.array(emitter.aux or [0], np.int64)
    initial, widths = _undefined(code, aux, rows)
    specials = np.array([(row, number) for number, row in rows.specials.items()], np.int64).reshape(-1, 2)
    return Program(
        tuple(body.statements), code, aux, initial, widths,
        tuple((row, value) for value, row in rows.constants.items()), specials, shared, local,
        frozenset(bounded), frozenset(joined),
    )  # fmt: skip


def _places(kernel: Kernel) -> tuple[dict[str, int], int, int]:
    """Every symbol's address or offset, and the bytes of static shared and of local memory."""
    source, body = kernel.module.source, kernel.body
    symbols = dict(variable_addresses(source.variables))
    sizes = {"shared": 0, "local": 0}
    extern: list[Variable] = []
    used = {word.strip("[]").split("+")[0].strip() for each in body.statements for word in each.operands}
    named = [each for each in source.variables.values() if each.space == "shared" and each.name in used]
    for variable in (*named, *body.variables.values()):
        if variable.space not in sizes:
            raise InputError(f"{kernel.name}: a .{variable.space} variable inside the entry is not modelled")
        if variable.extern:
            extern.append(variable)
            continue
        start = -(-sizes[variable.space] // variable.align) * variable.align
        symbols[variable.name] = start
        sizes[variable.space] = start + variable.size
    if extern:  # all extern arrays begin at one place, after the static ones
        align = max(each.align for each in extern)
        sizes["shared"] = -(-sizes["shared"] // align) * align
        symbols |= {each.name: sizes["shared"] for each in extern}
    for parameter in kernel.parameters:
        symbols[parameter.name] = parameter.offset
    return symbols, sizes["shared"], -(-sizes["local"] // 16) * 16


def _constants(body: Body) -> dict[str, int]:
    """Registers that are written once, with a constant: ptxas knows their value."""
    written: dict[str, int] = {}
    values: dict[str, int] = {}
    for statement in body.statements:
        if not statement.operands:
            continue
        for name in statement.operands[0].strip("{} ").replace("|", ",").split(","):
            written[name.strip()] = written.get(name.strip(), 0) + 1
        if statement.opcode.startswith("mov.") and not statement.guard and len(statement.operands) == 2:
            kind = statement.opcode.rpartition(".")[2]
            try:
                values[statement.operands[0]] = immediate(statement.operands[1], kind) & 0xFFFF_FFFF
            except ValueError:
                continue
    return {name: value for name, value in values.items() if written[name] == 1}


def _emit(emitter: Emitter, body: Body, joined: Mapping[int, Contraction]) -> tuple[set[int], list[Refusal], list[int]]:
    bounded: set[int] = set()
    refusals: list[Refusal] = []
    starts: list[int] = []
    known = table()
    for index, statement in enumerate(body.statements):
        starts.append(len(emitter.code))
        emitter.begin(index, statement)
        try:
            entry, words, types = known.find(statement.opcode)
            call = Call(statement.opcode.partition(".")[0], words, types, statement.operands)
            if entry.approximate:
                bounded.add(index)
            if index in joined:
                _contracted(emitter, call, joined[index])
            else:
                entry.build(emitter, call)
            emitter.end()
        except NotModelled as error:
            refusals.append(Refusal(statement.opcode, statement.place, str(error)))
    return bounded, refusals, starts


def _contracted(e: Emitter, call: Call, how: Contraction) -> None:
    kind = call.types[0]
    scalars = scalar(call, kind.removesuffix("x2"))
    operands = [parts_of(e, text, kind) for text in (how.a, how.b, how.c)]
    results = [
        fused(e, scalars, rows, minus_product=how.minus_product, minus_addend=how.minus_addend)
        for rows in zip(*operands, strict=True)
    ]
    packed(e, call.operands[0], kind, results)


# --- what may be undefined -----------------------------------------------------------------------------------------

#: what a load from these, a shuffle or a matrix gives may be undefined
_SOURCES = (s.SHFLSYNC, s.LDMATRIX)


def _undefined(code: NDArray[np.int64], aux: NDArray[np.int64], rows: Rows) -> tuple[Any, Any]:
    """Mark the steps that may meet undefined bits: only those cost anything. Returns the rows' states and widths."""
    registers = set(rows.by_name.values())
    reads, writes = _flow(code, aux, registers)
    tainted = _read_before_written(code, reads, writes)
    for index, line in enumerate(code):
        load = line[col.OP] == s.LD and line[col.C] in (GENERIC, IN_SHARED, IN_LOCAL)
        if load or line[col.OP] in _SOURCES:
            tainted |= set(writes[index])
    by_instruction: dict[int, tuple[set[int], set[int]]] = {}
    for index, line in enumerate(code):
        read, written = by_instruction.setdefault(int(line[col.INSTRUCTION]), (set(), set()))
        read.update(reads[index])
        written.update(writes[index])
    grew = True
    while grew:
        grew = False
        for read, written in by_instruction.values():
            if not written <= tainted and read & tainted:
                tainted |= written
                grew = True
    marked = {number for number, (read, written) in by_instruction.items() if (read | written) & tainted}
    code[:, col.TRACKED] = [int(line[col.INSTRUCTION]) in marked for line in code]
    initial = np.zeros(rows.count, np.int64)
    widths = np.zeros(rows.count, np.uint64)
    for row, mask in rows.widths.items():
        widths[row] = mask
    for row in tainted:
        initial[row] = col.UNTOUCHED
    return initial, widths


def _flow(
    code: NDArray[np.int64], aux: NDArray[np.int64], registers: set[int]
) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """The registers that each step reads and writes."""
    reads, writes = [], []
    for line in code.tolist():
        op = line[col.OP]
        listed = aux[line[col.AUX] : line[col.AUX] + line[col.COUNT]].tolist()
        read = [line[col.A], line[col.GUARD]]
        written = [line[col.D], line[col.E]]
        memory = op in (s.LD, s.ST, s.LDMATRIX, s.STMATRIX)
        if not memory:  # there C is the space and G the offset
            read += [line[col.B]] if op == s.ATOM else [line[col.B], line[col.C], line[col.G]]
        if op in (s.LD, s.LDMATRIX):
            written += listed
        elif memory:
            read += listed
        reads.append(tuple(row for row in read if row in registers))
        writes.append(tuple(row for row in written if row in registers))
    return reads, writes


def _read_before_written(
    code: NDArray[np.int64], reads: list[tuple[int, ...]], writes: list[tuple[int, ...]]
) -> set[int]:
    """Registers of which some path reads a value that it has not written (a guarded write is none)."""
    lines = code.tolist()
    heads = {0}
    for index, line in enumerate(lines):
        if line[col.OP] == s.BRA:
            heads |= {line[col.X], index + 1}
        elif line[col.OP] in (s.RET, s.TRAP):
            heads.add(index + 1)
    starts = sorted(head for head in heads if head < len(lines))
    ends = [*starts[1:], len(lines)]
    gains = []
    for start, end in zip(starts, ends, strict=True):
        gain = 0
        for index in range(start, end):
            if lines[index][col.GUARD] < 0:
                for row in writes[index]:
                    gain |= 1 << row
        gains.append(gain)
    block_of = {start: number for number, start in enumerate(starts)}
    after: list[list[int]] = []
    for end in ends:
        last = lines[end - 1]
        targets = []
        if last[col.OP] == s.BRA:
            targets.append(block_of[last[col.X]])
        if last[col.OP] not in (s.BRA, s.RET, s.TRAP) or last[col.GUARD] >= 0:
            targets += [block_of[end]] if end in block_of else []
        after.append(targets)
    everything = (1 << 62 + max((row for each in writes for row in each), default=0)) - 1
    known = [everything] * len(starts)
    known[0] = 0
    todo = [0]
    while todo:
        block = todo.pop()
        out = known[block] | gains[block]
        for target in after[block]:
            if known[target] & out != known[target]:
                known[target] &= out
                todo.append(target)
    found: set[int] = set()
    for have, start, end in zip(known, starts, ends, strict=True):
        for index in range(start, end):
            found.update(row for row in reads[index] if not have >> row & 1)
            if lines[index][col.GUARD] < 0:
                for row in writes[index]:
                    have |= 1 << row
    return found

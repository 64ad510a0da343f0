"""A launch: arguments checked and laid out, blocks run tile by tile, what went wrong put into one line."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kvformat.errors import InputError
from kvformat.ptx import access, machine
from kvformat.ptx import columns as col
from kvformat.ptx.decode import Program
from kvformat.ptx.errors import KernelFault
from kvformat.ptx.key import key
from kvformat.ptx.lanes import addresses
from kvformat.ptx.memory import Segments, Struct
from kvformat.ptx.module import APPROXIMATE, Run, Spot
from kvformat.ptx.syntax import Parameter

if TYPE_CHECKING:
    from kvformat.ptx.module import Kernel

#: lanes of a tile: enough to hide the cost of a step, few enough for the rows to stay in the cache
TILE = 1024
#: the largest block of every GPU, and the largest extents of a grid
MOST_THREADS = 1024
_GRID = (2**31 - 1, 65535, 65535)


Extent = tuple[int, int, int]

FAULTS = {
    access.OUT_OF_BOUNDS: "out of bounds",
    access.MISALIGNED: "misaligned",
    access.READ_ONLY: "read-only memory written",
    access.UNDEFINED_ADDRESS: "undefined address",
    access.UNDEFINED_VALUE: "undefined value in memory",
    access.UNDEFINED_PREDICATE: "undefined predicate",
    access.RACE: "race",
    access.DIVISION_BY_ZERO: "division by zero",
    access.TRAP: "trap",
    access.BARRIER: "barrier",
    access.SHUFFLE: "warp",
    access.STEP_LIMIT: "step limit",
    access.ASSERTION: "assertion",
}
_DETAILS = {
    "undefined address": "the address depends on a register that was never written",
    "undefined value in memory": "a value that depends on what was never written reaches memory",
    "undefined predicate": "a branch or an access depends on what was never written",
    "race": "two threads, with no barrier between them, write different bytes to one place",
    "division by zero": "an integer divided by zero has no defined value",
    "trap": "the kernel stopped itself",
    "barrier": "not all threads of the block reach the barrier",
    "warp": "not all lanes that the instruction names reach it, or a lane that it does not name does",
    "assertion": "an assertion of the kernel failed",
}


def launch(
    kernel: Kernel, grid: int | Sequence[int], block: int | Sequence[int], args: Sequence[Any], *, shared: int,
    approximate: str, contract: bool, seed: int, step_limit: int, memory_limit: int,
    progress: Callable[[int, int], object] | None,
) -> Run:  # fmt: skip
    """`Kernel.launch`."""
    if approximate not in APPROXIMATE:
        raise InputError(f"approximate is one of {', '.join(APPROXIMATE)}; got {approximate!r}")
    blocks, threads = _extent(grid, "grid"), _extent(block, "block")
    _fits(kernel, blocks, threads, shared)
    program = kernel.program(approximate, contract=contract)
    segments = Segments(kernel.module.memory)
    parameters = _parameters(kernel, args, segments)
    tile = _Tile(kernel, program, segments, parameters, blocks, threads, program.shared_bytes + shared, memory_limit)
    return tile.run(seed, step_limit, progress, contracted=contract)


def _extent(value: int | Sequence[int], what: str) -> Extent:
    numbers = (value,) if isinstance(value, int | np.integer) else tuple(value)
    if not 1 <= len(numbers) <= 3 or any(int(n) != n or n < 1 for n in numbers):
        raise InputError(f"{what} is one to three positive integers; got {value!r}")
    x, y, z = (*map(int, numbers), 1, 1)[:3]
    return x, y, z


def _fits(kernel: Kernel, grid: Extent, block: Extent, shared: int) -> None:
    if any(n > most for n, most in zip(grid, _GRID, strict=True)):
        raise InputError(f"a grid has at most {_GRID} blocks; got {grid}")
    threads = block[0] * block[1] * block[2]
    if threads > MOST_THREADS or block[2] > 64:
        raise InputError(f"a block has at most {MOST_THREADS} threads, 64 of them in z; got {block}")
    if kernel.required_block and block != kernel.required_block:
        raise InputError(f"{kernel.name} demands blocks of {kernel.required_block} (.reqntid); got {block}")
    if kernel.largest_block:
        x, y, z = kernel.largest_block
        if threads > x * y * z:
            raise InputError(f"{kernel.name} allows {x * y * z} threads a block (.maxntid); got {block}")
    if shared < 0:
        raise InputError(f"shared is a number of bytes; got {shared}")


# --- arguments -----------------------------------------------------------------------------------------------------


def _parameters(kernel: Kernel, args: Sequence[Any], segments: Segments) -> NDArray[np.uint8]:
    if len(args) != len(kernel.parameters):
        raise InputError(f"{kernel.name} takes {len(kernel.parameters)} arguments; got {len(args)}")
    pairs = list(zip(kernel.parameters, args, strict=True))
    for number, value in enumerate(args):
        what = f"argument {number} of {kernel.name}"
        if isinstance(value, Struct):
            for offset, inner in value.fields.items():
                if _is_array(inner):
                    segments.add(inner, f"{what}, offset {offset},")
        elif _is_array(value):
            segments.add(value, what)
    segments.finish()
    size = max((each.offset + each.size for each in kernel.parameters), default=0)
    laid = np.zeros(max(size, 1), np.uint8)
    for number, (parameter, value) in enumerate(pairs):
        found = _bytes(parameter, value, segments, f"argument {number} of {kernel.name} (.{parameter.type})")
        laid[parameter.offset : parameter.offset + parameter.size] = np.frombuffer(found, np.uint8)
    return laid


def _is_array(value: Any) -> bool:
    return (isinstance(value, np.ndarray) and value.ndim > 0) or hasattr(value, "untyped_storage")


def _bytes(parameter: Parameter, value: Any, segments: Segments, what: str) -> bytes:
    size = parameter.size
    if isinstance(value, Struct):
        return _struct(parameter, value, segments, what)
    if isinstance(value, bytes | bytearray):
        if len(value) != size:
            raise InputError(f"{what} has {size} bytes; got {len(value)}")
        return bytes(value)
    if parameter.type == "b8" or size > 8:
        raise InputError(f"{what} is a struct of {size} bytes: pass bytes or a ptx.Struct; got {type(value).__name__}")
    if value is None or _is_array(value):
        if size != 8:
            raise InputError(f"{what} is no pointer; got {'None' if value is None else 'an array'}")
        return (0 if value is None else segments.address(value)).to_bytes(8, "little")
    return _number(parameter, value, what)


def _struct(parameter: Parameter, value: Struct, segments: Segments, what: str) -> bytes:
    if value.size != parameter.size:
        raise InputError(f"{what} has {parameter.size} bytes; got a Struct of {value.size}")
    out = bytearray(value.size)
    for offset, inner in value.fields.items():
        if _is_array(inner):
            piece = segments.address(inner).to_bytes(8, "little")
        elif isinstance(inner, np.generic):
            piece = inner.tobytes()
        elif isinstance(inner, bytes | bytearray):
            piece = bytes(inner)
        else:
            raise InputError(
                f"{what}, offset {offset}: a field is bytes, a NumPy scalar or an array; got {type(inner).__name__}"
            )
        if not 0 <= offset <= value.size - len(piece):
            raise InputError(f"{what}: {len(piece)} bytes at offset {offset} do not fit into {value.size}")
        out[offset : offset + len(piece)] = piece
    return bytes(out)


def _number(parameter: Parameter, value: Any, what: str) -> bytes:
    size, kind = parameter.size, parameter.type
    if isinstance(value, bool | np.bool_):
        value = int(value)
    if kind[0] == "f" or (isinstance(value, float | np.floating) and kind[0] == "b"):
        if not isinstance(value, int | float | np.number):
            raise InputError(f"{what} is a number; got {type(value).__name__}")
        dtype: Any = {2: np.float16, 4: np.float32, 8: np.float64}[size]
        with np.errstate(over="ignore"):
            real = dtype(value)
        if np.isinf(real) and not np.isinf(np.float64(value)):
            raise InputError(f"{what} does not hold {value}")
        return bytes(real.tobytes())
    if not isinstance(value, int | np.integer):
        raise InputError(f"{what} is an integer; got {value!r}")
    number, bits = int(value), 8 * size
    if not -(1 << bits - 1) <= number < 1 << bits:
        raise InputError(f"{what} does not hold {number}")
    return (number & ((1 << bits) - 1)).to_bytes(size, "little")


# --- tiles ---------------------------------------------------------------------------------------------------------


class _Tile:
    """The memory of one tile, and the loop over all of them."""

    def __init__(
        self, kernel: Kernel, program: Program, segments: Segments, parameters: NDArray[np.uint8], grid: Extent,
        block: Extent, shared: int, memory_limit: int,
    ) -> None:  # fmt: skip
        self.kernel, self.program, self.grid, self.block = kernel, program, grid, block
        self.threads = block[0] * block[1] * block[2]
        self.blocks = grid[0] * grid[1] * grid[2]
        self.at_once = max(1, min(TILE // self.threads, self.blocks))
        lanes = self.at_once * self.threads
        needed = lanes * (16 * program.rows + 2 * program.local_bytes) + self.at_once * 10 * shared
        if needed > memory_limit:
            raise InputError(
                f"{kernel.name} needs {needed >> 20} MiB for registers, shared and local memory; memory_limit is "
                f"{memory_limit >> 20} MiB"
            )
        self.registers = np.zeros((program.rows, lanes), np.uint64)
        self.marks = np.zeros((program.rows, lanes), np.uint64)
        for row, value in program.constants:
            self.registers[row] = value
        self.state = np.zeros(program.rows, np.int64)
        self.rows, self.kept = segments.table()
        self.shared = np.zeros((self.at_once, shared), np.uint8)
        self.shared_marks = np.zeros((self.at_once, shared), np.uint8)
        self.shared_tags = np.zeros((self.at_once, shared), np.uint64)
        self.local = np.zeros((lanes, program.local_bytes), np.uint8)
        self.local_marks = np.zeros((lanes, program.local_bytes), np.uint8)
        self.parameters = parameters
        segments.window(self.rows, access.SHARED, self.shared, shared, self.shared_marks, self.shared_tags)
        segments.window(self.rows, access.LOCAL, self.local, program.local_bytes, self.local_marks, None)
        segments.window(self.rows, access.PARAM, parameters, len(parameters), None, None)

    def run(
        self, seed: int, step_limit: int, progress: Callable[[int, int], object] | None, *, contracted: bool
    ) -> Run:
        """Run every tile."""
        program = self.program
        statements = len(program.statements) + 1
        counts, undefined, ordered = (np.zeros(statements, np.int64) for _ in range(3))
        totals, fault = np.zeros(1, np.int64), np.zeros(4, np.int64)
        shape = np.array([*self.block, *self.grid], np.int64)
        steps = 0
        loops = addresses(program.code[:, col.OP].tolist())
        for first in range(0, self.blocks, self.at_once):
            count = min(self.at_once, self.blocks - first)
            self._scramble(seed, first)
            totals[0] = 0
            wrong = machine.run(
                key("machine"), loops, program.code, program.aux, self.registers, self.marks, self.state,
                program.initial, program.widths, program.specials, shape, self.rows, first, count,
                np.uint64(seed % 2**64), step_limit - steps, counts, undefined, ordered, totals, fault,
            )  # fmt: skip
            if wrong:
                raise self._fault(int(wrong), fault, first, step_limit)
            steps += int(totals[0])
            if progress:
                progress(first + count, self.blocks)

        def spots(numbers: Any) -> tuple[Spot, ...]:
            return tuple(
                Spot(program.statements[i].opcode, program.statements[i].place, int(counts[i]))
                for i in sorted(numbers)
                if i < len(program.statements) and counts[i]
            )

        return Run(
            int(counts.sum()), steps, spots(program.approximate), spots(program.contractible), contracted,
            spots(np.flatnonzero(undefined)), spots(np.flatnonzero(ordered)),
        )  # fmt: skip

    def _scramble(self, seed: int, first: int) -> None:
        """Shared and local memory start as random bits, or as blocks before left them, all undefined."""
        if self.shared.size or self.local.size:
            for values, marks in ((self.shared, self.shared_marks), (self.local, self.local_marks)):
                if first == 0:  # later blocks find what earlier ones left
                    random = np.random.Generator(np.random.PCG64(seed % 2**64))
                    values[:] = random.integers(0, 256, values.shape, np.uint8)
                marks[:] = 0xFF
            self.shared_tags[:] = 0

    def _fault(self, wrong: int, fault: NDArray[np.int64], first: int, step_limit: int) -> KernelFault:
        kind = FAULTS[wrong]
        line = self.program.code[fault[0]]
        number = int(line[col.INSTRUCTION])
        known = number < len(self.program.statements)
        statement = self.program.statements[number] if known else None
        lane = int(fault[1])
        block, thread = first + lane // self.threads, lane % self.threads
        where = None if kind == "step limit" else _split(block, self.grid)
        who = None if kind == "step limit" else _split(thread, self.block)
        detail = _DETAILS.get(kind, "")
        if kind in ("out of bounds", "misaligned", "read-only memory written"):
            size = int(line[col.X]) * max(1, int(line[col.COUNT]))
            detail = self._access(int(fault[2]) % 2**64, 16 if line[col.FAMILY] > 3 else size, int(line[col.C]))
        elif kind == "step limit":
            detail = f"more than {step_limit} steps"
        return KernelFault(kind, detail, str(statement or "ret"), statement.place if statement else None, where, who)

    def _access(self, address: int, size: int, space: int) -> str:
        names = {access.IN_SHARED: "shared memory", access.IN_LOCAL: "local memory", access.IN_PARAM: "the parameters"}
        segment = address >> access.SEGMENT_BITS
        if space in names:
            segment, offset = space, address
        else:
            offset = address & ((1 << access.SEGMENT_BITS) - 1)
        if segment in names and 0 < segment < len(self.rows):
            return f"{size} bytes at offset {_signed(offset)} of {names[segment]} ({int(self.rows[segment, 1])} bytes)"
        if not access.FIRST_BUFFER <= segment < len(self.rows) - 1:
            return f"{size} bytes at address {address:#x}, where nothing is"
        variables = self.kernel.module.memory.variables
        number = segment - access.FIRST_BUFFER
        name = variables[number].name if number < len(variables) else f"buffer {number - len(variables)}"
        return f"{size} bytes at offset {_signed(offset)} of {name} ({int(self.rows[segment, 1])} bytes)"


def _signed(offset: int) -> int:
    return offset - (1 << access.SEGMENT_BITS) if offset >> (access.SEGMENT_BITS - 1) else offset


def _split(index: int, extent: Extent) -> Extent:
    return index % extent[0], index // extent[0] % extent[1], index // (extent[0] * extent[1])

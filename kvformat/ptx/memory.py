"""What a launch can reach: the module's variables, and the caller's arrays, each at an address of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvformat.errors import InputError
from kvformat.ptx.access import FIRST_BUFFER, HOST, SEGMENT_BITS, SIZE, STRIDE, TAGS, UNDEFINED
from kvformat.ptx.syntax import Variable


@dataclass(frozen=True)
class Struct:
    """A struct passed by value, field by field; what no field names is zero.

    size: bytes. fields: offset -> bytes, a NumPy scalar (its own width), an array or CPU tensor (its 8-byte address).
    """

    size: int
    fields: Mapping[int, Any]


def _global(variables: Mapping[str, Variable]) -> Iterator[Variable]:
    yield from (each for each in variables.values() if each.space in ("global", "const"))


def variable_addresses(variables: Mapping[str, Variable]) -> dict[str, int]:
    """The address of every `.global` and `.const` variable: a segment each, from the first on."""
    return {each.name: (FIRST_BUFFER + k) << SEGMENT_BITS for k, each in enumerate(_global(variables))}


class ModuleMemory:
    """The module's variables with the values that launches left in them."""

    def __init__(self, variables: Mapping[str, Variable]) -> None:
        self.variables = list(_global(variables))
        self.values = [np.frombuffer(each.initial, np.uint8).copy() for each in self.variables]

    def __getitem__(self, name: str) -> NDArray[np.uint8]:
        """The bytes of a variable, to be read or written between launches."""
        for variable, value in zip(self.variables, self.values, strict=True):
            if variable.name == name:
                return value
        raise InputError(f"the module has no variable {name!r}; it has {', '.join(v.name for v in self.variables)}")


class Buffer:
    """The whole storage behind an array: first byte on the host, size, and whether it may be written."""

    def __init__(self, value: Any, what: str) -> None:
        if hasattr(value, "untyped_storage"):  # a torch tensor, of any dtype
            if value.device.type != "cpu":
                raise InputError(f"{what} is a tensor on {value.device}; a launch on the CPU takes CPU tensors")
            storage = value.untyped_storage()
            self.host, self.size, self.writable = int(storage.data_ptr()), int(storage.nbytes()), True
            self.first = int(value.data_ptr())
            self.owner: Any = value
            return
        if not isinstance(value, np.ndarray):
            raise InputError(f"{what} is to be an array or a CPU tensor; got {type(value).__name__}")
        self.writable = bool(value.flags.writeable)
        owner = value
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        # an array that owns its memory begins where its pointer points, and is contiguous
        self.host, self.size, self.owner = int(owner.__array_interface__["data"][0]), int(owner.nbytes), value
        self.first = int(value.__array_interface__["data"][0])


class Segments:
    """The table of segments of one launch; buffers whose bytes overlap share one."""

    def __init__(self, module: ModuleMemory) -> None:
        self.module = module
        self.found: list[Buffer] = []

    def add(self, value: Any, what: str) -> None:
        """Take up the storage of an array."""
        self.found.append(Buffer(value, what))

    def finish(self) -> None:
        """Merge storages that overlap, and give each a segment, in the order of the arguments."""
        merged: list[list[int]] = []
        for number, buffer in sorted(enumerate(self.found), key=lambda each: each[1].host):
            last = merged[-1] if merged else None
            if last and buffer.host < last[1]:
                last[1] = max(last[1], buffer.host + buffer.size)
                last[2] |= buffer.writable
                last[3] = min(last[3], number)
            else:
                merged.append([buffer.host, buffer.host + buffer.size, int(buffer.writable), number])
        # where the host put them says nothing to a reader of an error
        self.spans = [(low, high, bool(writable)) for low, high, writable, _ in sorted(merged, key=lambda s: s[3])]
        self.base = FIRST_BUFFER + len(self.module.values)

    def address(self, value: Any) -> int:
        """The address of an array's first element."""
        first = Buffer(value, "array").first
        for number, (low, high, _) in enumerate(self.spans):
            if low <= first < high or (low == high == first):
                return ((self.base + number) << SEGMENT_BITS) + first - low
        # an array without elements
        return (self.base + len(self.spans)) << SEGMENT_BITS

    def table(self) -> tuple[NDArray[np.uint64], list[Any]]:
        """Host address, size and tags of every segment; what keeps the tags alive."""
        rows = np.zeros((self.base + len(self.spans) + 1, 5), np.uint64)
        keep: list[Any] = []
        places = [
            (int(value.__array_interface__["data"][0]), value.nbytes, variable.space == "global")
            for variable, value in zip(self.module.variables, self.module.values, strict=True)
        ]
        places += [(low, high - low, writable) for low, high, writable in self.spans]
        for number, (host, size, writable) in enumerate(places, FIRST_BUFFER):
            rows[number, HOST], rows[number, SIZE] = host, size
            if writable and size:
                tags = np.zeros(size, np.uint64)  # pages that nobody touches cost nothing
                keep.append(tags)
                rows[number, TAGS] = tags.__array_interface__["data"][0]
        return rows, keep

    @staticmethod
    def window(
        rows: NDArray[np.uint64], segment: int, values: NDArray[np.uint8], size: int, unknown: Any, tags: Any
    ) -> None:
        """Enter shared memory, local memory or the parameters: one piece of `size` bytes per block or thread."""
        rows[segment, HOST] = values.__array_interface__["data"][0]
        rows[segment, SIZE] = size
        rows[segment, STRIDE] = values.shape[-1] if values.ndim > 1 else 0
        rows[segment, UNDEFINED] = unknown.__array_interface__["data"][0] if unknown is not None else 0
        rows[segment, TAGS] = tags.__array_interface__["data"][0] if tags is not None else 0

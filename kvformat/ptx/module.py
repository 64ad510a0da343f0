"""A module of PTX, its kernels, and a launch of one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvformat.errors import InputError
from kvformat.ptx.errors import Refusal, Refused
from kvformat.ptx.syntax import Body, Header, Parameter, Place, Source

if TYPE_CHECKING:
    from kvformat.ptx.decode import Program
    from kvformat.ptx.memory import ModuleMemory

#: policies of approximate instructions
APPROXIMATE = ("ptxas", "nearest", "lowest", "highest")


@dataclass(frozen=True)
class Spot:
    """One instruction of an entry and how often threads executed it (0 in a count without a run)."""

    opcode: str
    place: Place
    executed: int = 0

    def __str__(self) -> str:
        times = f" x {self.executed}" if self.executed else ""
        return f"{self.place}: {self.opcode}{times}"


@dataclass(frozen=True)
class Run:
    """What a launch did.

    Attributes
    ----------
    instructions : instructions executed, each counted once for every thread that executed it
    steps : instructions issued by the machine, once for all threads that executed it together
    approximate : the approximate instructions that were executed
    contractible : the additions that ptxas may contract with a multiplication, and that were executed
    contracted : whether they ran contracted
    undefined : the instructions that read undefined bits (which reached neither memory nor an address)
    order_dependent : atomics whose result depends on the order of threads: a return value that is used, or different
        operations on one address

    """

    instructions: int
    steps: int
    approximate: tuple[Spot, ...]
    contractible: tuple[Spot, ...]
    contracted: bool
    undefined: tuple[Spot, ...]
    order_dependent: tuple[Spot, ...]


def load(path_or_text: str | Path) -> Module:
    """Load PTX from a file, or from text (which has line breaks).

    Raises
    ------
    InputError : no such file, no PTX, or PTX that is cut off.

    """
    if isinstance(path_or_text, str) and "\n" in path_or_text:
        return Module(path_or_text)
    path = Path(path_or_text)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is no text; PTX is text (a cubin has to be compiled again with -ptx)") from None
    return Module(text, path.name)


class Module:
    """PTX with the entries indexed; an entry is parsed when it is used first.

    Attributes
    ----------
    target : "sm_90a"
    version : the PTX version, "9.4"
    kernels : mangled name -> demangled name (the same where a name is not mangled)

    """

    def __init__(self, text: str, name: str = "PTX") -> None:
        self.source = Source(text, name)
        self.target, self.version = self.source.target, self.source.version
        self.kernels: Mapping[str, str] = {each: demangled(each) for each in self.source.entries}
        self._kernels: dict[str, Kernel] = {}

    def __getitem__(self, part: str) -> Kernel:
        """The kernel with that name, or the one whose mangled or demangled name contains it."""
        exact = [name for name, plain in self.kernels.items() if part in (name, plain)]
        found = exact or [name for name, plain in self.kernels.items() if part in name or part in plain]
        if len(found) != 1:
            names = ", ".join(sorted(found or self.kernels)[:5])
            what = f"{len(found)} kernels have {part!r} in their name" if found else f"no kernel is called {part!r}"
            raise InputError(f"{self.source.name}: {what}; {'they' if found else 'there'} are: {names or 'none'}")
        if found[0] not in self._kernels:
            self._kernels[found[0]] = Kernel(self, self.source.entries[found[0]])
        return self._kernels[found[0]]

    @cached_property
    def memory(self) -> ModuleMemory:
        """The module's variables; they keep their values between launches."""
        from kvformat.ptx.memory import ModuleMemory

        return ModuleMemory(self.source.variables)


class Kernel:
    """One entry of a module.

    Attributes
    ----------
    name, demangled : its names
    parameters : name, type, size, align and offset of each
    required_block : what `.reqntid` demands, or None

    """

    def __init__(self, module: Module, header: Header) -> None:
        self.module, self.header = module, header
        self.name, self.demangled = header.name, demangled(header.name)
        self.parameters: tuple[Parameter, ...] = header.parameters
        self.required_block = _extent(header.directives, "reqntid")
        self.largest_block = _extent(header.directives, "maxntid")
        self._programs: dict[tuple[str, bool], Program] = {}

    @cached_property
    def body(self) -> Body:
        """The entry's statements, labels, registers and variables."""
        return self.module.source.body(self.header)

    @cached_property
    def counts(self) -> Mapping[str, int]:
        """How often each opcode stands in the entry."""
        return Counter(statement.opcode for statement in self.body.statements)

    @cached_property
    def refused(self) -> tuple[Refusal, ...]:
        """The instructions that are not modelled: a launch raises Refused with them."""
        from kvformat.ptx.decode import decode

        try:
            self._programs["ptxas", False] = decode(self)
        except Refused as refusal:
            return refusal.refusals
        return ()

    @property
    def approximate(self) -> tuple[Spot, ...]:
        """The approximate instructions of the entry (those that are modelled)."""
        from kvformat.ptx.table import is_approximate

        return tuple(Spot(each.opcode, each.place) for each in self.body.statements if is_approximate(each.opcode))

    @property
    def contractible(self) -> tuple[Spot, ...]:
        """The additions and subtractions that ptxas may contract with the multiplication before them."""
        from kvformat.ptx.contraction import contractible

        statements = self.body.statements
        return tuple(Spot(statements[i].opcode, statements[i].place) for i in sorted(contractible(self.body)))

    def program(self, approximate: str = "ptxas", *, contract: bool = False) -> Program:
        """The entry decoded for the machine. Raises Refused."""
        from kvformat.ptx.decode import decode

        if approximate not in APPROXIMATE:
            raise InputError(f"approximate is one of {', '.join(APPROXIMATE)}; got {approximate!r}")
        if (approximate, contract) not in self._programs:
            self._programs[approximate, contract] = decode(self, approximate, contract=contract)
        return self._programs[approximate, contract]

    def launch(
        self,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        args: Sequence[Any],
        *,
        shared: int = 0,
        approximate: str = "ptxas",
        contract: bool = False,
        seed: int = 0,
        step_limit: int = 1_000_000_000,
        memory_limit: int = 4 << 30,
        progress: Callable[[int, int], object] | None = None,
    ) -> Run:
        """Run the kernel over a grid, on the CPU, as its PTX defines it.

        Parameters
        ----------
        grid, block : one to three extents
        args : one per parameter. Arrays and CPU tensors are written in place: the kernel gets the address, and may
            touch all of the storage that the array is a view of. None is the null pointer. Numbers follow the
            parameter's type and must fit. A struct is `bytes` of its size, or a `Struct`, which can hold addresses.
        shared : bytes of dynamic shared memory per block
        approximate : `ptxas` (a quotient by a constant is a product with its rounded reciprocal; otherwise the nearest
            value), `nearest`, `lowest` or `highest` (within the documented bound)
        contract : run the additions contracted that ptxas may contract
        seed : of the random bits that registers, shared and local memory start with
        step_limit : steps of the machine after which the launch is stopped
        memory_limit : bytes the machine may take for registers, shared and local memory
        progress : called with (blocks done, blocks in all)

        Raises
        ------
        Refused : an instruction is not modelled
        KernelFault : the launch is not defined: out of bounds, misaligned, an undefined value in memory or an address,
            a race, a barrier that never completes, `trap`
        InputError : wrong arguments

        """
        from kvformat.ptx.launch import launch

        return launch(
            self,
            grid,
            block,
            args,
            shared=shared,
            approximate=approximate,
            contract=contract,
            seed=seed,
            step_limit=step_limit,
            memory_limit=memory_limit,
            progress=progress,
        )


def _extent(directives: str, name: str) -> tuple[int, int, int] | None:
    match = re.search(rf"\.{name}\s+(\d+)(?:\s*,\s*(\d+))?(?:\s*,\s*(\d+))?", directives)
    return (int(match[1]), int(match[2] or 1), int(match[3] or 1)) if match else None


def demangled(name: str) -> str:
    """The C++ name of a mangled one, without its arguments: `vllm::cache<float>`; a part of it where it is involved."""
    if not name.startswith("_Z"):
        return name
    parts: list[str] = []
    position = 3 if name.startswith("_ZN") else 2
    while position < len(name):
        length = re.match(r"\d+", name[position:])
        if length is None:
            if name[position : position + 12] == "_GLOBAL__N__":  # pragma: no cover
                break
            break
        start = position + length.end()
        part = name[start : start + int(length[0])]
        parts.append("(anonymous namespace)" if part.startswith("_GLOBAL__N_") else part)
        position = start + int(length[0])
        if not name.startswith("_ZN"):
            break
    return "::".join(parts) or name

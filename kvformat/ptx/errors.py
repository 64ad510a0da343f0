"""What a kernel cannot be judged for: an instruction that is not modelled, or a launch that went wrong."""

from __future__ import annotations

from dataclasses import dataclass

from kvformat.errors import InputError
from kvformat.ptx.syntax import Place


@dataclass(frozen=True)
class Refusal:
    """One instruction that is not in the table, and the word of it that is not."""

    opcode: str
    place: Place
    why: str

    def __str__(self) -> str:
        return f"{self.place}: {self.opcode}: {self.why}"


class Refused(InputError):  # noqa: N818 what it says of the kernel
    """The entry has instructions that are not modelled; `refusals` lists them all."""

    def __init__(self, entry: str, refusals: tuple[Refusal, ...]) -> None:
        self.refusals = refusals
        more = f" (and {len(refusals) - 1} more)" if len(refusals) > 1 else ""
        super().__init__(f"{entry}: {refusals[0]}{more}")


class KernelFault(InputError):  # noqa: N818 the kernel's, not the caller's
    """A launch that no GPU would finish in a defined way.

    Attributes
    ----------
    kind : the word of `kvformat.ptx.machine.FAULTS`: "out of bounds", "misaligned", "undefined address", ...
    statement, place : the instruction and where it stands
    block, thread : (x, y, z) each, of the thread that met it; None where all threads did

    """

    def __init__(
        self,
        kind: str,
        detail: str,
        statement: str,
        place: Place | None,
        block: tuple[int, int, int] | None,
        thread: tuple[int, int, int] | None,
    ) -> None:
        self.kind, self.statement, self.place = kind, statement, place
        self.block, self.thread = block, thread
        who = f"; block {block}, thread {thread}" if block is not None else ""
        at = f"; {place}: {statement}" if place is not None else ""
        super().__init__(f"{kind}: {detail}{at}{who}")

"""One instruction on arrays of operand bit patterns: what the oracles compare with assemblers and headers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray


def evaluate(
    opcode: str, operands: Sequence[NDArray[Any] | int], *, approximate: str = "ptxas"
) -> NDArray[Any] | tuple[NDArray[Any], ...]:
    """Run one instruction that touches neither memory nor other threads.

    Parameters
    ----------
    opcode : `add.rn.ftz.f32`, `cvt.rn.satfinite.e4m3x2.f32`, `setp.lt.and.f32`, ...
    operands : the sources in the order of the instruction, as unsigned bit patterns: arrays of one length, or an
        integer for all lanes (an immediate: `lop3`'s table, `bfi`'s position). Predicates are 0 and 1.
    approximate : the policy of approximate instructions, as `Kernel.launch` takes it.

    Returns
    -------
    The result's bit pattern for each lane, in the smallest unsigned dtype that holds its register (uint8 for
    predicates); a pair for an instruction with two results (`setp` with `|`).

    Raises
    ------
    Refused : the instruction is not in the table.
    InputError : not as many operands as it takes, or arrays of different lengths.

    """
    raise NotImplementedError

"""One instruction on arrays of operand bit patterns: what the oracles compare with assemblers and headers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvformat.errors import InputError
from kvformat.ptx import columns as col
from kvformat.ptx import steps as s
from kvformat.ptx.convert import container
from kvformat.ptx.emit import Emitter, NotModelled, Rows, bits_of
from kvformat.ptx.errors import Refusal, Refused
from kvformat.ptx.key import key
from kvformat.ptx.lanes import addresses, straight
from kvformat.ptx.syntax import Place, Statement
from kvformat.ptx.table import Call, table

#: lanes at once: rows of 32 KiB stay in the cache
LANES = 4096

#: instructions whose sources are not of their last type: the type of each source
_SOURCES = {
    "shl": ("", "u32"), "shr": ("", "u32"), "bfe": ("", "u32", "u32"), "bfi": ("", "", "u32", "u32"),
    "selp": ("", "", "pred"), "lop3": ("", "", "", "u32"),
}  # fmt: skip


def evaluate(
    opcode: str, operands: Sequence[NDArray[Any] | int], *, approximate: str = "ptxas"
) -> NDArray[Any] | tuple[NDArray[Any], ...]:
    """Run one instruction that touches neither memory nor other threads.

    Parameters
    ----------
    opcode : `add.rn.ftz.f32`, `cvt.rn.satfinite.e4m3x2.f32`, `setp.lt.f32`, ...
    operands : the sources in the order of the instruction, as unsigned bit patterns: arrays of one length, or an
        integer for all lanes, which the instruction then has as an immediate (`lop3`'s table must be one).
        Predicates are 0 and 1.
    approximate : the policy of approximate instructions, as `Kernel.launch` takes it.

    Returns
    -------
    The result's bit pattern for each lane, in the smallest unsigned dtype that holds its register (uint8 for
    predicates).

    Raises
    ------
    Refused : the instruction is not in the table.
    InputError : not as many operands as it takes, arrays of different lengths, an instruction of memory or of a warp.

    """
    arrays = [np.asarray(each) for each in operands if not isinstance(each, int)]
    sizes = {each.shape for each in arrays}
    if len(sizes) != 1 or any(each.ndim != 1 or each.dtype.kind != "u" for each in arrays):
        raise InputError("operands are unsigned arrays of one axis and one length, and integers")
    immediates = tuple(each if isinstance(each, int) else None for each in operands)
    code, constants, sources, rows, kind = _program(opcode, immediates, approximate)
    lanes = np.zeros((rows, LANES), np.uint64)
    for row, value in constants:
        lanes[row] = value
    size = arrays[0].size
    out = np.empty(size, np.uint8 if kind == "pred" else f"u{max(1, bits_of(kind) // 8)}")
    for start in range(0, size, LANES):
        count = min(LANES, size - start)
        for row, array in zip(sources, arrays, strict=True):
            lanes[row, :count] = array[start : start + count]
        _run(code, lanes, count)
        out[start : start + count] = lanes[_RESULT, :count]
    return out


#: the first register is the result
_RESULT = col.FIRST_ROW


def _run(code: NDArray[np.int64], lanes: NDArray[np.uint64], count: int) -> None:
    straight(key("lanes"), addresses(code[:, col.OP].tolist()), code, lanes, count)


@cache
def _program(
    opcode: str, immediates: tuple[int | None, ...], policy: str
) -> tuple[NDArray[np.int64], tuple[tuple[int, int], ...], tuple[int, ...], int, str]:
    place = Place(1)
    try:
        entry, words, types = table().find(opcode)
        root = opcode.partition(".")[0]
        result, source = _kinds(root, words, types)
        kinds = {"%d": result}
        texts = []
        for number, value in enumerate(immediates):
            if value is not None:
                texts.append(hex(value))
                continue
            special = _SOURCES.get(root, ())
            kind = special[number] if number < len(special) and special[number] else source
            if root in ("mad", "madc") and "wide" in words and number == 2:
                kind = result
            if root in ("setp", "slct") and number == 2:
                kind = "pred" if root == "setp" else types[1]
            kinds[f"%s{number}"] = kind
            texts.append(f"%s{number}")
        rows = Rows(kinds, {})
        emitter = Emitter(rows, policy, {}, {})
        assert rows.register("%d") == _RESULT
        sources = tuple(rows.register(name) for name in kinds if name != "%d")
        emitter.begin(0, Statement("", opcode, ("%d", *texts), place))
        entry.build(emitter, Call(root, words, types, ("%d", *texts)))
        emitter.end()
    except NotModelled as error:
        raise Refused(opcode, (Refusal(opcode, place, str(error)),)) from None
    code = np.array(emitter.code, np.int64)
    if (code[:, col.FAMILY] >= s.MEMORY).any():
        raise InputError(f"{opcode} is no arithmetic: it has no value of its operands alone")
    return code, tuple((row, value) for value, row in rows.constants.items()), sources, rows.count, result


def _kinds(root: str, words: frozenset[str], types: tuple[str, ...]) -> tuple[str, str]:
    """The types of the result and of the sources."""
    plain = [f"b{2 * container(each)}" if each in s.CODES else each for each in types]
    if not plain:
        raise NotModelled("has no type")
    if root in ("cvt", "set"):
        return plain[0], plain[1]
    if root in ("setp", "testp"):
        return "pred", plain[0]
    if "wide" in words:
        return plain[0][0] + str(2 * bits_of(plain[0])), plain[0]
    if root in ("clz", "popc", "bfind"):
        return "u32", plain[0]
    return plain[0], plain[0]

"""The verdict on one call of a candidate: what the recipe and the layout say, against what came back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from kvformat import cache
from kvformat.elements.codec import typed
from kvformat.elements.formats import ElementFormat, element
from kvformat.elements.packing import unpack_bits
from kvformat.fuzz import reading, twin
from kvformat.fuzz.calls import CandidateError
from kvformat.fuzz.candidate import ARGUMENTS, Arena, Candidate, NoArray
from kvformat.fuzz.case import Case
from kvformat.recipes import plain
from kvformat.recipes.program import Recipe
from kvformat.recipes.quantizer import Quantized
from kvformat.verify.compare import differences
from kvformat.verify.report import Tally

Array = NDArray[Any]
Side = Literal["k", "v"]
SIDES: tuple[Side, Side] = ("k", "v")

#: what can be wrong with a call, in the words of the report
Fault = Literal["bytes differ", "values differ", "no answer", "wrong answer", "writes elsewhere", "changes its input"]

#: pages of memory before and after those that a writer is given
_GUARD = 2


@dataclass(frozen=True)
class Finding:
    """A call that went wrong."""

    case: Case
    fault: Fault
    #: one line: what exactly
    message: str
    #: what the candidate left: pages of a writer, or of a quantizer's codes and scales as a writer would store them
    pages: NDArray[np.uint8] | None = None
    #: how many codes and scales, values or bytes differ
    count: int = 0


@dataclass(frozen=True)
class Judge:
    """A candidate, the recipe it is judged by, and how long it may take."""

    candidate: Candidate
    recipe: Recipe
    limit: float = 5.0

    def judge(self, case: Case) -> Finding | None:
        """What is wrong with the candidate's answer to a case; None where it holds."""
        judged = {"quantizer": self._quantizer, "writer": self._writer, "reader": self._reader}
        try:
            return judged[self.candidate.kind](case)
        except CandidateError as error:
            return Finding(case, "no answer", str(error))
        except _AnswerError as error:
            return Finding(case, error.fault, str(error))

    def confirmed(self, finding: Finding) -> bool:
        """Whether the exact twin says the same as the engine about the finding's input."""
        if finding.fault not in ("bytes differ", "values differ"):
            return True
        case = finding.case
        if self.candidate.kind == "quantizer":
            return twin.agrees(case.key, self._expected(case, "k"), case.k_scale)
        sides: tuple[tuple[Side, Array, np.float32 | None], ...]
        sides = (("k", case.key, case.k_scale), ("v", case.value, case.v_scale))
        if self.candidate.kind == "reader":
            return all(twin.reads(self._expected(case, side)) for side, _, _ in sides)
        return all(twin.agrees(x, self._expected(case, side), scale) for side, x, scale in sides)

    def _call(self, arguments: tuple[Any, ...], meta: Mapping[str, Any]) -> Any:
        """The candidate's answer. Raises CandidateError, and _AnswerError where it changed an argument."""
        copies = [each.copy() if isinstance(each, np.ndarray) else each for each in arguments]
        answer = self.candidate.call(tuple(copies), meta, self.limit)
        names = ARGUMENTS[self.candidate.kind]
        for name, given, after in zip(names, arguments, copies, strict=True):
            if isinstance(given, np.ndarray) and given.tobytes() != after.tobytes():
                raise _AnswerError(f"changes its input {name}", "changes its input")
        return answer

    def _expected(self, case: Case, side: Side) -> Quantized:
        x, scale = (case.key, case.k_scale) if side == "k" else (case.value, case.v_scale)
        if self.recipe.element is None:
            return cache.quantize_for(case.layout, x, self.recipe, None)
        with np.errstate(all="ignore"):
            return plain.quantize(x, self.recipe, scale=None if scale is None else float(scale))

    # --- quantizers ------------------------------------------------------------------------------------------------

    def _quantizer(self, case: Case) -> Finding | None:
        meta = {} if case.k_scale is None else {"scale": case.k_scale, "global_scale": case.k_scale}
        answer = self._call((case.key,), meta)
        expected = self._expected(case, "k")
        found, shared = _quantized(answer, expected)
        wrong = differences(case.key, expected, found, _outer(expected), Tally("k", "K"))
        count = sum(int(np.count_nonzero(mask)) for mask in wrong.values())
        wanted = _outer(expected)
        if shared is not None and wanted is not None and not _same_float(shared, wanted):
            name = "global scale" if self.recipe.inner else "scale"
            message = f"{name} of the tensor: expected {_float(wanted)}, found {_float(shared)}"
            return Finding(case, "bytes differ", message, _stored(case, expected, found), count + 1)
        if not count:
            return None
        message = f"{count} of its codes and scales differ"
        return Finding(case, "bytes differ", message, _stored(case, expected, found), count)

    # --- writers ---------------------------------------------------------------------------------------------------

    def _writer(self, case: Case) -> Finding | None:
        rows = case.num_blocks + 2 * _GUARD
        arena = Arena(np.full((rows, case.layout.page_bytes), case.fill, np.uint8), _GUARD, rows - _GUARD)
        self._call((case.key, case.value, arena, case.slots), self._meta(case))
        pages = arena.pages.copy()
        around = {"before": arena.memory[:_GUARD], "after": arena.memory[rows - _GUARD :]}
        for where, memory in around.items():
            if (memory != case.fill).any():
                return Finding(case, "writes elsewhere", f"writes {where} its pages", pages)
        sides = {side: self._expected(case, side) for side in SIDES}
        wanted = golden_pages(case, sides)
        if np.array_equal(wanted, pages):
            return None
        stray = (wanted != pages) & ~owned(case)
        if stray.any():
            block, byte = map(int, np.argwhere(stray)[0])
            what = _what_lies(case, byte)
            changed = f"0x{case.fill:02X} became 0x{int(pages[block, byte]):02X}"
            message = f"writes to block {block}, page byte {byte}, {what}, where no token goes: {changed}"
            return Finding(case, "writes elsewhere", message, pages, int(np.count_nonzero(stray)))
        count = self._count_wrong(case, sides, pages)
        if not count:
            return None
        return Finding(case, "bytes differ", f"{count} codes and scales differ", pages, count)

    def _count_wrong(self, case: Case, sides: Mapping[Side, Quantized], pages: NDArray[np.uint8]) -> int:
        kept = case.slots >= 0
        count = 0
        for side, expected in sides.items():
            scale = case.k_scale if side == "k" else case.v_scale
            x = case.key if side == "k" else case.value
            found = cache.load(case.layout, pages, case.slots[kept], side, expected.recipe, scale)
            wrong = differences(x[kept], reading.tokens_of(expected, kept), found, scale, Tally(side, side.upper()))
            count += sum(int(np.count_nonzero(mask)) for mask in wrong.values())
        return count

    # --- readers ---------------------------------------------------------------------------------------------------

    def _reader(self, case: Case) -> Finding | None:
        assert case.blocks is not None
        sides = {side: self._expected(case, side) for side in SIDES}
        pages = golden_pages(case, sides)
        answer = self._call((pages, case.blocks, case.tokens), self._meta(case))
        if not isinstance(answer, tuple | list) or len(answer) != 2:
            raise _AnswerError(f"returns {_kind(answer)}; a reader returns (key, value)")
        count, message = 0, ""
        for side, given in zip(SIDES, answer, strict=True):
            x = case.key if side == "k" else case.value
            values = _floats(given, f"{'key' if side == 'k' else 'value'}", x.shape)
            with np.errstate(all="ignore"):
                wanted = reading.values(sides[side]).astype(values.dtype)
            wrong = reading.differing(wanted, values)
            count += int(np.count_nonzero(wrong))
            if wrong.any() and not message:
                message = _first_value(case, side, sides[side], wanted, values, wrong)
        return Finding(case, "values differ", message, pages, count) if count else None

    def _meta(self, case: Case) -> dict[str, Any]:
        spec: dict[str, Any] = {"v_scales": None, "dtype": None, **case.layout.spec}
        spec["layout"] = spec.pop("name")
        return {**spec, "k_scale": case.k_scale, "v_scale": case.v_scale, "num_blocks": case.num_blocks}


class _AnswerError(Exception):
    """The candidate's answer has another form than a candidate's has; one line."""

    def __init__(self, message: str, fault: Fault = "wrong answer") -> None:
        super().__init__(message)
        self.fault = fault


def golden_pages(case: Case, sides: Mapping[Side, Quantized]) -> NDArray[np.uint8]:
    """The pages that the recipe and the layout say, unwritten bytes as they were."""
    pages = np.full((case.num_blocks, case.layout.page_bytes), case.fill, np.uint8)
    for side, quantized in sides.items():
        cache.store(case.layout, pages, case.slots, side, quantized)
    return pages


def owned(case: Case) -> NDArray[np.bool_]:
    """Which bytes of the pages belong to a token of the case."""
    pages = np.zeros((case.num_blocks, case.layout.page_bytes), np.uint8)
    block, slot = np.divmod(case.slots[case.slots >= 0], case.layout.block_size)
    for region in case.layout.regions:
        region.write(pages, block, slot, np.full((len(slot), region.heads, region.row_bytes), 0xFF, np.uint8))
    mask: NDArray[np.bool_] = pages == 0xFF
    return mask


def _stored(case: Case, expected: Quantized, found: Quantized) -> NDArray[np.uint8]:
    """A quantizer's codes and scales as pages: K's are the candidate's, V's golden."""
    pages = np.zeros((case.num_blocks, case.layout.page_bytes), np.uint8)
    as_stored = Quantized(found.codes, found.scales, expected.global_scale, expected.recipe)
    cache.store(case.layout, pages, case.slots, "k", as_stored)
    with np.errstate(all="ignore"):
        value = plain.quantize(case.value, expected.recipe, scale=None if case.v_scale is None else float(case.v_scale))
    cache.store(case.layout, pages, case.slots, "v", value)
    return pages


def _outer(quantized: Quantized) -> np.float32 | None:
    if not quantized.recipe.outer:
        return None
    return quantized.global_scale if quantized.recipe.inner else np.float32(quantized.scales[0])


# --- answers as arrays ---------------------------------------------------------------------------------------------


def _quantized(answer: Any, expected: Quantized) -> tuple[Quantized, np.float32 | None]:
    """A quantizer's answer: its codes and page scales, and its per-tensor scale if it gives one."""
    if not isinstance(answer, tuple | list) or len(answer) not in (2, 3):
        raise _AnswerError(f"returns {_kind(answer)}; a quantizer returns (codes, scales[, global_scale])")
    how = expected.recipe
    assert how.element is not None
    codes = _codes(answer[0], "codes", expected.codes, element(how.element))
    shared = _one_float(answer[2], "global_scale") if len(answer) == 3 else None
    if how.inner is None:
        return Quantized(codes, expected.scales, expected.global_scale, how), _one_float(answer[1], "scales")
    store = how.inner.format
    if store.element is None:
        scales = _shaped(_array(answer[1], "scales"), "scales", expected.scales.shape)
        if scales.dtype != store.dtype:
            raise _AnswerError(f"returns scales of {scales.dtype}; they are {store}")
    else:
        scales = _codes(answer[1], "scales", expected.scales, store.element)
    return Quantized(codes, scales, expected.global_scale, how), shared


def _codes(given: Any, what: str, expected: Array, fmt: ElementFormat) -> Array:
    """Codes one per byte, from their bytes or from an 8-bit float dtype; narrower ones may be packed, LSB first."""
    array = _array(given, what)
    if array.dtype == getattr(ml_dtypes, f"float8_{fmt.name}", None):
        array = array.view(np.uint8)
    if array.dtype not in (np.uint8, np.int8):
        raise _AnswerError(f"returns {what} of {array.dtype}; those of {fmt.name} are {expected.dtype}, one per byte")
    packed = (*expected.shape[:-1], -(-expected.shape[-1] * fmt.bits // 8))
    if fmt.bits < 8 and array.shape == packed:
        array = typed(unpack_bits(array.view(np.uint8), fmt.bits, expected.shape[-1]), fmt)
    array = _shaped(array, what, expected.shape)
    return array.view(expected.dtype)


def _floats(given: Any, what: str, shape: tuple[int, ...]) -> Array:
    array = _shaped(_array(given, what), what, shape)
    if array.dtype not in (np.float32, np.float16, np.float64, ml_dtypes.bfloat16):
        raise _AnswerError(f"returns {what} of {array.dtype}; values are float32, float16, bfloat16 or float64")
    return array


def _one_float(given: Any, what: str) -> np.float32:
    array = _array(given, what)
    if array.size != 1 or array.dtype not in (np.float32, np.float64):
        found = f"{array.dtype} of shape {array.shape}"
        raise _AnswerError(f"returns {what} as {found}; the scale of a tensor is one float32")
    with np.errstate(all="ignore"):
        return np.float32(array.reshape(-1)[0])


def _shaped(array: Array, what: str, shape: tuple[int, ...]) -> Array:
    if array.shape not in (shape, (*shape, 1)):
        raise _AnswerError(f"returns {what} of shape {array.shape}; they have shape {shape}")
    return np.ascontiguousarray(array).reshape(shape)


def _array(given: Any, what: str) -> Array:
    if given is None or isinstance(given, NoArray | tuple):
        name = given.type if isinstance(given, NoArray) else type(given).__name__
        raise _AnswerError(f"returns {what} as {name}, which is no array")
    return np.asarray(given)


# --- in words ------------------------------------------------------------------------------------------------------


def _kind(answer: Any) -> str:
    if isinstance(answer, tuple | list):
        return f"{len(answer)} things"
    if isinstance(answer, NoArray):
        return f"one {answer.type}"
    return "nothing" if answer is None else f"one {type(answer).__name__}"


def _same_float(a: np.float32, b: np.float32) -> bool:
    return bool(a.view(np.uint32) == b.view(np.uint32) or (np.isnan(a) and np.isnan(b)))


def _float(x: Any) -> str:
    array = np.asarray(x)
    digits = 2 * array.itemsize
    return f"{float(array):.9g} (0x{int(array.view(f'u{array.itemsize}')):0{digits}X})"


def _what_lies(case: Case, byte: int) -> str:
    held = case.layout.explain(byte=byte)
    return "padding" if held.part == "padding" else f"{held.region} of slot {held.slot}, head {held.head}"


def _first_value(case: Case, side: Side, quantized: Quantized, wanted: Array, found: Array, wrong: Array) -> str:
    token, head, dim = map(int, np.argwhere(wrong)[0])
    slot = int(case.slots[token])
    where = f"{side.upper()} of token {token}, head {head}, dim {dim} (slot {slot})"
    code = quantized.codes[token, head, dim]
    stored = f"code 0x{int(code) & 0xFF:02X}" if quantized.recipe.element else "the stored value"
    expected = f"{stored} stands for {_float(wanted[token, head, dim])}"
    return f"{where}: {expected}, found {_float(found[token, head, dim])}"

"""Runs a recipe on a block of rows in a Triton kernel: reductions, scales, quotients, errors and values."""

# ruff: noqa: PLR0124, RET505, RUF005, SIM108 x == x asks for NaN; Triton compiles the branch that holds, knows no star

from __future__ import annotations

import triton
import triton.language as tl

from kvformat.torch.codec import bits_of, decode, encode, encode_e2m1x2, encode_e4m3x2, float_of

_INFINITY: tl.constexpr = tl.constexpr(0b0_11111111_00000000000000000000000)


@triton.jit
def run(values: tl.tuple, PROGRAM: tl.constexpr) -> tl.tuple:
    """The values, blocks of three axes, and one more for each step of a program."""
    for i in tl.static_range(len(PROGRAM.steps)):
        values = values + (_step(values, PROGRAM, i),)
    return values


@triton.jit
def _step(values: tl.tuple, PROGRAM: tl.constexpr, INDEX: tl.constexpr) -> tl.tensor:
    STEP: tl.constexpr = PROGRAM.steps[INDEX]
    REAL: tl.constexpr = PROGRAM.real
    HOW: tl.constexpr = STEP.attributes
    a = _operand(values, STEP, 0, REAL)
    if len(STEP.operands) == 1:
        return STEP.run(a, HOW)
    elif len(STEP.operands) == 2:
        return STEP.run(a, _operand(values, STEP, 1, REAL), HOW)
    else:
        b, c = _operand(values, STEP, 1, REAL), _operand(values, STEP, 2, REAL)
        return STEP.run(a, b, c, HOW)


@triton.jit
def _operand(values: tl.tuple, STEP: tl.constexpr, INDEX: tl.constexpr, REAL: tl.constexpr) -> tl.tensor:
    OPERAND: tl.constexpr = STEP.operands[INDEX]
    if OPERAND.place < 0:
        return tl.full((1, 1, 1), OPERAND.constant, REAL)
    elif OPERAND.flag:
        return values[OPERAND.place]
    else:
        return values[OPERAND.place].to(REAL)


@triton.jit
def reduced(x: tl.tensor, mask: tl.tensor, HOW: tl.constexpr) -> tl.tuple:
    """The reductions of HOW, a `Quantizer` or `Scaler`, of float32 numbers over their last axis, which stays."""
    found: tl.tuple = ()
    for i in tl.static_range(len(HOW.reductions)):
        found = found + (_reduction(x, mask, HOW, i),)
    return found


@triton.jit
def _reduction(x: tl.tensor, mask: tl.tensor, HOW: tl.constexpr, INDEX: tl.constexpr) -> tl.tensor:
    WORD: tl.constexpr = HOW.reductions[INDEX]
    # patterns of magnitudes are ordered like the numbers, NaN above Inf; what is masked counts as 0 there
    last: tl.constexpr = len(x.shape) - 1
    if WORD == "largest":
        return _largest(x, (x == x) & mask)
    elif WORD == "smallest":
        return 0.0 - _largest(0.0 - x, (x == x) & mask)
    elif WORD == "all_nan":
        some = tl.where((x == x) & mask, 1, 0)
        return tl.max(some, axis=last, keep_dims=True) == 0
    else:
        size = tl.where(mask, x.to(tl.int32, bitcast=True) & 0x7FFF_FFFF, 0)
        if WORD == "amax_finite":
            size = tl.where(size < _INFINITY, size, 0)
        elif WORD == "amax_number":
            size = tl.where(size <= _INFINITY, size, 0)
        top = tl.max(size, axis=last, keep_dims=True)
        if WORD == "any_nan":
            return top > _INFINITY
        elif WORD == "amax":
            return tl.where(top > _INFINITY, 0b0_11111111_1 << 22, top).to(tl.float32, bitcast=True)
        else:
            return top.to(tl.float32, bitcast=True)


@triton.jit
def _largest(x: tl.tensor, mask: tl.tensor) -> tl.tensor:
    # by signed patterns: those of negative numbers are ordered the other way round. A sum with +0 makes a zero +0.
    last: tl.constexpr = len(x.shape) - 1
    bits = tl.where(mask, x, float("-inf")).to(tl.int32, bitcast=True)
    bits = tl.max(bits ^ ((bits >> 31) & 0x7FFF_FFFF), axis=last, keep_dims=True)
    top = (bits ^ ((bits >> 31) & 0x7FFF_FFFF)).to(tl.float32, bitcast=True)
    return tl.where(tl.max(mask.to(tl.int32), axis=last, keep_dims=True) > 0, top + 0.0, 0.0)


@triton.jit
def quantized(x: tl.tensor, mask: tl.tensor, outer: tl.tuple, HOW: tl.constexpr) -> tl.tuple:
    """The numbers to be encoded and the stored scale of each group, of float32 x (rows, groups, elements).

    mask: which of them exist. outer: the scale of the tensor, or nothing. The stored scale is (rows, groups, 1),
    float32 or uint8 codes; x itself where no scale lies within a row.
    """
    given = outer + reduced(x, mask, HOW)
    stored, values = _tried(x, given, HOW, 0)
    quotient = _quotient(values, HOW, 0)
    if len(HOW.trials) > 1:
        least = _error(values, quotient, HOW, 0)
        for i in tl.static_range(1, len(HOW.trials)):
            other, values = _tried(x, given, HOW, i)
            its_quotient = _quotient(values, HOW, i)
            error = _error(values, its_quotient, HOW, i)
            better = error < least
            stored, quotient = tl.where(better, other, stored), tl.where(better, its_quotient, quotient)
            least = tl.where(better, error, least)
    return quotient, stored


@triton.jit
def _tried(x: tl.tensor, given: tl.tuple, HOW: tl.constexpr, INDEX: tl.constexpr) -> tl.tuple:
    TRIAL: tl.constexpr = HOW.trials[INDEX]
    SCALE: tl.constexpr = TRIAL.scale
    QUOTIENT: tl.constexpr = TRIAL.quotient
    STORE: tl.constexpr = TRIAL.store
    READ: tl.constexpr = TRIAL.read
    if SCALE is None:
        return x, run(given + (x,), QUOTIENT)
    else:
        values = run(given, SCALE)
        scale = values[SCALE.result]
        if STORE is None:
            stored = scale.to(tl.float32)
            read = stored
        else:
            stored = encode(scale, STORE)
            read = decode(stored, READ)
        return stored, run(values + (read, x), QUOTIENT)


@triton.jit
def _quotient(values: tl.tuple, HOW: tl.constexpr, INDEX: tl.constexpr) -> tl.tensor:
    QUOTIENT: tl.constexpr = HOW.trials[INDEX].quotient
    return values[QUOTIENT.result].to(QUOTIENT.real)


@triton.jit
def _error(values: tl.tuple, quotient: tl.tensor, HOW: tl.constexpr, INDEX: tl.constexpr) -> tl.tensor:
    # a sum in the order of the elements, as the recipe says: one element after the other, each picked exactly
    TRIAL: tl.constexpr = HOW.trials[INDEX]
    ERROR: tl.constexpr = TRIAL.error
    ENCODE: tl.constexpr = HOW.encode
    DECODE: tl.constexpr = HOW.decode
    code = decode(encode(quotient, ENCODE), DECODE)
    error = tl.zeros((code.shape[0], code.shape[1], 1), tl.float32)
    for i in tl.static_range(code.shape[2]):
        picked: tl.tuple = ()
        for place in tl.static_range(len(TRIAL.error_reads)):
            if TRIAL.error_reads[place]:
                picked = picked + (_element(values[place], i),)
            else:
                picked = picked + (values[place],)
        summed = run(picked + (_element(code, i), error), ERROR)
        error = summed[ERROR.result].to(tl.float32)
    return error


@triton.jit
def _element(x: tl.tensor, i: tl.constexpr) -> tl.tensor:
    if x.shape[2] == 1:
        return x
    else:
        here = tl.arange(0, x.shape[2])[None, None, :] == i
        return float_of(tl.sum(tl.where(here, bits_of(x), 0), axis=2, keep_dims=True))


@triton.jit
def encoded(quotient: tl.tensor, HOW: tl.constexpr, PACKED: tl.constexpr, HARDWARE: tl.constexpr) -> tl.tensor:
    """The code bytes of each row, uint8 (rows, bytes), of the numbers (rows, groups, elements)."""
    rows: tl.constexpr = quotient.shape[0]
    columns: tl.constexpr = quotient.shape[1] * quotient.shape[2]
    flat = tl.reshape(quotient, (rows, columns))
    if PACKED:
        even, odd = tl.split(tl.reshape(quotient, (rows, columns // 2, 2)))
        if HARDWARE and HOW.instruction == "e2m1x2":
            return encode_e2m1x2(even, odd)
        else:
            return encode(even, HOW) | (encode(odd, HOW) << 4)
    elif HARDWARE and HOW.instruction == "e4m3x2":
        return encode_e4m3x2(flat)
    else:
        return encode(flat, HOW)


@triton.jit
def dequantized(codes: tl.tensor, outer: tl.tuple, scale: tl.tensor, HOW: tl.constexpr) -> tl.tensor:
    """The float32 values of uint8 codes, one per byte; `outer` and `scale` (None: none) are the recipe's scales."""
    given = outer
    if scale is not None:
        given = outer + (scale,)
    DECODE: tl.constexpr = HOW.decode
    RESTORE: tl.constexpr = HOW.restore
    return run(given + (decode(codes, DECODE),), RESTORE)[RESTORE.result]

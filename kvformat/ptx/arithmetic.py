"""The table's instructions on floats: binary32, binary64, the two 16-bit formats, and pairs of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from kvformat.ptx import steps as s
from kvformat.ptx.emit import Emitter, NotModelled, binary32, bits_of, float_constant, mask_of
from kvformat.ptx.logic import FLOAT_ORDERS, kept, truth
from kvformat.ptx.table import HALVES, Call, Table
from kvformat.recipes.vocabulary import WORDS

ROUNDINGS = {"rn": s.RN, "rz": s.RZ, "rm": s.RM, "rp": s.RP}
SIGNS = {"f32": 1 << 31, "f64": 1 << 63, "f16": 1 << 15, "bf16": 1 << 15}
ONE = 0x3F80_0000
ALL_BITS = (1 << 64) - 1


@dataclass(frozen=True)
class Scalar:
    """How one float of a type is computed: the words that matter, taken off the instruction."""

    kind: str
    rounding: int = s.RN
    ftz: bool = False
    sat: bool = False
    relu: bool = False


def scalar(call: Call, kind: str) -> Scalar:
    """The words of an instruction."""
    rounding = next((ROUNDINGS[word] for word in ROUNDINGS if call.has(word)), s.RN)
    return Scalar(kind, rounding, call.has("ftz"), call.has("sat"), call.has("relu"))


def flush(e: Emitter, how: Scalar, row: int) -> int:
    """.ftz on a binary32 number."""
    return e.temporary(s.FLUSH, row) if how.ftz and how.kind == "f32" else row


#: the steps of an operation: binary32 and binary64 to nearest, and on binary64 so that a second rounding does no harm:
#: sums rounded to odd, products of at most 24 bits exact, quotients and roots never near a tie that they are not on
_STEPS = {
    "add": (s.FADD, s.DADD, s.DADDODD),
    "mul": (s.FMUL, s.DMUL, s.DMUL),
    "fma": (s.FFMA, s.DFMA, s.DFMAODD),
    "div": (s.FDIV, s.DDIV, s.DDIV),
    "sqrt": (s.FSQRT, s.DSQRT, s.DSQRT),
}
_WIDEN = {"f32": s.WIDE32, "f16": s.WIDE16, "bf16": s.WIDEB16}
_NARROW = {"f32": s.TO32, "f16": s.TO16, "bf16": s.TOB16}


def operation(e: Emitter, name: str, how: Scalar, rows: Sequence[int]) -> int:
    """One operation on floats of one type, rounded once."""
    rows = [flush(e, how, row) for row in rows]
    single, double, wide = _STEPS[name]
    if how.kind == "f64":
        if how.rounding != s.RN:
            raise NotModelled("binary64 is modelled to nearest even only")
        return e.temporary(double, *rows)
    if how.kind == "f32" and how.rounding == s.RN:
        row = e.temporary(single, *rows)
    else:
        row = e.temporary(wide, *(e.temporary(_WIDEN[how.kind], row) for row in rows))
        if how.kind != "f32" and how.sat:
            row = e.temporary(s.DSAT, row)
        row = e.temporary(_NARROW[how.kind], row, y=how.rounding)
    return after(e, how, row)


def after(e: Emitter, how: Scalar, row: int) -> int:
    """.sat, .relu and .ftz of a result."""
    if how.sat and how.kind == "f32":
        row = e.temporary(s.FSAT, row)
    if how.relu:
        row = half_relu(e, how.kind, row)
    return flush(e, how, row)


def half_relu(e: Emitter, kind: str, row: int) -> int:
    """.relu: negatives to +0; a NaN is canonical already."""
    sign = e.temporary(s.AND, row, e.rows.constant(SIGNS[kind]))
    return e.temporary(s.SELP, e.rows.constant(0), row, sign)


def parts_of(e: Emitter, text: str, kind: str) -> list[int]:
    """The rows of an operand: two for a pair."""
    row = e.source(text, kind)
    if not kind.endswith("x2"):
        return [row]
    half = bits_of(kind) // 2
    return [e.temporary(s.PART, row, x=(1 << half) - 1, y=shift) for shift in (0, half)]


def packed(e: Emitter, dest: str, kind: str, results: Sequence[int]) -> None:
    """The result of a pair, or of a plain float."""
    if len(results) == 2:
        e.result(dest, e.temporary(s.PACK, *results, y=bits_of(kind) // 2))
    elif e.code[-1][2] == results[0]:
        e.result(dest, results[0])
    else:
        e.result(dest, e.temporary(s.MOV, results[0], x=ALL_BITS))


def each(
    e: Emitter, call: Call, arity: int, compute: Callable[[Emitter, Scalar, list[int]], int], *, kind: str | None = None
) -> None:
    """Compute on every part of the operands."""
    kind = kind or call.types[0]
    dest, *texts = call.take(arity + 1)
    how = scalar(call, kind.removesuffix("x2"))
    operands = [parts_of(e, text, kind) for text in texts]
    packed(e, dest, kind, [compute(e, how, list(rows)) for rows in zip(*operands, strict=True)])


def _plain(name: str, e: Emitter, call: Call) -> None:
    arity = 3 if name == "fma" else 2
    each(e, call, arity, lambda e, how, rows: operation(e, name, how, rows))


def _subtract(e: Emitter, call: Call) -> None:
    def compute(e: Emitter, how: Scalar, rows: list[int]) -> int:
        if how.kind in ("f32", "f64") and how.rounding == s.RN:
            a, b = (flush(e, how, row) for row in rows)
            row = e.temporary(s.FSUB if how.kind == "f32" else s.DSUB, a, b)
            return after(e, how, row) if how.kind == "f32" else row
        minus = e.temporary(s.XOR, rows[1], e.rows.constant(SIGNS[how.kind]))
        return operation(e, "add", how, [rows[0], minus])

    each(e, call, 2, compute)


def fused(e: Emitter, how: Scalar, rows: Sequence[int], *, minus_product: bool, minus_addend: bool) -> int:
    """+-(a * b) +- c as one rounding: what ptxas makes of a product and a sum."""
    a, b, c = rows
    sign = e.rows.constant(SIGNS[how.kind])
    a = e.temporary(s.XOR, a, sign) if minus_product else a
    c = e.temporary(s.XOR, c, sign) if minus_addend else c
    return operation(e, "fma", how, [a, b, c])


# --- quotients and approximations ----------------------------------------------------------------------------------


def policy_places(e: Emitter, word: str) -> int:
    """How many places an approximate result is moved, by the bound that recipes have for the same instruction."""
    return {"lowest": -1, "highest": 1}.get(e.policy, 0) * WORDS[word].ulps


def _moved(e: Emitter, how: Scalar, row: int, places: int) -> int:
    row = e.temporary(s.FULPS, row, y=places) if places else row
    return flush(e, how, row)


def _divide(e: Emitter, call: Call) -> None:
    how = scalar(call, call.types[0])
    dest, a, b = call.take(3)
    if not call.words & {"approx", "full"}:
        if not call.words & set(ROUNDINGS):
            raise NotModelled("needs .rn, .full or .approx")
        packed(e, dest, how.kind, [operation(e, "div", how, [e.source(a, how.kind), e.source(b, how.kind)])])
        return
    numerator = e.source(a, "f32")
    divisor = e.divisor(b, "f32") if e.policy == "ptxas" else None
    if divisor is not None:
        with np.errstate(all="ignore"):
            reciprocal = np.float32(1) / binary32(divisor)
        if 2.0**-126 <= abs(reciprocal) < np.inf:
            row = e.rows.constant(int(reciprocal.view(np.uint32)))
            packed(e, dest, "f32", [operation(e, "mul", how, [numerator, row])])
            return
    rows = [flush(e, how, row) for row in (numerator, e.source(b, "f32"))]
    row = e.temporary(s.FDIV if call.has("full") else s.FDIVAPPROX, *rows)
    word = "div_full" if call.has("full") else "div_approx"
    packed(e, dest, "f32", [_moved(e, how, row, policy_places(e, word))])


def _reciprocal(e: Emitter, call: Call) -> None:
    how = scalar(call, call.types[0])
    dest, a = call.take(2)
    one = e.rows.constant(ONE if how.kind == "f32" else float_constant(1.0))
    if not call.has("approx"):
        if not call.words & set(ROUNDINGS):
            raise NotModelled("needs .rn or .approx")
        packed(e, dest, how.kind, [operation(e, "div", how, [one, e.source(a, how.kind)])])
        return
    if how.kind == "f64":
        raise NotModelled("rcp.approx.ftz.f64 is not modelled")
    row = e.temporary(s.FDIV, one, flush(e, how, e.source(a, "f32")))
    packed(e, dest, "f32", [_moved(e, how, row, policy_places(e, "rcp_approx"))])


def _root(e: Emitter, call: Call) -> None:
    how = scalar(call, call.types[0])
    dest, a = call.take(2)
    if not call.has("approx"):
        if not call.words & set(ROUNDINGS):
            raise NotModelled("needs .rn or .approx")
        packed(e, dest, how.kind, [operation(e, "sqrt", how, [e.source(a, how.kind)])])
        return
    if how.kind == "f64":
        raise NotModelled("there is no sqrt.approx.f64")
    row = e.temporary(s.FSQRT, flush(e, how, e.source(a, "f32")))
    places = {"lowest": -1, "highest": 1}.get(e.policy, 0)
    packed(e, dest, "f32", [_moved(e, how, row, places)])


#: function, and the error the ISA documents: relative for ex2, rsqrt and tanh, absolute for the others
_FUNCTIONS = {
    "ex2": (s.EX2, 2.0**-22),
    "lg2": (s.LG2, 2.0**-22),
    "sin": (s.SIN, 2.0**-20.5),
    "cos": (s.COS, 2.0**-20.5),
    "tanh": (s.TANH, 2.0**-11),
    "rsqrt": (s.RSQRT, 2.0**-22.9),
}


def _function(name: str, e: Emitter, call: Call) -> None:
    which, bound = _FUNCTIONS[name]
    policy = {"lowest": 1, "highest": 2}.get(e.policy, 0)
    how = scalar(call, "f32")
    dest, a = call.take(2)
    row = flush(e, how, e.source(a, "f32"))
    row = e.temporary(s.FAPPROX, row, x=float_constant(bound), y=policy, z=which)
    packed(e, dest, "f32", [flush(e, how, row)])


# --- minimum, maximum, signs, comparisons ---------------------------------------------------------------------------


def _widened(e: Emitter, kind: str, row: int, *, signed: bool) -> int:
    """The binary32 number that a 16-bit float is; signed: a NaN keeps its sign, which xorsign takes."""
    wide = e.temporary(s.FROM16 if kind == "f16" else s.FROMB16, row)
    if not signed:
        return wide
    sign = e.temporary(s.AND, row, e.rows.constant(SIGNS[kind]))
    return e.temporary(s.OR, wide, e.temporary(s.SHL, sign, e.rows.constant(16), x=mask_of("f32")))


def _extreme(e: Emitter, call: Call) -> None:
    largest = call.root == "max"
    mode = int(call.has("NaN")) | (2 if call.has("xorsign") else 0) | (4 if call.has("abs") else 0)
    if call.has("xorsign") and not call.has("abs"):
        raise NotModelled("xorsign goes with abs")
    kind = call.types[0]
    if kind == "f64":
        dest, a, b = call.take(3)
        packed(e, dest, kind, [e.temporary(s.DMAX if largest else s.DMIN, e.source(a, kind), e.source(b, kind))])
        return

    def compute(e: Emitter, how: Scalar, rows: list[int]) -> int:
        if how.kind == "f32":
            rows = [flush(e, how, row) for row in rows]
        else:  # the order of 16-bit floats is that of the binary32 numbers that they are
            rows = [_widened(e, how.kind, row, signed=call.has("xorsign")) for row in rows]
        row = rows[0]
        for other in rows[1:]:
            row = e.temporary(s.FMAX if largest else s.FMIN, row, other, z=mode)
        if how.kind != "f32":
            row = e.temporary(_NARROW[how.kind], e.temporary(s.WIDE32, row))
        return half_relu(e, how.kind, row) if how.relu else row

    arity = len(call.operands) - 1
    if arity == 3 and (kind != "f32" or call.has("xorsign")):
        raise NotModelled("takes three sources for f32 only")
    if kind != "f32" and call.has("ftz"):
        raise NotModelled("the word .ftz is not modelled here")
    each(e, call, arity if arity == 3 else 2, compute)


def _sign(e: Emitter, call: Call) -> None:
    def compute(e: Emitter, how: Scalar, rows: list[int]) -> int:
        sign = SIGNS[how.kind]
        row = flush(e, how, rows[0])
        if call.root == "neg":
            return e.temporary(s.XOR, row, e.rows.constant(sign))
        return e.temporary(s.AND, row, e.rows.constant(mask_of(how.kind) & ~sign))

    if call.types[0] not in ("f32", "f64") and call.has("ftz"):
        raise NotModelled("the word .ftz is not modelled here")
    each(e, call, 1, compute)


def _copysign(e: Emitter, call: Call) -> None:
    kind = call.types[0]
    dest, a, b = call.take(3)
    row = e.temporary(s.COPYSIGN, e.source(a, kind), e.source(b, kind), x=mask_of(kind), z=SIGNS[kind])
    packed(e, dest, kind, [row])


def _found(e: Emitter, call: Call, kind: str, rows: Sequence[int]) -> int:
    mask = FLOAT_ORDERS[next(iter(call.words & set(FLOAT_ORDERS)))]
    if kind == "f64":
        return e.temporary(s.DCMP, *rows, z=mask)
    if kind == "f32":
        return e.temporary(s.FCMP, *(flush(e, scalar(call, kind), row) for row in rows), z=mask)
    if call.has("ftz"):
        raise NotModelled("the word .ftz is not modelled here")
    return e.temporary(s.FCMP, *(e.temporary(s.FROM16 if kind == "f16" else s.FROMB16, row) for row in rows), z=mask)


def _setp(e: Emitter, call: Call) -> None:
    kind = call.types[0]
    if kind.endswith("x2"):
        raise NotModelled("comparisons of pairs are not modelled")
    _, a, b, *rest = call.operands
    kept(e, call, _found(e, call, kind, [e.source(a, kind), e.source(b, kind)]), tuple(rest))


def _set(e: Emitter, call: Call) -> None:
    result, kind = call.types
    dest, a, b = call.take(3)
    found = [
        _found(e, call, kind.removesuffix("x2"), pair)
        for pair in zip(parts_of(e, a, kind), parts_of(e, b, kind), strict=True)
    ]
    if not result.endswith("x2"):
        if len(found) != 1:
            raise NotModelled("comparisons of pairs give pairs")
        packed(e, dest, result, [truth(e, found[0], result)])
        return
    one = 0x3C00 if result == "f16x2" else 0x3F80
    rows = [e.temporary(s.SELP, e.rows.constant(one), e.rows.constant(0), each) for each in found]
    packed(e, dest, result, rows)


def _class(e: Emitter, call: Call) -> None:
    kind = call.types[0]
    dest, a = call.take(2)
    masks = {"notanumber": 1, "number": 14, "infinite": 2, "finite": 12, "normal": 8}
    row = e.temporary(
        s.CLASSF if kind == "f32" else s.CLASSD, e.source(a, kind), z=masks[next(iter(call.words & set(masks)))]
    )
    e.result(dest, row)


def fill(table: Table) -> None:
    """Add this file's entries."""
    floating, half = "Floating Point Instructions", "Half Precision Floating Point Instructions"
    add, rounding = table.add, "rn rz rm rp"
    for name in ("add", "mul"):
        add(name, "f32", f"{rounding} ftz sat", partial(_plain, name), f"{floating}: {name}")
        add(name, "f32x2", f"{rounding} ftz", partial(_plain, name), f"{floating}: {name}")
        add(name, "f64", rounding, partial(_plain, name), f"{floating}: {name}")
        add(name, HALVES, "rn sat", partial(_plain, name), f"{half}: {name}")
    add("sub", "f32", f"{rounding} ftz sat", _subtract, f"{floating}: sub")
    add("sub", "f32x2", f"{rounding} ftz", _subtract, f"{floating}: sub")
    add("sub", "f64", rounding, _subtract, f"{floating}: sub")
    add("sub", HALVES, "rn sat", _subtract, f"{half}: sub")
    add("fma mad", "f32", "ftz sat", partial(_plain, "fma"), f"{floating}: fma", "rn|rz|rm|rp")
    add("fma", "f32x2", "ftz", partial(_plain, "fma"), f"{floating}: fma", "rn|rz|rm|rp")
    add("fma mad", "f64", "", partial(_plain, "fma"), f"{floating}: fma", "rn|rz|rm|rp")
    add("fma", HALVES, "sat relu", partial(_plain, "fma"), f"{half}: fma", "rn")
    add("div", "f32 f64", f"{rounding} ftz", _divide, f"{floating}: div", "rn|rz|rm|rp")
    add("div", "f32", "ftz", _divide, f"{floating}: div", "approx|full", approximate=True)
    add("rcp", "f32 f64", f"{rounding} ftz", _reciprocal, f"{floating}: rcp", "rn|rz|rm|rp")
    add("rcp", "f32", "ftz", _reciprocal, f"{floating}: rcp", "approx", approximate=True)
    add("sqrt", "f32 f64", f"{rounding} ftz", _root, f"{floating}: sqrt", "rn|rz|rm|rp")
    add("sqrt", "f32", "ftz", _root, f"{floating}: sqrt", "approx", approximate=True)
    for name in _FUNCTIONS:
        words = "" if name == "tanh" else "ftz"
        add(name, "f32", words, partial(_function, name), f"{floating}: {name}", "approx", approximate=True)
    add("min max", "f32", "ftz NaN xorsign abs", _extreme, f"{floating}: min, max")
    add("min max", "f64", "", _extreme, f"{floating}: min, max")
    add("min max", HALVES, "NaN xorsign abs relu", _extreme, f"{half}: min, max")
    add("abs neg", "f32 f64 f16 f16x2 bf16 bf16x2", "ftz", _sign, f"{floating}: abs, neg")
    add("copysign", "f32 f64", "", _copysign, f"{floating}: copysign")
    add("testp", "f32 f64", "", _class, f"{floating}: testp", "finite|infinite|number|notanumber|normal")
    orders = "|".join(FLOAT_ORDERS)
    compare = "Comparison and Selection Instructions"
    add("setp", "f32 f64 f16 bf16", "ftz and or xor", _setp, f"{compare}: setp", orders)
    pairs = " ".join(f"{r}.{kind}" for r in ("u32", "s32", "f32") for kind in ("f32", "f64", "f16", "bf16"))
    add("set", f"{pairs} f16x2.f16x2 bf16x2.bf16x2", "ftz", _set, f"{compare}: set", orders)

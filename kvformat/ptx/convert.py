"""The table's conversions: `cvt` between integers, floats and the narrow formats."""

from __future__ import annotations

from itertools import product

from kvformat.elements.formats import element
from kvformat.ptx import steps as s
from kvformat.ptx.arithmetic import ALL_BITS, ROUNDINGS, half_relu, packed, parts_of
from kvformat.ptx.emit import Emitter, NotModelled, bits_of, mask_of
from kvformat.ptx.logic import is_signed, spare
from kvformat.ptx.table import Call, Table

INTEGERS = tuple(f"{sign}{bits}" for sign in "us" for bits in (8, 16, 32, 64))
FLOATS = ("f16", "bf16", "f32", "f64")
TO_INTEGER = {"rni": s.RN, "rzi": s.RZ, "rmi": s.RM, "rpi": s.RP}
_WIDEN = {"f16": s.WIDE16, "bf16": s.WIDEB16, "f32": s.WIDE32}
_NARROW = {"f16": s.TO16, "bf16": s.TOB16, "f32": s.TO32}
_FLOATING = tuple(name for name in s.CODES if name != "ue8m0x2")


def _keep(e: Emitter, dest: str, row: int, kind: str) -> None:
    """Into a register that may be wider than the type: a signed result is extended with its sign."""
    target = e.kind(dest)
    if target and is_signed(kind) and bits_of(target) > bits_of(kind):
        row = e.temporary(s.SEXT, row, x=mask_of(target), y=spare(kind))
    packed(e, dest, kind, [row])


def _sole(e: Emitter, row: int) -> int:
    return row if e.code and e.code[-1][2] == row and len(e.code) > e.start else e.temporary(s.MOV, row, x=ALL_BITS)


def _integers(e: Emitter, call: Call) -> None:
    to, source = call.types
    dest, a = call.take(2)
    row = e.source(a, source)
    if is_signed(source):
        row = e.temporary(s.SEXT, row, x=ALL_BITS, y=spare(source))
    if call.has("sat"):
        low, high = (-(1 << bits_of(to) - 1), (1 << bits_of(to) - 1) - 1) if is_signed(to) else (0, mask_of(to))
        mask = ALL_BITS
        if is_signed(source):
            row = e.temporary(s.MAXS, row, e.rows.constant(low & mask))
            row = row if high > (1 << 63) - 1 else e.temporary(s.MINS, row, e.rows.constant(high & mask))
        else:
            row = e.temporary(s.MINU, row, e.rows.constant(high))
    _keep(e, dest, e.temporary(s.MOV, row, x=mask_of(to)), to)


def _from_integer(e: Emitter, call: Call) -> None:
    to, source = call.types
    dest, a = call.take(2)
    row, signed = e.source(a, source), int(is_signed(source))
    if signed:
        row = e.temporary(s.SEXT, row, x=ALL_BITS, y=spare(source))
    rounding = next((ROUNDINGS[word] for word in ROUNDINGS if call.has(word)), None)
    if rounding is None:
        raise NotModelled("needs a rounding")
    if to == "f32" and rounding == s.RN and not call.has("sat"):
        row = e.temporary(s.FROMINT32, row, z=signed)
    elif to == "f64":
        if rounding != s.RN:
            raise NotModelled("binary64 is modelled to nearest even only")
        row = e.temporary(s.FROMINT64, row, z=signed)
    else:
        row = e.temporary(s.FROMINTODD, row, z=signed)
        row = e.temporary(s.DSAT, row) if call.has("sat") else row
        row = e.temporary(_NARROW[to], row, y=rounding)
    packed(e, dest, to, [row])


def _wide(e: Emitter, row: int, kind: str) -> int:
    return row if kind == "f64" else e.temporary(_WIDEN[kind], row)


def _to_integer(e: Emitter, call: Call) -> None:
    to, source = call.types
    dest, a = call.take(2)
    row = e.source(a, source)
    if call.has("ftz"):
        row = e.temporary(s.FLUSH, row)
    # the ISA: a NaN gives 0, but where either side has 64 bits the integer with only its top bit set
    zero = source != "f64" and bits_of(to) < 64
    rounding = next(TO_INTEGER[word] for word in TO_INTEGER if call.has(word))
    how = int(is_signed(to)) | (2 if zero else 0)
    _keep(e, dest, e.temporary(s.TOINT, _wide(e, row, source), x=mask_of(to), y=rounding, z=how), to)


def _floats(e: Emitter, call: Call) -> None:
    to, source = call.types
    dest, a = call.take(2)
    row = e.source(a, source)
    whole = next((TO_INTEGER[word] for word in TO_INTEGER if call.has(word)), None)
    rounding = next((ROUNDINGS[word] for word in ROUNDINGS if call.has(word)), None)
    shrinks = bits_of(to) < bits_of(source) or (bits_of(to) == bits_of(source) and to != source)
    if shrinks and rounding is None:
        raise NotModelled("needs a rounding")
    if call.has("ftz") and "f32" not in call.types:
        raise NotModelled("the word .ftz is not modelled here")
    if call.has("ftz") and source == "f32":
        row = e.temporary(s.FLUSH, row)
    if to == "f32" and source in ("f16", "bf16") and not call.words & {"sat"}:
        row = e.temporary(s.FROM16 if source == "f16" else s.FROMB16, row)
    elif to == source and whole is None and not call.words & {"sat"}:
        row = e.temporary(s.FCANON, row) if to == "f32" else _sole(e, row)
    else:
        row = _wide(e, row, source)
        row = row if whole is None else e.temporary(s.INTEGRAL, row, y=whole)
        row = e.temporary(s.DSAT, row) if call.has("sat") else row
        if to != "f64":
            row = e.temporary(_NARROW[to], row, y=rounding or s.RN, z=int(call.has("satfinite")))
    if call.has("relu"):
        row = half_relu(e, to, row)
    if call.has("ftz") and to == "f32":
        row = e.temporary(s.FLUSH, row)
    packed(e, dest, to, [_sole(e, row)])


def _to_pair(e: Emitter, call: Call) -> None:
    """Two binary32 numbers to a pair of 16-bit floats: the first operand is the high half."""
    to = call.types[0].removesuffix("x2")
    dest, high, low = call.take(3)
    rounding = next(ROUNDINGS[word] for word in ROUNDINGS if call.has(word))
    rows = []
    for text in (low, high):
        row = e.temporary(_NARROW[to], _wide(e, e.source(text, "f32"), "f32"), y=rounding, z=int(call.has("satfinite")))
        rows.append(half_relu(e, to, row) if call.has("relu") else row)
    packed(e, dest, call.types[0], rows)


def container(name: str) -> int:
    """The bits that a code has in its pair: 4, or 8, of which a code of 6 takes the low ones."""
    return 4 if element(s.CODES[name]).bits == 4 else 8


def _narrow_parts(e: Emitter, call: Call) -> tuple[str, list[int]]:
    """(destination, binary32 rows low and high) of a conversion to a pair of codes."""
    source = call.types[1]
    if source == "f32":
        dest, high, low = call.take(3)
        return dest, [e.source(low, "f32"), e.source(high, "f32")]
    dest, pair = call.take(2)
    widen = s.FROM16 if source == "f16x2" else s.FROMB16
    return dest, [e.temporary(widen, row) for row in parts_of(e, pair, source)]


def _to_codes(e: Emitter, call: Call) -> None:
    to = call.types[0]
    dest, rows = _narrow_parts(e, call)
    if call.has("relu"):
        rows = [e.temporary(s.FRELU, row) for row in rows]
    step = next(step for (name, how), step in s.ENCODE.items() if name == to and call.has(how))
    e.result(dest, e.temporary(s.PACK, *(e.temporary(step, row) for row in rows), y=container(to)))


def _from_codes(e: Emitter, call: Call) -> None:
    to, source = call.types
    dest, a = call.take(2)
    width, bits = container(source), element(s.CODES[source]).bits
    row, number = e.source(a, f"b{2 * width}"), tuple(s.CODES).index(source)
    half = to.removesuffix("x2")
    rows = []
    for shift in (0, width):
        value = e.temporary(s.DECODE, e.temporary(s.PART, row, x=(1 << bits) - 1, y=shift), z=number)
        value = e.temporary(_NARROW[half], e.temporary(s.WIDE32, value))
        rows.append(half_relu(e, half, value) if call.has("relu") else value)
    packed(e, dest, to, rows)


def fill(table: Table) -> None:
    """Add this file's entries."""
    section, add = "Data Movement and Conversion: cvt", table.add

    def pairs(left: tuple[str, ...], right: tuple[str, ...]) -> str:
        return " ".join(f"{a}.{b}" for a, b in product(left, right))

    add("cvt", pairs(INTEGERS, INTEGERS), "sat", _integers, section)
    add("cvt", pairs(FLOATS, INTEGERS), "rn rz rm rp sat", _from_integer, section)
    add("cvt", pairs(INTEGERS, ("f32",)), "ftz sat", _to_integer, section, "|".join(TO_INTEGER))
    add("cvt", pairs(INTEGERS, ("f16", "bf16", "f64")), "sat", _to_integer, section, "|".join(TO_INTEGER))
    add("cvt", pairs(FLOATS, FLOATS), "rn rz rm rp rni rzi rmi rpi ftz sat relu satfinite", _floats, section)
    add("cvt", "f16x2.f32 bf16x2.f32", "relu satfinite", _to_pair, section, "rn|rz")
    add("cvt", pairs(_FLOATING, ("f32", "f16x2", "bf16x2")), "relu", _to_codes, section, "rn satfinite")
    add("cvt", pairs(("ue8m0x2",), ("f32", "bf16x2")), "satfinite", _to_codes, section, "rz|rp")
    add("cvt", pairs(("f16x2",), _FLOATING), "relu", _from_codes, section, "rn")
    add("cvt", "bf16x2.ue8m0x2", "", _from_codes, section, "rn")

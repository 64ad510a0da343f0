"""The table's instructions on integers and predicates."""

from __future__ import annotations

from functools import partial

from kvformat.ptx import steps as s
from kvformat.ptx.emit import CARRY, Emitter, NotModelled, bits_of, mask_of
from kvformat.ptx.table import B_TYPES, S_TYPES, U_TYPES, Build, Call, Table

INTEGERS = f"{U_TYPES} {S_TYPES}"

#: comparisons as bits: less 1, equal 2, greater 4
ORDERS = {"lt": 1, "eq": 2, "le": 3, "gt": 4, "ne": 5, "ge": 6, "lo": 1, "ls": 3, "hi": 4, "hs": 6}
#: of floats: false on NaN; unordered 8
FLOAT_ORDERS = {
    "lt": 1,
    "eq": 2,
    "le": 3,
    "gt": 4,
    "ne": 5,
    "ge": 6,
    "equ": 10,
    "neu": 13,
    "ltu": 9,
    "leu": 11,
    "gtu": 12,
    "geu": 14,
    "num": 7,
    "nan": 8,
}


def is_signed(kind: str) -> bool:
    """Whether a type is a signed integer."""
    return kind[0] == "s"


def spare(kind: str) -> int:
    """The bits of a lane that a type leaves free."""
    return 64 - bits_of(kind)


def operate(op: int, e: Emitter, call: Call) -> None:
    """One step, all operands of the result's type."""
    kind = call.types[0]
    if kind.endswith("x2"):
        halves(e, call, kind, op)
        return
    dest, *sources = call.operands
    rows = [e.source(text, kind) for text in sources]
    e.result(dest, e.temporary(op, *rows, x=mask_of(kind), y=spare(kind)))


def halves(e: Emitter, call: Call, kind: str, op: int) -> None:
    """The same on both halves of a register."""
    dest, *sources = call.operands
    rows = [e.source(text, "b32") for text in sources]
    half = kind[:-2]
    parts = [
        e.temporary(op, *(e.temporary(s.PART, row, x=0xFFFF, y=shift) for row in rows), x=0xFFFF, y=spare(half))
        for shift in (0, 16)
    ]
    e.result(dest, e.temporary(s.PACK, *parts, y=16))


def counted(op: int, arity: int, e: Emitter, call: Call) -> None:
    """`operate` with the number of operands checked."""
    call.take(arity + 1)
    operate(op, e, call)


def by_sign(unsigned: int, signed: int, arity: int = 2) -> Build:
    """The step for unsigned or signed types."""

    def build(e: Emitter, call: Call) -> None:
        counted(signed if is_signed(call.types[0]) else unsigned, arity, e, call)

    return build


def _add(e: Emitter, call: Call, step: int = s.ADD, carrying: int = s.ADDCC) -> None:
    kind = call.types[0]
    dest, a, b = call.take(3)
    if call.has("sat"):
        if kind != "s32":
            raise NotModelled("saturates s32 only")
        wide = e.temporary(step, *(e.temporary(s.SEXT, e.source(t, kind), x=-1, y=32) for t in (a, b)), x=-1)
        e.result(dest, clamped(e, wide, "s32"))
        return
    with_carry = call.root in ("addc", "subc")
    if not call.has("cc") and not with_carry:
        counted(step, 2, e, call)
        return
    rows = e.source(a, kind), e.source(b, kind)
    with_carries(e, call, dest, carrying, rows, reads=with_carry)


def with_carries(e: Emitter, call: Call, dest: str, step: int, rows: tuple[int, int], *, reads: bool) -> None:
    """A sum or difference that takes the carry flag in, hands it on, or both."""
    kind, carry = call.types[0], e.rows.register(CARRY)
    held = e.temporary(s.MOV, e.rows.constant(0), x=1)
    total = e.temporary(step, *rows, carry if reads else e.rows.constant(0), e=held, x=mask_of(kind))
    e.step(s.MOV, e.target(dest), total, x=mask_of(kind))
    if call.has("cc"):
        e.step(s.MOV, carry, held, x=1)


def clamped(e: Emitter, row: int, kind: str) -> int:
    """A 64-bit signed number limited to a type."""
    width = bits_of(kind)
    low, high = (-(1 << width - 1), (1 << width - 1) - 1) if is_signed(kind) else (0, (1 << width) - 1)
    mask = (1 << 64) - 1
    row = e.temporary(s.MAXS, row, e.rows.constant(low & mask))
    row = e.temporary(s.MINS, row, e.rows.constant(high & mask))
    return e.temporary(s.MOV, row, x=mask_of(kind))


def _product(e: Emitter, call: Call) -> None:
    kind = call.types[0]
    add = call.root == "mad"
    dest, a, b, *rest = call.take(4 if add else 3)
    rows = e.source(a, kind), e.source(b, kind)
    if call.has("wide"):
        if bits_of(kind) == 64:
            raise NotModelled("a product of 128 bits is not modelled")
        wide = kind[0] + str(2 * bits_of(kind))
        row = e.temporary(s.MULWIDES if is_signed(kind) else s.MUL, *rows, x=mask_of(wide), y=spare(kind))
    elif call.has("hi"):
        wide = kind
        row = e.temporary(s.MULHIS if is_signed(kind) else s.MULHIU, *rows, x=mask_of(kind), y=spare(kind))
    else:
        wide = kind
        row = e.temporary(s.MUL, *rows, x=mask_of(kind))
    if add:
        row = e.temporary(s.ADD, row, e.source(rest[0], wide), x=mask_of(wide))
    e.result(dest, row)


def _product_with_carry(e: Emitter, call: Call) -> None:
    kind = call.types[0]
    dest, a, b, c = call.take(4)
    high = (s.MULHIS if is_signed(kind) else s.MULHIU) if call.has("hi") else s.MUL
    row = e.temporary(high, e.source(a, kind), e.source(b, kind), x=mask_of(kind), y=spare(kind))
    with_carries(e, call, dest, s.ADDCC, (row, e.source(c, kind)), reads=call.root == "madc")


def _absolute(e: Emitter, call: Call) -> None:
    kind = call.types[0]
    dest, a = call.take(2)
    row = e.source(a, kind)
    minus = e.temporary(s.SUB, e.rows.constant(0), row, x=mask_of(kind))
    negative = e.temporary(s.CMPS, row, e.rows.constant(0), y=spare(kind), z=ORDERS["lt"])
    e.result(dest, e.temporary(s.SELP, minus, row, negative))


def _negated(e: Emitter, call: Call) -> None:
    kind = call.types[0]
    dest, a = call.take(2)
    e.result(dest, e.temporary(s.SUB, e.rows.constant(0), e.source(a, kind), x=mask_of(kind)))


def _shift(e: Emitter, call: Call) -> None:
    kind = call.types[0]
    dest, a, amount = call.take(3)
    step = s.SHL if call.root == "shl" else (s.SHRS if is_signed(kind) else s.SHRU)
    rows = e.source(a, kind), e.source(amount, "u32")
    e.result(dest, e.temporary(step, *rows, x=mask_of(kind), y=spare(kind)))


def _field(e: Emitter, call: Call) -> None:
    kind = call.types[0]
    if call.root == "bfe":
        dest, a, b, c = call.take(4)
        rows = [e.source(a, kind), e.source(b, "u32"), e.source(c, "u32")]
        step = s.BFES if is_signed(kind) else s.BFEU
    else:
        dest, a, b, c, g = call.take(5)
        rows = [e.source(a, kind), e.source(b, kind), e.source(c, "u32"), e.source(g, "u32")]
        step = s.BFI
    e.result(dest, e.temporary(step, *rows, x=mask_of(kind), y=spare(kind)))


def _top_bit(e: Emitter, call: Call) -> None:
    kind = call.types[0]
    dest, a = call.take(2)
    row = e.source(a, kind)
    if is_signed(kind):  # the highest bit that differs from the sign
        flipped = e.temporary(s.NOT, row, x=mask_of(kind))
        negative = e.temporary(s.CMPS, row, e.rows.constant(0), y=spare(kind), z=ORDERS["lt"])
        row = e.temporary(s.SELP, flipped, row, negative)
    e.result(dest, e.temporary(s.BFIND, row, y=spare(kind), z=int(call.has("shiftamt"))))


def _funnel(e: Emitter, call: Call) -> None:
    dest, a, b, c = call.take(4)
    rows = [e.source(text, "b32") for text in (a, b, c)]
    e.result(dest, e.temporary(s.SHFL if call.has("l") else s.SHFR, *rows, z=int(call.has("clamp"))))


def _table(e: Emitter, call: Call) -> None:
    dest, a, b, c, function = call.take(5)
    rows = [e.source(text, "b32") for text in (a, b, c)]
    e.result(dest, e.temporary(s.LOP3, *rows, x=mask_of("b32"), z=e.constant(function, "u32") & 0xFF))


def _select(e: Emitter, call: Call) -> None:
    kind = call.types[0]
    dest, a, b, p = call.take(4)
    e.result(dest, e.temporary(s.SELP, e.source(a, kind), e.source(b, kind), e.source(p, "pred")))


def _sign_select(e: Emitter, call: Call) -> None:
    kind, control = call.types
    if control == "f32" and call.has("ftz"):
        raise NotModelled("the word .ftz is not modelled here")
    dest, a, b, c = call.take(4)
    row = e.source(c, control)
    if control == "f32":
        chosen = e.temporary(s.FCMP, row, e.rows.constant(0), z=FLOAT_ORDERS["ge"])
    else:
        chosen = e.temporary(s.CMPS, row, e.rows.constant(0), y=spare(control), z=ORDERS["ge"])
    e.result(dest, e.temporary(s.SELP, e.source(a, kind), e.source(b, kind), chosen))


def compared(e: Emitter, call: Call, kind: str, a: str, b: str) -> int:
    """The predicate of a comparison of integers or bits."""
    order = next(iter(call.words & set(ORDERS)))
    if kind[0] == "b" and order not in ("eq", "ne"):
        raise NotModelled(f"bits have no order: .{order}")
    step = s.CMPS if is_signed(kind) else s.CMPU
    return e.temporary(step, e.source(a, kind), e.source(b, kind), y=spare(kind), z=ORDERS[order])


def kept(e: Emitter, call: Call, found: int, rest: tuple[str, ...]) -> None:
    """A comparison's predicate, joined with a third one by .and, .or, .xor, into `p` or `p|q`: q of its contrary."""
    first, _, second = call.operands[0].partition("|")
    joins = {"and": s.AND, "or": s.OR, "xor": s.XOR}
    join = next((joins[word] for word in joins if call.has(word)), None)
    if (join is not None) != bool(rest):
        raise NotModelled("a third operand goes with .and, .or or .xor")
    contrary = e.temporary(s.XOR, found, e.rows.constant(1)) if second else None
    third = e.source(rest[0], "pred") if rest else None
    rows = [found] if contrary is None else [found, contrary]
    if join is not None and third is not None:
        rows = [e.temporary(join, row, third) for row in rows]
    if len(rows) == 1:
        rows[0] = rows[0] if e.code[-1][2] == rows[0] else e.temporary(s.MOV, rows[0], x=1)
        e.result(first.strip(), rows[0])
        return
    for name, row in zip((first.strip(), second.strip()), rows, strict=True):
        if name != "_":
            e.step(s.MOV, e.target(name), row, x=1)


def _setp(e: Emitter, call: Call) -> None:
    _, a, b, *rest = call.operands
    kept(e, call, compared(e, call, call.types[0], a, b), tuple(rest))


def _set(e: Emitter, call: Call) -> None:
    result, kind = call.types
    dest, a, b = call.take(3)
    found = compared(e, call, kind, a, b)
    e.result(dest, truth(e, found, result))


def truth(e: Emitter, found: int, result: str) -> int:
    """`set`'s value: all ones, or 1.0."""
    yes = 0x3F80_0000 if result == "f32" else mask_of(result)
    return e.temporary(s.SELP, e.rows.constant(yes), e.rows.constant(0), found)


def fill(table: Table) -> None:
    """Add this file's entries."""
    integer, logic, compare = (
        "Integer Arithmetic Instructions",
        "Logic and Shift Instructions",
        "Comparison and Selection",
    )
    add = table.add
    add("add", f"{INTEGERS} u16x2 s16x2", "sat cc", _add, f"{integer}: add, add.cc")
    add("addc", "u32 s32 u64 s64", "cc", _add, "Extended-Precision Arithmetic: addc")
    subtract = partial(_add, step=s.SUB, carrying=s.SUBCC)
    add("sub", INTEGERS, "sat cc", subtract, f"{integer}: sub, sub.cc")
    add("subc", "u32 s32 u64 s64", "cc", subtract, "Extended-Precision Arithmetic: subc")
    add("mul mad", INTEGERS, "", _product, f"{integer}: mul, mad", "lo|hi|wide")
    add("mad", "u32 s32 u64 s64", "lo hi", _product_with_carry, "Extended-Precision Arithmetic: mad.cc", "cc lo|hi")
    add("madc", "u32 s32 u64 s64", "cc", _product_with_carry, "Extended-Precision Arithmetic: madc", "lo|hi")
    add("div", INTEGERS, "", by_sign(s.DIVU, s.DIVS), f"{integer}: div")
    add("rem", INTEGERS, "", by_sign(s.REMU, s.REMS), f"{integer}: rem")
    add("min", f"{INTEGERS} u16x2 s16x2", "", by_sign(s.MINU, s.MINS), f"{integer}: min")
    add("max", f"{INTEGERS} u16x2 s16x2", "", by_sign(s.MAXU, s.MAXS), f"{integer}: max")
    add("abs", S_TYPES, "", _absolute, f"{integer}: abs")
    add("neg", S_TYPES, "", _negated, f"{integer}: neg")
    for name, step in (("and", s.AND), ("or", s.OR), ("xor", s.XOR)):
        add(name, f"pred {B_TYPES}", "", partial(counted, step, 2), f"{logic}: {name}")
    add("not", f"pred {B_TYPES}", "", partial(counted, s.NOT, 1), f"{logic}: not")
    add("cnot", B_TYPES, "", partial(counted, s.CNOT, 1), f"{logic}: cnot")
    add("shl", B_TYPES, "", _shift, f"{logic}: shl")
    add("shr", f"{B_TYPES} {INTEGERS}", "", _shift, f"{logic}: shr")
    add("shf", "b32", "", _funnel, f"{logic}: shf", "l|r wrap|clamp")
    add("lop3", "b32", "", _table, f"{logic}: lop3")
    add("bfe", "u32 s32 u64 s64", "", _field, f"{integer}: bfe")
    add("bfi", "b32 b64", "", _field, f"{integer}: bfi")
    add("bfind", "u32 s32 u64 s64", "shiftamt", _top_bit, f"{integer}: bfind")
    add("brev", "b32 b64", "", partial(counted, s.BREV, 1), f"{integer}: brev")
    add("clz", "b32 b64", "", partial(counted, s.CLZ, 1), f"{integer}: clz")
    add("popc", "b32 b64", "", partial(counted, s.POPC, 1), f"{integer}: popc")
    add("prmt", "b32", "", partial(counted, s.PRMT, 3), "Data Movement: prmt")
    add("selp", f"{B_TYPES} {INTEGERS} f32 f64", "", _select, f"{compare}: selp")
    controls = " ".join(
        f"{kind}.{c}" for kind in (*B_TYPES.split(), *INTEGERS.split(), "f32", "f64") for c in ("s32", "f32")
    )
    add("slct", controls, "ftz", _sign_select, f"{compare}: slct")
    orders = "|".join(ORDERS)
    add("setp", f"{B_TYPES} {INTEGERS}", "and or xor", _setp, f"{compare}: setp", orders)
    pairs = " ".join(f"{r}.{kind}" for r in ("u32", "s32", "f32") for kind in (*B_TYPES.split(), *INTEGERS.split()))
    add("set", pairs, "", _set, f"{compare}: set", orders)

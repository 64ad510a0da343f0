"""The table's moves, memory accesses, control flow, and instructions of a block or a warp."""

from __future__ import annotations

import re
from functools import partial

from kvformat.ptx import access, warps
from kvformat.ptx import columns as col
from kvformat.ptx import steps as s
from kvformat.ptx.emit import WINDOWS, Emitter, NotModelled, bits_of, mask_of
from kvformat.ptx.logic import is_signed
from kvformat.ptx.syntax import SIZES
from kvformat.ptx.table import Call, Table

SPACES = {
    "shared": access.IN_SHARED, "shared::cta": access.IN_SHARED, "local": access.IN_LOCAL, "param": access.IN_PARAM,
    "param::entry": access.IN_PARAM, "global": access.IN_GLOBAL, "const": access.IN_GLOBAL,
}  # fmt: skip
_ORDER = "weak relaxed acquire release volatile cta gpu sys cluster"
#: what a cache does with a line has no effect on values
_CACHED = (
    "ca cg cs lu cv wb wt nc L1::evict_normal L1::evict_unchanged L1::evict_first L1::evict_last L1::no_allocate "
    "L2::cache_hint L2::64B L2::128B L2::256B L2::evict_first L2::evict_last L2::evict_normal"
)
_MEMORY = " ".join(
    kind for kind in SIZES if kind not in ("pred", "f16", "bf16", "f16x2", "bf16x2", "f32x2", "u16x2", "s16x2")
)
_MOVED = "pred b16 b32 b64 u16 u32 u64 s16 s32 s64 f16 bf16 f16x2 bf16x2 f32 f64"


def _move(e: Emitter, call: Call) -> None:
    kind = call.types[0]
    dest, a = call.take(2)
    if dest.startswith("{"):
        parts = e.vector(dest)
        width = bits_of(kind) // len(parts)
        row = e.source(a, kind)
        for index, name in enumerate(parts):
            if name != "_":
                e.step(s.PART, e.target(name), row, x=(1 << width) - 1, y=index * width)
        return
    if a.startswith("{"):
        parts = e.vector(a)
        width = bits_of(kind) // len(parts)
        rows = [e.source(name, f"b{width}") for name in parts]
        e.result(dest, e.temporary(s.PACK, *rows, y=width))
        return
    e.result(dest, e.temporary(s.MOV, e.source(a, kind), x=mask_of(kind)))


def _window(e: Emitter, call: Call) -> None:
    kind = call.types[0]
    dest, a = call.take(2)
    space = next(word.partition("::")[0] for word in call.words if word != "to")
    row = e.source(a, kind)
    base = e.rows.constant(WINDOWS.get(space, 0))
    e.result(dest, e.temporary(s.SUB if call.has("to") else s.ADD, row, base, x=mask_of(kind)))


def _space(call: Call) -> int:
    return next((SPACES[word] for word in SPACES if call.has(word)), access.GENERIC)


def _elements(e: Emitter, call: Call, text: str) -> tuple[str, ...]:
    parts = e.vector(text)
    wanted = next((int(word[1:]) for word in ("v2", "v4", "v8") if call.has(word)), 1)
    if len(parts) != wanted:
        raise NotModelled(f"moves {wanted} elements, names {len(parts)}")
    if wanted * SIZES[call.types[0]] > 32:
        raise NotModelled("moves more than 32 bytes")
    return parts


def _hinted(call: Call) -> tuple[str, str]:
    """The two operands, without the policy of a cache hint."""
    operands = call.operands
    if call.has("L2::cache_hint") and len(operands) == 3:
        operands = operands[:2]
    if len(operands) != 2:
        raise NotModelled(f"takes 2 operands, has {len(operands)}")
    return operands[0], operands[1]


def _load(e: Emitter, call: Call) -> None:
    kind, (dest, place) = call.types[0], _hinted(call)
    parts = _elements(e, call, dest)
    if kind == "b128":
        raise NotModelled("registers of 128 bits are not modelled")
    kinds = {e.kind(name) for name in parts if name != "_"}
    keep = mask_of(next(iter(kinds)) or kind) if kinds - {None} else mask_of(kind)
    base, offset = e.address(place)
    rows = [e.target(name) for name in parts]
    extend = int(is_signed(kind))
    e.step(s.LD, a=base, c=_space(call), g=offset, x=SIZES[kind], y=keep, z=extend, rows=rows)


def _store(e: Emitter, call: Call) -> None:
    kind, (place, value) = call.types[0], _hinted(call)
    if kind == "b128":
        raise NotModelled("registers of 128 bits are not modelled")
    if call.has("const") or call.has("param::entry"):
        raise NotModelled("constants and parameters are not written")
    parts = _elements(e, call, value)
    base, offset = e.address(place)
    rows = [e.source(name, kind) for name in parts]
    e.step(s.ST, a=base, c=_space(call), g=offset, x=SIZES[kind], rows=rows)


def _argument(e: Emitter, call: Call) -> None:
    """st.param: an argument of a call; the only calls that are modelled stop the launch."""
    call.take(2)


_ATOMICS = {
    "min": (access.AMIN_U, access.AMIN_S), "max": (access.AMAX_U, access.AMAX_S), "add": (access.AADD,) * 2,
    "or": (access.AOR,) * 2, "and": (access.AAND,) * 2, "xor": (access.AXOR,) * 2, "exch": (access.AEXCH,) * 2,
}  # fmt: skip


def _atomic(e: Emitter, call: Call) -> None:
    kind = call.types[0]
    name = next(word for word in _ATOMICS if call.has(word))
    if (kind[0] == "b") != (name in ("or", "and", "xor", "exch")):
        raise NotModelled(f".{name} of .{kind} is not modelled")
    if call.root == "atom":
        dest, place, value = call.take(3)
        target = e.target(dest) if dest != "_" else col.NOTHING
    else:
        place, value = call.take(2)
        target = col.NOTHING
    base, offset = e.address(place)
    row = e.source(value, kind)
    e.step(s.ATOM, target, base, row, c=_space(call), g=offset, x=SIZES[kind], z=_ATOMICS[name][is_signed(kind)])


def _nothing(e: Emitter, call: Call) -> None:
    """An instruction without an effect on values."""


def _policy(e: Emitter, call: Call) -> None:
    e.result(call.operands[0], e.temporary(s.MOV, e.rows.constant(0), x=mask_of("b64")))


# --- control -------------------------------------------------------------------------------------------------------


def _branch(e: Emitter, call: Call) -> None:
    (name,) = call.take(1)
    e.step(s.BRA, x=e.label(name))


def _stop(op: int, fault: int, e: Emitter, call: Call) -> None:
    e.step(op, x=fault)


def _call(e: Emitter, call: Call) -> None:
    name = next((each for each in call.operands if re.fullmatch(r"[A-Za-z_$][\w$]*", each)), "")
    if name not in ("__assertfail", "__assert_fail"):
        raise NotModelled(f"a call to {name or 'an address'} is not modelled")
    e.step(s.TRAP, x=access.ASSERTION)


def _barrier(e: Emitter, call: Call) -> None:
    if not 1 <= len(call.operands) <= 2:
        raise NotModelled(f"takes a barrier and a count, has {len(call.operands)} operands")
    threads = 0
    if len(call.operands) == 2:
        if call.operands[1] in e.rows.registers:
            raise NotModelled("a count of threads in a register is not modelled")
        threads = e.constant(call.operands[1], "u32")
    e.step(s.BAR, a=e.source(call.operands[0], "u32"), y=threads)


# --- warps ---------------------------------------------------------------------------------------------------------

_MODES = {"up": warps.UP, "down": warps.DOWN, "bfly": warps.BUTTERFLY, "idx": warps.INDEXED}


def _shuffle(e: Emitter, call: Call) -> None:
    dest, a, b, c, members = call.take(5)
    value, _, found = dest.partition("|")
    mode = next(_MODES[word] for word in _MODES if call.has(word))
    rows = [e.source(a, "b32"), e.source(b, "b32"), e.source(c, "b32"), e.source(members, "b32")]
    second = e.target(found.strip()) if found.strip() not in ("", "_") else -1
    e.step(s.SHFLSYNC, e.target(value.strip()), *rows, e=second, z=mode)


_REDUCTIONS = {
    ("add", "u32"): warps.RADD, ("add", "s32"): warps.RADD, ("min", "u32"): warps.RMIN_U, ("max", "u32"): warps.RMAX_U,
    ("min", "s32"): warps.RMIN_S, ("max", "s32"): warps.RMAX_S, ("and", "b32"): warps.RAND, ("or", "b32"): warps.ROR,
    ("xor", "b32"): warps.RXOR, ("min", "f32"): warps.RMIN_F, ("max", "f32"): warps.RMAX_F,
}  # fmt: skip


def _reduction(e: Emitter, call: Call) -> None:
    dest, a, members = call.take(3)
    kind = call.types[0]
    name = next(word for word in ("add", "min", "max", "and", "or", "xor") if call.has(word))
    if (name, kind) not in _REDUCTIONS:
        raise NotModelled(f".{name} of .{kind} is not modelled")
    if kind != "f32" and call.words & {"abs", "NaN"}:
        raise NotModelled(".abs and .NaN are words of .f32")
    how = int(call.has("NaN")) | (4 if call.has("abs") else 0)
    row, mask = e.source(a, kind), e.source(members, "b32")
    e.step(s.REDUX, e.target(dest), row, g=mask, y=how, z=_REDUCTIONS[name, kind])


def _vote(e: Emitter, call: Call) -> None:
    dest, a, members = call.take(3)
    votes = {"all": warps.VALL, "any": warps.VANY, "uni": warps.VUNI, "ballot": warps.VBALLOT}
    name = next(word for word in votes if call.has(word))
    if (name == "ballot") != (call.types[0] == "b32"):
        raise NotModelled(f".{name} of .{call.types[0]} is not modelled")
    row, mask = e.source(a, "pred"), e.source(members, "b32")
    e.step(s.VOTE, e.target(dest), row, g=mask, z=votes[name])


def _warp_barrier(e: Emitter, call: Call) -> None:
    (members,) = call.take(1)
    e.step(s.WARPSYNC, g=e.source(members, "b32"))


def _matrix(op: int, e: Emitter, call: Call) -> None:
    first, second = call.take(2)
    names, place = (first, second) if op == s.LDMATRIX else (second, first)
    parts = e.vector(names)
    count = next(int(word[1:]) for word in ("x1", "x2", "x4") if call.has(word))
    if len(parts) != count:
        raise NotModelled(f"moves {count} matrices, names {len(parts)} registers")
    base, offset = e.address(place)
    rows = [e.target(name) if op == s.LDMATRIX else e.source(name, "b32") for name in parts]
    e.step(op, a=base, c=_space(call), x=offset, z=int(call.has("trans")), rows=rows)


def fill(table: Table) -> None:
    """Add this file's entries."""
    add, data, control = table.add, "Data Movement and Conversion", "Control Flow Instructions"
    parallel = "Parallel Synchronization and Communication"
    spaces = " ".join(SPACES)
    add("mov", _MOVED, "", _move, f"{data}: mov")
    add("cvta", "u32 u64", "to", _window, f"{data}: cvta", "global|shared|local|const|param|shared::cta|param::entry")
    add("ld ldu", _MEMORY, f"{spaces} {_ORDER} {_CACHED} v2 v4 v8", _load, f"{data}: ld")
    add("st", _MEMORY, f"{spaces} {_ORDER} {_CACHED} v2 v4 v8", _store_or_argument, f"{data}: st")
    add("prefetch prefetchu", "-", "global local L1 L2 L2::evict_last L2::evict_normal", _nothing, f"{data}: prefetch")
    add(
        "createpolicy",
        "b64",
        "fractional L2::evict_first L2::evict_last L2::evict_normal",
        _policy,
        f"{data}: createpolicy",
    )
    kinds = "u32 s32 u64 s64 b32 b64"
    words = "relaxed acquire release acq_rel cta gpu sys global shared shared::cta"
    add("red atom", kinds, words, _atomic, f"{parallel}: red, atom", "|".join(_ATOMICS))
    add("membar", "-", "cta gl sys", _nothing, f"{parallel}: membar")
    add("fence", "-", "sc acq_rel acquire release cta gpu sys", _nothing, f"{parallel}: fence")
    add("griddepcontrol", "-", "wait launch_dependents", _nothing, f"{parallel}: griddepcontrol")
    add("nanosleep", "u32", "", _nothing, "Miscellaneous Instructions: nanosleep")
    add("bra", "-", "uni", _branch, f"{control}: bra")
    add("ret exit", "-", "uni", partial(_stop, s.RET, 0), f"{control}: ret, exit")
    add("trap brkpt", "-", "", partial(_stop, s.TRAP, access.TRAP), "Miscellaneous Instructions: trap")
    add("call", "-", "uni", _call, f"{control}: call (a failed assertion)")
    add("bar barrier", "-", "sync cta aligned", _barrier, f"{parallel}: bar.sync", "sync")
    add("bar", "-", "warp sync", _warp_barrier, f"{parallel}: bar.warp.sync", "warp sync")
    add("shfl", "b32", "sync", _shuffle, f"{data}: shfl.sync", "sync up|down|bfly|idx")
    add(
        "redux", "u32 s32 b32 f32", "sync abs NaN", _reduction, f"{parallel}: redux.sync", "sync add|min|max|and|or|xor"
    )
    add("vote", "pred b32", "sync", _vote, f"{parallel}: vote.sync", "sync all|any|uni|ballot")
    for name, op in (("ldmatrix", s.LDMATRIX), ("stmatrix", s.STMATRIX)):
        needs = "sync aligned m8n8 x1|x2|x4"
        add(name, "b16", "trans shared shared::cta", partial(_matrix, op), f"{parallel}: {name}", needs)


def _store_or_argument(e: Emitter, call: Call) -> None:
    if call.has("param"):
        _argument(e, call)
    else:
        _store(e, call)

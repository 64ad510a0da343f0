"""From a layout's description to its addresses: `layout` checks the sizes and lays the sections of an entry out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import DTypeLike

from kvformat import modes
from kvformat.elements.formats import BINARIES, element
from kvformat.errors import InputError, unknown_name
from kvformat.layouts.catalogue import find_entry
from kvformat.layouts.entry import DTYPE_BITS, NIBBLES, ORDERS, PER, Entry, Form, Part, Section
from kvformat.layouts.page import Layout, Nibbles, Order, as_integer
from kvformat.layouts.region import SIDES, Digit, Region, Side
from kvformat.layouts.swizzle import SWIZZLES, Plane, Term

#: the axes of a page, the slow one first
_AXES: Mapping[str, tuple[str, str]] = {"NHD": ("slot", "head"), "HND": ("head", "slot")}


@dataclass(frozen=True)
class _Request:
    """What the user asked for, checked and in one piece."""

    mode: modes.Mode
    order: str
    block_size: int
    num_kv_heads: int
    head_sizes: Mapping[Side, int]
    code_bits: int
    #: the swizzle of the V scales, "" where each part's own holds
    v_scales: str
    nibbles: str
    #: of the values that a page of mode none stores, or of parameters in the dtype of the model; "" where none are
    dtype: str

    def head_size_name(self, side: Side) -> str:
        """The argument that says a side's head size: head_size_v only where it differs."""
        return "head_size_v" if self.head_sizes[side] != self.head_sizes["k"] else "head_size"


class _Shaped(NamedTuple):
    """A part whose sizes are known and whose place is not."""

    part: Part
    bits: int
    columns: int
    dims_per_entry: int
    plane: Plane


def layout(
    name: str | Entry,
    *,
    mode: str | modes.Mode,
    block_size: int,
    num_kv_heads: int | None = None,
    head_size: int | None = None,
    head_size_v: int | None = None,
    order: str | None = None,
    v_scales: str | None = None,
    page_bytes: int | None = None,
    dtype: DTypeLike | None = None,
    nibbles: str | None = None,
) -> Layout:
    """The layout of that name, or that an entry describes, registered or not, for one layer's cache blocks.

    mode: one that the layout has. block_size: slots in a page (the kernel's block size). num_kv_heads, head_size: may
    be left out where the layout has one number of heads and one head size only. head_size_v: dims per head of V, those
    of K where it is not given, 0 where the page has no V. order: "NHD" or "HND"; the first one that the layout has.
    v_scales: "swizzled" (the default) or "linear", where the layout has the choice. page_bytes: bytes from page to
    page, those above the natural size are padding. dtype: of the stored values, mode none and modes with parameters in
    the dtype of the model only: "bfloat16" (the default), "float16" or "float32". nibbles: of 4-bit codes, "low_first"
    (the even dim in the low nibble, the default but for some layouts) or "high_first".

    Raises InputError, one line, for an unknown name or sizes the layout cannot have.
    """
    entry = find_entry(name) if isinstance(name, str) else name
    kind = modes.mode(mode)
    form = entry.form(kind.name)
    where = f"layout {entry.name} in mode {kind.name}"
    stored = _dtype(kind, dtype)
    choice = _choice(form, where, v_scales)
    head_sizes = _head_sizes(form, where, head_size, head_size_v)
    request = _Request(
        mode=kind,
        order=_order(form, where, order),
        block_size=_size("block_size", block_size),
        num_kv_heads=_fixed("num_kv_heads", num_kv_heads, form.num_kv_heads, where),
        head_sizes=head_sizes,
        code_bits=element(kind.element).bits if kind.element else DTYPE_BITS[stored or ""],
        v_scales=dict(form.v_scales)[choice] if choice else "",
        nibbles=_nibbles(kind, nibbles, form.nibbles),
        dtype=stored or "",
    )
    _check_head_sizes(form, where, request)
    regions, tensors = _page(form, request)
    _check_dims(where, regions, request)
    natural = sum(size for _, size in tensors)
    total = natural if page_bytes is None else _size("page_bytes", page_bytes)
    if total < natural:
        raise InputError(f"page_bytes must be at least {natural}, the page's natural size; got {total}")
    return Layout(
        name=entry.name,
        mode=kind.name,
        order=cast("Order", request.order),
        block_size=request.block_size,
        num_kv_heads=request.num_kv_heads,
        head_size=head_sizes["k"],
        head_size_v=head_sizes["v"],
        v_scales=choice,
        dtype=stored,
        page_bytes=total,
        natural_bytes=natural,
        regions=regions,
        recipe=form.recipe,
        nibbles=None if request.nibbles == form.nibbles else cast("Nibbles", request.nibbles),
        tensors=tensors,
    )


def _page(form: Form, request: _Request) -> tuple[tuple[Region, ...], tuple[tuple[str, int], ...]]:
    """The regions of a page, and the bytes of it that each tensor holds: the sections one after the other."""
    regions: list[Region] = []
    tensors: dict[str, int] = {}
    for section in form.sections:
        placed, size = _section(section, sum(tensors.values()), request)
        regions += placed
        tensors[section.tensor] = tensors.get(section.tensor, 0) + size
    return tuple(regions), tuple(tensors.items())


def _section(section: Section, start: int, request: _Request) -> tuple[list[Region], int]:
    """The regions of a section that begins at byte `start`, and the bytes it takes."""
    counts = {"slot": request.block_size, "head": request.num_kv_heads, "group": _groups(section, request)}
    axes = (*_AXES[section.order or request.order], "group")
    outer = [axis for axis in axes if axis in PER[section.per]]
    inner = [axis for axis in axes[:2] if axis not in outer]
    dims = request.mode.dims_per_scale if "group" in outer else 0
    parts, record = [], 0
    for part in section.record:
        shaped = _shape(part, inner, request, dims)
        strides, size = _strides(inner, counts | {"slot": shaped.plane.rows}, shaped.plane.columns * shaped.bits)
        parts.append((shaped, start + record, strides))
        record += size // 8
    record = _round_up(record, section.record_align)
    strides, size = _strides(outer, counts, record * 8)
    regions = [_region(shaped, offset, inside | strides, counts["group"], request) for shaped, offset, inside in parts]
    return regions, _round_up(size // 8, section.align)


def _groups(section: Section, request: _Request) -> int:
    """How many groups of dims a head has, where the section repeats its record over them; else 1."""
    if "group" not in PER[section.per]:
        return 1
    dims = request.mode.dims_per_scale
    if not dims:
        raise InputError(f"mode {request.mode.name} has no groups of dims; repeat the record per cell")
    for part in section.record:
        size = request.head_sizes[part.side]
        if size % dims:
            name = request.head_size_name(part.side)
            raise InputError(f"mode {request.mode.name} needs {name} to be a multiple of {dims}; got {size}")
    return request.head_sizes[section.record[0].side] // dims


def _strides(axes: list[str], counts: Mapping[str, int], step: int) -> tuple[dict[str, int], int]:
    """The stride of each axis, the last one of `step`, and the size of all of it: bits."""
    strides = {}
    for axis in reversed(axes):
        strides[axis] = step
        step *= counts[axis]
    return strides, step


def _region(shaped: _Shaped, offset: int, strides: Mapping[str, int], groups: int, request: _Request) -> Region:
    """The part at its place: each digit of its plane with its stride in bits."""
    part, bits = shaped.part, shaped.bits

    def digits(terms: tuple[Term, ...]) -> tuple[Digit, ...]:
        return tuple(Digit(size, rows * strides["slot"] + entries * bits) for size, rows, entries in terms)

    each = (Digit(groups, strides["group"]),) if "group" in strides else ()
    values = part.kind == "code" and not part.recipe and request.mode.element is None
    return Region(
        name=part.label,
        side=part.side,
        part=part.kind,
        bits=bits,
        offset=offset,
        slots=request.block_size,
        heads=request.num_kv_heads,
        columns=shaped.columns * groups,
        slot=digits(shaped.plane.row),
        head=(Digit(request.num_kv_heads, strides["head"]),),
        column=(*each, *digits(shaped.plane.column)),
        dims_per_entry=shaped.dims_per_entry,
        first_dim=part.first_dim,
        dtype=part.dtype or (request.dtype if values else ""),
        recipe=part.recipe,
        copies=part.copies,
        high_first=request.nibbles == "high_first" and part.kind == "code" and bits == 4,
        first_bit=part.first_bit,
    )


def _shape(part: Part, inner: list[str], request: _Request, group: int) -> _Shaped:
    """A part's sizes: from its description, else from the mode and the head size.

    inner: the axes it repeats over. group: the dims of a group where the record has one group only, else 0.
    """
    mode, name = request.mode, request.head_size_name(part.side)
    size = request.head_sizes[part.side]
    dims = group or size - part.first_dim
    if dims < 1 and not part.columns:
        raise InputError(f"{part.label} begins at dim {part.first_dim}: {name} must be larger; got {size}")
    if part.kind == "code":
        bits = part.bits or DTYPE_BITS.get(part.dtype, request.code_bits)
        shared = part.dims_per_entry or 1
    else:
        bits = part.bits or _parameter_bits(part.kind, request) * part.copies
        shared = part.dims_per_entry or mode.dims_per_scale or dims
    if not part.columns and dims % shared:
        raise InputError(f"mode {mode.name} needs {name} to be a multiple of {shared}; got {size}")
    columns = part.columns or dims // shared
    plane = _plane(part, columns, shared, inner, request)
    if plane.columns * bits % 8:
        raise InputError(f"{part.label} of {columns} x {bits} bits does not fill whole bytes; choose another {name}")
    return _Shaped(part, bits, columns, shared, plane)


def _plane(part: Part, columns: int, dims_per_entry: int, inner: list[str], request: _Request) -> Plane:
    """The digits of a part's (block_size, columns) plane, by its swizzle."""
    chosen = request.v_scales if part.part == "v.scale" else ""
    swizzle = SWIZZLES[chosen or part.swizzle]
    where = f"{part.label} swizzle {swizzle.name}{' (v_scales)' if chosen else ''}"
    if columns % swizzle.column_multiple:
        name, multiple = request.head_size_name(part.side), swizzle.column_multiple * dims_per_entry
        got = request.head_sizes[part.side]
        raise InputError(f"{where} needs {name} to be a multiple of {multiple}; got {got}")
    if request.block_size % swizzle.row_multiple:
        multiple, got = swizzle.row_multiple, request.block_size
        raise InputError(f"{where} needs block_size to be a multiple of {multiple}; got {got}")
    if swizzle.contiguous and inner[-1:] != ["slot"]:
        raise InputError(f"{where} needs the slots of a head side by side: order HND")
    return swizzle.plane(request.block_size, columns)


def _parameter_bits(part: str, request: _Request) -> int:
    store = request.mode.parameters.get(part)
    if store is None:
        raise InputError(f"mode {request.mode.name} has no {part} in the page; a {part} part there must say its bits")
    store = request.dtype if store == "input" else store
    return 32 if store == "float32" else (BINARIES.get(store) or element(store)).bits


def _order(form: Form, where: str, order: str | None) -> str:
    """The order asked for, else the default one."""
    if order is None:
        return form.orders[0]
    if order not in ORDERS:
        raise unknown_name("order", order, ORDERS)
    if order not in form.orders:
        raise InputError(f"{where} has the order {form.order} only; got {order}")
    return order


def _head_sizes(form: Form, where: str, head_size: int | None, head_size_v: int | None) -> dict[Side, int]:
    """Dims per head of each side: those of K for V too where nothing else is said, 0 where the page has no V."""
    k = _fixed("head_size", head_size, form.head_size, where)
    if "v" in form.sides:
        return {"k": k, "v": k if head_size_v is None else _size("head_size_v", head_size_v)}
    if head_size_v is not None and as_integer(head_size_v) != 0:
        raise InputError(f"{where} has no V; leave head_size_v out (got {head_size_v!r})")
    return {"k": k, "v": 0}


def _fixed(what: str, value: object, only: int, where: str) -> int:
    """A size, which may be left out, and must not be another one, where the layout has one only."""
    if value is None and not only:
        raise InputError(f"{where} needs {what}: an integer of at least 1")
    size = only if value is None else _size(what, value)
    if only and size != only:
        raise InputError(f"{where} needs {what} {only}; got {size}")
    return size


def _nibbles(mode: modes.Mode, nibbles: str | None, default: str) -> str:
    """The order of the two codes in a byte."""
    if nibbles is None:
        return default
    if nibbles not in NIBBLES:
        raise unknown_name("nibbles", nibbles, NIBBLES)
    if mode.element is None or element(mode.element).bits != 4:
        raise InputError(f"nibbles is for 4-bit codes; mode {mode.name} has none")
    return nibbles


def _check_head_sizes(form: Form, where: str, request: _Request) -> None:
    """The entry's own demands on the head sizes."""
    for side in form.sides:
        size = request.head_sizes[side]
        if size % form.head_size_multiple:
            name = request.head_size_name(side)
            raise InputError(f"{where} needs {name} to be a multiple of {form.head_size_multiple}; got {size}")
    if form.head_sizes == "equal" and request.head_sizes["k"] != request.head_sizes["v"]:
        k, v = request.head_sizes["k"], request.head_sizes["v"]
        raise InputError(f"{where} needs head_size_v to equal head_size; got {v} and {k}")


def _check_dims(where: str, regions: tuple[Region, ...], request: _Request) -> None:
    """Each dim has one code, where its side has codes, and at most one scale: a fixed record has a fixed head size."""
    kinds = dict.fromkeys((region.part, region.first_bit) for region in regions)
    for side, (part, first_bit) in product(SIDES, kinds):
        held = [each for each in regions if (each.side, each.part, each.first_bit) == (side, part, first_bit)]
        size, end = request.head_sizes[side], 0
        for region in sorted(held, key=lambda region: region.first_dim):
            if region.first_dim < end or (part == "code" and region.first_dim > end):
                raise InputError(f"{where}: {region.name} must begin at dim {end}; it begins at {region.first_dim}")
            end = region.all_dims.stop
        if end > size or (held and part == "code" and end < size):
            raise InputError(f"{where} needs {request.head_size_name(side)} {end}; got {size}")


def _choice(form: Form, where: str, v_scales: str | None) -> str | None:
    """The V scale choice that holds: the one given, else the first, None where the layout has none."""
    names = [name for name, _ in form.v_scales]
    if not names:
        if v_scales is not None:
            raise InputError(f"{where} has no choice of v_scales; leave it out (got {v_scales!r})")
        return None
    if v_scales is not None and v_scales not in names:
        raise unknown_name("v_scales", v_scales, names)
    return v_scales or names[0]


def _dtype(mode: modes.Mode, dtype: DTypeLike | None) -> str | None:
    """The name of the stored values' dtype, None where the mode stores codes."""
    if mode.element is not None:
        if "input" in mode.parameters.values():
            return _dtype_name(dtype)
        if dtype is not None:
            raise InputError(f"dtype is for mode none only; mode {mode.name} stores {mode.element} codes")
        return None
    return _dtype_name(dtype)


def _dtype_name(dtype: DTypeLike | None) -> str:
    if dtype is None:
        return "bfloat16"
    try:
        # NumPy knows the string "bfloat16" only once ml_dtypes is imported; ml_dtypes' own types it always knows
        name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
    except TypeError:
        name = str(dtype)
    if name not in DTYPE_BITS:
        raise unknown_name("dtype", name, DTYPE_BITS)
    return name


def _size(what: str, value: object) -> int:
    """A size as an int >= 1. Raises InputError for anything else, bool and float included."""
    size = as_integer(value)
    if size is None or size < 1:
        raise InputError(f"{what} must be an integer of at least 1; got {value!r}")
    return size


def _round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple

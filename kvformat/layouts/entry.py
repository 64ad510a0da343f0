"""The language a layout is described in: an entry of strings and numbers, as a dict or TOML table, checked when read.

A page is a concatenation of sections. A section repeats a record of parts over the axes that `per` names, and each
part repeats its row over the others, in the order (NHD: slot, head; HND: head, slot) that the user asks for:

    per = "group"   a group of dims and its parameters         [slot][head][group][k.scale | k.code]
    per = "cell"    K and V of a token's head side by side     [slot][head][k.code | v.code]
    per = "head"    each part of a head in one piece           [head][k.code[slot] | v.code[slot]]
    per = "slot"    each part of a token in one piece          [slot][k.code[head] | v.code[head]]
    per = "page"    each part of the page in one piece         k.code[slot][head] | v.code[slot][head]

A part is a side and what it holds of it: codes, the scale, or another parameter of the mode by its name (`k.zp`).
Codes whose bits lie apart are several parts, `first_bit` says which bits each one has.

Where an engine keeps a page in several tensors (K and V apart, scales beside the data), each section names its own:
a page is then what the tensors hold of it, one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from kvformat.errors import InputError, unknown_name
from kvformat.layouts.region import PARTS, SIDES, PartName, Side
from kvformat.layouts.swizzle import SWIZZLES
from kvformat.modes import MODES, RECORDS
from kvformat.modes import mode as find_mode

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Described = TypeVar("Described", bound="DataclassInstance")

#: the axes that repeat the record, by the word for it
PER: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"group": ("slot", "head", "group"), "cell": ("slot", "head"), "head": ("head",), "slot": ("slot",), "page": ()}
)
#: the orders of slots and heads, by the letters of their axes: N slot, H head, D dim
ORDERS = ("NHD", "HND")
NIBBLES = ("low_first", "high_first")
DTYPE_BITS: Mapping[str, int] = MappingProxyType({"bfloat16": 16, "float16": 16, "float32": 32})


@dataclass(frozen=True)
class Part:
    """One kind of entry in a record. What is 0 here comes from the mode and the head size.

    A part with `first_dim` lets a record change format along a head: 512 codes of 8 bits, then 64 values of 16. What
    a part with a `recipe` of its own holds is that recipe's, whatever the page's is.
    """

    #: "k.code", "k.scale", "v.code", "v.scale", or a side and a further parameter of the mode: "k.m"
    part: str
    #: how explanations call it; "": "K data", "V scale", ...
    name: str = ""
    bits: int = 0
    columns: int = 0
    dims_per_entry: int = 0
    first_dim: int = 0
    #: the lowest bit of the codes that lies in this part, where their bits lie in several
    first_bit: int = 0
    swizzle: str = "linear"
    #: of values that are stored as they are, which then are the code of that part: "bfloat16"
    dtype: str = ""
    recipe: str = ""
    #: the entry is its byte so many times
    copies: int = 1

    @property
    def side(self) -> Side:
        """The side that the part names."""
        return cast("Side", self.part.partition(".")[0])

    @property
    def kind(self) -> PartName:
        """Code, scale or another parameter, as the part names it."""
        return self.part.partition(".")[2]

    @property
    def label(self) -> str:
        """The name, "K data" and the like where none is given."""
        named = {"code": f"bits {self.first_bit} up" if self.first_bit else "data"}
        return self.name or f"{self.side.upper()} {named.get(self.kind, self.kind)}"


@dataclass(frozen=True)
class Section:
    """A piece of the page: a record repeated over the axes of `per`."""

    per: Literal["group", "cell", "head", "slot", "page"]
    record: tuple[Part, ...]
    #: bytes: the record's, and the section's, size is rounded up to a multiple; the rest is padding
    record_align: int = 1
    align: int = 1
    #: the order of this section, whatever that of the page; "": the page's
    order: str = ""
    #: the engine's tensor that it lies in; "": there is one tensor only
    tensor: str = ""


@dataclass(frozen=True)
class Form:
    """What a layout's page is in one mode."""

    #: the recipe this engine uses in this mode
    recipe: str
    sections: tuple[Section, ...]
    #: what the user may choose for the V scales, and the swizzle each means; the first is the default
    v_scales: tuple[tuple[str, str], ...] = ()
    #: both head sizes must be multiples of this
    head_size_multiple: int = 1
    #: "equal": K and V must have one head size
    head_sizes: Literal["any", "equal"] = "any"
    #: the one head size of K, and the one number of heads, that it has; 0: any
    head_size: int = 0
    num_kv_heads: int = 0
    #: the one order that it has; "": both
    order: str = ""
    #: of two 4-bit codes in a byte, where the even dim's lies, unless the user says otherwise
    nibbles: Literal["low_first", "high_first"] = "low_first"

    @property
    def orders(self) -> tuple[str, ...]:
        """The orders that it has, its default first."""
        return (self.order,) if self.order else ORDERS

    @property
    def sides(self) -> tuple[Side, ...]:
        """The sides that it stores: pages of latent attention have no V."""
        held = {part.side for section in self.sections for part in section.record}
        return tuple(side for side in SIDES if side in held)

    @property
    def uniform(self) -> bool:
        """Whether it stores K and V, each in one format from its first dim to its last."""
        return self.sides == SIDES and not any(part.recipe for section in self.sections for part in section.record)


@dataclass(frozen=True)
class Entry:
    """A layout by name: its form in each mode it has."""

    name: str
    source: str
    modes: tuple[tuple[str, Form], ...]

    def form(self, mode: str) -> Form:
        """The form in that mode. Raises InputError, listing the modes there are, where it has none."""
        for name, form in self.modes:
            if name == mode:
                return form
        raise InputError(f"layout {self.name} has no mode {mode}; it has {', '.join(name for name, _ in self.modes)}")


def parse_entry(described: Mapping[str, object]) -> Entry:
    """The entry that a plain mapping describes. Raises InputError, one line that says where, for a malformed one."""
    where = f"layout entry {described.get('name')!r}"
    forms = []
    for mode, form in _mapping(where, "modes", described.get("modes")).items():
        _known(where, "mode", mode, (*MODES, *RECORDS))
        inside = f"{where}, mode {mode}"
        forms.append((mode, _form(inside, _mapping(inside, "modes", form), _parts_in(mode))))
    return _build(Entry, where, {**described, "modes": tuple(forms)})


def _parts_in(mode: str) -> tuple[str, ...]:
    """The names of what a page of that mode can hold."""
    kinds = dict.fromkeys((*PARTS, *find_mode(mode).parameters))
    return tuple(f"{side}.{kind}" for side in SIDES for kind in kinds)


def _form(where: str, described: Mapping[str, object], parts: tuple[str, ...]) -> Form:
    listed = _sequence(where, "sections", described.get("sections"))
    sections = tuple(_section(where, _mapping(where, "sections", section), parts) for section in listed)
    choices = _mapping(where, "v_scales", described.get("v_scales", {}))
    for swizzle in choices.values():
        _known(where, "swizzle", swizzle, SWIZZLES)
    form = _build(Form, where, {**described, "sections": sections, "v_scales": tuple(choices.items())})
    _known(where, "head_sizes", form.head_sizes, ("any", "equal"))
    _known(where, "order", form.order, ("", *ORDERS))
    _known(where, "nibbles", form.nibbles, NIBBLES)
    runs = [name for name, _ in groupby(section.tensor for section in sections)]
    if len(set(runs)) < len(runs):
        raise InputError(f"{where}: the sections of a tensor must follow one another; got {', '.join(runs)}")
    return form


def _section(where: str, described: Mapping[str, object], parts: tuple[str, ...]) -> Section:
    record = tuple(_part(where, part, parts) for part in _sequence(where, "record", described.get("record")))
    section = _build(Section, where, {**described, "record": record})
    _known(where, "per", section.per, PER)
    _known(where, "order", section.order, ("", *ORDERS))
    return section


def _part(where: str, described: object, parts: tuple[str, ...]) -> Part:
    """A part from its table, or from its name alone: "k.code"."""
    values = {"part": described} if isinstance(described, str) else _mapping(where, "record", described)
    part = _build(Part, where, values)
    _known(where, "part", part.part, parts)
    _known(where, "swizzle", part.swizzle, SWIZZLES)
    _known(where, "dtype", part.dtype, ("", *DTYPE_BITS))
    return part


def _build(kind: type[Described], where: str, values: Mapping[str, object]) -> Described:
    """The dataclass of those values: no unknown key, none missing, numbers >= 0 where it has numbers."""
    known = {field.name: field for field in fields(kind)}
    for key, value in values.items():
        _known(where, "key", key, known)
        if str(known[key].type).startswith("tuple"):
            continue  # parsed before
        wanted = int if isinstance(known[key].default, int) else str
        if type(value) is not wanted:
            raise InputError(f"{where}: {key} must be {'a number' if wanted is int else 'a string'}; got {value!r}")
        least = known[key].default
        if isinstance(value, int) and isinstance(least, int) and value < least:
            raise InputError(f"{where}: {key} must be at least {least}; got {value}")
    missing = [name for name, field in known.items() if field.default is MISSING and name not in values]
    if missing:
        raise InputError(f"{where}: {missing[0]} is missing")
    return kind(**cast("dict[str, Any]", values))


def _known(where: str, what: str, name: object, names: Sequence[str] | Mapping[str, object]) -> None:
    if not isinstance(name, str) or name not in names:
        raise InputError(f"{where}: {unknown_name(what, name, names)}")


def _mapping(where: str, key: str, value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise InputError(f"{where}: {key} must be a table; got {value!r}")
    return value


def _sequence(where: str, key: str, value: object) -> Sequence[object]:
    if not isinstance(value, list | tuple) or not value:
        raise InputError(f"{where}: {key} must be a list; got {value!r}")
    return value

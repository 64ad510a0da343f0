"""The modes as data: what a cache stores per element and per scale in each of vLLM's KVQuantMode members."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from kvformat.elements.formats import element
from kvformat.errors import InputError, unknown_name


@dataclass(frozen=True)
class Mode:
    """What one mode stores. How the numbers arise is a recipe's business, where they lie a layout's."""

    name: str
    #: element format of the codes; None: the values themselves, in the cache's dtype
    element: str | None
    #: element format (or "float32") of the scales that lie in the page; None: no scale lies there
    page_scale: str | None
    #: consecutive dims that share one page scale; 0: the whole head
    dims_per_scale: int
    #: True: one float32 scale per tensor (k_scale, v_scale) is kept beside the pages
    tensor_scale: bool
    #: what else a page holds for each group, by name, with its format: ("m", "float16")
    more: tuple[tuple[str, str], ...] = ()

    @property
    def parameters(self) -> dict[str, str]:
        """The format of each parameter in the page, by the part that it is: "scale" the first one."""
        return ({} if self.page_scale is None else {"scale": self.page_scale}) | dict(self.more)

    def columns(self, head_dim: int) -> int:
        """Page scales per (token, head): 0 where the page holds none. Raises InputError if head_dim does not divide."""
        if self.page_scale is None:
            return 0
        group = self.dims_per_scale or head_dim
        if head_dim <= 0 or head_dim % group:
            raise InputError(f"mode {self.name} needs a head_dim that is a multiple of {group}; got {head_dim}")
        return head_dim // group


_MODES = (
    Mode("none", None, None, 0, tensor_scale=False),
    Mode("fp8_per_tensor", "e4m3fn", None, 0, tensor_scale=True),
    Mode("fp8_per_token_head", "e4m3fn", "float32", 0, tensor_scale=False),
    Mode("int8_per_token_head", "int8", "float32", 0, tensor_scale=False),
    Mode("nvfp4", "e2m1fn", "e4m3fn", 16, tensor_scale=True),
)

# a page can hold more than its mode says: rows of several parts, or scales of another format
_RECORDS = (
    Mode("int4_per_token_head", "int4", "float32", 0, tensor_scale=False),
    Mode("fp8_unscaled", "e4m3fn", None, 0, tensor_scale=False),
    Mode("fp8_per_tile", "e4m3fn", "float32", 128, tensor_scale=False),
    Mode("mxfp8", "e4m3fn", "e8m0fnu", 32, tensor_scale=False),
    Mode("mxfp4", "e2m1fn", "e8m0fnu", 32, tensor_scale=False),
    Mode("fp4_mx_block16", "e2m1fn", "e8m0fnu", 16, tensor_scale=False),
    Mode("fp8_ds_mla", "e4m3fn", "float32", 128, tensor_scale=False),
    Mode("nvfp4_ds_mla", "e2m1fn", "e4m3fn", 16, tensor_scale=False),
    Mode("indexer_k", "e4m3fn", "float32", 128, tensor_scale=False),
    Mode("indexer_k_ue8m0", "e4m3fn", "float32", 128, tensor_scale=False),
    Mode("indexer_k_mxfp8", "e4m3fn", "e8m0fnu", 128, tensor_scale=False),
    Mode("indexer_k_mxfp4", "e2m1fn", "e8m0fnu", 32, tensor_scale=False),
    Mode("q8_0", "int8", "float16", 32, tensor_scale=False),
    Mode("q4_0", "uint4", "float16", 32, tensor_scale=False),
    Mode("q4_1", "uint4", "float16", 32, tensor_scale=False, more=(("m", "float16"),)),
    Mode("q5_0", "uint5", "float16", 32, tensor_scale=False),
    Mode("q5_1", "uint5", "float16", 32, tensor_scale=False, more=(("m", "float16"),)),
    Mode("affine3_group64", "uint3", "input", 64, tensor_scale=False, more=(("b", "input"),)),
    Mode("affine4_group64", "uint4", "input", 64, tensor_scale=False, more=(("b", "input"),)),
    Mode("affine8_group64", "uint8", "input", 64, tensor_scale=False, more=(("b", "input"),)),
    Mode("uint8_per_token_head", "uint8", "float32", 0, tensor_scale=False, more=(("zp", "float32"),)),
    Mode("uint4_per_token_head", "uint4", "float32", 0, tensor_scale=False, more=(("zp", "float32"),)),
    Mode("int8_zero_per_token_head", "int8", "float32", 0, tensor_scale=False, more=(("zp", "int8"),)),
    Mode("int8_per_tensor", "int8", None, 0, tensor_scale=True),
    Mode("int4_per_tensor", "uint4", None, 0, tensor_scale=True),
)

#: every mode that has a golden recipe, by name
MODES: Mapping[str, Mode] = MappingProxyType({mode.name: mode for mode in _MODES})
_records = {mode.name: mode for mode in _RECORDS}
#: every mode for which there are recipes of engines alone, by name; `define` adds to it
RECORDS: Mapping[str, Mode] = MappingProxyType(_records)
_OWN = frozenset((*MODES, *_records))


def define(mode: Mode) -> Mode:
    """Make a mode known by its name, until the program ends. Raises InputError for a name of kvformat's own."""
    if mode.name in _OWN:
        raise InputError(f"{mode.name!r} is a mode of kvformat's own; choose another name")
    _records[mode.name] = mode
    return mode


def is_known(name: str) -> bool:
    """Whether there is a mode of that name."""
    return name in MODES or name in _records


def is_users(name: str) -> bool:
    """Whether a user has defined the mode of that name."""
    return name in _records and name not in _OWN


def defined() -> dict[str, Mode]:
    """Where `define` keeps modes: for `kvformat.register`, which takes back a file that does not hold."""
    return _records


#: the keys of a mode as a table: type, and what stands where the key is missing (None: it must be there)
KEYS: Mapping[str, tuple[type, object]] = MappingProxyType(
    {
        "name": (str, None),
        "element": (str, None),
        "page_scale": (str, ""),
        "dims_per_scale": (int, 0),
        "tensor_scale": (bool, False),
    }
)


def parse_mode(described: Mapping[str, Any]) -> Mode:
    """The mode that a plain mapping describes. Raises InputError, one line that names the key, for a malformed one."""
    where = f"mode {described.get('name')!r}"
    for key, value in described.items():
        if key not in KEYS:
            raise unknown_name(f"key in {where}:", key, KEYS)
        if type(value) is not KEYS[key][0]:
            words = {str: "text", int: "an integer", bool: "true or false"}
            raise InputError(f"{where}: {key} must be {words[KEYS[key][0]]}; got {value!r}")
    if "element" not in described:
        raise InputError(f"{where} has no element")
    entry: dict[str, Any] = {key: default for key, (_, default) in KEYS.items()} | dict(described)
    element(entry["element"])
    if entry["page_scale"] not in ("", "float32"):
        element(entry["page_scale"])
    if not 0 <= entry["dims_per_scale"] <= 1 << 16:
        raise InputError(f"{where}: dims_per_scale must be 0 (the whole head) or more; got {entry['dims_per_scale']}")
    return Mode(**{**entry, "page_scale": entry["page_scale"] or None})


def mode(name: str | Mode) -> Mode:
    """The mode of that name. Raises InputError, naming the close names, for an unknown one."""
    if isinstance(name, Mode):
        return name
    found = MODES.get(name) or RECORDS.get(name)
    if found is None:
        raise unknown_name("mode", name, (*MODES, *RECORDS))
    return found

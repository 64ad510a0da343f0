"""The modes as data: what a cache stores per element and per scale in each of vLLM's KVQuantMode members."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

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
)

#: every mode that has a golden recipe, by name
MODES: Mapping[str, Mode] = MappingProxyType({mode.name: mode for mode in _MODES})
#: every mode for which there are recipes of engines alone, by name
RECORDS: Mapping[str, Mode] = MappingProxyType({mode.name: mode for mode in _RECORDS})


def mode(name: str | Mode) -> Mode:
    """The mode of that name. Raises InputError, naming the close names, for an unknown one."""
    if isinstance(name, Mode):
        return name
    found = MODES.get(name) or RECORDS.get(name)
    if found is None:
        raise unknown_name("mode", name, (*MODES, *RECORDS))
    return found

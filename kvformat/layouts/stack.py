"""All layers in one tensor: where the pages of each layer and block lie in it, in each of vLLM's six orders."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np

from kvformat.errors import InputError, unknown_name
from kvformat.layouts.page import Layout, as_integer, checked_index
from kvformat.layouts.region import Bytes, Digit

#: L layer, B block, H head, N slot, C what a (head, slot) holds: vLLM 0.33 vllm/v1/kv_cache_layout.py L15-28
STACK_ORDERS = ("LBHNC", "LBNHC", "BLHNC", "BLNHC", "LHBNC", "BHLNC")


class PageByte(NamedTuple):
    """A byte of the tensor of all layers: whose page it belongs to, and which byte of that page it is."""

    layer: int
    block: int
    byte: int


@dataclass(frozen=True)
class Stack:
    """The tensor of all layers. Where H comes before L and B a page is in pieces, one per head; else in one piece.

    Raises InputError for an order of slots and heads that the page does not have, and for a page that cannot be cut
    into equal heads where the order asks for it.
    """

    page: Layout
    num_layers: int
    num_blocks: int
    order: str

    def __post_init__(self) -> None:
        for name in ("num_layers", "num_blocks"):
            size = as_integer(getattr(self, name))
            if size is None or size < 1:
                raise InputError(f"{name} must be an integer of at least 1; got {getattr(self, name)!r}")
        if self.order not in STACK_ORDERS:
            raise unknown_name("order of a stack", self.order, STACK_ORDERS)
        inside = "NHD" if self.order.index("N") < self.order.index("H") else "HND"
        if inside != self.page.order:
            raise InputError(f"{self.order} holds pages of order {inside}; these are {self.page.order}")
        if "H" in self._outer and not self._by_heads():
            raise InputError(f"{self.order} cuts a page by heads; a page of {self.page.name} in mode {self.page.mode}, "
                             f"{self.page.page_bytes} bytes, is not one equal piece a head")  # fmt: skip

    @property
    def num_bytes(self) -> int:
        """The size of the tensor."""
        return self.num_layers * self.num_blocks * self.page.page_bytes

    def locate(self, *, layer: int, block: int, byte: int) -> int:
        """The tensor's byte that is that byte of the page of a layer and block."""
        head, rest = divmod(checked_index("byte", byte, self.page.page_bytes), self._run)
        index = {
            "L": checked_index("layer", layer, self.num_layers),
            "B": checked_index("block", block, self.num_blocks),
        }
        index["H"] = head
        address = 0
        for axis in self._outer:
            address = address * self._counts[axis] + index[axis]
        return address * self._run + rest

    def explain(self, *, byte: int) -> PageByte:
        """Which byte of which page a byte of the tensor is: `locate` inverted."""
        rest, inside = divmod(checked_index("byte", byte, self.num_bytes), self._run)
        index = {"H": 0}
        for axis in reversed(self._outer):
            rest, index[axis] = divmod(rest, self._counts[axis])
        return PageByte(index["L"], index["B"], index["H"] * self._run + inside)

    def pages(self, tensor: Bytes, layer: int) -> Bytes:
        """The pages of a layer, uint8 (num_blocks, page_bytes), a copy. tensor: uint8 (num_bytes,)."""
        return np.ascontiguousarray(self._of_layer(tensor, layer)).reshape(self.num_blocks, self.page.page_bytes)

    def put(self, tensor: Bytes, layer: int, pages: Bytes) -> None:
        """Store the pages of a layer, in place: what `pages` returns."""
        if pages.dtype != np.uint8 or pages.shape != (self.num_blocks, self.page.page_bytes):
            wanted = f"uint8 ({self.num_blocks}, {self.page.page_bytes})"
            raise InputError(f"pages must be {wanted}; got {pages.dtype} {pages.shape}")
        view = self._of_layer(tensor, layer)
        view[...] = pages.reshape(view.shape)

    def _of_layer(self, tensor: Bytes, layer: int) -> Bytes:
        """A view (num_blocks, heads, run) of a layer; heads is 1 where pages are in one piece."""
        if tensor.dtype != np.uint8 or tensor.shape != (self.num_bytes,):
            raise InputError(f"the tensor must be uint8 ({self.num_bytes},); got {tensor.dtype} {tensor.shape}")
        shaped = tensor.reshape(*(self._counts[axis] for axis in self._outer), self._run)
        layer = checked_index("layer", layer, self.num_layers)
        left = self._outer.replace("L", "")
        taken = np.moveaxis(shaped, self._outer.index("L"), 0)[layer]
        ordered: Bytes = np.moveaxis(taken, left.index("B"), 0)
        return ordered if "H" in left else ordered[:, None]

    @property
    def _outer(self) -> str:
        """The axes outside the pieces that pages are in, the slow one first."""
        return self.order[: max(self.order.index("L"), self.order.index("B")) + 1]

    @property
    def _counts(self) -> dict[str, int]:
        return {"L": self.num_layers, "B": self.num_blocks, "H": self.page.num_kv_heads}

    @property
    def _run(self) -> int:
        """Bytes of a piece."""
        pieces = prod(self._counts[axis] for axis in self._outer)
        return self.num_bytes // pieces

    def _by_heads(self) -> bool:
        """Whether a page is its heads, one after the other, each in one piece of the same size."""
        run, rest = divmod(self.page.page_bytes, self.page.num_kv_heads)
        step = (Digit(self.page.num_kv_heads, run * 8),)
        return not rest and all(
            region.head == step and region.end - (self.page.num_kv_heads - 1) * run <= run
            for region in self.page.regions
        )

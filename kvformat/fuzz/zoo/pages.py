"""Where things lie in vLLM's pages, written out by hand; and what goes wrong there, for writers and readers alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kvformat.fuzz.zoo.entry import EVERY, NONE, NVFP4, ROWS, SCALED, Described
from kvformat.fuzz.zoo.numbers import Array


@dataclass(frozen=True)
class Geometry:
    """The sizes of a page: slots, heads, and per (token, head) the bytes of codes and the entries of scales."""

    slots: int
    heads: int
    order: str
    #: bytes of one row of codes, its scales, and the bytes of one scale
    codes: int
    scales: int
    scale_bytes: int
    swizzled: bool
    #: bytes from page to page
    page: int

    @property
    def cell(self) -> int:
        """Bytes of one (token, head): K, its scales, V, its scales."""
        return 2 * (self.codes + self.scales * self.scale_bytes)

    @property
    def natural(self) -> int:
        """Bytes of a page without padding."""
        return self.slots * self.heads * self.cell


class Placed(Described):
    """Addresses of the vLLM layout: cells, or in nvfp4 four tensors one after the other."""

    modes: tuple[str, ...] = EVERY

    def geometry(self, pages: Array, meta: dict[str, Any]) -> Geometry:
        """The sizes, from what the caller says."""
        size = meta["head_size"]
        widths = {NONE: size * (4 if meta["dtype"] == "float32" else 2), NVFP4: size // 2}
        scales = {NVFP4: size // 16}.get(self.mode, 1 if self.mode in SCALED else 0)
        return Geometry(
            meta["block_size"],
            meta["num_kv_heads"],
            meta["order"],
            widths.get(self.mode, size),
            scales,
            1 if self.mode == NVFP4 else 4,
            meta["v_scales"] == "swizzled",
            pages.shape[1],
        )

    def place(self, g: Geometry, slot: int) -> tuple[int, int]:
        """The block and the position in it."""
        return divmod(slot, g.slots)

    def row(self, g: Geometry, position: int, head: int) -> int:
        """The row of a (token, head) in the page."""
        return position * g.heads + head if g.order == "NHD" else head * g.slots + position

    def code_at(self, g: Geometry, side: int, position: int, head: int) -> int:
        """The byte of the page where a row's codes begin."""
        row, rows = self.row(g, position, head), g.slots * g.heads
        if self.mode == NVFP4:
            return side * rows * (g.codes + g.scales) + row * g.codes
        return row * g.cell + side * g.cell // 2

    def scale_at(self, g: Geometry, side: int, position: int, head: int, column: int) -> int:
        """The byte of the page where a scale begins."""
        if self.mode != NVFP4:
            return self.code_at(g, side, position, head) + g.codes + column * g.scale_bytes
        if self.is_swizzled(g, side):
            position, column = self.swizzle(g, position, column)
        rows = g.slots * g.heads
        return side * rows * (g.codes + g.scales) + rows * g.codes + self.row(g, position, head) * g.scales + column

    def is_swizzled(self, g: Geometry, side: int) -> bool:
        """V scales are, where the caller says so; K scales never."""
        return side == 1 and g.swizzled

    def swizzle(self, g: Geometry, position: int, column: int) -> tuple[int, int]:
        """Groups of 4 tokens, the scales of one of them spread over all four."""
        quarter = g.scales // 4
        return position // 4 * 4 + column // quarter, column % quarter * 4 + position % 4

    def memory(self, g: Geometry, pages: Array, block: int) -> Array:
        """The bytes of a block."""
        return pages[block]


class OrderExchanged(Placed):
    """Tokens and heads change places: NHD for HND, and HND for NHD."""

    fault, source = "order", "vllm-project/vllm#44455, vllm-project/vllm#49011"

    def row(self, g: Geometry, position: int, head: int) -> int:
        return position * g.heads + head if g.order == "HND" else head * g.slots + position


class KeyAndValueExchanged(Placed):
    """K lies where V belongs."""

    fault, source = "kv-exchanged", "LMCache/LMCache#2494, LMCache/LMCache#2500"

    def code_at(self, g: Geometry, side: int, position: int, head: int) -> int:
        return super().code_at(g, 1 - side, position, head)

    def scale_at(self, g: Geometry, side: int, position: int, head: int, column: int) -> int:
        if self.mode != NVFP4:
            return super().scale_at(g, side, position, head, column)
        return super().scale_at(g, 1 - side, position, head, column)


class TwoHalfPages(Placed):
    """K in the first half of the page, V in the second, instead of both in one cell."""

    fault, source = "kv-fused", "vllm-project/vllm#44455, ROCm/aiter#3498"
    modes = (NONE, *ROWS)

    def code_at(self, g: Geometry, side: int, position: int, head: int) -> int:
        return side * g.natural // 2 + self.row(g, position, head) * g.cell // 2


class StrideFromShape(Placed):
    """The page stride is computed from the shape: padding between pages is not known of."""

    fault, source = "stride", "vllm-project/vllm#49716, vllm-project/vllm#52516"

    def memory(self, g: Geometry, pages: Array, block: int) -> Array:
        return pages.reshape(-1)[block * g.natural :][: g.natural]


class ScaleStrideFromShape(Placed):
    """Only the scales' view takes the page stride from the shape."""

    fault, source = "stride", "vllm-project/vllm#49716"
    modes = SCALED

    def scale_at(self, g: Geometry, side: int, position: int, head: int, column: int) -> int:
        # an address in a page that begins `padding` bytes earlier; block 1 is the first to show it
        return max(0, super().scale_at(g, side, position, head, column) - (g.page - g.natural))


class SlotShifted(Placed):
    """Positions count from 1: every token lies one slot late, the last one in slot 0."""

    fault, source = "slot-shift", "vllm-project/vllm#47056"

    def place(self, g: Geometry, slot: int) -> tuple[int, int]:
        return slot // g.slots, (slot + 1) % g.slots


class BlockSizeOfHeads(Placed):
    """The block size is read from the dimension that holds the heads."""

    fault, source = "slot-shift", "vllm-project/vllm#49012, vllm-project/vllm#53681"

    def place(self, g: Geometry, slot: int) -> tuple[int, int]:
        block, position = divmod(slot, g.heads)
        return block % max(1, slot // g.slots + 1), position % g.slots


class LinearValueScales(Placed):
    """V scales lie in rows, whatever the reader expects."""

    fault, source = "swizzle", "vllm-project/vllm#50084, vllm-project/vllm#55976"
    modes = (NVFP4,)

    def is_swizzled(self, g: Geometry, side: int) -> bool:
        return False


class AlwaysSwizzled(Placed):
    """V scales are permuted for every chip, also for readers of rows."""

    fault, source = "swizzle", "vllm-project/vllm#50084, vllm-project/vllm#46329"
    modes = (NVFP4,)

    def is_swizzled(self, g: Geometry, side: int) -> bool:
        return side == 1 and g.scales % 4 == 0 and g.slots % 4 == 0


class KeyScalesSwizzledToo(Placed):
    """K scales are permuted as V's are: the contract before it changed."""

    fault, source = "swizzle", "flashinfer-ai/flashinfer#2954"
    modes = (NVFP4,)

    def is_swizzled(self, g: Geometry, side: int) -> bool:
        return g.swizzled


class SwizzledTwice(Placed):
    """V scales are permuted twice, which at a head size of 64 is not at all."""

    fault, source = "swizzle", "vllm-project/vllm#50084"
    modes = (NVFP4,)

    def swizzle(self, g: Geometry, position: int, column: int) -> tuple[int, int]:
        return super().swizzle(g, *super().swizzle(g, position, column))


class TiledScales(Placed):
    """Scales lie in 128x4 tiles, as matrix multiplications want them."""

    fault, source = "swizzle", "NVIDIA/cudnn-frontend#237, NVIDIA/TransformerEngine#2924"
    modes = (NVFP4,)

    def scale_at(self, g: Geometry, side: int, position: int, head: int, column: int) -> int:
        row = self.row(g, position, head)
        tiles = -(-g.scales // 4)
        inside = column % 4 + column // 4 * 512 + row % 32 * 16 + row % 128 // 32 * 4 + row // 128 * 512 * tiles
        rows = g.slots * g.heads
        return side * rows * (g.codes + g.scales) + rows * g.codes + inside % (rows * g.scales)


#: what goes wrong in addresses, whoever uses them
FAULTS: tuple[type[Placed], ...] = tuple(Placed.__subclasses__())


def rows_of(array: Array) -> Array:
    """Any array (tokens, heads, ...) as bytes (tokens, heads, n)."""
    return np.ascontiguousarray(array).view(np.uint8).reshape(*array.shape[:2], -1)

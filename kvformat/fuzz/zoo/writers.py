"""Cache writers in NumPy, one token and head at a time: a right one, and what goes wrong in them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from kvformat.fuzz.zoo.blocks import Blocks
from kvformat.fuzz.zoo.entry import EVERY, FP8_TENSOR, INT8, NONE, NVFP4, QUANTIZED, SCALED, Described
from kvformat.fuzz.zoo.numbers import ONE, Array, pack
from kvformat.fuzz.zoo.pages import FAULTS, Geometry, Placed, rows_of
from kvformat.fuzz.zoo.row_codes import Truncated
from kvformat.fuzz.zoo.rows import Rows


class Writer(Placed):
    """Quantizes each side, then stores row by row where the layout says."""

    kind = "writer"

    def __call__(
        self,
        key: Array,
        value: Array,
        pages: Array,
        slot_mapping: Array,
        *,
        block_size: int,
        num_kv_heads: int,
        head_size: int,
        order: str,
        v_scales: str | None,
        dtype: str | None,
        k_scale: np.float32 | None,
        v_scale: np.float32 | None,
    ) -> None:
        """Write K and V (tokens, heads, head_size) into pages uint8 (num_blocks, page_bytes)."""
        meta = {
            "block_size": block_size,
            "num_kv_heads": num_kv_heads,
            "head_size": head_size,
            "order": order,
            "v_scales": v_scales,
            "dtype": dtype,
        }
        g = self.geometry(pages, meta)
        sides = [self.quantized(x, scale, dtype) for x, scale in self.scaled((key, k_scale), (value, v_scale))]
        for token, slot in enumerate(map(int, slot_mapping)):
            if not self.skips(slot):
                self.store_token(g, pages, slot, [(codes[token], scales[token]) for codes, scales in sides])

    def scaled(self, key: Any, value: Any) -> tuple[Any, Any]:
        """Each side with its scale."""
        return key, value

    def quantized(self, x: Array, scale: np.float32 | None, dtype: str | None) -> tuple[Array, Array]:
        """Bytes of codes and of scales, (tokens, heads, n)."""
        if self.mode == NONE:
            stored = self.narrowed(x, dtype or "bfloat16")
            return rows_of(stored), rows_of(stored)[..., :0]
        if self.mode == NVFP4:
            codes, scales, _ = Blocks(NVFP4).quantize(x.astype(np.float32), scale)
            return self.packed(codes), scales
        codes, scales = self.rows(x).quantize(x.astype(np.float32), scale)
        return rows_of(codes), rows_of(codes)[..., :0] if self.mode == FP8_TENSOR else rows_of(scales)

    def narrowed(self, x: Array, dtype: str) -> Array:
        return x.astype(getattr(ml_dtypes, dtype, dtype))

    def packed(self, codes: Array) -> Array:
        return pack(codes)

    def rows(self, x: Array) -> Rows:
        return Rows(self.mode)

    def skips(self, slot: int) -> bool:
        """A negative slot is padding."""
        return slot < 0

    def store_token(self, g: Geometry, pages: Array, slot: int, sides: list[tuple[Array, Array]]) -> None:
        block, position = self.place(g, slot)
        page = self.memory(g, pages, block)
        for head in range(g.heads):
            for side, (codes, scales) in enumerate(sides):
                at = self.code_at(g, side, position, head)
                page[at : at + g.codes] = codes[head]
                for column in range(g.scales):
                    at = self.scale_at(g, side, position, head, column)
                    one = scales[head][column * g.scale_bytes : (column + 1) * g.scale_bytes]
                    page[at : at + g.scale_bytes] = self.scale_bytes(one)

    def scale_bytes(self, one: Array) -> Array:
        return one


class RightWriter(Writer):
    """Addresses by formula, one token and head at a time."""


class PaddingWritten(Writer):
    """A negative slot is not tested for: Python, like a kernel with unsigned slots, finds a place for it."""

    fault, source = "slot-padding", "huggingface/transformers#46765, flashinfer-ai/flashinfer#3740"

    def skips(self, slot: int) -> bool:
        return False


class OnlyMinusOneSkipped(Writer):
    """slot == -1 is tested for, other negative slots are written."""

    fault, source = "slot-padding", "vLLM 0.33 vllm/models/deepseek_v4/common/ops/cache_utils.py L79-81"

    def skips(self, slot: int) -> bool:
        return slot == -1


class PageCleared(Writer):
    """The first token of a block clears the page: tokens that lie there already are gone."""

    fault, source = "page-cleared", "vllm-project/vllm#51091"

    def store_token(self, g: Geometry, pages: Array, slot: int, sides: list[tuple[Array, Array]]) -> None:
        if slot % g.slots == 0:
            pages[slot // g.slots] = 0
        super().store_token(g, pages, slot, sides)


class RowOverrun(Writer):
    """Rows are stored in vectors of 32 bytes: what is beyond the row's end is overwritten with zeros."""

    fault, source = "row-overrun", "FlashML-org/FreeToken#354"

    def store_token(self, g: Geometry, pages: Array, slot: int, sides: list[tuple[Array, Array]]) -> None:
        super().store_token(g, pages, slot, sides)
        block, position = self.place(g, slot)
        whole = np.lib.stride_tricks.as_strided(pages, (pages.size + g.page,), (1,))
        for head in range(g.heads):
            end = block * g.page + self.code_at(g, 1, position, head) + g.codes
            whole[end : end - g.codes + -(-(g.codes + 1) // 32) * 32] = 0


class ScalesForgotten(Writer):
    """The codes are written and the scales are not."""

    fault, source = "page-missing-scales", "kvcache-ai/Mooncake#2236, NVIDIA/TensorRT-LLM#18957"
    modes = SCALED

    def store_token(self, g: Geometry, pages: Array, slot: int, sides: list[tuple[Array, Array]]) -> None:
        block, position = self.place(g, slot)
        for head in range(g.heads):
            for side, (codes, _) in enumerate(sides):
                at = self.code_at(g, side, position, head)
                pages[block, at : at + g.codes] = codes[head]


class ScalesResetToOne(Writer):
    """The scales are 1.0 again after the first write: another view of the same memory was initialised late."""

    fault, source = "scale-elsewhere", "vllm-project/vllm#51091, vllm-project/vllm#25800"
    modes = SCALED

    def scale_bytes(self, one: Array) -> Array:
        return np.array([0x38], np.uint8) if self.mode == NVFP4 else np.array([ONE]).view(np.uint8)


class GivenScaleIgnored(Writer):
    """The checkpoint's scale never reaches the layer: 1.0 is used."""

    fault, source = "scale-elsewhere", "vllm-project/vllm#54624, NVIDIA/TensorRT-LLM#16916"
    modes = (FP8_TENSOR, NVFP4)

    def scaled(self, key: Any, value: Any) -> tuple[Any, Any]:
        return (key[0], ONE), (value[0], ONE)


class GivenScaleInverted(Writer):
    """The caller's decode multiplier is taken for the one that makes codes."""

    fault, source = "encode-scale", "modular/modular#6699, FlashInfer 0.7.4 include/flashinfer/pos_enc.cuh L547-613"
    modes = (FP8_TENSOR, NVFP4)

    def scaled(self, key: Any, value: Any) -> tuple[Any, Any]:
        return (key[0], ONE / key[1]), (value[0], ONE / value[1])


class ValueUsesKeyScale(Writer):
    """One merged scale: V is quantized with K's."""

    fault, source = "scale-of-other", "NVIDIA/TensorRT-LLM#2446, vllm-project/vllm#46265"
    modes = QUANTIZED

    def scaled(self, key: Any, value: Any) -> tuple[Any, Any]:
        return key, (value[0], key[1])

    def quantized(self, x: Array, scale: np.float32 | None, dtype: str | None) -> tuple[Array, Array]:
        return super().quantized(x, scale, dtype)

    def store_token(self, g: Geometry, pages: Array, slot: int, sides: list[tuple[Array, Array]]) -> None:
        if self.mode in SCALED and self.mode != NVFP4:
            sides = [sides[0], (sides[1][0], sides[0][1])]
        super().store_token(g, pages, slot, sides)


class ValueTruncated(Writer):
    """The rounding was fixed for K and forgotten for V."""

    fault, source = "round-toward-zero", "vllm-project/vllm#41505, weicj/vLLM-2080Ti-Definitive#109"
    modes = (INT8,)

    def scaled(self, key: Any, value: Any) -> tuple[Any, Any]:
        self.value = value[0]
        return key, value

    def rows(self, x: Array) -> Rows:
        return Truncated(self.mode) if x is self.value else Rows(self.mode)


class HighNibbleStored(Writer):
    """The even element lies in the high nibble."""

    fault, source = "nibble-order", "triton-lang/triton#5197, Comfy-Org/comfy-kitchen#41"
    modes = (NVFP4,)

    def packed(self, codes: Array) -> Array:
        packed = pack(codes)
        return packed << 4 | packed >> 4


class CutOffToBfloat(Writer):
    """float32 becomes bfloat16 by dropping its low half."""

    fault, source = "round-toward-zero", "triton-lang/triton#11753"
    modes = (NONE,)

    def narrowed(self, x: Array, dtype: str) -> Array:
        if dtype != "bfloat16":
            return super().narrowed(x, dtype)
        upper = (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return upper.view(ml_dtypes.bfloat16)


class SaturatedHalf(Writer):
    """What is too large for float16 is stored as its largest number instead of Inf."""

    fault, source = "saturate", "pytorch/FBGEMM#4237"
    modes = (NONE,)

    def narrowed(self, x: Array, dtype: str) -> Array:
        stored = super().narrowed(x, dtype)
        if dtype != "float16":
            return stored
        return np.where(np.isinf(stored), np.copysign(np.float16(65504), stored), stored)


#: every right writer
RIGHT: tuple[type[Described], ...] = (RightWriter,)
_OWN = [each for each in Writer.__subclasses__() if each.__dict__.get("fault")]
_ADDRESSES = [
    type(each.__name__, (each, Writer), {"fault": each.fault, "modes": each.modes, "__doc__": each.__doc__})
    for each in FAULTS
    if each is not Writer
]
#: every broken writer: its own faults, and those of addresses
BROKEN: tuple[type[Described], ...] = (*_OWN, *_ADDRESSES)

assert all(set(each.modes) <= set(EVERY) for each in BROKEN)

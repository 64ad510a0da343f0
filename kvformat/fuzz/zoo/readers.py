"""Cache readers in NumPy: a right one, and what goes wrong in them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from kvformat.fuzz.zoo.entry import FP8, FP8_ROW, FP8_TENSOR, INT8, NONE, NVFP4, QUANTIZED, ROWS, Described
from kvformat.fuzz.zoo.numbers import ONE, Array, from_e2m1, from_e4m3, unpack
from kvformat.fuzz.zoo.pages import FAULTS, Geometry, Placed


class Reader(Placed):
    """Fetches rows one token and head at a time and dequantizes them."""

    kind = "reader"

    def __call__(
        self,
        pages: Array,
        block_table: Array,
        seq_len: int,
        *,
        block_size: int,
        num_kv_heads: int,
        head_size: int,
        order: str,
        v_scales: str | None,
        dtype: str | None,
        k_scale: np.float32 | None,
        v_scale: np.float32 | None,
    ) -> tuple[Array, Array]:
        """K and V (seq_len, heads, head_size), float32, or in mode none as they are stored."""
        meta = {
            "block_size": block_size,
            "num_kv_heads": num_kv_heads,
            "head_size": head_size,
            "order": order,
            "v_scales": v_scales,
            "dtype": dtype,
        }
        g = self.geometry(pages, meta)
        sides = []
        for side, scale in enumerate(self.given(k_scale, v_scale)):
            codes, scales = self.fetched(g, pages, block_table, seq_len, side)
            sides.append(self.values(codes, scales, scale, dtype or "bfloat16"))
        return sides[0], sides[1]

    def given(self, k_scale: np.float32 | None, v_scale: np.float32 | None) -> tuple[Any, Any]:
        return k_scale, v_scale

    def block(self, block_table: Array, index: int) -> int:
        return int(block_table[index])

    def fetched(self, g: Geometry, pages: Array, block_table: Array, seq_len: int, side: int) -> tuple[Array, Array]:
        """The bytes of codes and scales of a side, (seq_len, heads, n)."""
        codes = np.zeros((seq_len, g.heads, g.codes), np.uint8)
        scales = np.zeros((seq_len, g.heads, g.scales * g.scale_bytes), np.uint8)
        for token, head in np.ndindex(seq_len, g.heads):
            slot = self.block(block_table, token // g.slots) * g.slots + token % g.slots
            block, position = self.place(g, slot)
            page = self.memory(g, pages, block)
            at = self.code_at(g, side, position, head)
            codes[token, head] = page[at : at + g.codes]
            for column in range(g.scales):
                at = self.scale_at(g, self.scale_side(side), position, head, column)
                one = page[at : at + g.scale_bytes]
                scales[token, head, column * g.scale_bytes : (column + 1) * g.scale_bytes] = one
        return codes, scales

    def scale_side(self, side: int) -> int:
        return side

    def values(self, codes: Array, scales: Array, given: np.float32 | None, dtype: str) -> Array:
        """What the bytes stand for."""
        if self.mode == NONE:
            return self.binary(codes, np.dtype(getattr(ml_dtypes, dtype, dtype)))
        if self.mode == NVFP4:
            values = from_e2m1(self.unpacked(codes)).reshape(*codes.shape[:2], -1, 16)
            block = self.block_scales(scales)[..., None]
            return self.scaled_twice(values, block, self.tensor_scale(given)).reshape(*codes.shape[:2], -1)
        values = self.integers(codes) if self.mode == INT8 else self.floats(codes)
        scale = self.tensor_scale(given) if self.mode == FP8_TENSOR else scales.view(np.float32)
        return self.scaled(values, scale)

    def binary(self, codes: Array, dtype: np.dtype[Any]) -> Array:
        return codes.view(dtype)

    def unpacked(self, codes: Array) -> Array:
        return unpack(codes)

    def block_scales(self, scales: Array) -> Array:
        return from_e4m3(scales)

    def tensor_scale(self, given: np.float32 | None) -> np.float32:
        return ONE if given is None else given

    def integers(self, codes: Array) -> Array:
        return codes.view(np.int8).astype(np.float32)

    def floats(self, codes: Array) -> Array:
        return from_e4m3(codes)

    def scaled(self, values: Array, scale: Any) -> Array:
        return values * scale

    def scaled_twice(self, values: Array, block: Array, g: np.float32) -> Array:
        return (values * block) * g


class RightReader(Reader):
    """Addresses by formula, one token and head at a time."""


class BlockTableIgnored(Reader):
    """The blocks of a sequence are taken to be 0, 1, 2, ..."""

    fault, source = "block-table", "NVIDIA/TensorRT-LLM#18957, NVIDIA/TensorRT-LLM#19192"

    def block(self, block_table: Array, index: int) -> int:
        return index


class NanFromNeighbours(Reader):
    """Tokens are selected by a product with a 0 / 1 matrix: 0 * NaN of a slot that nobody wrote is NaN."""

    fault, source = "unwritten-slot", "Dao-AILab/flash-attention#1745, nod-ai/amd-shark-ai#665"

    def values(self, codes: Array, scales: Array, given: np.float32 | None, dtype: str) -> Array:
        values = super().values(codes, scales, given, dtype)
        unwritten = (
            self.tail is not None and np.isnan(super().values(*self.tail, given, dtype).astype(np.float32)).any()
        )
        return np.full_like(values, np.nan) if unwritten else values

    def fetched(self, g: Geometry, pages: Array, block_table: Array, seq_len: int, side: int) -> tuple[Array, Array]:
        whole = -(-seq_len // g.slots) * g.slots
        codes, scales = super().fetched(g, pages, block_table, whole, side)
        self.tail = (codes[seq_len:], scales[seq_len:]) if whole > seq_len else None
        return codes[:seq_len], scales[:seq_len]


class DividesByTheScale(Reader):
    """The stored scale is taken for the multiplier that makes codes."""

    fault, source = "encode-scale", "modular/modular#6699"
    modes = ROWS

    def scaled(self, values: Array, scale: Any) -> Array:
        return values / scale


class ReadWithoutScale(Reader):
    """The scale of the tensor is never multiplied in."""

    fault, source = "scale-elsewhere", "sgl-project/sglang#28144, vllm-project/vllm#54624"
    modes = (FP8_TENSOR, NVFP4)

    def tensor_scale(self, given: np.float32 | None) -> np.float32:
        return ONE


class ValueReadWithKeyScale(Reader):
    """V is read with K's scales."""

    fault, source = "scale-of-other", "NVIDIA/TensorRT-LLM#2446"
    modes = QUANTIZED

    def scale_side(self, side: int) -> int:
        return 0

    def given(self, k_scale: np.float32 | None, v_scale: np.float32 | None) -> tuple[Any, Any]:
        return k_scale, k_scale


class ScalesMultipliedFirst(Reader):
    """code * (bs * g) instead of (code * bs) * g."""

    fault, source = "op-order", "ModelOpt 0.47 quantization/qtensor/nvfp4_tensor.py L400-408"
    modes = (NVFP4,)

    def scaled_twice(self, values: Array, block: Array, g: np.float32) -> Array:
        return values * (block * g)


class ReadThroughBfloat(Reader):
    """The value goes through bfloat16 on its way to float32."""

    fault, source = (
        "double-rounding",
        "vLLM 0.33 csrc/quantization/w8a8/fp8/nvidia/quant_utils.cuh (fp8x2 through half)",
    )
    modes = ROWS

    def scaled(self, values: Array, scale: Any) -> Array:
        return (values * scale).astype(ml_dtypes.bfloat16).astype(np.float32)


class HighNibbleRead(Reader):
    """The even element is taken from the high nibble."""

    fault, source = "nibble-order", "triton-lang/triton#5197"
    modes = (NVFP4,)

    def unpacked(self, codes: Array) -> Array:
        return unpack(codes << 4 | codes >> 4)


class SubnormalScalesAsNormal(Reader):
    """Subnormal e4m3 numbers are read by the formula of normal ones."""

    fault, source = "subnormal-decode", "local-inference-lab/b12x#388, JuliaMath/Float8s.jl#22"
    modes = (*FP8, NVFP4)

    def block_scales(self, scales: Array) -> Array:
        return self.floats(scales)

    def floats(self, codes: Array) -> Array:
        normal = np.float32(2.0**-7) * (ONE + (codes & 7).astype(np.float32) / np.float32(8))
        wrong = np.copysign(normal, np.where(codes & 0x80, -ONE, ONE))
        return np.where(((codes & 0x78) == 0) & ((codes & 7) != 0), wrong, from_e4m3(codes))


class ReadAsE5m2(Reader):
    """e4m3 bytes are read as e5m2."""

    fault, source = "wrong-format", "vllm-project/vllm#54341"
    modes = FP8

    def floats(self, codes: Array) -> Array:
        return codes.view(ml_dtypes.float8_e5m2).astype(np.float32)


class ReadAsFnuz(Reader):
    """e4m3fn bytes are read as e4m3fnuz: half as large, and -0 is NaN."""

    fault, source = "wrong-format", "vllm-project/vllm#45720, vllm-project/vllm#3290"
    modes = FP8

    def floats(self, codes: Array) -> Array:
        return codes.view(ml_dtypes.float8_e4m3fnuz).astype(np.float32)


class NanReadAs480(Reader):
    """0x7F is read as the number that its bits would be without a NaN."""

    fault, source = "nan-decode", "triton-lang/triton#10745, triton-lang/triton#10747"
    modes = FP8

    def floats(self, codes: Array) -> Array:
        large = np.where(codes & 0x80, np.float32(-480), np.float32(480))
        return np.where((codes & 0x7F) == 0x7F, large, from_e4m3(codes))


class TopBinadeReadAsNan(Reader):
    """Every code of the top binade but 256 is read as NaN, as in formats with Inf."""

    fault, source = "nan-decode", "ROCm/rocm-systems#6870, ROCm/rocm-systems#8800"
    modes = FP8

    def floats(self, codes: Array) -> Array:
        return np.where((codes & 0x7F) > 0x78, np.float32(np.nan), from_e4m3(codes))


class IntegersUnsigned(Reader):
    """int8 codes are read as unsigned bytes."""

    fault, source = "wrong-format", "vLLM 0.33 vllm/utils/torch_utils.py L40-66 (int8 or uint8 storage, by mode)"
    modes = (INT8,)

    def integers(self, codes: Array) -> Array:
        return codes.astype(np.float32)


class BinaryReadAsHalf(Reader):
    """bfloat16 bytes are read as float16."""

    fault, source = "wrong-format", "NVIDIA/TensorRT-LLM#16505"
    modes = (NONE,)

    def binary(self, codes: Array, dtype: np.dtype[Any]) -> Array:
        return super().binary(codes, np.dtype(np.float16) if dtype.itemsize == 2 else dtype)


class ScaleOfSlotZero(Reader):
    """Every token of a block is read with the scale of its first slot."""

    fault, source = "scale-of-other", "vllm-project/vllm#44455, vllm-project/vllm#49716"
    modes = (FP8_ROW, INT8, NVFP4)

    def scale_at(self, g: Geometry, side: int, position: int, head: int, column: int) -> int:
        return super().scale_at(g, side, 0, head, column)


#: every right reader
RIGHT: tuple[type[Described], ...] = (RightReader,)
_OWN = [each for each in Reader.__subclasses__() if each.__dict__.get("fault")]
_ADDRESSES = [
    type(each.__name__, (each, Reader), {"fault": each.fault, "modes": each.modes, "__doc__": each.__doc__})
    for each in FAULTS
    if each is not Reader
]
#: every broken reader: its own faults, and those of addresses
BROKEN: tuple[type[Described], ...] = (*_OWN, *_ADDRESSES)

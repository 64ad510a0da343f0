"""What goes wrong in the codes of rows: the quotient, its rounding, overflow, NaN and zeros."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from kvformat.fuzz.zoo.entry import FP8, INT8
from kvformat.fuzz.zoo.numbers import ONE, Array, e4m3, flushed, steps_e4m3, via
from kvformat.fuzz.zoo.rows import Rows


class Reciprocal(Rows):
    """Multiplies by the rounded reciprocal of the scale instead of dividing by it."""

    fault, source = "reciprocal", "arch-hdl-lang/arch-com#905, ROCm/aiter#5259, vllm-project/vllm#31514"

    def divide(self, x: Array, scale: Array) -> Array:
        return x * (ONE / scale)


class ScaledByQmaxOverAmax(Rows):
    """Multiplies by QMAX / amax, which is not the reciprocal of the stored scale."""

    fault, source = "op-order", "SGLang 0.5.23 kernels/ops/quantization/int8_kernel.py L22-55"

    def quantize(self, x: Array, given: np.float32 | None = None) -> tuple[Array, Array]:
        amax = self.amax(x)
        _, stored = super().quantize(x)
        scale = self.nan_rule(x, self.no_zero(self.scale(amax)))
        factor = np.where(np.isnan(scale) | (scale == ONE) | (amax == 0), ONE / scale, self.qmax / amax)
        return self.encode(x * factor), stored


class QuotientFlushed(Rows):
    """A subnormal quotient, or a subnormal input, is flushed to zero by fast-math."""

    fault, source = "subnormal-flush", "flashinfer-ai/flashinfer#4676, flashinfer-ai/flashinfer#2440"

    def divide(self, x: Array, scale: Array) -> Array:
        return flushed(flushed(x) / scale)


class RoundedToHalfFirst(Rows):
    """The quotient goes through float16, then to the code: it is rounded twice."""

    fault, source = "double-rounding", "triton-lang/triton#11753, microsoft/onnxruntime#16938"

    def encode(self, q: Array) -> Array:
        return super().encode(via(q, "float16"))


class RoundedToBfloatFirst(Rows):
    """The quotient goes through bfloat16, then to the code: it is rounded twice."""

    fault, source = "double-rounding", "SGLang 0.5.23 srt/mem_cache/memory_pool.py L2926-2932"

    def encode(self, q: Array) -> Array:
        return super().encode(via(q, "bfloat16"))


class Truncated(Rows):
    """The code is cut off toward zero by an implicit cast."""

    fault, source = "round-toward-zero", "vllm-project/vllm#45361"

    def rounded(self, q: Array) -> Array:
        return np.trunc(q)

    def fp8(self, q: Array) -> Array:
        return steps_e4m3(q, np.floor)


class HalfAway(Rows):
    """Ties go away from zero."""

    fault, source = "round-half-away", "triton-lang/triton#11897, ROCm/aiter#3992"

    def rounded(self, q: Array) -> Array:
        return np.copysign(np.floor(np.abs(q.astype(np.float64)) + 0.5), q)

    def fp8(self, q: Array) -> Array:
        return steps_e4m3(q, lambda steps: np.floor(steps + 0.5))


class HalfUp(Rows):
    """floor(x + 0.5): ties go up, whatever the sign."""

    fault, source = "round-half-up", "vllm-project/vllm#41505, triton-lang/triton#5925"

    def rounded(self, q: Array) -> Array:
        return np.floor(q.astype(np.float64) + 0.5)

    def fp8(self, q: Array) -> Array:
        up = steps_e4m3(q, lambda steps: np.floor(steps + 0.5))
        down = steps_e4m3(q, lambda steps: np.ceil(steps - 0.5))
        return np.where(q < 0, down, up)


class HalfTowardZero(Rows):
    """The nearest table entry by argmin: ties go to the smaller one."""

    fault, source = "tie-toward-zero", "breccia 0.1.3 br/kernels/reference/cast.py L339-372"

    def rounded(self, q: Array) -> Array:
        return np.copysign(np.ceil(np.abs(q.astype(np.float64)) - 0.5), q)

    def fp8(self, q: Array) -> Array:
        return steps_e4m3(q, lambda steps: np.ceil(steps - 0.5))


class NoSaturation(Rows):
    """Overflow and Inf become NaN, or wrap in an integer cast."""

    fault, source = "no-saturation", "pytorch/pytorch#178817, pytorch/ao#1912, sgl-project/sglang#18373"

    def whole(self, q: Array) -> Array:
        whole = np.where(np.isfinite(q), q, -(2.0**31)).astype(np.int64)  # what an x86 conversion makes of Inf and NaN
        return (whole & 0xFF).astype(np.uint8).view(np.int8)

    def fp8(self, q: Array) -> Array:
        return q.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)


class ReachesMinus128(Rows):
    """Clamps to -128..127: -Inf takes a code that no finite element has."""

    fault, source = "qmax", "vLLM 0.33 vllm/v1/attention/ops/triton_reshape_and_cache_flash.py L234"
    modes = (INT8,)

    def whole(self, q: Array) -> Array:
        return np.where(np.isnan(q), 0, np.clip(q, -128, 127)).astype(np.int8)


class NanBecomesLargest(Rows):
    """The clamp is fmin(fmax(x, -448), 448), which turns a NaN into -448."""

    fault, source = "nan-to-max", "vLLM 0.33 csrc/fused_deepseek_v4_qnorm_rope_kv_insert_kernel.cu L128-155"
    modes = FP8

    def fp8(self, q: Array) -> Array:
        return e4m3(np.fmin(np.fmax(q, np.float32(-448)), np.float32(448)))


class NanBecomesZero(Rows):
    """A NaN is stored as 0, and nobody hears of it."""

    fault, source = "nan-to-zero", "pytorch/ao#4725"

    def nan_rule(self, x: Array, scale: Array) -> Array:
        return scale

    def fp8(self, q: Array) -> Array:
        return e4m3(np.where(np.isnan(q), np.float32(0), q))


class NegativeZeroDropped(Rows):
    """What rounds to -0 is stored as +0."""

    fault, source = "negative-zero-dropped", "breccia 0.1.3 br/kernels/reference/cast.py L339-372"
    modes = FP8

    def fp8(self, q: Array) -> Array:
        codes = e4m3(q)
        return np.where(codes == 0x80, np.uint8(0), codes)


class SmallCodesFlushed(Rows):
    """The subnormal codes of e4m3 are flushed to zero."""

    fault, source = "subnormal-flush", "triton-lang/triton#11897, ROCm/rocm-systems#6870"
    modes = FP8

    def fp8(self, q: Array) -> Array:
        codes = e4m3(q)
        return np.where((codes & 0x7F) < 8, codes & 0x80, codes).astype(np.uint8)


class TopBinadeLost(Rows):
    """All of the top binade is taken for overflow: 256 becomes 448."""

    fault, source = "top-binade", "tile-ai/tilelang-metax#140"
    modes = FP8

    def fp8(self, q: Array) -> Array:
        codes = e4m3(q)
        top = ((codes & 0x78) == 0x78) & (codes & 0x7F != 0x7F)
        return np.where(top, codes & 0x80 | 0x7E, codes).astype(np.uint8)


class StoredAsE5m2(Rows):
    """The codes are e5m2."""

    fault, source = "wrong-format", "vllm-project/vllm#54341"
    modes = FP8

    def fp8(self, q: Array) -> Array:
        return q.astype(ml_dtypes.float8_e5m2).view(np.uint8)


class StoredAsFnuz(Rows):
    """The codes are e4m3fnuz, whose bytes mean half as much."""

    fault, source = "wrong-format", "vllm-project/vllm#45720, ROCm/AMDMIGraphX#2533"
    modes = FP8

    def fp8(self, q: Array) -> Array:
        return np.clip(q, -240, 240).astype(ml_dtypes.float8_e4m3fnuz).view(np.uint8)


class NothingStored(Rows):
    """On a chip without the instruction an assert is compiled out, and zeros are returned."""

    fault, source = "never-written", "NVIDIA/TransformerEngine#3281"

    def encode(self, q: Array) -> Array:
        return np.zeros_like(super().encode(q))


class ScalesInPlace(Rows):
    """Divides its input in place: the caller's K is gone."""

    fault, source = "input-changed", "SGLang 0.5.23 srt/mem_cache/memory_pool.py L2928 (cache_k.div_)"

    def __call__(self, x: Array) -> tuple[Array, Array]:
        codes, scales = super().__call__(x)
        x /= scales.reshape(*scales.shape, *(1,) * (3 - scales.ndim)).astype(x.dtype)
        return codes, scales

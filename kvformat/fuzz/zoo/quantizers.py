"""Quantizers in NumPy: a right one of rows and a right one of blocks, and what goes wrong in them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from kvformat.fuzz.zoo.entry import FP8, FP8_ROW, FP8_TENSOR, INT8, NVFP4, ROWS, Described
from kvformat.fuzz.zoo.numbers import E2M1, NAN, ONE, e2m1, e4m3, finite_amax, from_e4m3, pack, signed, steps_e4m3

Array = NDArray[Any]

_BF16 = ml_dtypes.bfloat16
_BITS = {"float16": np.float16, "bfloat16": _BF16}
_SIXTH, _SMALLEST_NORMAL = ONE / np.float32(6), np.float32(2.0**-126)


def via(x: Array, dtype: str) -> Array:
    """x rounded to a narrower float and back."""
    return x.astype(_BITS[dtype]).astype(np.float32)


def flushed(x: Array) -> Array:
    """x with subnormal float32 numbers as zeros, as fast-math makes them."""
    return np.where(np.abs(x) < _SMALLEST_NORMAL, np.copysign(np.float32(0), x), x).astype(np.float32)


class Rows(Described):
    """fp8_per_tensor, fp8_per_token_head and int8_per_token_head: codes of x / s, s = amax / QMAX."""

    kind = "quantizer"
    modes = ROWS

    def __call__(self, x: Array) -> tuple[Array, Array]:
        """Codes (tokens, heads, head_dim) and scales (tokens, heads), or (1,) per tensor."""
        return self.quantize(x.astype(np.float32))

    def quantize(self, x: Array, given: np.float32 | None = None) -> tuple[Array, Array]:
        """The same of float32 x, with a scale that was computed before if there is one."""
        scale = self.nan_rule(x, self.no_zero(self.scale(self.amax(x))))
        if given is not None:
            scale = np.full((1, 1, 1), given, np.float32)
        stored = self.stored(scale)
        codes = self.encode(self.divide(x, self.used(scale)))
        return codes, stored.reshape(-1) if self.mode == FP8_TENSOR else stored[..., 0]

    @property
    def axis(self) -> Any:
        """The axes whose elements share a scale."""
        return (0, 1, 2) if self.mode == FP8_TENSOR else 2

    @property
    def qmax(self) -> np.float32:
        """The largest code's value."""
        return np.float32(127 if self.mode == INT8 else 448)

    def amax(self, x: Array) -> Array:
        return finite_amax(x, self.axis)

    def scale(self, amax: Array) -> Array:
        return amax / self.qmax

    def no_zero(self, scale: Array) -> Array:
        return np.where(scale == 0, ONE, scale)

    def nan_rule(self, x: Array, scale: Array) -> Array:
        """int8 has no NaN: the scale of the row carries it."""
        return np.where(np.isnan(x).any(axis=2, keepdims=True), NAN, scale) if self.mode == INT8 else scale

    def stored(self, scale: Array) -> Array:
        return scale

    def used(self, scale: Array) -> Array:
        return scale

    def divide(self, x: Array, scale: Array) -> Array:
        return x / scale

    def encode(self, q: Array) -> Array:
        return self.whole(self.rounded(q)) if self.mode == INT8 else self.fp8(q)

    def rounded(self, q: Array) -> Array:
        return np.rint(q)

    def whole(self, q: Array) -> Array:
        return np.where(np.isnan(q), 0, np.clip(q, -127, 127)).astype(np.int8)

    def fp8(self, q: Array) -> Array:
        return e4m3(q)


class Blocks(Described):
    """nvfp4: g = amax / 2688 of the tensor, bs = e4m3(amax / (6 g)) of 16 dims, codes e2m1(x / (bs g))."""

    kind = "quantizer"
    modes = (NVFP4,)

    def __call__(self, x: Array) -> tuple[Array, Array, np.float32]:
        """Codes (tokens, heads, head_dim), block scales (tokens, heads, head_dim / 16) and the global scale."""
        return self.quantize(x.astype(np.float32))

    def quantize(self, x: Array, given: np.float32 | None = None) -> tuple[Array, Array, np.float32]:
        """The same of float32 x, with a global scale that was computed before if there is one."""
        g = self.global_scale(finite_amax(x, (0, 1, 2)).reshape(())) if given is None else given
        blocks = x.reshape(*x.shape[:2], -1, 16)
        raw = self.nan_rule(blocks, self.block_scale(self.amax(blocks), g))
        stored = self.store(raw)
        scale = self.used(stored, raw)
        codes = self.codes_of_nothing(blocks, self.encode(self.divide(blocks, scale, g)), scale, g)
        return self.packed(codes.reshape(x.shape)), self.kept(stored)[..., 0], self.told(g)

    def global_scale(self, amax: Array) -> np.float32:
        g = np.float32(amax / np.float32(2688))
        return ONE if g == 0 else g

    def told(self, g: np.float32) -> np.float32:
        return g

    def amax(self, blocks: Array) -> Array:
        return finite_amax(blocks, 3)

    def block_scale(self, amax: Array, g: np.float32) -> Array:
        return amax / (np.float32(6) * g)

    def nan_rule(self, blocks: Array, raw: Array) -> Array:
        """e2m1 has no NaN: the scale of the block carries it."""
        return np.where(np.isnan(blocks).any(axis=3, keepdims=True), NAN, raw)

    def store(self, raw: Array) -> Array:
        return e4m3(raw)

    def kept(self, stored: Array) -> Array:
        return stored

    def used(self, stored: Array, raw: Array) -> Array:
        return from_e4m3(stored)

    def divide(self, x: Array, scale: Array, g: np.float32) -> Array:
        return x / (scale * g)

    def codes_of_nothing(self, x: Array, codes: Array, scale: Array, g: np.float32) -> Array:
        """Zeros with their signs where the scale is 0, zeros where it is NaN."""
        codes = np.where(scale * g == 0, signed(np.zeros_like(x), x), codes)
        return np.where(np.isnan(scale), np.uint8(0), codes)

    def encode(self, q: Array) -> Array:
        return e2m1(q)

    def packed(self, codes: Array) -> Array:
        return codes


# --- rows: scales --------------------------------------------------------------------------------------------------


class ScaleByReciprocal(Rows):
    """The scale is amax times the rounded reciprocal of QMAX."""

    fault, source = "op-order", "vLLM 0.33 vllm/v1/attention/ops/triton_reshape_and_cache_flash.py L221 (Triton's x / constant)"

    def scale(self, amax: Array) -> Array:
        return amax * (ONE / self.qmax)


class ScaleFloor(Rows):
    """The scale has a floor of 1e-6, so that small rows lose their codes."""

    fault, source = "scale-floor", "vLLM 0.33 vllm/v1/attention/ops/triton_reshape_and_cache_flash.py L221"

    def scale(self, amax: Array) -> Array:
        return np.maximum(amax / self.qmax, np.float32(1e-6))


class AmaxFloor(Rows):
    """amax has a floor of 1e-10 before it becomes a scale."""

    fault, source = "scale-floor", "SGLang 0.5.23 srt/layers/quantization/int8_kernel.py L22-55"

    def scale(self, amax: Array) -> Array:
        return np.maximum(amax, np.float32(1e-10)) / self.qmax


class ZeroRowDividesByZero(Rows):
    """A row of zeros has the scale 0 and is divided by it."""

    fault, source = "zero-block-rule", "huggingface/kernels-community#681, THUDM/slime#2256, ROCm/aiter#4289"

    def no_zero(self, scale: Array) -> Array:
        return scale


class HalfOfTheRange(Rows):
    """QMAX of another format: 240 of e4m3fnuz, or 128 levels of int8."""

    fault, source = "qmax", "ROCm/aiter#3912, vllm-project/vllm#32201"

    @property
    def qmax(self) -> np.float32:
        return np.float32(128 if self.mode == INT8 else 240)


class Headroom(Rows):
    """QMAX with headroom: 224, or the 127.5 of a symmetric range from -128 to 127."""

    fault = "qmax"
    source = "vLLM 0.33 quant_utils.py L99-107 (224); compressed-tensors 0.20 quantization/utils/helpers.py L84-127 (127.5)"

    @property
    def qmax(self) -> np.float32:
        return np.float32(127.5 if self.mode == INT8 else 224)


class ScaleInHalf(Rows):
    """The scale is kept in float16."""

    fault, source = "scale-precision", "pytorch/FBGEMM#4237"

    def scale(self, amax: Array) -> Array:
        return via(amax / self.qmax, "float16")


class ScaleInBfloat(Rows):
    """The scale is kept in the model's bfloat16."""

    fault, source = "scale-precision", "compressed-tensors 0.20 quantization/utils/helpers.py L84-127"

    def scale(self, amax: Array) -> Array:
        return via(amax / self.qmax, "bfloat16")


class UnstoredScale(Rows):
    """The codes come from the exact scale, and a bfloat16 one is stored."""

    fault, source = "unstored-scale", "kekzl/imp#250"

    def stored(self, scale: Array) -> Array:
        return via(scale, "bfloat16")


class ScaleFlushed(Rows):
    """A subnormal amax or scale is flushed to zero."""

    fault, source = "subnormal-flush", "flashinfer-ai/flashinfer#2440"

    def scale(self, amax: Array) -> Array:
        return flushed(flushed(amax) / self.qmax)


class EncodeScaleStored(Rows):
    """The multiplier that makes codes is stored, where the one that reads them belongs."""

    fault, source = "encode-scale", "modular/modular#6699"

    def stored(self, scale: Array) -> Array:
        return ONE / scale


class ScaleOfPreviousToken(Rows):
    """Each token is divided by the scale of the token before it."""

    fault, source = "scale-of-other", "vllm-project/vllm#49716"
    modes = (FP8_ROW, INT8)

    def used(self, scale: Array) -> Array:
        return np.roll(scale, 1, axis=0)


class ScaleOfFirstHead(Rows):
    """Every head stores the scale of head 0."""

    fault, source = "scale-of-other", "vllm-project/vllm#49716"
    modes = (FP8_ROW, INT8)

    def stored(self, scale: Array) -> Array:
        return np.broadcast_to(scale[:, :1], scale.shape)


class OneScalePerToken(Rows):
    """One amax for all heads of a token."""

    fault, source = "amax-scope", "NVIDIA/TensorRT-LLM#1557"
    modes = (FP8_ROW, INT8)

    def amax(self, x: Array) -> Array:
        shape = (*x.shape[:2], 1)
        return np.broadcast_to(finite_amax(x, (1, 2)), shape)


class ScaleOfFirstTokens(Rows):
    """The scale is calibrated on the first token alone."""

    fault, source = "amax-scope", "NVIDIA/TensorRT-LLM#1557"
    modes = (FP8_TENSOR,)

    def amax(self, x: Array) -> Array:
        return finite_amax(x[:1], self.axis)


class SignedMaximum(Rows):
    """The largest element instead of the largest magnitude."""

    fault, source = "amax-scope", "weicj/vLLM-2080Ti-Definitive#106"

    def amax(self, x: Array) -> Array:
        return np.where(np.isfinite(x), x, np.float32(0)).max(axis=self.axis, keepdims=True)


class NanPoisonsTheScale(Rows):
    """amax is torch.amax: a NaN spoils the whole row."""

    fault, source = "nan-in-amax", "pytorch/ao#4725, sgl-project/sglang#31712"
    modes = FP8

    def amax(self, x: Array) -> Array:
        return np.where(np.isinf(x), np.float32(0), np.abs(x)).max(axis=self.axis, keepdims=True)


class InfInTheScale(Rows):
    """amax takes Inf in, and every finite element of the row becomes 0."""

    fault, source = "inf-in-amax", "pytorch/ao#4725, sgl-project/sglang#31712"

    def amax(self, x: Array) -> Array:
        return np.where(np.isnan(x), np.float32(0), np.abs(x)).max(axis=self.axis, keepdims=True)


# --- rows: codes ---------------------------------------------------------------------------------------------------


class Reciprocal(Rows):
    """Multiplies by the rounded reciprocal of the scale instead of dividing by it."""

    fault, source = "reciprocal", "arch-hdl-lang/arch-com#905, ROCm/aiter#5259, vllm-project/vllm#31514"

    def divide(self, x: Array, scale: Array) -> Array:
        return x * (ONE / scale)


class ScaledByQmaxOverAmax(Rows):
    """Multiplies by QMAX / amax, which is not the reciprocal of the stored scale."""

    fault, source = "op-order", "SGLang 0.5.23 srt/layers/quantization/int8_kernel.py L22-55"

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

    fault, source = "overflow-test", "tile-ai/tilelang-metax#140"
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

    fault, source = "zero-output", "NVIDIA/TransformerEngine#3281"

    def encode(self, q: Array) -> Array:
        return np.zeros_like(super().encode(q))


class ScalesInPlace(Rows):
    """Divides its input in place: the caller's K is gone."""

    fault, source = "input-changed", "SGLang 0.5.23 srt/mem_cache/memory_pool.py L2928 (cache_k.div_)"

    def __call__(self, x: Array) -> tuple[Array, Array]:
        codes, scales = super().__call__(x)
        x /= scales.reshape(*scales.shape, *(1,) * (3 - scales.ndim)).astype(x.dtype)
        return codes, scales


# --- blocks --------------------------------------------------------------------------------------------------------


class BlockReciprocal(Blocks):
    """Multiplies by the rounded reciprocal of bs * g."""

    fault, source = "reciprocal", "FlashInfer 0.7.4 include/flashinfer/page.cuh L287-366"

    def divide(self, x: Array, scale: Array, g: np.float32) -> Array:
        return x * (ONE / (scale * g))


class GlobalScaleFirst(Blocks):
    """Multiplies by 1 / g, then divides by bs."""

    fault, source = "op-order", "FlashInfer 0.7.4 trace/templates/quantize.py L44-240"

    def divide(self, x: Array, scale: Array, g: np.float32) -> Array:
        return (x * (ONE / g)) / scale


class TorchaoOrder(Blocks):
    """x * ((1 / g) / bs)."""

    fault, source = "op-order", "torchao 0.18 prototype/mx_formats/nvfp4_tensor.py L772-867"

    def divide(self, x: Array, scale: Array, g: np.float32) -> Array:
        return x * ((ONE / g) / scale)


class BlockScaleInTwoSteps(Blocks):
    """bs is (amax / 6) / g: two roundings where the contract has one product and one quotient."""

    fault, source = "op-order", "torchao 0.18 prototype/mx_formats/nvfp4_tensor.py L772-867"

    def block_scale(self, amax: Array, g: np.float32) -> Array:
        return (amax / np.float32(6)) / g


class BlockScaleByReciprocals(Blocks):
    """bs is (1 / g) * (amax * (1 / 6))."""

    fault, source = "op-order", "TransformerEngine core_nvfp4.cuh L43-101"

    def block_scale(self, amax: Array, g: np.float32) -> Array:
        return (ONE / g) * (amax * _SIXTH)


class GlobalScaleWithoutSix(Blocks):
    """g is amax / 448: another convention, six times as large."""

    fault, source = "global-scale", "TensorRT-LLM _torch/modules/linear.py; SGLang fp4_kv_cache_quant_method.py L500-522"

    def global_scale(self, amax: Array) -> np.float32:
        g = np.float32(amax / np.float32(448))
        return ONE if g == 0 else g


class GlobalScaleInverted(Blocks):
    """The global scale is handed on as its encode multiplier."""

    fault, source = "global-scale", "modular/modular#6699, nunchux-ai/nunchaku#362"

    def told(self, g: np.float32) -> np.float32:
        return ONE / g


class BlockScaleTruncated(Blocks):
    """bs is cut off to e4m3 instead of rounded to nearest."""

    fault, source = "scale-rounding", "ml-explore/mlx#4353, ROCm/aiter#3212"

    def store(self, raw: Array) -> Array:
        return np.where(np.isnan(raw), np.uint8(0x7F), steps_e4m3(raw, np.floor))


class BlockScaleRoundedUp(Blocks):
    """bs is rounded up, so that nothing saturates."""

    fault, source = "scale-rounding", "pytorch/ao#2035, pytorch/ao#1643"

    def store(self, raw: Array) -> Array:
        return np.where(np.isnan(raw), np.uint8(0x7F), steps_e4m3(raw, np.ceil))


class BlockScaleNeverZero(Blocks):
    """bs is at least 2^-9, its smallest subnormal."""

    fault, source = "scale-floor", "ModelOpt 0.47 quantization/qtensor/nvfp4_tensor.py L170-343"

    def store(self, raw: Array) -> Array:
        return np.where(raw == 0, np.uint8(0), np.maximum(e4m3(raw), np.uint8(1)))


class BlockScaleNeverSubnormal(Blocks):
    """bs is at least 2^-6, its smallest normal number."""

    fault, source = "scale-floor", "torchao 0.18 prototype/mx_formats/nvfp4_tensor.py L772-867"

    def store(self, raw: Array) -> Array:
        return np.maximum(e4m3(raw), np.uint8(8))


class BlockScaleFlushed(Blocks):
    """A subnormal bs is flushed to zero."""

    fault, source = "subnormal-flush", "local-inference-lab/b12x#388"

    def store(self, raw: Array) -> Array:
        codes = e4m3(raw)
        return np.where(codes < 8, np.uint8(0), codes)


class ZeroBlockIsOne(Blocks):
    """A block of zeros stores the scale 1.0."""

    fault, source = "zero-block-rule", "ModelOpt 0.47 quantization/qtensor/nvfp4_tensor.py L170-343"

    def block_scale(self, amax: Array, g: np.float32) -> Array:
        return np.where(amax == 0, ONE, super().block_scale(amax, g))


class ZeroBlockIsNan(Blocks):
    """A block of zeros stores the scale NaN."""

    fault, source = "zero-block-rule", "NVIDIA/Model-Optimizer#1397"

    def kept(self, stored: Array) -> Array:
        return np.where(stored == 0, np.uint8(0x7F), stored)


class UnderflowedBlockSaturates(Blocks):
    """Where bs is 0 its reciprocal is FLT_MAX: every code is +-6."""

    fault, source = "zero-block-rule", "TransformerEngine pytorch/custom_recipes/reference_nvfp4.py"

    def codes_of_nothing(self, x: Array, codes: Array, scale: Array, g: np.float32) -> Array:
        large = np.where(x == 0, signed(np.zeros_like(x), x), signed(np.full(x.shape, 7), x))
        return np.where(np.isnan(scale), np.uint8(0), np.where(scale * g == 0, large, codes))


class CodesOfTheExactScale(Blocks):
    """The codes come from the scale before it is rounded; the rounded one is stored."""

    fault, source = "unstored-scale", "kekzl/imp#250"

    def used(self, stored: Array, raw: Array) -> Array:
        return np.where(stored == 0, np.float32(0), raw)


class CodesThroughBfloat(Blocks):
    """The quotient goes through bfloat16, then to the code."""

    fault, source = "double-rounding", "SGLang 0.5.23 srt/mem_cache/memory_pool.py L2926-2932"

    def encode(self, q: Array) -> Array:
        return e2m1(via(q, "bfloat16"))


class CodesThroughHalf(Blocks):
    """The quotient goes through float16, then to the code."""

    fault, source = "double-rounding", "triton-lang/triton#11753"

    def encode(self, q: Array) -> Array:
        return e2m1(via(q, "float16"))


class TiesAway(Blocks):
    """e2m1 by thresholds with >=: ties go away from zero."""

    fault, source = "round-half-away", "ROCm/aiter#3992, ROCm/aiter#4030"

    def encode(self, q: Array) -> Array:
        return signed(np.searchsorted((E2M1[1:] + E2M1[:-1]) / 2, np.abs(q), side="right"), q)


class TiesTowardZero(Blocks):
    """e2m1 by argmin over a table: ties go toward zero."""

    fault, source = "tie-toward-zero", "FlashInfer 0.7.4 trace/templates/quantize.py L44-240; ROCm/aiter#2247"

    def encode(self, q: Array) -> Array:
        return signed(np.searchsorted((E2M1[1:] + E2M1[:-1]) / 2, np.abs(q), side="left"), q)


class CodesTruncated(Blocks):
    """e2m1 codes are cut off toward zero."""

    fault, source = "round-toward-zero", "vllm-project/vllm#45361"

    def encode(self, q: Array) -> Array:
        return signed(np.searchsorted(E2M1, np.abs(q), side="right") - 1, q)


class NegativeZeroLost(Blocks):
    """-0 is stored as +0."""

    fault, source = "negative-zero-dropped", "compressed-tensors 0.20 quantization/utils/fp4_utils.py L77-97"

    def packed(self, codes: Array) -> Array:
        return np.where(codes == 8, np.uint8(0), codes)


class NegativeZeroMade(Blocks):
    """The sign bit is (2 - sign(x)) // 2: +0 is stored as -0."""

    fault, source = "negative-zero-made", "ModelOpt 0.47 quantization/qtensor/mxfp4_tensor.py L38-81"

    def packed(self, codes: Array) -> Array:
        return np.where(codes == 0, np.uint8(8), codes)


class NanIsIgnored(Blocks):
    """A NaN drops out of amax and becomes 0."""

    fault, source = "nan-to-zero", "FlashInfer 0.7.4 include/flashinfer/page.cuh L287-366"

    def nan_rule(self, blocks: Array, raw: Array) -> Array:
        return raw

    def encode(self, q: Array) -> Array:
        return np.where(np.isnan(q), np.uint8(0), e2m1(q))


class NanIsSix(Blocks):
    """A NaN drops out of amax and becomes 6, as cvt.rn.satfinite makes it."""

    fault, source = "nan-to-max", "FlashInfer 0.7.4 nv_internal quantization_utils.cuh L437-720"

    def nan_rule(self, blocks: Array, raw: Array) -> Array:
        return raw

    def encode(self, q: Array) -> Array:
        return np.where(np.isnan(q), np.uint8(7), e2m1(q))


class HighNibbleFirst(Blocks):
    """The even element is packed in the high nibble."""

    fault, source = "nibble-order", "triton-lang/triton#5197, Comfy-Org/comfy-kitchen#41, ROCm/composable_kernel#1889"

    def packed(self, codes: Array) -> Array:
        packed = pack(codes)
        return packed << 4 | packed >> 4


class ScaleOfNextBlock(Blocks):
    """Each block is divided by its neighbour's scale."""

    fault, source = "scale-of-other", "vllm-project/vllm#50084"

    def used(self, stored: Array, raw: Array) -> Array:
        return np.roll(from_e4m3(stored), 1, axis=2)


class ScaleOfFirstToken(Blocks):
    """Every token stores the block scales of token 0."""

    fault, source = "scale-of-other", "vllm-project/vllm#44455"

    def kept(self, stored: Array) -> Array:
        return np.broadcast_to(stored[:1], stored.shape)


class AmaxOfTheRow(Blocks):
    """One amax for all blocks of a row."""

    fault, source = "amax-scope", "nunchux-ai/nunchaku#362"

    def amax(self, blocks: Array) -> Array:
        return np.broadcast_to(finite_amax(blocks, (2, 3)), (*blocks.shape[:3], 1))


class AlwaysFour(Blocks):
    """bs maps the block's largest to 4 instead of 6."""

    fault, source = "qmax", "flashinfer-ai/flashinfer#3448, NVIDIA/TransformerEngine#3068"

    def block_scale(self, amax: Array, g: np.float32) -> Array:
        return amax / (np.float32(4) * g)


class PowerOfTwoScale(Blocks):
    """bs is a power of two, as the scale of MXFP4 is."""

    fault, source = "wrong-format", "NVIDIA/cutlass#2091"

    def store(self, raw: Array) -> Array:
        safe = np.where(raw > 0, raw, ONE)
        return e4m3(np.where(raw > 0, np.exp2(np.ceil(np.log2(safe))), raw).astype(np.float32))


#: every broken quantizer
BROKEN: tuple[type[Described], ...] = (*Rows.__subclasses__(), *Blocks.__subclasses__())

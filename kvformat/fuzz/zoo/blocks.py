"""A right quantizer of nvfp4 blocks in NumPy, and what goes wrong in it."""

from __future__ import annotations

import numpy as np

from kvformat.fuzz.zoo.entry import NVFP4, Described
from kvformat.fuzz.zoo.numbers import (
    E2M1,
    NAN,
    ONE,
    Array,
    e2m1,
    e4m3,
    finite_amax,
    from_e4m3,
    pack,
    signed,
    steps_e4m3,
    via,
)

_SIXTH = ONE / np.float32(6)


class Blocks(Described):
    """nvfp4: g = amax / 2688 of the tensor, bs = e4m3(amax / (6 g)) of 16 dims, codes e2m1(x / (bs g))."""

    kind = "quantizer"
    modes: tuple[str, ...] = (NVFP4,)

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

    fault, source = (
        "global-scale",
        "TensorRT-LLM _torch/modules/linear.py; SGLang fp4_kv_cache_quant_method.py L500-522",
    )

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

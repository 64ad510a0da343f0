"""A right quantizer of rows in NumPy (fp8 and int8), and what goes wrong in its scales."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvformat.fuzz.zoo.entry import FP8, FP8_ROW, FP8_TENSOR, INT8, ROWS, Described
from kvformat.fuzz.zoo.numbers import NAN, ONE, Array, e4m3, finite_amax, flushed, via


class Rows(Described):
    """fp8_per_tensor, fp8_per_token_head and int8_per_token_head: codes of x / s, s = amax / QMAX."""

    kind = "quantizer"
    modes: tuple[str, ...] = ROWS

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


class ScaleByReciprocal(Rows):
    """The scale is amax times the rounded reciprocal of QMAX."""

    fault, source = (
        "op-order",
        "vLLM 0.33 vllm/v1/attention/ops/triton_reshape_and_cache_flash.py L221 (Triton's x / constant)",
    )

    def scale(self, amax: Array) -> Array:
        return amax * (ONE / self.qmax)


class ScaleFloor(Rows):
    """The scale has a floor of 1e-6, so that small rows lose their codes."""

    fault, source = "scale-floor", "vLLM 0.33 vllm/v1/attention/ops/triton_reshape_and_cache_flash.py L221"

    def scale(self, amax: Array) -> Array:
        return np.maximum(amax / self.qmax, np.float32(1e-6))


class AmaxFloor(Rows):
    """amax has a floor of 1e-10 before it becomes a scale."""

    fault, source = "scale-floor", "SGLang 0.5.23 kernels/ops/quantization/int8_kernel.py L22-55"

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
    source = (
        "vLLM 0.33 quant_utils.py L99-107 (224); compressed-tensors 0.20 quantization/utils/helpers.py L84-127 (127.5)"
    )

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

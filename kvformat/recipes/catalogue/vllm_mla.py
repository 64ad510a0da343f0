"""vLLM 0.33.0: the records of DeepSeek's latent attention and of its indexer; paths are relative to its repository.

Their power-of-two scales come from a binary32 logarithm, whose last bits decide right above a power of two.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PREFIX = "vllm-0.33"
_V4_CUDA = "csrc/fused_deepseek_v4_qnorm_rope_kv_insert_kernel.cu L360-424"
_FLOOR = "1e-4"

# exp2f(-e) is 0 where e is Inf, which is stored as 0xFF
_BY_EXPONENT = "mul(x, select(isnan(s), 0, div(1, s)))"


def _record(name: str, element: str, scale: Mapping[str, Any], code: str, source: str, notes: str, **more: Any) -> Any:
    return {
        "name": f"{_PREFIX}/{name}",
        "mode": name.rsplit("/", maxsplit=1)[-1],
        "element": element,
        "scales": [scale],
        "code": code,
        "value": f"v = mul(c, {scale['name']})",
        "source": f"vLLM 0.33.0, {source}",
        "notes": notes,
        **more,
    }


def _scale(granularity: str, program: str, store: str = "float32", name: str = "s") -> Mapping[str, Any]:
    return {"name": name, "granularity": granularity, "program": f"{name} = {program}", "store": store}


def _clamped(product: str) -> str:
    return f"c = encode(min_number(max_number({product}, -448), 448), e4m3fn)"


_APPROXIMATE = {"status": "admissible only"}
_DIVIDED = "c = encode(div(x, s), e4m3fn)"
_INDEXER = f"div(max_number(amax_number(x), {_FLOOR}), 448)"

ENTRIES: tuple[Mapping[str, Any], ...] = (
    _record(
        "csrc/fp8_ds_mla",
        "e4m3fn",
        _scale("per_tile", f"pow2_approx(max_number(div(amax_number(x), 448), {_FLOOR}), up)"),
        _DIVIDED,
        "csrc/cache_kernels.cu L530-635",
        "656 bytes: the 512 latent dims, per 128; the 64 RoPE dims are copied. The floor comes after the division.",
        **_APPROXIMATE,
    ),
    _record(
        "csrc-v4/fp8_ds_mla",
        "e4m3fn",
        _scale("per_block_64", f"pow2_approx({_INDEXER}, up)", "e8m0fnu up ieee"),
        _clamped(_BY_EXPONENT),
        _V4_CUDA,
        "DeepSeek V4, 584 bytes: 448 latent dims, per 64, one exponent byte each; the values went through the model's "
        "dtype first. A NaN element becomes 0xFE (fmaxf, then fminf). The byte behind a token's exponents is zeroed.",
        **_APPROXIMATE,
    ),
    _record(
        "triton-v4/fp8_ds_mla",
        "e4m3fn",
        _scale(
            "per_block_64",
            f"pow2_approx(mul(max_number(amax_number(x), to({_FLOOR}, input)), div_approx(1, 448)), up)",
            "e8m0fnu up ieee",
        ),
        _clamped("div_full(x, select(isnan(s), inf, s))"),
        "vllm/models/deepseek_v4/common/ops/cache_utils.py L109-151",
        "The Triton twin of csrc-v4: amax and its floor are in the input's dtype, bfloat16, where 1e-4 is 1.0014e-4; "
        "it divides by the scale.",
        **_APPROXIMATE,
    ),
    _record(
        "csrc-v41/mxfp8",
        "e4m3fn",
        _scale("per_block_32", f"pow2_approx({_INDEXER}, up)", "e8m0fnu up ieee"),
        _clamped(_BY_EXPONENT),
        _V4_CUDA,
        "DeepSeek V4.1, 528 bytes: all 512 dims, per 32. The arithmetic of csrc-v4 on smaller blocks.",
        **_APPROXIMATE,
    ),
    _record(
        "triton-v41/mxfp8",
        "e4m3fn",
        _scale(
            "per_block_32",
            f"pow2_approx(mul(max_number(amax_number(x), {_FLOOR}), 0.002232142857142857), up)",
            "e8m0fnu up ieee",
        ),
        _clamped(_BY_EXPONENT),
        "vllm/models/deepseek_v41/common/ops/cache_utils.py L224-229",
        "The Triton twin multiplies by 1 / 448, which can take the exponent across a power of two.",
        **_APPROXIMATE,
    ),
    _record(
        "csrc/nvfp4_ds_mla",
        "e2m1fn",
        _scale("per_block", "max_number(div(amax_number(x), 6), 0.001953125)", "e4m3fn", "bs"),
        "c = encode(mul(x, div(1, bs)), e2m1fn)",
        "csrc/nvfp4_ds_mla_cache_kernels.cu L73-177",
        "The 352-byte record: no global scale; the RoPE part is e4m3fn without a scale.",
    ),
    _record(
        "triton-v41/nvfp4_ds_mla",
        "e2m1fn",
        _scale("per_block", "clamp(mul(amax_number(x), 0.16666666666666666), 0.001953125, 448)", "e4m3fn", "bs"),
        "c = encode(div(x, bs), e2m1fn)",
        "vllm/models/deepseek_v41/common/ops/fused_compress_quant_cache.py L481-538",
        "The 288-byte record of DeepSeek V4.1, under the same dtype string as the 352-byte one.",
    ),
    _record(
        "csrc/indexer_k",
        "e4m3fn",
        _scale("per_tile", _INDEXER),
        _DIVIDED,
        "csrc/cache_kernels.cu L638-705",
        "Indexer K, 128 dims a scale, float32 scales; the floor comes before the division.",
    ),
    _record(
        "csrc/indexer_k_ue8m0",
        "e4m3fn",
        _scale("per_tile", f"pow2_approx({_INDEXER}, up)"),
        _DIVIDED,
        "csrc/cache_kernels.cu L638-705",
        "scale_fmt ue8m0: the scale is exp2f(ceilf(log2f(.))), stored as float32.",
        **_APPROXIMATE,
    ),
    _record(
        "csrc/indexer_k_mxfp8",
        "e4m3fn",
        _scale("per_tile", f"pow2_approx({_INDEXER}, up)", "e8m0fnu up ieee"),
        # it divides by the scale before that is stored: an Inf in the row gives 0xFF, and Inf / Inf
        "c = encode(div(x, select(isnan(s), inf, s)), e4m3fn)",
        "csrc/cache_kernels.cu L638-705",
        "scale_fmt mxfp8: the scale of ue8m0, stored as its exponent, four times in a uint32.",
        **_APPROXIMATE,
    ),
    _record(
        "triton-v4/indexer_k_mxfp4",
        "e2m1fn",
        _scale(
            "per_block_32",
            f"pow2_approx(mul(max_number(amax_number(x), {6 * 2.0**-126!r}), 0.16666666666666666), up)",
            "e8m0fnu up",
        ),
        "c = encode(mul(x, div(1, s)), e2m1fn)",
        "vllm/models/deepseek_v4/common/ops/fused_compress_quant_cache.py L1069-1089",
        "Indexer K as MXFP4, converted by cvt.rn.satfinite.e2m1x2. The values went through bfloat16 first.",
        **_APPROXIMATE,
    ),
)

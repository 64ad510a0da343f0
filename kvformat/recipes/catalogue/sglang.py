"""SGLang 0.5.23: what its KV caches and the quantizers that feed them compute; paths are relative to `sglang`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PREFIX = "sglang-0.5"

# calibrated per layer, 1.0 without a calibration; the program is what a calibration does
_SCALE = {
    "name": "s",
    "granularity": "per_tensor",
    "program": "s = div(amax_finite(x), 448)\ns = select(s == 0, 1, s)",
    "may_be_given": True,
}


def _per_tensor(path: str, code: str, source: str, notes: str) -> Mapping[str, Any]:
    return {
        "name": f"{_PREFIX}/{path}/fp8_per_tensor",
        "mode": "fp8_per_tensor",
        "element": "e4m3fn",
        "scales": [_SCALE],
        "code": code,
        "value": "v = mul(c, s)",
        "source": f"sglang 0.5.23, {source}",
        "notes": notes,
    }


def _scaled(name: str, element: str, scale: Mapping[str, Any], code: str, source: str, notes: str) -> Mapping[str, Any]:
    mode = name.rsplit("/", maxsplit=1)[-1]
    return {
        "name": f"{_PREFIX}/{name}",
        "mode": mode,
        "element": element,
        "scales": [{"name": "s", **scale}],
        "code": code,
        "value": "v = mul(c, s)",
        "source": f"sglang 0.5.23, {source}",
        "notes": notes,
        "status": "admissible only",
    }


_FP8_KERNEL = "kernels/ops/quantization/fp8_kernel.py L133-222"
_INT8_KERNEL = "kernels/ops/quantization/int8_kernel.py"

# the first of a chain of maxima is an element: NaN is passed over, unless there is nothing else
_AMAX = "select(all_nan(x), nan, amax_number(x))"


def _lower_bound(quotient: str) -> str:
    """tl.clamp with bounds given at run time: max, then min; a NaN takes the lower one."""
    return f"c = encode(min_number(max_number({quotient}, -448), 448), e4m3fn)"


def _upper_bound(quotient: str) -> str:
    """tl.clamp with constant bounds from sm_90 on: min.xorsign.abs; the NaN of a quotient is positive."""
    return f"q = {quotient}\nq = select(isnan(q), 448, q)\nc = encode(clamp(q, -448, 448), e4m3fn)"


# a runtime argument, not a constant, so `/` stays div.full
_GROUP_FP8 = {"granularity": "per_tile", "program": "s = div_full(max_number(amax_number(x), 1e-10), 448)"}

ENTRIES: tuple[Mapping[str, Any], ...] = (
    _per_tensor(
        "pool",
        "c = encode(to(div(x, s), input), e4m3fn)",
        "srt/mem_cache/memory_pool.py L2926-2932, L3394-3399",
        "The eager path divides in the input's own dtype and casts then: bfloat16 input rounds twice. No clamp: "
        "overflow is what torch's cast does, saturation since torch 2.12.",
    ),
    _per_tensor(
        "commit",
        "c = encode(clamp(to(div(x, to(s, input)), input), -448, 448), e4m3fn)",
        "kernels/ops/kvcache/cache_move.py L119-141",
        "The fused commit with a tensor scale, which is rounded to the input's dtype first, as is the quotient. NaN is "
        "kept.",
    ),
    _per_tensor(
        "commit-host-scalar",
        "c = encode(clamp(to(mul(x, div(1, s)), input), -448, 448), e4m3fn)",
        "kernels/ops/kvcache/cache_move.py L119-141",
        "The fused commit with a host scalar: a product with the rounded reciprocal, rounded to the input's dtype.",
    ),
    _per_tensor(
        "cpu",
        "c = encode(to(div(x, s), input), e4m3fn)",
        "srt/layers/quantization/fp4_kv_cache_quant_method.py CPUFP8KVCacheMethod",
        "The arithmetic of sglang-0.5/pool/fp8_per_tensor, with k_scale or 1.0.",
    ),
    {
        "name": f"{_PREFIX}/mla-store/fp8_unscaled",
        "mode": "fp8_unscaled",
        "element": "e4m3fn",
        "code": "c = encode(x, e4m3fn)",
        "value": "v = mul(c, 1)",
        "source": "sglang 0.5.23, kernels/ops/kvcache/mla_buffer.py set_mla_kv_buffer_fp8_quant_kernel",
        "notes": "A Triton cast at store time of the latent and the RoPE part, without a scale; that the cast "
        "saturates is what Triton does on NVIDIA.",
    },
    _scaled(
        "triton/int8_per_token_head",
        "int8",
        {
            "granularity": "per_token_head",
            "program": "a = max_number(amax_number(x), 1e-10)\ns = mul(a, div_approx(1, 127))",
        },
        "c = encode(round(mul(x, div_full(127, a)), half_away), int8)",
        f"{_INT8_KERNEL} L22-55",
        "per_token_quant_int8 on the rows of one head: half away from zero, no clamp, and the codes come from 127 / "
        "amax and not from the stored scale. What the cast makes of a NaN is not defined; here it is 0.",
    ),
    _scaled(
        "triton-group/int8_per_tile",
        "int8",
        {"granularity": "per_tile", "program": "s = div_full(max_number(amax_number(x), 1e-10), 127)"},
        "c = encode(round(min_number(max_number(div_full(x, s), -128), 127), toward_zero), int8)",
        f"{_INT8_KERNEL} L95-136",
        "per_token_group_quant_int8, group 128: the cast truncates, so codes are biased toward zero. A NaN is -128.",
    ),
    _scaled(
        "triton-group/fp8_per_tile",
        "e4m3fn",
        _GROUP_FP8,
        _lower_bound("mul(x, div_full(1, s))"),
        _FP8_KERNEL,
        "per_token_group_quant_fp8, row-major scales: a product with the reciprocal. A NaN is stored as 0xFE.",
    ),
    _scaled(
        "triton-group-colmajor/fp8_per_tile",
        "e4m3fn",
        _GROUP_FP8,
        _lower_bound("div_full(x, s)"),
        _FP8_KERNEL,
        "per_token_group_quant_fp8, column-major scales: a quotient. A NaN is stored as 0xFE.",
    ),
    _scaled(
        "dsa/fp8_per_tile",
        "e4m3fn",
        {"granularity": "per_tile", "program": f"s = mul({_AMAX}, div_approx(1, 448))"},
        _upper_bound("mul(x, div_full(1, s))"),
        "kernels/ops/quantization/dsa_quant_k_cache.py L206-263",
        "The 512 latent dims of a FlashMLA record, per 128; RoPE stays bfloat16. No floor: in a zero tile 0 * Inf is "
        "NaN. As compiled for sm_90 and later, where a NaN is stored as 0x7E, so that a zero tile is 448 times the "
        "scale 0. A tile of NaN alone has the scale NaN.",
    ),
    _scaled(
        "mxfp8-store/mxfp8",
        "e4m3fn",
        {
            "granularity": "per_block_32",
            "store": "e8m0fnu up",
            "program": "s = pow2_approx(mul(max_number(amax_number(x), 1e-30), div_approx(1, 448)), up)",
        },
        _upper_bound("div_full(x, s)"),
        "kernels/ops/kvcache/mxfp8_quant_store_kv.py L36-58",
        "quant_store_kv_mxfp8: amax / 448 rounded up to a power of two; a zero block stores 19. NaN is not in the "
        "amax; as compiled for sm_90 and later it is stored as 0x7E.",
    ),
    _scaled(
        "fp4-kv/fp4_mx_block16",
        "e2m1fn",
        {
            "granularity": "per_block",
            "store": "e8m0fnu up",
            "program": """
                a = max(to(div(amax(x), 6), input), to(1e-10, input))
                p = pow2_approx(a, up, input)
                s = select(isnan(a), 0, select(isinf(a), 0, p))
            """,
        },
        """
            q = to(div(x, p), input)
            q = select(isnan(q), 0, q)
            c = encode(select(q == 0, 0, q), e2m1fn, nearest_away)
        """,
        "srt/layers/quantization/kvfp4_tensor.py L49-140",
        "--kv-cache-dtype fp4_mx_block16, in eager mode: everything is rounded to the input's dtype, the logarithm "
        "too. Ties go away from zero, -0 is dropped. A block with NaN or Inf stores 0x00 and zeros.",
    ),
    _scaled(
        "dsv4-indexer/mxfp4",
        "e2m1fn",
        {
            "granularity": "per_block_32",
            "store": "e8m0fnu up",
            "program": "s = pow2_approx(max_number(mul(amax_number(x), div_approx(1, 6)), 1e-4), up)",
        },
        """
            q = div_full(x, s)
            q = select(isnan(q), 6, q)
            q = select(le(abs(q), 0.25), 0, q)
            c = encode(q, e2m1fn, nearest_toward_zero)
        """,
        "kernels/ops/quantization/fp4_indexer_quant.py L29-100",
        "DeepSeek V4 indexer keys: ties toward zero by default (a switch makes them even), and a sign only where the "
        "code is not 0. A NaN becomes +6.",
    ),
)

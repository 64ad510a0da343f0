"""vLLM 0.32 and 0.33: what their KV-cache writers compute; paths are relative to the vLLM repository."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PREFIX = "vllm-0.33"

# vLLM loads this scale from the checkpoint or takes 1.0; it computes none. The program is what a calibration does.
_TENSOR_SCALE = {
    "name": "s",
    "granularity": "per_tensor",
    "program": "s = div(amax_finite(x), 448)\ns = select(s == 0, 1, s)",
    "may_be_given": True,
}


def _per_tensor(path: str, code: str, source: str, notes: str, **more: Any) -> Mapping[str, Any]:
    return {
        "name": f"{_PREFIX}/{path}/fp8_per_tensor",
        "mode": "fp8_per_tensor",
        "element": "e4m3fn",
        "scales": [_TENSOR_SCALE],
        "code": code,
        "value": "v = mul(c, s)",
        "source": f"vLLM 0.33.0, {source}",
        "notes": notes,
        **more,
    }


def _per_token_head(
    path: str, element: str, qmax: str, code: str, notes: str, *, mode: str | None = None
) -> Mapping[str, Any]:
    mode = mode or f"{'int8' if element == 'int8' else 'fp8'}_per_token_head"
    return {
        "name": f"{_PREFIX}/{path}/{mode}",
        "mode": mode,
        "element": element,
        "scales": [
            {
                "name": "s",
                "granularity": "per_token_head",
                # Triton lowers x / constant on NVIDIA to x * div.approx(1, constant)
                "program": f"s = max_number(mul(amax_number(x), div_approx(1, {qmax})), 1e-6)",
            }
        ],
        "code": code,
        "value": "v = mul(c, s)",
        "source": "vLLM 0.33.0, vllm/v1/attention/ops/triton_reshape_and_cache_flash.py L168-374",
        "status": "admissible only",
        "notes": notes,
    }


# int8 is rounded half away from zero: q +- 0.5, clamped, then truncated by the store
_INT8_UNFUSED = """
    q = mul(x, div_full(1, s))
    q = add(q, copysign(0.5, q))
    c = encode(round(min_number(max_number(q, -128), 127), toward_zero), int8)
"""
# fp fusion, on by default, contracts the product and the sum: one rounding fewer than the source says
_INT8_FUSED = """
    r = div_full(1, s)
    q = fma(x, r, copysign(0.5, mul(x, r)))
    c = encode(round(min_number(max_number(q, -128), 127), toward_zero), int8)
"""


# tl.clamp is max, then min: a NaN (a row with Inf has them, Inf * 0) takes the lower bound. From sm_90 on, symmetric
# bounds compile to min.xorsign.abs: the bound with the sign of the NaN, which a product makes positive.
def _fp8_code(top: str, element: str, nan: str = "") -> str:
    return f"""
        q = mul(x, div_full(1, s))
        {f"q = select(isnan(q), {nan}, q)" if nan else ""}
        c = encode(min_number(max_number(q, -{top}), {top}), {element})
    """


# vLLM 0.32 on a CPU: std::max(-448, std::min(448, NaN)) is 448, and every zero takes the code 0. The exponent is moved
# by a product with 2^-120, which rounds a subnormal to a multiple of 2^-149; the code is the 7 bits above bit 20.
_CPU_TRUNCATED = """
    q = mul(x, div(1, s))
    q = max_number(min_number(q, 448), -448)
    t = mul(splice(mul(q, 7.52316384526264e-37), 0, 20), 1.329227995784916e+36)
    c = encode(select(q == 0, 0, t), e4m3fn)
"""

_NVFP4_SOURCE = "vLLM 0.33.0, csrc/nvfp4_kv_cache_kernels.cu L169-303, csrc/quantization/fp4/nvfp4_utils.cuh L219-302"

# a chain of maxima that starts from the first element: NaN is passed over, unless there is nothing else
_AMAX = "select(all_nan(x), nan, amax_number(x))"

_GLOBAL = {
    "name": "g",
    "granularity": "per_tensor",
    "program": "g = div(amax_finite(x), 2688)\ng = select(g == 0, 1, g)",
    "may_be_given": True,
}

ENTRIES: tuple[Mapping[str, Any], ...] = (
    _per_tensor(
        "csrc",
        "c = encode(div(x, s), e4m3fn)",
        "csrc/cache_kernels.cu L251-421, csrc/quantization/w8a8/fp8/nvidia/quant_utils.cuh L221-272",
        "IEEE division by the scale, one conversion; the arithmetic of golden/fp8_per_tensor.",
    ),
    _per_tensor(
        "csrc-e5m2",
        "c = encode(div(x, s), e5m2)",
        "csrc/cache_kernels.cu L251-421, csrc/core/vec_dtypes/dtype_fp8.cuh L22-36",
        "fp8_e5m2 on CUDA; the Triton writer stores e4m3fn under this string.",
        element="e5m2",
        scales=[{**_TENSOR_SCALE, "program": "s = div(amax_finite(x), 57344)\ns = select(s == 0, 1, s)"}],
    ),
    _per_tensor(
        "csrc-reciprocal",
        "c = encode(mul(x, div(1, s)), e4m3fn)",
        "csrc/fused_muse_spark_qknorm_rope_kv_insert_kernel.cu L192-231",
        "Multiplies by the rounded reciprocal: differs from division where x / s is a tie.",
    ),
    _per_tensor(
        "csrc-clamp",
        "c = encode(min_number(max_number(mul(x, div(1, s)), -448), 448), e4m3fn)",
        "csrc/fused_deepseek_v4_qnorm_rope_kv_insert_kernel.cu L128-155",
        "fmaxf(NaN, -448) is -448, so a NaN is stored as 0xFE.",
    ),
    _per_tensor(
        "cpu",
        "q = mul(x, div(1, s))\nc = encode(select(isnan(q), 448, q), e4m3fn)",
        "csrc/cpu/cpu_attn_fp8.hpp L30-58",
        "A NaN is stored as the largest value, 0x7E.",
    ),
    {
        "name": "vllm-0.32/cpu/fp8_per_tensor",
        "mode": "fp8_per_tensor",
        "element": "e4m3fn",
        "scales": [_TENSOR_SCALE],
        "code": _CPU_TRUNCATED,
        "value": "v = mul(c, s)",
        "source": "vLLM 0.32.0, csrc/cpu/cpu_attn_fp8.hpp, float_to_fp8e4m3_scalar",
        "notes": "Truncated: the three bits below the exponent are kept, the rest is dropped. -0 becomes +0.",
    },
    _per_tensor(
        "triton",
        "c = encode(div_full(x, s), e4m3fn)",
        "vllm/v1/attention/ops/triton_reshape_and_cache_flash.py L32-154",
        "Triton's division is div.full.f32, off by up to 2 ulp. fp8_e5m2 stores e4m3 bytes here as well.",
        status="admissible only",
    ),
    _per_tensor(
        "rocm-fp16",
        "c = encode(to(div(x, s), float16), e4m3fn)",
        "csrc/quantization/w8a8/fp8/amd/quant_utils.cuh L258-267",
        "float16 input only: the quotient is rounded to float16 before the conversion.",
    ),
    _per_tensor(
        "rocm-fnuz",
        "c = encode(div(x, s), e4m3fnuz)",
        "csrc/quantization/w8a8/fp8/amd/quant_utils.cuh L62-68, L313-363",
        "gfx94x: fnuz bytes. Checkpoint scales are doubled, since a fnuz byte is half the fn value.",
        element="e4m3fnuz",
        scales=[{**_TENSOR_SCALE, "program": "s = div(amax_finite(x), 224)\ns = select(s == 0, 1, s)"}],
    ),
    _per_token_head(
        "triton",
        "int8",
        "127",
        _INT8_FUSED,
        "As compiled by default, with fp fusion; rows below amax 1.27e-4 sit on the floor 1e-6.",
    ),
    _per_token_head(
        "triton-nofusion",
        "int8",
        "127",
        _INT8_UNFUSED,
        "The arithmetic as the source writes it, compiled with enable_fp_fusion=False, or run by the interpreter.",
    ),
    _per_token_head(
        "triton",
        "e4m3fn",
        "448",
        _fp8_code("448", "e4m3fn", "448"),
        "As compiled for sm_90 and later, where a NaN is stored as 0x7E. amax below 4.48e-4 is on the floor 1e-6.",
    ),
    _per_token_head(
        "triton-sm89",
        "e4m3fn",
        "448",
        _fp8_code("448", "e4m3fn"),
        "As compiled for sm_89, where a NaN is stored as 0xFE.",
    ),
    _per_token_head(
        "triton-fnuz",
        "e4m3fnuz",
        "224",
        _fp8_code("224", "e4m3fnuz"),
        "gfx94x: 224 and not 240 is the largest value used.",
    ),
    {
        "name": f"{_PREFIX}/csrc/nvfp4",
        "mode": "nvfp4",
        "element": "e2m1fn",
        "scales": [
            _GLOBAL,
            {
                "name": "bs",
                "granularity": "per_block",
                "store": "e4m3fn",
                "program": f"bs = mul(div(1, g), mul({_AMAX}, rcp_approx(6, ftz)))",
            },
        ],
        "code": """
            d = rcp_approx(mul(bs, rcp_approx(div(1, g), ftz)), ftz)
            d = select(bs == 0, 0, d)
            c = encode(mul(x, d), e2m1fn)
        """,
        "value": "v = mul(mul(c, bs), g)",
        "source": _NVFP4_SOURCE,
        "status": "admissible only",
        "notes": "No floor: a small block stores 0x00 and loses its values. A block of NaN alone stores 0x7F. "
        "rcp.approx is off by up to 1 ulp.",
    },
    {
        "name": f"{_PREFIX}/minimax-m3/nvfp4",
        "mode": "nvfp4",
        "element": "e2m1fn",
        "scales": [
            _GLOBAL,
            {
                "name": "bs",
                "granularity": "per_block",
                "store": "e4m3fn",
                "program": """
                    a = max_number(amax_number(x), 1e-12)
                    bs = max_number(mul(div(1, g), div(a, 6)), 0.001953125)
                """,
            },
        ],
        "code": """
            t = mul(x, div(1, g))
            t = clamp(t, -4096, 4096)
            q = div(t, bs)
            z = select(le(abs(q), 0.25), 0, q)
            c = encode(z, e2m1fn)
        """,
        "value": "v = mul(mul(c, bs), g)",
        "source": "vLLM 0.33.0, csrc/fused_minimax_m3_qknorm_rope_kv_insert_kernel.cu L313-541",
        "notes": "Block scales are at least 2^-9 (0x01); zeros lose their sign.",
    },
    {
        "name": f"{_PREFIX}/emulation/nvfp4",
        "mode": "nvfp4",
        "element": "e2m1fn",
        "scales": [
            {
                "name": "g",
                "granularity": "per_tensor",
                "program": "g = div(2688, amax(x))",
                "may_be_given": True,
                "multiplier": "encode",
            },
            {
                "name": "bs",
                "granularity": "per_block",
                "store": "e4m3fn",
                "program": "bs = clamp(mul(g, mul(amax(x), div(1, 6))), -448, 448)",
            },
        ],
        "code": """
            b = mul(bs, div(1, g))
            b = select(b == 0, 1e8, b)
            q = mul(x, div(1, b))
            q = select(isnan(q), 0, q)
            c = encode(select(q == 0, 0, q), e2m1fn)
        """,
        "value": "v = mul(c, mul(bs, div(1, g)))",
        "source": "vLLM 0.33.0, vllm/model_executor/layers/quantization/utils/nvfp4_emulation_utils.py L685-722",
        "notes": "ref_nvfp4_quant; the global scale is the encode multiplier.",
    },
    {
        "name": f"{_PREFIX}/csrc/nvfp4_4over6",
        "mode": "nvfp4",
        "element": "e2m1fn",
        "scales": [
            _GLOBAL,
            {
                "name": "bs",
                "granularity": "per_block",
                "store": "e4m3fn",
                "program": f"bs = mul(div(1, g), mul({_AMAX}, rcp_approx(trial, ftz)))",
                "trials": ["6", "4"],
                # nvcc contracts q * dq - x and err + d * d; where the reciprocal is 0, the element counts in full
                "error": """
                    t = fma(c, rcp_approx(d, ftz), neg(x))
                    t = select(d == 0, x, t)
                    e = fma(t, t, e)
                """,
            },
        ],
        "code": """
            d = rcp_approx(mul(bs, rcp_approx(div(1, g), ftz)), ftz)
            d = select(bs == 0, 0, d)
            c = encode(mul(x, d), e2m1fn)
        """,
        "value": "v = mul(mul(c, bs), g)",
        "source": "vLLM 0.33.0, csrc/nvfp4_kv_cache_kernels.cu L74-160",
        "status": "admissible only",
        "notes": "Each block is tried with denominators 6 and 4; the squared error, summed in the order of the "
        "elements, decides, and 4 is taken only if it is strictly better. Built with CUDA 12.9 or later, 16 elements a "
        "thread; older builds add two sums of 8, and may choose otherwise.",
    },
    {
        "name": f"{_PREFIX}/triton/int4_per_token_head",
        "mode": "int4_per_token_head",
        "element": "int4",
        "prepare": """
            x = flip_signs(x, 2654435769)
            x = hadamard(x)
            x = to(x, input)
        """,
        "scales": [
            {
                "name": "s",
                "granularity": "per_token_head",
                "program": """
                    low = smallest(x)
                    w = max_number(mul(sub(largest(x), low), div_approx(1, 15)), 1e-6)
                    z = div_full(neg(low), w)
                    z = round(add(z, copysign(0.5, z)), toward_zero)
                    s = splice(w, min_number(max_number(z, 0), 15), 4)
                """,
            }
        ],
        # the nibble is 0 .. 15; int4 reads 8 .. 15 as negative numbers
        "code": """
            q = fma(x, div_full(1, w), low_bits(s, 4))
            q = round(add(q, copysign(0.5, q)), toward_zero)
            q = min_number(max_number(q, 0), 15)
            c = encode(select(lt(q, 8), q, sub(q, 16)), int4)
        """,
        "value": "v = mul(sub(select(lt(c, 0), add(c, 16), c), low_bits(s, 4)), splice(s, 0, 4))",
        "source": "vLLM 0.33.0, vllm/v1/attention/ops/int4_per_token_head.py L65-255, L1075-1167",
        "status": "admissible only",
        "notes": "A randomised Hadamard transform of the row, rounded to the input's dtype, then asymmetric int4; the "
        "zero point lies in the low 4 bits of the float32 scale. The transform is that of the exact float32 butterfly; "
        "the tensor-core ones (hadacore, Triton) round to bfloat16 inside and give other bits. The quantizer uses the "
        "whole scale, the reader the one without its low bits. fp fusion is on.",
    },
)

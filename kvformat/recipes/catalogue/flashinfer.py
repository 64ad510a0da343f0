"""FlashInfer 0.7.4: what its KV-cache writers compute; paths are relative to the installed package `flashinfer`.

Its CUDA modules are built with -use_fast_math by default (flashinfer/jit/core.py L749, L787; the page, fp4_kv and rope
modules do not opt out): every binary32 operation flushes subnormals, in and out, and `/` is __fdividef, div.approx.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PREFIX = "flashinfer-0.7"


def _decode_scale(divisor: str) -> Mapping[str, Any]:
    return {
        "name": "g",
        "granularity": "per_tensor",
        "program": f"g = div(amax_finite(x), {divisor})\ng = select(g == 0, 1, g)",
        "may_be_given": True,
    }


def _block(program: str, **more: Any) -> Mapping[str, Any]:
    return {"name": "bs", "granularity": "per_block", "store": "e4m3fn", "program": program, **more}


def _nvfp4(path: str, scales: list[Mapping[str, Any]], code: str, source: str, notes: str, **more: Any) -> Any:
    return {
        "name": f"{_PREFIX}/{path}/nvfp4",
        "mode": "nvfp4",
        "element": "e2m1fn",
        "scales": scales,
        "code": code,
        # fp4_kv_dequantization.cu L46-49, L176
        "value": "v = mul(mul(c, bs), g)",
        "source": f"flashinfer 0.7.4, {source}",
        "notes": notes,
        **more,
    }


# |q - value| for each of the eight values, in binary32; the first of the smallest ones is taken, 0 for NaN and Inf
_ARGMIN = "m = abs(q)\nbest = abs(q)\nr = sub(0, 0)\n" + "".join(
    f"d = abs(sub(m, {value}))\ncloser = lt(d, best)\nr = select(closer, {value}, r)\nbest = select(closer, d, best)\n"
    for value in ("0.5", "1", "1.5", "2", "3", "4", "6")
)

ENTRIES: tuple[Mapping[str, Any], ...] = (
    _nvfp4(
        "append",
        [
            _decode_scale("2688"),
            _block("""
                a = flush(amax_number(x))
                b = div_approx(a, mul(6, g), ftz)
                bs = select(lt(0, a), b, 0)
            """),
        ],
        """
            d = div_approx(1, mul(bs, g), ftz)
            d = select(bs == 0, 0, d)
            q = flush(mul(flush(x), d))
            c = encode(select(isnan(q), 0, q), e2m1fn)
        """,
        "data/include/flashinfer/page.cuh L287-366",
        "nvfp4_quantize_append_paged_kv_cache and its slot-mapping twin, as built by default, with fast math: 1 / d is "
        "taken as a quotient within 2 ulp, which covers rcp.approx. A NaN is not in the amax and becomes a zero; a "
        "negative NaN may become -0. Zeros keep their sign. Nothing is written where the scale is not finite and > 0.",
        status="admissible only",
    ),
    _nvfp4(
        "append-precise",
        [
            _decode_scale("2688"),
            _block("a = amax_number(x)\nbs = select(lt(0, a), div(a, mul(6, g)), 0)"),
        ],
        """
            d = select(bs == 0, 0, div(1, mul(bs, g)))
            q = mul(x, d)
            c = encode(select(isnan(q), 0, q), e2m1fn)
        """,
        "data/include/flashinfer/page.cuh L287-366",
        "The arithmetic of page.cuh as its source writes it, in IEEE binary32: what a build without fast math gives.",
    ),
    _nvfp4(
        "append-mla",
        [
            _decode_scale("2688"),
            _block("""
                a = flush(amax_number(x))
                bs = select(lt(0, a), flush(mul(a, flush(div(1, flush(mul(6, g)))))), 0)
            """),
        ],
        """
            d = select(bs == 0, 0, flush(div(1, flush(mul(bs, g)))))
            q = flush(mul(flush(x), d))
            c = encode(select(isnan(q), 0, q), e2m1fn)
        """,
        "data/include/flashinfer/page.cuh L311-313, L965-1003",
        "The 512 latent dims of an MLA token, precise_rounding: __frcp_rn and a product instead of a quotient. The 64 "
        "RoPE dims are e4m3fn, multiplied by an encode scale of their own. The scale must be a normal binary32.",
    ),
    _nvfp4(
        "kv-quantize",
        [
            _decode_scale("448"),
            _block("""
                a = flush(mul(flush(select(all_nan(x), nan, amax_number(x))), rcp_approx(6, ftz)))
                bs = flush(mul(rcp_approx(g, ftz), a))
            """),
        ],
        """
            d = select(bs == 0, 0, rcp_approx(mul(bs, g), ftz))
            q = flush(mul(flush(x), d))
            c = encode(q, e2m1fn)
        """,
        "data/csrc/fp4_kv_quantization.cu L88-149",
        "nvfp4_kv_quantize, SM100: takes the decode scale. Its own calibration is amax / 448, without the 6. A NaN "
        "becomes +6 (cvt.rn.satfinite), and a block of NaN alone stores 0x7F. Beside numbers it is not in the amax; in "
        "bfloat16, however, it takes with it the numbers of its lane that come before it (a comparison with NaN is "
        "false), which is not modelled: a block (4, 0, NaN, 0, 1, 0, ...) has the amax 1.",
        status="admissible only",
    ),
    _nvfp4(
        "trace-reference",
        [
            {
                "name": "g",
                "granularity": "per_tensor",
                "program": "g = div(2688, amax(x))",
                "may_be_given": True,
                "multiplier": "encode",
            },
            _block("bs = mul(div(amax(x), 6), g)"),
        ],
        f"""
            b = select(lt(0, bs), bs, 1)
            q = div(mul(x, g), b)
            {_ARGMIN}
            c = encode(copysign(r, select(lt(q, 0), -1, 1)), e2m1fn)
        """,
        "trace/templates/quantize.py L44-240",
        "The pure torch reference in the package, which is not what its kernels compute: the nearest value is found by "
        "argmin over rounded distances, so ties go toward zero and Inf becomes 0; a zero block divides by 1.",
        value="v = mul(mul(c, bs), div(1, g))",
    ),
    {
        "name": f"{_PREFIX}/rope-quantize/fp8_per_tensor",
        "mode": "fp8_per_tensor",
        "element": "e4m3fn",
        "scales": [
            {
                "name": "s",
                "granularity": "per_tensor",
                "program": "s = div(448, amax_finite(x))\ns = select(isinf(s), 1, s)",
                "may_be_given": True,
                "multiplier": "encode",
            }
        ],
        "code": "c = encode(mul(flush(x), flush(s)), e4m3fn)",
        "value": "v = mul(c, div(1, s))",
        "source": "flashinfer 0.7.4, data/include/flashinfer/pos_enc.cuh L547-613",
        "notes": "rope_quantize_fp8(_append_paged_kv_cache) multiplies by the caller's quant_scale_kv, an encode "
        "scale. x is the value after RoPE, in binary32. Built with fast math, so subnormals are flushed.",
    },
)

"""ggml 0.25: the quantizers of llama.cpp's cache types, in groups of 32 dims.

d is stored as float16, codes are made with the float32 one. The reference is what CUDA, Metal, Vulkan and SYCL repeat;
a platform's own kernel rounds in its own way under the same name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_INVERSE = "ne(d, 0), rcp(d), 0"
#: the largest finite binary32 number, from which minimum and maximum start
_MOST = "3.4028234663852886e+38"
_STATUS = {"status": "verified against the library"}


def _group(program: str, *names: str) -> list[Mapping[str, Any]]:
    """Parameters of a group of 32, stored as float16, all made by one program."""
    programs = [program, *([""] * (len(names) - 1))]
    return [
        {"name": name, "granularity": "per_block_32", "store": "float16", "program": each}
        for name, each in zip(names, programs, strict=True)
    ]


def _q8_0(platform: str, amax: str, inverse: str, code: str, source: str, notes: str) -> Mapping[str, Any]:
    return {
        "name": f"ggml-0.25/{platform}/q8_0",
        "mode": "q8_0",
        "element": "int8",
        "scales": _group(f"a = {amax}(x)\nd = div(a, 127)\nid = select({inverse})", "d"),
        "code": f"c = encode({code}, int8)",
        "value": "v = mul(c, d)",
        "source": f"ggml 0.25.3, {source}",
        "notes": notes,
        **_STATUS,
    }


def _symmetric(bits: int, notes: str) -> Mapping[str, Any]:
    half = 2 ** (bits - 1)
    return {
        "name": f"ggml-0.25/reference/q{bits}_0",
        "mode": f"q{bits}_0",
        "element": f"uint{bits}",
        "scales": _group(f"d = div(signed_amax(x), {-half})\nid = select({_INVERSE})", "d"),
        "code": f"c = encode(min(wrap(cast_int32(add(mul(x, id), {half}.5)), 8), {2 * half - 1}), uint{bits})",
        "value": f"v = mul(sub(c, {half}), d)",
        "source": f"ggml 0.25.3, ggml-quants.c, quantize_row_q{bits}_0_ref",
        "notes": notes,
        **_STATUS,
    }


def _with_minimum(bits: int, notes: str) -> Mapping[str, Any]:
    program = f"""
        low = min_from(x, {_MOST})
        d = div(sub(max_from(x, -{_MOST}), low), {2**bits - 1})
        id = select({_INVERSE})
        m = to(low, float32)
    """
    return {
        "name": f"ggml-0.25/reference/q{bits}_1",
        "mode": f"q{bits}_1",
        "element": f"uint{bits}",
        "scales": _group(program, "d", "m"),
        "code": f"c = encode(min(wrap(cast_int32(add(mul(sub(x, low), id), 0.5)), 8), {2**bits - 1}), uint{bits})",
        "value": "v = add(mul(c, d), m)",
        "source": f"ggml 0.25.3, ggml-quants.c, quantize_row_q{bits}_1_ref",
        "notes": notes,
        **_STATUS,
    }


ENTRIES: tuple[Mapping[str, Any], ...] = (
    _q8_0(
        "reference",
        "amax_number",
        _INVERSE,
        "wrap(cast_int32(round(mul(x, id), half_away)), 8)",
        "ggml-quants.c, quantize_row_q8_0_ref",
        "Ties go away from zero. CUDA, Metal, Vulkan and SYCL have the same formula; CUDA with approximate divisions. "
        "An Inf makes d Inf and every code 0. In a block with a NaN the amax forgets what stood before it: that is not "
        "described here.",
    ),
    _q8_0(
        "avx",
        "amax_number",
        "ne(a, 0), div(127, a), 0",
        "cast_int32(round(mul(x, id), half_even))",
        "ggml-cpu/arch/x86/quants.c, quantize_row_q8_0",
        "Every x86 build with AVX, AVX2 or AVX-512. Ties go to even, and 127 / amax is not 1 / (amax / 127): 1,318 of "
        "1,062,500 bytes of bfloat16 values differ from the reference. A NaN is stored as -128; the amax "
        "of its block is not described here.",
    ),
    _q8_0(
        "neon",
        "amax",
        _INVERSE,
        "round(mul(x, id), half_even)",
        "ggml-cpu/arch/arm/quants.c, quantize_row_q8_0",
        "ARM NEON. Ties go to even. A NaN makes d NaN (0x7E00) and all codes 0.",
    ),
    _q8_0(
        "wasm",
        "amax_number",
        _INVERSE,
        "round(mul(x, id), toward_zero)",
        "ggml-cpu/arch/wasm/quants.c, quantize_row_q8_0",
        "WebAssembly SIMD truncates: 46 % of all bytes differ from every other platform's.",
    ),
    _symmetric(
        4,
        "d is negative where the element of largest magnitude is positive: that element, the first of equals, always "
        "has code 0, and its negative is cut to 15. Inf, NaN and what 1 / d cannot hold have code 0.",
    ),
    _symmetric(5, "As q4_0 with 5 bits: the element of largest magnitude has code 0, its negative 31."),
    _with_minimum(
        4,
        "Codes are made with the float32 minimum and read with the float16 one: of 100.01 .. 100.2 the minimum is 100.",
    ),
    _with_minimum(5, "As q4_1 with 5 bits; the fifth ones lie in a uint32 of their own."),
)

"""TransformerEngine at d0067d0d: its NVFP4 quantizers. It has no KV cache; others follow its arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PREFIX = "transformer-engine-d0067d0d"
_MAX = "3.4028234663852886e+38"

#: the tensor's largest magnitude is what TransformerEngine is given; 2688 = 6 * 448 over it is the encode scale
_REFERENCE_AMAX = {
    "name": "a",
    "granularity": "per_tensor",
    "program": "a = amax(x)",
    "may_be_given": True,
    "multiplier": "amax",
}
_CUDA_AMAX = {**_REFERENCE_AMAX, "program": "a = amax_number(x)"}

# 0.0 / gamax is 0 for an infinite one; FLT_MAX stands for the Inf of a zero one
_REFERENCE_ENCODE = f"g = min(div(2688, a), {_MAX})\ng = select(g == 0, 1, g)"
_CUDA_ENCODE = f"g = min_number(div(2688, a), {_MAX})\ng = select(g == 0, 1, select(a == 0, 1, g))"

# the table of cast_to_fp4x2: -0 is 0, a negative number that rounds to 0 is 8, NaN is 0
_REFERENCE_CODE = """
    q = clamp(mul(x, d), -6, 6)
    q = select(isnan(q), 0, q)
    c = encode(select(q == 0, 0, q), e2m1fn)
"""


def _nvfp4(path: str, amax: Mapping[str, Any], block: Mapping[str, Any], code: str, **more: Any) -> Mapping[str, Any]:
    return {
        "name": f"{_PREFIX}/{path}/nvfp4",
        "mode": "nvfp4",
        "element": "e2m1fn",
        "scales": [amax, {"name": "bs", "granularity": "per_block", "store": "e4m3fn", **block}],
        "code": code,
        # common/cast/nvfp4/dequantize_nvfp4.cuh L68-69
        "value": "v = mul(c, mul(mul(bs, a), div(1, 2688)))",
        **more,
    }


def _four_over_six(path: str, error: str, what: str) -> Mapping[str, Any]:
    # the code reads the encode scale of the block program; trial 1 is the block scale for 6, 1.5 that for 4
    return _nvfp4(
        path,
        _REFERENCE_AMAX,
        {
            "program": f"{_REFERENCE_ENCODE}\nbs = clamp(mul(mul(div(amax(x), 6), g), trial), -448, 448)",
            "trials": ["1", "1.5"],
            "error": f"t = sub(div(mul(mul(c, bs), a), 2688), x)\n{error}",
        },
        f"d = min(div(1, mul(bs, div(1, g))), {_MAX}){_REFERENCE_CODE}",
        source="TransformerEngine d0067d0d, transformer_engine/pytorch/custom_recipes/reference_nvfp4.py L524-640",
        notes=f"4over6: each block is tried with its scale for 6 and with 1.5 times that, for 4; {what}, summed in the "
        "order of the elements, decides, and 4 is taken only if it is strictly better. nvfp4_e4m3_max is 448.",
    )


ENTRIES: tuple[Mapping[str, Any], ...] = (
    _nvfp4(
        "reference",
        _REFERENCE_AMAX,
        {
            "program": f"""
                {_REFERENCE_ENCODE}
                bs = clamp(min(mul(amax(x), mul(g, div(1, 6))), {_MAX}), -448, 448)
            """
        },
        f"d = min(div(1, mul(bs, div(1, g))), {_MAX}){_REFERENCE_CODE}",
        source="TransformerEngine d0067d0d, transformer_engine/pytorch/custom_recipes/reference_nvfp4.py L651-777",
        notes="The Python reference that its kernels are tested against. Where a block scale underflows to 0, all "
        "elements but zeros become +-6. -0 is dropped, a negative number that rounds to zero stays -0.",
    ),
    _nvfp4(
        "cuda",
        _CUDA_AMAX,
        {
            "program": f"""
                {_CUDA_ENCODE}
                bs = min_number(mul(amax_number(x), mul(g, div(1, 6))), {_MAX})
            """
        },
        f"d = min_number(div(1, mul(bs, div(1, g))), {_MAX})\nc = encode(mul(x, d), e2m1fn)",
        source="TransformerEngine d0067d0d, transformer_engine/common/cast/nvfp4/core_nvfp4.cuh L43-101, "
        "specialized/quantize_transpose_nvfp4_tuned_1D.cuh L148-185",
        notes="The default of the CUDA kernels, without USE_FAST_MATH and without stochastic rounding. NaN is passed "
        "over by the amax and becomes +6; zeros keep their sign.",
    ),
    _four_over_six("reference-4over6-mae", "e = add(e, abs(t))", "the mean absolute error"),
    _four_over_six("reference-4over6-mse", "e = add(e, mul(t, t))", "the mean squared error"),
)

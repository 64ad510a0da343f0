"""The faults of arithmetic as data: how a code arises. Texts are recipe lines, with the names of `edits` in braces."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

from kvformat.diagnose.edits import Edit
from kvformat.diagnose.fault import ALL, CODED, FLOATS, FP8, ROWS, SCALED, Fault, Variant

_INT8 = ("int8_per_token_head",)
_NVFP4 = ("nvfp4",)
_NONE = ("none",)

#: to a value of the format, toward zero: low mantissa bits cleared, a subnormal to a whole number of steps
_WHOLE_STEPS = "mul(round(mul({c}, {steps}), toward_zero), {step})"
_TRUNCATED = f"{{c}} = select(lt(abs({{c}}), {{min_normal}}), {_WHOLE_STEPS}, splice({{c}}, 0, {{low}}))"

#: nvfp4: how a code and a block scale may be computed; algebraically all the same
_QUOTIENTS = (
    ("", ""),
    ("x / (bs * g)", "div({x}, mul({s}, {g}))"),
    ("(x / g) / bs", "div(div({x}, {g}), {s})"),
    ("(x * (1 / g)) / bs", "div(mul({x}, div(1, {g})), {s})"),
    ("x * ((1 / g) / bs)", "mul({x}, div(div(1, {g}), {s}))"),
    ("x * ((1 / g) * (1 / bs))", "mul({x}, mul(div(1, {g}), div(1, {s})))"),
    ("x / (bs / (1 / g))", "div({x}, div({s}, div(1, {g})))"),
    ("x * (1 / (bs / (1 / g)))", "mul({x}, div(1, div({s}, div(1, {g}))))"),
    ("x * (1 / (bs * (1 / (1 / g))))", "mul({x}, div(1, mul({s}, div(1, div(1, {g})))))"),
)
_BLOCK_SCALES = (
    ("", ""),
    ("amax / (6 * g)", "div({a}, mul(6, {g}))"),
    ("(amax / 6) / g", "div(div({a}, 6), {g})"),
    ("(amax / 6) * (1 / g)", "mul(div({a}, 6), div(1, {g}))"),
    ("(amax * (1 / 6)) / g", "div(mul({a}, div(1, 6)), {g})"),
    ("(1 / g) * (amax * (1 / 6))", "mul(div(1, {g}), mul({a}, div(1, 6)))"),
    ("amax * ((1 / g) * (1 / 6))", "mul({a}, mul(div(1, {g}), div(1, 6)))"),
    ("amax * (1 / (6 * g))", "mul({a}, div(1, mul(6, {g})))"),
)
_AMAX = "select(eq({a}, 0), 1, {a})"


def _orders() -> tuple[Variant, ...]:
    rows = (("x * (QMAX / amax)", f"mul({{x}}, div({{divisor}}, {_AMAX}))"),
            ("(x * QMAX) / amax", f"div(mul({{x}}, {{divisor}}), {_AMAX})"))  # fmt: skip
    blocks = [
        Variant("; ".join(filter(None, (scale[0], code[0]))), Edit(scale=scale[1], quotient=code[1]), modes=_NVFP4)
        for scale, code in product(_BLOCK_SCALES, _QUOTIENTS)
        if scale[1] or code[1]
    ]
    return (*(Variant(label, Edit(quotient=text), modes=ROWS) for label, text in rows), *blocks)


def _last(label: str, text: str, modes: tuple[str, ...], **more: object) -> Variant:
    return Variant(label, Edit(last=text, **more), modes=modes)  # type: ignore[arg-type]


def _then(label: str, text: str, modes: tuple[str, ...] = ()) -> Variant:
    return Variant(label, Edit(then=text), modes=modes)


def _of_nan(label: str, value: str) -> tuple[Variant, ...]:
    """A NaN as a number: in the format that has one, and in those where the scale would have carried it."""
    text = f"{{c}} = select(isnan({{c}}), {value}, {{c}})"
    return (
        _last(label, text, CODED),
        _last(f"{label}, the scale is a number", text, (*_INT8, *_NVFP4), words=(("any_nan", ""),)),
        _then(label, f"{{q}} = select(isnan({{q}}), {value}, {{q}})", _NONE),
    )


def _formats() -> tuple[Variant, ...]:
    tops = {"e4m3fn": "448", "e4m3fnuz": "240", "e5m2": "57344", "e5m2fnuz": "57344", "int8": "127"}
    of_floats = [
        Variant(label, Edit(element=name, top=top), modes=FP8)
        for name, own in tops.items()
        for label, top in ((f"{name}, the same scale", ""), (f"{name} and its own QMAX", own))
    ]
    of_integers = [
        Variant(
            f"{name}{' and its own QMAX' if top else ', the same scale'}",
            Edit(element=name, rounding="mul({q}, 1)", top=top, constants=_wider(own), policy=("saturate",)),
            modes=_INT8,
        )
        for name, own in tops.items()
        if name != "int8"
        for top in ("", own)
    ]
    blocks = [
        Variant("int4 in two's complement", Edit(element="int4"), modes=_NVFP4),
        *(Variant(f"block scales in {store}", Edit(store=store), modes=_NVFP4)
          for store in ("e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu up", "e8m0fnu down", "e8m0fnu nearest_even")),
    ]  # fmt: skip
    plain = [Variant(f"{name} bits", Edit(element=name), modes=_NONE) for name in ("float16", "bfloat16")]
    raw = [Variant(f"{name} bits, not quantized", unquantized=name, modes=CODED) for name in ("bfloat16", "float16")]
    return (*of_floats, *of_integers, *blocks, *plain, *raw)


def _wider(top: str) -> tuple[tuple[str, str], ...]:
    return (("-127", f"-{top}"), ("127", top), ("-128", f"-{top}"))


_EXACT_ZERO = "select(eq({c}, 0), {zero}, {c})"
_ANY_ZERO = "select(le(abs({c}), {half_step}), {zero}, {c})"


def _zeros(zero: str) -> tuple[Variant, ...]:
    exact, every = (text.replace("{zero}", zero) for text in (_EXACT_ZERO, _ANY_ZERO))
    return (
        _last("where x is a zero", f"{{c}} = {exact}", FLOATS),
        _last("where the code is a zero", f"{{c}} = {every}", FLOATS),
        _then("where x is a zero", f"{{q}} = select(eq({{q}}, 0), {zero}, {{q}})", _NONE),
    )


FAULTS: tuple[Fault, ...] = (
    Fault(
        "reciprocal",
        "arithmetic",
        "x * (1 / scale) where x / scale was meant, or the other way round",
        "1 / scale is rounded once more, so quotients that are ties go either way",
        "arch-hdl-lang/arch-com#905, vllm-project/vllm#31514, ROCm/aiter#5259",
        CODED,
        (
            Variant("x * (1 / scale)", Edit(reciprocal=("code",))),
            Variant("amax * (1 / QMAX)", Edit(reciprocal=("scale",))),
            Variant("x * (1 / scale), amax * (1 / QMAX)", Edit(reciprocal=("code", "scale"))),
        ),
    ),
    Fault(
        "op-order",
        "arithmetic",
        "algebraically the same quotient or block scale, multiplied and divided in another order",
        "each operation rounds; the forms differ where a quotient lies next to a border between two codes",
        "flashinfer-ai/flashinfer#3448, #3656; radixark/miles#1261; NVIDIA/TransformerEngine#3068",
        SCALED,
        _orders(),
    ),
    Fault(
        "round-half-away",
        "arithmetic",
        "ties go away from zero, not to the even code",
        "round() in C, x + copysign(0.5, x) truncated, or thresholds compared with >=",
        "ROCm/aiter#3992, #4030, #2247; triton-lang/triton#11897",
        CODED,
        (
            Variant("round half away", Edit(rounding="round({q}, half_away)"), modes=_INT8),
            Variant(
                "truncated after + copysign(0.5, x)",
                Edit(rounding="round(add({q}, copysign(0.5, {q})), toward_zero)"),
                modes=_INT8,
            ),
            Variant("ties away", Edit(policy=("nearest_away",)), modes=FLOATS),
        ),
    ),
    Fault(
        "round-half-up",
        "arithmetic",
        "ties go up: floor(x + 0.5)",
        "the shortest way to write rounding down; K and V may have different ones",
        "vllm-project/vllm#41505, weicj/vLLM-2080Ti-Definitive#109",
        _INT8,
        (Variant("floor(x + 0.5)", Edit(rounding="round(add({q}, 0.5), down)")),),
    ),
    Fault(
        "round-toward-zero",
        "arithmetic",
        "truncated, not rounded",
        "a cast from float to integer truncates; so does dropping the low bits of a pattern",
        "vllm-project/vllm#45361; microsoft/onnxruntime#16938",
        ALL,
        (
            Variant("truncated", Edit(rounding="round({q}, toward_zero)"), modes=_INT8),
            _last("truncated", _TRUNCATED, FLOATS),
            _then("low bits dropped", "{q} = splice({q}, 0, {low})", _NONE),
        ),
    ),
    Fault(
        "tie-up",
        "arithmetic",
        "ties go toward +Inf, not to the even code",
        "half a step is added before the low bits are dropped",
        "triton-lang/triton#5925, #6102",
        FLOATS,
        (
            _last(  # a negative tie, one ulp smaller, is none
                "ties up",
                "{c} = select(lt({c}, 0), mul({c}, 0.9999999403953552), {c})",
                FLOATS,
                policy=("nearest_away",),
            ),
        ),
    ),
    Fault(
        "tie-toward-zero",
        "arithmetic",
        "ties go toward zero, not to the even code",
        "the nearest entry of a table by argmin, which takes the first of two",
        "FlashInfer 0.7.4 trace/templates/quantize.py L44-240; ROCm/aiter#2247; breccia 0.1.3 cast.py L339-372",
        CODED,
        (
            # one ulp smaller a tie is none, and what was one ulp above a tie is one that goes away from zero
            Variant("ties down", Edit(rounding="round(mul({q}, 0.9999999403953552), half_away)"), modes=_INT8),
            _last("ties down", "{c} = mul({c}, 0.9999999403953552)", FLOATS, policy=("nearest_away",)),
        ),
    ),
    Fault(
        "double-rounding",
        "arithmetic",
        "the quotient goes through a narrower type before it is rounded to the code",
        "a cast that the hardware lacks is made of two; torch and ml_dtypes divide in the dtype of the input",
        "triton-lang/triton#11753, #2583, #10846; jax-ml/ml_dtypes#401",
        ALL,
        (
            _then("by way of float16", "{q} = to({q}, float16)"),
            _then("by way of bfloat16", "{q} = to({q}, bfloat16)"),
            _then("by way of float16, truncated", "{q} = splice({q}, 0, 13)"),
            _then("by way of bfloat16, truncated", "{q} = splice({q}, 0, 16)"),
            _then("by way of float32", "{q} = to({q}, float32)"),
        ),
    ),
    Fault(
        "no-saturation",
        "arithmetic",
        "overflow is what the format makes of it (e4m3fn: NaN above 464, e5m2: Inf), not the largest value",
        "a plain cast; torch saturates since 2.12, ml_dtypes does not",
        "pytorch/pytorch#178817, pytorch/ao#1912, jax-ml/ml_dtypes#400; sgl-project/sglang#18373",
        FLOATS,
        (
            Variant("the cast does not saturate", Edit(policy=("ieee",)), modes=FP8),
            Variant("block scales do not saturate", Edit(store="e4m3fn ieee"), modes=_NVFP4),
        ),
    ),
    Fault(
        "saturate",
        "arithmetic",
        "what is too large for the cache's dtype is its largest number, not Inf",
        "a clamp before a cast that has an Inf",
        "pytorch/FBGEMM#4237",
        _NONE,
        (_then("the largest number", "{q} = select(lt({max}, abs({q})), copysign({max}, {q}), {q})"),),
    ),
    Fault(
        "saturate-nan",
        "arithmetic",
        "everything above the largest value is NaN, also what would round down to it",
        "the magnitude is compared with the largest value before it is rounded",
        "stillwater-sc/universal#1302, #1351; pytorch/ao#4364",
        FLOATS,
        (
            _last("NaN above the largest value", "{c} = select(lt({max}, abs({c})), nan, {c})", FP8),
            Variant(
                "block scale NaN above 448", Edit(then_scale="{s} = select(lt({s_max}, {s}), nan, {s})"), modes=_NVFP4
            ),
        ),
    ),
    Fault(
        "top-binade",
        "arithmetic",
        "all of the top binade becomes the largest value",
        "the exponent field of Inf in other formats is taken for an overflow, but e4m3fn has numbers there",
        "sgl-project/sglang#40581; tile-ai/tilelang-metax#140",
        FP8,
        (
            _last("256 and above to 448", "{c} = select(le(256, abs({c})), copysign({max}, {c}), {c})", FP8),
            _last("what rounds to 256 as well", "{c} = select(le(248, abs({c})), copysign({max}, {c}), {c})", FP8),
        ),
    ),
    Fault(
        "nan-to-max",
        "arithmetic",
        "a NaN becomes the largest code",
        "fmin and fmax give a NaN up for the bound that they clamp to",
        "pytorch/ao#4725, sgl-project/sglang#31712; csrc/cpu/cpu_attn_fp8.hpp in vLLM 0.33.0",
        ALL,
        (
            *_of_nan("NaN to the largest", "{max}"),
            *_of_nan("NaN to the most negative", "-{max}"),
            *(replace(each, modes=_INT8) for each in _of_nan("NaN to -128", "-128")[:2]),
        ),
    ),
    Fault(
        "nan-to-zero",
        "arithmetic",
        "a NaN becomes a zero",
        "a cast of NaN to an integer, or a table that has no entry for it",
        "FlashInfer 0.7.4 page.cuh L287-366; pytorch/ao#4725",
        ALL,
        _of_nan("NaN to zero", "0"),
    ),
    Fault(
        "negative-zero-dropped",
        "arithmetic",
        "a negative zero lost its sign",
        "x * sign(x), or a sign bit made by x < 0",
        "compressed-tensors 0.20.1 fp4_utils.py; TransformerEngine reference_nvfp4.py",
        (*FLOATS, "none"),
        _zeros("0"),
    ),
    Fault(
        "negative-zero-made",
        "arithmetic",
        "zeros are negative zeros",
        "a sign bit made of (2 - sign(x)) // 2, which is 1 for 0",
        "NVIDIA Model Optimizer 0.47.0 mxfp4_tensor.py; sglang 0.5.23 mxfp4_tensor.py",
        (*FLOATS, "none"),
        _zeros("neg(0)"),
    ),
    Fault(
        "subnormal-flush",
        "arithmetic",
        "subnormal codes, or subnormal scales, are zeros",
        "flush-to-zero instructions, or a decoder that knows normal numbers only",
        "flashinfer-ai/flashinfer#2440; local-inference-lab/b12x#388",
        ALL,
        (
            _last("what rounds to a subnormal", "{c} = select(lt(abs({c}), {under}), copysign(0, {c}), {c})", FLOATS),
            _last("what is a subnormal", "{c} = select(lt(abs({c}), {min_normal}), copysign(0, {c}), {c})", FLOATS),
            Variant("float32 scales", Edit(then_scale="{s} = flush({s})"), modes=(*FP8, *_INT8)),
            Variant("block scales", Edit(then_scale="{s} = select(lt({s}, {s_under}), 0, {s})"), modes=_NVFP4),
            _then("subnormals", "{q} = select(lt(abs({q}), {min_normal}), copysign(0, {q}), {q})", _NONE),
        ),
    ),
    Fault(
        "wrong-format",
        "arithmetic",
        "codes, or block scales, of another format",
        "writer and reader take the dtype from different places",
        "vllm-project/vllm#54341, #45720, #3290; ROCm/AMDMIGraphX#2533",
        ALL,
        _formats(),
    ),
)

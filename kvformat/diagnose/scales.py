"""The faults of scales as data: how a scale arises, what is stored of it, and whose it is."""

from __future__ import annotations

from itertools import product

from kvformat.diagnose.edits import Edit
from kvformat.diagnose.fault import CODED, FP8, INT4, ROWS, SCALED, Borrow, Fault, Variant

_TENSOR = ("fp8_per_tensor",)
_INT8 = ("int8_per_token_head",)
_NVFP4 = ("nvfp4",)
_FLOAT_SCALES = ("fp8_per_tensor", *ROWS)

_WIDE_INT8 = (("-127", "-128"),)

#: s = amax / QMAX in binary32, one step back or on where it was rounded the other way
_RESIDUAL = "e_ = fma({s}, {divisor}, neg({a}))\n"
_DOWN = f"{_RESIDUAL}{{s}} = select(lt(0, e_), mul({{s}}, 0.9999999403953552), {{s}})"
_UP = f"{_RESIDUAL}{{s}} = select(lt(e_, 0), fma({{s}}, 5.9664e-08, {{s}}), {{s}})"

#: a block scale to a value of its format, toward zero, and the next one from there
_BLOCK_DOWN = (
    "t_ = select(lt({s}, {s_min_normal}), mul(round(mul({s}, {s_steps}), toward_zero), {s_step}), "
    "splice({s}, 0, {s_low}))\n"
)
_BLOCK_UP = _BLOCK_DOWN + "{s} = select(lt(t_, {s}), add(t_, max(mul(pow2(t_, down), {s_ulp}), {s_step})), t_)"


def _floors() -> tuple[Variant, ...]:
    of_amax = ("1e-12", "1e-10", "1e-8", "1e-7", "1e-6", "1e-5", "1e-4")
    of_scale = (*of_amax, "1.1920928955078125e-07", "5.960464477539063e-08", "0.0078125", "1")
    of_block = {"0.001953125": "2^-9", "0.015625": "2^-6", "0.0009765625": "2^-10"}
    block = "max(div({a}, mul(6, {g})), %s)"
    return (
        *(Variant(f"scale >= {f}", Edit(scale=f"max(div({{a}}, {{divisor}}), {f})"), modes=_FLOAT_SCALES)
          for f in of_scale),
        *(Variant(f"amax >= {f}", Edit(scale=f"div(max({{a}}, {f}), {{divisor}})"), modes=_FLOAT_SCALES)
          for f in of_amax),
        *(Variant(f"block scale >= {text}", Edit(scale=block % f), modes=_NVFP4) for f, text in of_block.items()),
        *(Variant(f"block amax >= {f}", Edit(scale=f"div(max({{a}}, {f}), mul(6, {{g}}))"), modes=_NVFP4)
          for f in of_amax),
        Variant("no floor", Edit(no_floor=True)),
    )  # fmt: skip


def _zero_rules() -> tuple[Variant, ...]:
    values = {"0": _FLOAT_SCALES, "1": SCALED, "nan": SCALED, "448": _NVFP4, "0.125": _NVFP4, "0.015625": _NVFP4,
              "0.001953125": _NVFP4}  # fmt: skip
    guarded = "{c} = select(eq({x}, 0), {x}, {c})"  # else 0 / 0 and 0 / NaN are NaN

    def rule(value: str, last: str, modes: tuple[str, ...]) -> Variant:
        edit = Edit(then_scale=f"{{s}} = select(eq({{a}}, 0), {value}, {{s}})", last=last)
        return Variant(f"scale {value} where amax is 0{', codes 0' if last else ''}", edit, modes=modes)

    plain = [rule(value, "", modes) for value, modes in values.items()]
    return (*plain, *(rule(value, guarded, FP8) for value in ("0", "nan")))


def _others() -> tuple[Variant, ...]:
    places = {
        ("token", 1): "next token",
        ("token", -1): "token before",
        ("token", 0): "first token",
        ("head", 1): "next head",
        ("head", -1): "head before",
        ("head", 0): "first head",
        ("block", 1): "next block of 16",
        ("block", -1): "block of 16 before",
        ("block", 0): "first block of 16",
        ("side", 1): "other side",
    }
    how = {"stored": "stored", "used": "used for the codes", "both": "used and stored"}
    rows = tuple(
        Variant(
            f"scale of the {name}, {how[stage]}",
            borrow=Borrow(axis, step, stage),  # type: ignore[arg-type]
            modes=_NVFP4 if axis == "block" else SCALED,
        )
        for ((axis, step), name), stage in product(places.items(), how)
    )
    return (*rows, Variant("per-tensor scale of the other side", tensor="other", modes=(*_TENSOR, *_NVFP4)))


def _signed(word: str) -> Variant:
    return Variant("largest x, not |x|", Edit(words=((word, "largest"),)))


FAULTS: tuple[Fault, ...] = (
    Fault(
        "qmax",
        "scale",
        "amax is divided by another largest value",
        "the largest value belongs to the encoding of this cache, not to the platform or to another format",
        "ROCm/aiter#3912; vllm-project/vllm#32201, #45681; weicj/vLLM-2080Ti-Definitive#106",
        CODED,
        (
            *(Variant(top, Edit(top=top), modes=_INT8) for top in ("127.5", "128", "127")),
            *(
                Variant(f"{top}, codes from -128", Edit(top=top, constants=_WIDE_INT8), modes=_INT8)
                for top in ("127.5", "128")
            ),
            # of a finite x, |x / scale| is at most 127: this one takes a -Inf to show
            Variant("127, codes from -128", Edit(constants=_WIDE_INT8), modes=_INT8),
            *(Variant(top, Edit(top=top), modes=FP8) for top in ("240", "224", "448", "57344")),
            *(Variant(f"6 * {top}", Edit(top=top), modes=_NVFP4) for top in ("240", "224", "256")),
        ),
    ),
    Fault(
        "scale-floor",
        "scale",
        "the scale has a floor, or lacks the one it should have",
        "an epsilon that keeps 1 / scale finite also decides what small rows become",
        "vllm/v1/attention/ops/triton_reshape_and_cache_flash.py in vLLM 0.33.0 (1e-6); pytorch/ao#4598",
        CODED,
        _floors(),
    ),
    Fault(
        "zero-block-rule",
        "scale",
        "rows or blocks of zeros have another scale",
        "0 / 0 has no answer, so each library has its own; a NaN scale makes NaN of the zeros",
        "NVIDIA/Model-Optimizer#1397; huggingface/kernels-community#681; ROCm/aiter#4289",
        CODED,
        _zero_rules(),
    ),
    Fault(
        "scale-rounding",
        "scale",
        "the scale is rounded in another direction, or not at all",
        "a cast that truncates; rounding up so that nothing saturates; a product that keeps more bits",
        "ml-explore/mlx#4353; ROCm/aiter#3212; pytorch/ao#2035",
        CODED,
        (
            Variant("toward zero", Edit(then_scale=_DOWN), modes=_FLOAT_SCALES),
            Variant("up", Edit(then_scale=_UP), modes=_FLOAT_SCALES),
            Variant("toward zero", Edit(then_scale=f"{_BLOCK_DOWN}{{s}} = abs(t_)"), modes=_NVFP4),
            Variant("up", Edit(then_scale=_BLOCK_UP), modes=_NVFP4),
            Variant("none: codes of the real quotient", Edit(precision="float64"), used="exact", modes=ROWS),
        ),
    ),
    Fault(
        "scale-precision",
        "scale",
        "the scale went through float16 or bfloat16",
        "it is kept in the dtype of the model",
        "pytorch/FBGEMM#4237; compressed-tensors 0.20.1 helpers.py L84-127",
        CODED,
        (
            *(
                Variant(name, Edit(then_scale=f"{{s}} = to({{s}}, {name})"), modes=SCALED)
                for name in ("float16", "bfloat16")
            ),
            *(
                Variant(f"per-tensor scale in {name}", tensor=f"to(s, {name})", modes=(*_TENSOR, *_NVFP4))
                for name in ("float16", "bfloat16")
            ),
        ),
    ),
    Fault(
        "unstored-scale",
        "scale",
        "codes are made with the exact scale, but a rounded one is stored",
        "the reader has only what is stored, so values come back larger or smaller than they were",
        "kekzl/imp#250",
        SCALED,
        (
            Variant("block scale before its rounding", used="exact", modes=_NVFP4),
            Variant(
                "the scale before it is stored", used="exact", modes=ROWS, never="a float32 scale is stored as it is"
            ),
            Variant("stored as float16", stored="to(s, float16)", modes=ROWS),
            Variant("stored as bfloat16", stored="to(s, bfloat16)", modes=ROWS),
            Variant("stored as a power of two, up", stored="pow2(s, up)", modes=ROWS),
            Variant("stored as a power of two, down", stored="pow2(s, down)", modes=ROWS),
        ),
    ),
    Fault(
        "encode-scale",
        "scale",
        "the multiplier is inverted: x * scale for x / scale, or 1 / scale is stored",
        "libraries disagree whether a scale encodes or decodes",
        "modular/modular#6699; vllm-project/vllm#12076; FlashInfer 0.7.4 trace/templates/quantize.py",
        CODED,
        (
            Variant("x * scale", tensor="div(1, s)", modes=_TENSOR),
            Variant("x * scale", used="div(1, s)", modes=ROWS),
            Variant("x * (bs * g)", Edit(quotient="mul({x}, mul({s}, {g}))"), modes=_NVFP4),
            Variant("1 / scale stored", stored="div(1, s)", modes=SCALED),
        ),
    ),
    Fault(
        "global-scale",
        "scale",
        "the per-tensor scale over the block scales is inverted, or off by a factor of 6",
        "amax / 2688 and amax / 448 both occur, as decode and as encode multipliers",
        "nunchux-ai/nunchaku#362; sglang 0.5.23 fp4_kv_cache_quant_method.py; FlashInfer 0.7.4 page.py",
        _NVFP4,
        (
            Variant("1 / g", tensor="div(1, s)"),
            Variant("6 * g", tensor="mul(s, 6)"),
            Variant("g / 6", tensor="div(s, 6)"),
        ),
    ),
    Fault(
        "scale-of-other",
        "scale",
        "the scale of another token, head, block or side",
        "an index into the scales is off by one, or not there",
        "vllm-project/vllm#44455, #49011; weicj/vLLM-2080Ti-Definitive#109",
        CODED,
        _others(),
    ),
    Fault(
        "amax-scope",
        "scale",
        "the scale is made of the wrong elements",
        "a reduction over too few lanes, too many heads, or x and not |x|",
        "NVIDIA/TensorRT-LLM#1557, #2446; nunchux-ai/nunchaku#362; InternLM/lmdeploy#4849",
        (*CODED, *INT4),
        (
            Variant("the first half of its elements", scope="first half", modes=SCALED),
            Variant("all heads of the token", scope="token", modes=SCALED),
            Variant("K and V together", scope="sides", modes=SCALED),
            Variant("all tokens of the head", scope="head", modes=ROWS),
            Variant("all of K, or of V", scope="tensor", modes=ROWS),
            Variant("the whole row", scope="row", modes=_NVFP4),
            Variant("32 elements, not 16", scope="two blocks", modes=_NVFP4),
            Variant("padding lanes of zeros as well", scope="zero lanes", modes=INT4),
            *map(_signed, ("amax_finite", "amax_number", "amax")),
            Variant("all of K and V together", scope="both tensors", modes=(*_TENSOR, *_NVFP4)),
            Variant("only tokens that have a slot", scope="written tokens", modes=(*_TENSOR, *_NVFP4)),
        ),
    ),
    Fault(
        "inf-in-amax",
        "scale",
        "Inf takes part in amax, so everything finite that shares the scale becomes 0",
        "a reduction that does not leave out what is not finite",
        "pytorch/ao#4725, sgl-project/sglang#31712",
        CODED,
        (Variant("largest |x| that is a number", Edit(words=(("amax_finite", "amax_number"),))),),
    ),
    Fault(
        "nan-in-amax",
        "scale",
        "NaN takes part in amax, so everything that shares the scale becomes NaN",
        "torch.amax hands a NaN on where fmaxf drops it",
        "pytorch/ao#4725, sgl-project/sglang#31712",
        FP8,
        (Variant("NaN where there is one", Edit(then_scale="n_ = any_nan(x)\n{s} = select(n_, nan, {s})")),),
    ),
    Fault(
        "scale-elsewhere",
        "scale",
        "the codes are right, the scale is none of this dump: 1.0, or one from another time",
        "scales that a checkpoint should bring and that stay 1.0; scales reset after the first write",
        "vllm-project/vllm#54624, #11269, #51091, #25800; NVIDIA/TensorRT-LLM#16916",
        CODED,
        (
            Variant("1.0 stored", stored="1", modes=SCALED),
            Variant("any scale stored", stored="?", modes=SCALED),
            Variant("what the page held before", unwritten="before", unwritten_part="scale", modes=SCALED),
            Variant("per-tensor scale 1.0", tensor="1", modes=(*_TENSOR, *_NVFP4)),
            Variant("another per-tensor scale", tensor="?", modes=_TENSOR),
        ),
    ),
)

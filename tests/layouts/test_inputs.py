"""Every size and name a layout cannot have is one line that says what would be right."""

import ml_dtypes
import numpy as np
import pytest

from kvformat.errors import InputError
from kvformat.layouts import layout

SIZES = {"block_size": 4, "num_kv_heads": 2, "head_size": 64}


def refusal(name="vllm-0.33", **changed):
    with pytest.raises(InputError) as error:
        layout(name, **SIZES | changed)
    message = str(error.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    "changed, message",
    [
        (
            {"name": "vllm-0.3", "mode": "none"},
            "unknown layout 'vllm-0.3'; did you mean vllm-0.33 or vllm-0.33-mla or vllm-0.33-cpu?",
        ),
        ({"mode": "nvfp"}, "unknown mode 'nvfp'; did you mean nvfp4 or nvfp4_ds_mla?"),
        ({"mode": "nvfp4", "order": "NDH"}, "unknown order 'NDH'; did you mean NHD or HND?"),
        ({"mode": "nvfp4", "order": "nhd"}, "unknown order 'nhd'; known: HND, NHD"),
        ({"mode": "nvfp4", "v_scales": "swizzle"}, "unknown v_scales 'swizzle'; did you mean swizzled?"),
        ({"mode": "none", "dtype": "bf16"}, "unknown dtype 'bf16'; did you mean bfloat16 or float16?"),
        (
            {"mode": "none", "dtype": np.float64},
            "unknown dtype 'float64'; did you mean float16 or bfloat16 or float32?",
        ),
    ],
)
def test_an_unknown_name_is_answered_with_the_close_ones(changed, message):
    assert refusal(**changed) == message


@pytest.mark.parametrize(
    "changed, message",
    [
        (
            {"name": "flashinfer", "mode": "int8_per_token_head"},
            "layout flashinfer has no mode int8_per_token_head; it has none, fp8_per_tensor, nvfp4",
        ),
        (
            {"mode": "int8_per_token_head", "v_scales": "linear"},
            "layout vllm-0.33 in mode int8_per_token_head has no choice of v_scales; leave it out (got 'linear')",
        ),
        (
            {"name": "flashinfer", "mode": "nvfp4", "v_scales": "linear"},
            "layout flashinfer in mode nvfp4 has no choice of v_scales; leave it out (got 'linear')",
        ),
        ({"mode": "nvfp4", "dtype": "bfloat16"}, "dtype is for mode none only; mode nvfp4 stores e2m1fn codes"),
    ],
)
def test_a_choice_that_does_not_exist_here_is_refused(changed, message):
    assert refusal(**changed) == message


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"head_size": 80}, "V scale swizzle 4-token (v_scales) needs head_size to be a multiple of 64; got 80"),
        ({"head_size_v": 16}, "V scale swizzle 4-token (v_scales) needs head_size_v to be a multiple of 64; got 16"),
        ({"block_size": 6}, "V scale swizzle 4-token (v_scales) needs block_size to be a multiple of 4; got 6"),
        ({"head_size": 24}, "mode nvfp4 needs head_size to be a multiple of 16; got 24"),
        ({"head_size_v": 8}, "mode nvfp4 needs head_size_v to be a multiple of 16; got 8"),
        (
            {"mode": "fp8_per_token_head", "head_size": 6},
            "layout vllm-0.33 in mode fp8_per_token_head needs head_size to be a multiple of 4; got 6",
        ),
        (
            {"mode": "int8_per_token_head", "head_size_v": 32},
            "layout vllm-0.33 in mode int8_per_token_head needs head_size_v to equal head_size; got 32 and 64",
        ),
        (
            {"mode": "fp8_per_tensor", "page_bytes": 1023},
            "page_bytes must be at least 1024, the page's natural size; got 1023",
        ),
    ],
)
def test_sizes_the_layout_cannot_have_are_refused(changed, message):
    assert refusal(**{"mode": "nvfp4"} | changed) == message


LATENT = {"name": "vllm-0.33-mla", "mode": "fp8_ds_mla", "num_kv_heads": 1, "head_size": 576}


@pytest.mark.parametrize(
    "changed, message",
    [
        (LATENT | {"head_size": 512}, "layout vllm-0.33-mla in mode fp8_ds_mla needs head_size 576; got 512"),
        (LATENT | {"num_kv_heads": 8}, "layout vllm-0.33-mla in mode fp8_ds_mla needs num_kv_heads 1; got 8"),
        (
            LATENT | {"head_size_v": 512},
            "layout vllm-0.33-mla in mode fp8_ds_mla has no V; leave head_size_v out (got 512)",
        ),
        (
            {"mode": "none", "head_size": None},
            "layout vllm-0.33 in mode none needs head_size: an integer of at least 1",
        ),
        (
            {"name": "tensorrt-llm", "mode": "none", "order": "NHD"},
            "layout tensorrt-llm in mode none has the order HND only; got NHD",
        ),
        ({"mode": "nvfp4", "nibbles": "high"}, "unknown nibbles 'high'; did you mean high_first?"),
        ({"mode": "none", "nibbles": "high_first"}, "nibbles is for 4-bit codes; mode none has none"),
        (
            {"mode": "fp8_per_tensor", "nibbles": "low_first"},
            "nibbles is for 4-bit codes; mode fp8_per_tensor has none",
        ),
    ],
)
def test_what_only_some_layouts_have_is_refused_elsewhere(changed, message):
    assert refusal(**changed) == message


def test_a_layout_of_one_head_and_one_head_size_needs_neither():
    page = layout("vllm-0.33-mla", mode="fp8_ds_mla", block_size=64)
    assert (page.num_kv_heads, page.head_size, page.head_size_v, page.sides) == (1, 576, 0, ("k",))
    assert page == layout(
        "vllm-0.33-mla", mode="fp8_ds_mla", block_size=64, num_kv_heads=1, head_size=576, head_size_v=0
    )
    with pytest.raises(InputError, match="has no v code of dim 0; it has K data, K scale, K rope"):
        page.locate(side="v", slot=0, head=0, dim=0)


def test_the_default_order_is_the_first_that_the_layout_has():
    orders = {name: layout(name, mode="none", **SIZES).order for name in ("vllm-0.33", "tensorrt-llm", "sglang")}
    assert orders == {"vllm-0.33": "NHD", "tensorrt-llm": "HND", "sglang": "NHD"}


def test_low_first_is_the_default_and_says_nothing():
    page = layout("flashinfer", mode="nvfp4", **SIZES)
    assert page == layout("flashinfer", mode="nvfp4", nibbles="low_first", **SIZES)
    assert "nibbles" not in page.spec
    assert layout("flashinfer", mode="nvfp4", nibbles="high_first", **SIZES).spec["nibbles"] == "high_first"


def test_the_segments_of_a_row_are_its_recipes():
    page = layout("vllm-0.33-mla", mode="nvfp4_ds_mla", block_size=4)
    told = [(each.name, each.dims, each.recipe, [s.name for s in each.scales]) for each in page.segments("k")]
    assert told == [
        ("K", range(512), "", ["K scale"]),
        ("K rope", range(512, 576), "sglang-0.5/mla-store/fp8_unscaled", []),
    ]
    split = layout("flashinfer-mla", mode="none", block_size=4)
    assert [(each.dims, [code.name for code in each.codes]) for each in split.segments("k")] == [
        (range(576), ["K data", "K rope"])
    ]
    assert page.segments("v") == ()


@pytest.mark.parametrize("argument", ["block_size", "num_kv_heads", "head_size", "head_size_v", "page_bytes"])
@pytest.mark.parametrize("value", [0, -1, True, 4.0, "4", np.float32(4), np.bool_(1)], ids=repr)
def test_a_size_is_an_integer_of_at_least_one(argument, value):
    message = refusal(mode="fp8_per_tensor", **{argument: value})
    assert message == f"{argument} must be an integer of at least 1; got {value!r}"


def test_none_is_no_block_size():
    assert refusal(mode="none", block_size=None) == "block_size must be an integer of at least 1; got None"


def test_numpy_integers_are_integers():
    plain = layout("vllm-0.33", mode="nvfp4", **SIZES)
    assert layout("vllm-0.33", mode="nvfp4", **{name: np.int32(size) for name, size in SIZES.items()}) == plain
    assert all(type(value) in {str, int} for value in plain.spec.values())
    assert plain.locate(side="k", slot=np.int64(1), head=np.uint8(1), dim=np.int16(5)) == plain.locate(
        side="k", slot=1, head=1, dim=5
    )


@pytest.mark.parametrize(
    "given, name",
    [
        (None, "bfloat16"),
        ("bfloat16", "bfloat16"),
        (ml_dtypes.bfloat16, "bfloat16"),
        (np.dtype(ml_dtypes.bfloat16), "bfloat16"),
        (np.float16, "float16"),
        (np.dtype("float32"), "float32"),
        ("float32", "float32"),
    ],
)
def test_mode_none_takes_a_dtype_by_name_or_as_such(given, name):
    page = layout("vllm-0.33", mode="none", **SIZES, dtype=given)
    assert page.dtype == name
    assert page.natural_bytes == 4 * 2 * (64 + 64) * (4 if name == "float32" else 2)


def test_defaults_are_nhd_swizzled_equal_head_sizes_and_no_padding():
    page = layout("vllm-0.33", mode="nvfp4", **SIZES)
    assert (page.order, page.v_scales, page.head_size_v, page.dtype) == ("NHD", "swizzled", 64, None)
    assert page.page_bytes == page.natural_bytes


@pytest.mark.parametrize(
    "name, mode, recipe",
    [
        ("vllm-0.33", "none", "golden/none"),
        ("vllm-0.33", "fp8_per_tensor", "vllm-0.33/csrc/fp8_per_tensor"),
        ("vllm-0.33", "fp8_per_token_head", "vllm-0.33/triton/fp8_per_token_head"),
        ("vllm-0.33", "int8_per_token_head", "vllm-0.33/triton/int8_per_token_head"),
        ("vllm-0.33", "nvfp4", "vllm-0.33/csrc/nvfp4"),
        ("flashinfer", "none", "golden/none"),
        ("flashinfer", "fp8_per_tensor", "golden/fp8_per_tensor"),  # its append stores the FP8 it is given
        ("flashinfer", "nvfp4", "flashinfer-0.7/append/nvfp4"),
    ],
)
def test_a_layout_names_the_recipe_of_its_engine(name, mode, recipe):
    assert layout(name, mode=mode, **SIZES).recipe == recipe


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"slot": 4}, "slot must be an integer in 0..3; got 4"),
        ({"slot": -1}, "slot must be an integer in 0..3; got -1"),
        ({"slot": True}, "slot must be an integer in 0..3; got True"),
        ({"head": 2}, "head must be an integer in 0..1; got 2"),
        ({"head": 1.0}, "head must be an integer in 0..1; got 1.0"),
        ({"dim": 64}, "dim must be an integer in 0..63; got 64"),
        ({"side": "v", "dim": 128}, "dim must be an integer in 0..127; got 128"),
        ({"side": "K"}, "unknown side 'K'; known: k, v"),
        ({"part": "scales"}, "unknown part 'scales'; did you mean scale?"),
        ({"part": "padding"}, "unknown part 'padding'; known: code, scale"),
    ],
)
def test_locate_names_the_range_of_what_is_outside(changed, message):
    page = layout("vllm-0.33", mode="nvfp4", **SIZES, head_size_v=128)
    with pytest.raises(InputError) as error:
        page.locate(**{"side": "k", "slot": 0, "head": 0, "dim": 0} | changed)
    assert str(error.value) == message


def test_locate_says_that_a_mode_has_no_scale_in_its_page():
    page = layout("vllm-0.33", mode="fp8_per_tensor", **SIZES)
    with pytest.raises(InputError) as error:
        page.locate(side="v", slot=0, head=0, dim=3, part="scale")
    assert str(error.value) == (
        "a vllm-0.33 page in mode fp8_per_tensor has no v scale of dim 3; it has K data, V data"
    )


@pytest.mark.parametrize("byte", [-1, 1024 + 7, 3.0, None, False])
def test_explain_names_the_range_of_the_bytes(byte):
    page = layout("vllm-0.33", mode="fp8_per_tensor", **SIZES, page_bytes=1024 + 7)
    with pytest.raises(InputError) as error:
        page.explain(byte=byte)
    assert str(error.value) == f"byte must be an integer in 0..1030; got {byte!r}"

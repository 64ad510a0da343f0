"""Sizes, counted by hand: bytes of a token, of a sequence, scales and padding, for every kind of attention."""

from __future__ import annotations

from fractions import Fraction

import pytest

from kvformat.errors import InputError
from kvformat.sizing import MODELS, Layers, Model, find_model, modes_of, size

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def one_layer(**layer):
    return Model("one", (Layers(1, **layer),), "a test")


# bytes per token and layer: 2 * heads * dims * 2, half of it, that and two float32 a head, and 4.5 bits
GROUPED = {
    "llama-2-70b": (80, 4096, 2048, 2112, 1152),
    "llama-3-70b": (80, 4096, 2048, 2112, 1152),
    "qwen2.5-72b": (80, 4096, 2048, 2112, 1152),
    "llama-2-7b": (32, 16384, 8192, 8448, 4608),
    "llama-2-13b": (40, 20480, 10240, 10560, 5760),
    "llama-3-8b": (32, 4096, 2048, 2112, 1152),
    "mistral-7b": (32, 4096, 2048, 2112, 1152),
    "qwen2.5-7b": (28, 2048, 1024, 1056, 576),
    "qwen2.5-0.5b": (24, 512, 256, 272, 144),
    "qwen3-8b": (36, 4096, 2048, 2112, 1152),
    "qwen3-30b-a3b": (48, 2048, 1024, 1056, 576),
    "qwen3-235b-a22b": (94, 2048, 1024, 1056, 576),
    "smollm2-135m": (30, 768, 384, 408, 216),
    "gemma-2b": (18, 1024, 512, 520, 288),
    "falcon-7b": (32, 256, 128, 136, 72),
}
FOUR = ("none", "fp8_per_tensor", "int8_per_token_head", "nvfp4")


@pytest.mark.parametrize("name", GROUPED)
def test_a_token_of_grouped_attention(name):
    layers, *expected = GROUPED[name]
    model = find_model(name)
    assert model.num_layers == layers
    for mode, per_layer in zip(FOUR, expected, strict=True):
        assert size(model, mode, 32).per_token == layers * per_layer
        assert size(model, mode, 32).bytes == 32 * layers * per_layer
        assert size(model, mode, 33).bytes == 48 * layers * per_layer  # whole pages of 16


@pytest.mark.parametrize(
    "name, gib",
    [("llama-2-70b", 10.0), ("llama-3-8b", 4.0), ("qwen2.5-7b", 1.75), ("qwen3-8b", 4.5), ("qwen3-30b-a3b", 3.0)],
)
def test_32k_tokens_in_bfloat16(name, gib):
    assert size(find_model(name), "none", 32768).bytes == gib * GIB


def test_the_scales_of_llama_2_70b_are_524288_per_layer_and_not_in_all():
    at_32k = size(find_model("llama-2-70b"), "int8_per_token_head", 32768)
    assert at_32k.parts[0].rows * at_32k.parts[0].scales == 2 * 8 * 32768 == 524_288
    assert at_32k.scales == 41_943_040
    assert at_32k.scale_bytes == 160 * MIB  # float32; in float16 it would be 80 MiB
    at_128k = size(find_model("llama-2-70b"), "int8_per_token_head", 131072)
    assert at_128k.parts[0].rows * at_128k.parts[0].scales == 2_097_152
    assert at_128k.scale_bytes == 640 * MIB


def test_nvfp4_is_4_5_bits():
    plain, small = (size(find_model("llama-2-70b"), mode, 16) for mode in ("none", "nvfp4"))
    assert Fraction(small.bytes * 8, plain.bytes // 2) == Fraction(9, 2)
    assert round(plain.bytes / small.bytes, 2) == 3.56


@pytest.mark.parametrize(
    "name, mode, per_layer",
    [
        ("deepseek-v2", "none", 1152), ("deepseek-v3", "none", 1152), ("deepseek-v3", "fp8_per_tensor", 576),
        ("deepseek-v3.2", "none", 1152 + 256), ("deepseek-v3.2", "fp8_ds_mla", 656 + 132),
        ("deepseek-v3.2", "nvfp4_ds_mla", 352 + 132),
    ],
)  # fmt: skip
def test_a_token_of_latent_attention(name, mode, per_layer):
    model = find_model(name)
    assert size(model, mode, 64).per_token == per_layer * model.num_layers
    assert size(model, mode, 64).bytes == 64 * per_layer * model.num_layers


def test_compressed_attention_of_deepseek_v4():
    model = find_model("deepseek-v4-pro")
    plain = size(model, "none", 1 << 20)
    rows = {part.stream.name: part for part in plain.parts}
    csa = rows["latent rows, one for 4 tokens"].per_token + rows["indexer keys, one for 4 tokens"].per_token
    hca = rows["latent rows, one for 128 tokens"].per_token
    assert (csa, hca) == (1024 // 4 + 256 // 4, 1024 // 128) == (320, 8)
    growing = (1 << 20) * (30 * 320 + 31 * 8)
    window = 61 * 3 * 64 * 1024  # 128 rows that begin anywhere lie in 3 pages of 64
    assert plain.bytes == growing + window
    assert round(growing / GIB, 2) == 9.62
    records = size(model, "fp8_ds_mla", 1 << 20)
    page = records.parts[0]
    # 64 records of 584 bytes, up to a multiple of 576
    assert (page.page_bytes, page.code_bytes, page.scale_bytes) == (37440, 448 + 128, 7)
    assert page.per_token == Fraction(585, 4)


def test_a_row_for_four_tokens_is_there_when_the_fourth_is():
    model = Model("csa", (Layers(1, "csa"),), "a test")
    assert [size(model, "none", n).parts[0].rows for n in (1, 3, 4, 7, 8)] == [0, 0, 1, 1, 2]


def test_a_window_keeps_its_tokens_and_one_page_more():
    model = one_layer(heads=1, head_size=64, window=128)
    page = 16 * 256
    sizes = {n: size(model, "none", n) for n in (1, 16, 17, 128, 129, 100_000)}
    assert {n: each.parts[0].rows for n, each in sizes.items()} == {
        1: 1,
        16: 16,
        17: 17,
        128: 128,
        129: 128,
        100_000: 128,
    }
    assert {n: each.bytes // page for n, each in sizes.items()} == {1: 1, 16: 1, 17: 2, 128: 8, 129: 9, 100_000: 9}
    assert sizes[100_000].per_token == sizes[100_000].parts[0].per_token == 0
    assert size(model, "none", 129, block_size=256).parts[0].pages == 1


@pytest.mark.parametrize("window, block", [(1, 1), (1, 4), (5, 4), (8, 4), (128, 16), (7, 16)])
def test_no_window_needs_more_pages_than_are_set_aside_and_some_need_all(window, block):
    model = one_layer(heads=1, head_size=16, window=window)
    needed = [((n - 1) // block) - ((n - window) // block) + 1 for n in range(window + 1, window + 1 + 4 * block)]
    found = [size(model, "none", n, block_size=block).parts[0].pages for n in (window + 4 * block, 10**6)]
    assert max(needed) == found[0] == found[1]


@pytest.mark.parametrize("name, mib", [("gpt-oss-20b", 12 * 4), ("gemma-3-27b", 10 * 16)])
def test_windows_stop_growing(name, mib):
    model = find_model(name)
    grown = size(model, "fp8_per_tensor", 8192).bytes - size(model, "fp8_per_tensor", 4096).bytes
    assert grown == mib * MIB  # 4096 tokens of the full layers alone


def test_every_byte_is_a_code_a_scale_or_padding():
    for model in MODELS.values():
        for mode in modes_of(model):
            found = size(model, mode, 5000)
            assert found.bytes == found.code_bytes + found.scale_bytes + found.padding_bytes
            assert 0 <= found.padding_bytes < found.bytes
            assert type(found.bytes) is int


def test_unequal_k_and_v():
    assert size(one_layer(heads=2, head_size=192, head_size_v=128), "none", 16).bytes == 16 * 2 * (192 + 128) * 2


@pytest.mark.parametrize(
    "name, says",
    [
        ("llama-2-70", "unknown model 'llama-2-70'; did you mean llama-2-70b"),
        ("deepseek-v3.3", "did you mean deepseek-v3"),
    ],
)
def test_unknown_models_suggest_close_ones(name, says):
    with pytest.raises(InputError, match=says):
        find_model(name)


@pytest.mark.parametrize(
    "arguments, says",
    [
        (("int8_per_token", 1), "unknown mode of llama-2-70b: 'int8_per_token'; did you mean int8_per_token_head"),
        (("fp8_ds_mla", 1), "unknown mode of llama-2-70b: 'fp8_ds_mla'"),
        (("none", 0), "context must be an integer of at least 1; got 0"),
        (("none", 1.5), "context must be an integer of at least 1; got 1.5"),
    ],
)
def test_what_cannot_be_counted_is_refused(arguments, says):
    with pytest.raises(InputError) as error:
        size(find_model("llama-2-70b"), *arguments)
    assert str(error.value).startswith(says)


def test_a_head_size_that_a_mode_does_not_have_is_refused_by_its_layout():
    with pytest.raises(InputError, match="mode nvfp4 needs head_size to be a multiple of 16; got 72"):
        size(one_layer(heads=1, head_size=72), "nvfp4", 1)
    assert size(one_layer(heads=1, head_size=80), "nvfp4", 16).bytes == 16 * 2 * 45  # no swizzle in the way


def test_names_are_in_any_case():
    assert find_model("Llama-2-70B") is MODELS["llama-2-70b"]


def test_an_unknown_kind_of_attention_is_refused():
    with pytest.raises(InputError, match="unknown attention 'gqa'"):
        size(one_layer(attention="gqa"), "none", 1)

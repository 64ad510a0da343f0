"""The --kv-cache-dtype strings: all of vLLM 0.33's, each with a mode, and what they name exists."""

import pytest

import kvformat as kvf
from kvformat.cache_dtypes import CACHE_DTYPES, KVQuantMode
from kvformat.layouts import LAYOUTS
from kvformat.recipes.catalogue import recipe

# vllm/config/cache.py L44-67, written out
STRINGS = [
    "auto",
    "float16",
    "bfloat16",
    "fp8",
    "fp8_e4m3",
    "fp8_e5m2",
    "fp8_inc",
    "fp8_ds_mla",
    "nvfp4_ds_mla",
    "turboquant_k8v4",
    "turboquant_4bit_nc",
    "turboquant_k3v4_nc",
    "turboquant_3bit_nc",
    "octave_k3v4",
    "octave_k3v3",
    "octave_k3v3_compact",
    "ultraquant_4bit",
    "int4_per_token_head",
    "int8_per_token_head",
    "fp8_per_token_head",
    "nvfp4",
    "nvfp4_4over6",
]

# vllm/v1/kv_cache_interface.py L40-118
INTEGERS = {"NONE": 0, "FP8_PER_TENSOR": 1, "INT8_PER_TOKEN_HEAD": 2, "FP8_PER_TOKEN_HEAD": 3, "INT4_PER_TOKEN_HEAD": 4,
            "NVFP4": 5, "TURBOQUANT_K8V4": 6, "NVFP4_DS_MLA": 10, "ULTRAQUANT_4BIT": 11, "OCTAVE_K3V4": 12,
            "OCTAVE_K3V3": 13, "OCTAVE_K3V3_COMPACT": 14, "CUSTOM": 12}  # fmt: skip


def test_every_string_is_there_and_no_other():
    assert sorted(CACHE_DTYPES) == sorted(STRINGS)


def test_members_have_vllms_integers_the_double_12_included():
    assert {name: int(KVQuantMode[name]) for name in INTEGERS} == INTEGERS
    assert KVQuantMode.CUSTOM is KVQuantMode.OCTAVE_K3V4


@pytest.mark.parametrize("name", STRINGS)
def test_recipe_and_layout_exist_and_fit_each_other(name):
    entry = kvf.mode(name)
    if entry.recipe is not None:
        how = recipe(entry.recipe)
        if entry.layout is not None:
            assert how.mode in dict(LAYOUTS[entry.layout].modes)


def test_an_unknown_string_names_the_close_ones():
    with pytest.raises(kvf.InputError, match="fp8_e4m3"):
        kvf.mode("fp8_e4m3fn")

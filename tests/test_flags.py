"""What flags store: all that an entry names exists, and its bits are those of its structs, counted elsewhere."""

from __future__ import annotations

from fractions import Fraction
from importlib.util import find_spec

import pytest

from kvformat.cache_dtypes import CACHE_DTYPES
from kvformat.flags import ENGINES, FLAGS
from kvformat.layouts import layout
from kvformat.layouts.catalogue import find_entry
from kvformat.recipes.catalogue import recipe

BY_NAME = {(flag.engine, flag.value): flag for flag in FLAGS}


def stored_bits(flag):
    """Bits of a value of K and of V: as the entry says, or as its layout has them for heads of 128 dims."""
    if flag.layout is None:
        return flag.bits
    page = layout(flag.layout, mode=flag.mode, block_size=1, num_kv_heads=1, head_size=128)
    held = {side: sum(each.num_bytes for each in page.regions if each.side == side) for side in page.sides}
    return tuple(Fraction(8 * size, 128) for size in held.values())


def test_each_value_of_each_engine_stands_there_once():
    assert len(BY_NAME) == len(FLAGS)
    assert {flag.engine for flag in FLAGS} == set(ENGINES)
    assert [flag.value for flag in FLAGS if flag.engine == "vLLM"] == list(CACHE_DTYPES)


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: f"{flag.engine}-{flag.value}")
def test_what_an_entry_names_exists(flag):
    assert flag.stores
    assert flag.scale
    assert flag.runs_on
    assert (flag.layout is None) == (flag.mode is None)
    if flag.layout is not None:
        find_entry(flag.layout).form(flag.mode)
        assert flag.bits is None  # the layout says it
    if flag.recipe is not None:
        assert recipe(flag.recipe).name == flag.recipe


@pytest.mark.parametrize(
    "engine, value, bits",
    [
        ("llama.cpp", "q8_0", (Fraction(8 * (2 + 32), 32),) * 2),  # fp16 d; int8 qs[32]
        ("llama.cpp", "q4_0", (Fraction(8 * (2 + 16), 32),) * 2),
        ("llama.cpp", "q5_1", (Fraction(8 * (2 + 2 + 4 + 16), 32),) * 2),
        ("MLX", "4", (Fraction(9, 2),) * 2),  # a scale and a bias of 16 bits for 64 values
        ("MLX", "8", (Fraction(17, 2),) * 2),
        # K: 32 rows of codes, 4 of float32 scales, 4 of zero points; V: a float32 scale and zero point beside 128 codes
        ("OpenVINO", "u8", (Fraction(8 * 40, 32), Fraction(8 * (128 + 8), 128))),
        ("OpenVINO", "u4", (Fraction(4 * (32 + 16), 32), Fraction(8 * (64 + 8), 128))),
        ("ExecuTorch", "AffineAsymmetric", (Fraction(8 * 128 + 32 + 8, 128),) * 2),
        ("LMDeploy", "4", (Fraction(4 * 128 + 2 * 16, 128),) * 2),
        ("ExLlamaV2", "Q6", (Fraction(8 * 32 + 16, 32), Fraction(4 * 32 + 16, 32))),
        ("transformers", "quanto, nbits 2", (Fraction(2 * 64 + 2 * 16, 64),) * 2),
    ],
)
def test_bits_are_those_of_codes_and_parameters(engine, value, bits):
    assert stored_bits(BY_NAME[engine, value]) == bits


@pytest.mark.skipif(find_spec("gguf") is None, reason="gguf, of the extra `model`, is not installed")
def test_blocks_of_llama_cpp_are_as_large_as_gguf_says():
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    flags = [flag for flag in FLAGS if flag.engine == "llama.cpp"]
    assert len(flags) == 9
    for flag in flags:
        values, size = GGML_QUANT_SIZES[GGMLQuantizationType[flag.value.upper()]]
        assert stored_bits(flag) == (Fraction(size * 8, values),) * 2

"""Every recipe of the catalogue that kernels know gives, interpreted, the codes and scales of the golden engine."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import kvformat as kvf
from kvformat import arrays
from kvformat.fuzz import strategies
from kvformat.modes import MODES
from kvformat.recipes import plain
from kvformat.recipes.catalogue import names
from kvformat.torch import launch
from tests.recipes import adversarial

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter computes on NumPy arrays

#: what kernels leave to the CPU, and why
REFUSED = {
    "mxfp4": ("e8m0fnu has no Triton kernel", "do not know pow2_approx"),
    "mxfp8": ("e8m0fnu has no Triton kernel", "do not know pow2_approx"),
    "int4_per_token_head": ("transforms rows first",),
    "fp8_per_head": ("kernels know one scale per tensor",),
    "q8_0": ("kernels know float32",),
    "affine4_group64": ("with one scale for each group of a row",),
}
OF_A_MODE = [name for name in names() if kvf.recipe(name).mode in MODES and kvf.recipe(name).element is not None]
OTHERS = [name for name in names() if kvf.recipe(name).mode not in MODES]
#: recipes that have a word, a precision or a trial of their own
FAST = [
    *(name for name in OF_A_MODE if name.startswith(("golden/", "exact/"))),
    "vllm-0.33/triton/int8_per_token_head",
    "vllm-0.33/triton/fp8_per_token_head",
    "vllm-0.33/rocm-fp16/fp8_per_tensor",
    "flashinfer-0.7/append/nvfp4",
    "torchao-0.18/float8/fp8_per_token_head",
]


def assert_same(recipe, x):
    how = kvf.recipe(recipe)
    codes, scales, shared = launch.quantize(arrays.tensor(x), how, None)
    wanted = plain.quantize(x, how)
    np.testing.assert_array_equal(codes.numpy(), wanted.codes.view(np.uint8) & np.uint8(0xFF))
    np.testing.assert_array_equal(scales.numpy(), wanted.scales)
    np.testing.assert_array_equal(shared.numpy()[0], wanted.global_scale)
    values = launch.dequantize(codes, scales, shared, how, torch.float32)
    np.testing.assert_array_equal(values.numpy(), wanted.dequantize())


@pytest.mark.parametrize("dtype", strategies.DTYPES, ids=strategies.DTYPE_IDS)
@pytest.mark.parametrize("recipe", FAST)
def test_recipes_with_words_of_their_own(recipe, dtype):
    assert_same(recipe, adversarial.anything(dtype))


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", strategies.DTYPES, ids=strategies.DTYPE_IDS)
@pytest.mark.parametrize("recipe", OF_A_MODE)
def test_every_recipe_of_the_modes(recipe, dtype):
    assert_same(recipe, adversarial.anything(dtype))


@pytest.mark.parametrize("recipe", OTHERS)
def test_a_recipe_of_another_mode_is_the_engines_or_refused_in_one_line(recipe):
    x = adversarial.anything()
    try:
        codes, scales, _ = launch.quantize(arrays.tensor(x), kvf.recipe(recipe), None)
    except kvf.InputError as error:
        said = str(error)
        assert "\n" not in said
        assert any(reason in said for reasons in REFUSED.values() for reason in reasons)
        return
    wanted = kvf.quantize(x, recipe)
    np.testing.assert_array_equal(codes.numpy(), wanted.codes.view(np.uint8))
    np.testing.assert_array_equal(scales.numpy(), wanted.scales)

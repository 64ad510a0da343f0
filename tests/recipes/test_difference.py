"""recipes diff: what it finds is a difference, what it calls equal is, and the input it shows is small."""

import numpy as np
import pytest

from kvformat.errors import InputError
from kvformat.recipes import exact
from kvformat.recipes.catalogue import recipe
from kvformat.recipes.difference import comparable, difference

# Two recipes, and the most elements that are not +0 in an input that tells them apart: facts of their arithmetic.
PAIRS = [
    ("golden/fp8_per_tensor", "vllm-0.33/csrc-reciprocal/fp8_per_tensor", 1),  # a tie of x / s, s given
    ("vllm-0.33/csrc-reciprocal/fp8_per_tensor", "vllm-0.33/csrc-clamp/fp8_per_tensor", 1),  # NaN
    ("golden/nvfp4", "exact/nvfp4", 1),  # a block scale on a border
    ("golden/nvfp4", "modelopt-0.47/nvfp4", 0),  # zeros: 0x00 or 1.0
    ("vllm-0.33/triton/int8_per_token_head", "vllm-0.33/triton-nofusion/int8_per_token_head", 2),  # amax and x
]


@pytest.mark.parametrize("left, right, most", PAIRS)
def test_the_input_it_shows_tells_the_recipes_apart_in_the_exact_twin_too(left, right, most):
    found = difference(recipe(left), recipe(right))
    witness = found.witness
    assert witness is not None
    assert np.count_nonzero(witness.x.view(f"u{witness.x.dtype.itemsize}")) <= most
    made = [exact.quantize(witness.x, recipe(name), witness.scale) for name in (left, right)]
    codes, scales = ([each[i].tobytes() for each in made] for i in (0, 1))
    assert codes[0] != codes[1] or scales[0] != scales[1]


def test_the_same_operations_are_equal_and_nothing_is_searched():
    found = difference(recipe("golden/fp8_per_tensor"), recipe("vllm-0.33/csrc/fp8_per_tensor"))
    assert found.equal
    assert found.witness is None
    assert found.operations == ()


def test_operations_are_listed_by_the_part_they_differ_in():
    found = difference(recipe("golden/fp8_per_tensor"), recipe("vllm-0.33/csrc-reciprocal/fp8_per_tensor"))
    (part,) = found.operations
    assert part[0] == "code"
    assert any(line.startswith("- ") and "div(x, s)" in line for line in part[1])
    assert any(line.startswith("+ ") and "mul(" in line for line in part[1])


def test_recipes_that_store_other_things_are_not_compared():
    assert not comparable(recipe("golden/nvfp4"), recipe("golden/int8_per_token_head"))
    with pytest.raises(InputError, match="golden/nvfp4 and golden/none do not store the same"):
        difference(recipe("golden/nvfp4"), recipe("golden/none"))

"""A recipe's name means one thing: the catalogue's names are its own, files are loaded under theirs."""

from __future__ import annotations

import numpy as np
import pytest

import kvformat as kvf
from kvformat.recipes import catalogue, parse_recipe

TEXT = """
name = {name!r}
mode = "int8_per_token_head"
element = "int8"
source = "a test"
code = "c = encode(clamp(round(div(x, s), {rounding}), -127, 127), int8)"
value = "v = mul(c, s)"

[[scales]]
name = "s"
granularity = "per_token_head"
program = "s = div(amax_finite(x), 127)"
"""


def write(path, name, rounding="toward_zero"):
    path.write_text(TEXT.format(name=name, rounding=rounding))
    return path


@pytest.mark.parametrize("name", ["golden/int8_per_token_head", "int8_per_token_head", catalogue.names()[-1]])
def test_a_file_cannot_take_a_shipped_name(tmp_path, name):
    before = dict(catalogue._RECIPES)
    with pytest.raises(kvf.InputError, match="ships with kvformat; give yours another name") as refused:
        kvf.load_recipe(write(tmp_path / "mine.toml", name))
    assert "\n" not in str(refused.value)
    assert before == catalogue._RECIPES


@pytest.mark.parametrize("name", ["", " ", "a\nb", "a\x1b[31mb", "a\u202eb", "n" * 101])
def test_a_name_that_is_no_short_line_of_printable_characters_is_refused(name):
    golden = kvf.recipe("golden/int8_per_token_head")
    with pytest.raises(kvf.InputError, match="a recipe's name is 1 to 100 printable characters"):
        type(golden)(name, golden.mode, golden.element, golden.levels, golden.code, golden.value, "me", "exact")


def test_a_loaded_recipe_is_found_by_its_name_and_its_file_wherever_a_recipe_is_named(tmp_path):
    path = write(tmp_path / "mine.toml", "test/truncated")
    loaded = kvf.recipe(str(path))
    assert kvf.recipe("test/truncated") == loaded
    assert "test/truncated" in catalogue.names()
    x = np.full((1, 1, 16), 0.9, np.float32)
    x[0, 0, 0] = 127
    assert kvf.quantize(x, str(path)).codes[0, 0].tolist() == [127] + [0] * 15


def test_an_edited_file_may_be_loaded_again_and_another_file_may_not_take_its_name(tmp_path):
    path = write(tmp_path / "mine.toml", "test/edited")
    first = kvf.load_recipe(path)
    second = kvf.load_recipe(write(path, "test/edited", "half_even"))
    assert first != second
    assert kvf.recipe("test/edited") == second
    with pytest.raises(kvf.InputError, match="a recipe named 'test/edited' exists"):
        kvf.load_recipe(write(tmp_path / "other.toml", "test/edited"))


def test_a_shipped_recipe_described_again_is_that_recipe():
    described = dict(next(iter(catalogue.vllm.ENTRIES)))
    assert catalogue.register(parse_recipe(described)) == kvf.recipe(described["name"])

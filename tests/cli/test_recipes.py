"""kvformat recipes, and recipes and layouts from TOML files."""

import json

import numpy as np
import pytest

from kvformat.cache import PagedCache
from kvformat.cli import main
from kvformat.dump import Dump
from kvformat.layouts import layout
from kvformat.recipes import catalogue, load_recipe
from kvformat.recipes.catalogue import names

RECIPE = """
name = "mine/halfway"
mode = "int8_per_token_head"
element = "int8"
source = "a test"
code = "c = encode(clamp(round(div(x, s), half_away), -127, 127), int8)"
value = "v = mul(c, s)"

[[scales]]
name = "s"
granularity = "per_token_head"
program = '''
s = div(amax_finite(x), 127)
s = select(s == 0, 1, s)
'''
"""

LAYOUT = """
name = "mine-1.0"
source = "a test"

[modes.int8_per_token_head]
recipe = "golden/int8_per_token_head"

[[modes.int8_per_token_head.sections]]
per = "page"
record = ["v.scale", "k.scale", "v.code", "k.code"]
"""


def run(capsys, *arguments):
    status = main(list(arguments))
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_the_list_has_every_recipe(capsys):
    status, out, _ = run(capsys, "recipes", "--json")
    assert status == 0
    assert [each["name"] for each in json.loads(out)["recipes"]] == list(names())


def test_show_prints_every_operation_and_json_can_be_read_back(capsys):
    status, out, _ = run(capsys, "recipes", "show", "int8_per_token_head")
    assert status == 0
    for line in (
        "s = div(amax_finite(x), 127)",
        "q = round(div(x, s), half_even)",
        "store s as float32",
        "v = mul(c, s)",
    ):
        assert line in out


def test_show_and_list_say_what_executed_a_recipe(capsys):
    _, out, _ = run(capsys, "recipes", "show", "vllm-0.33/csrc/fp8_per_tensor")
    assert "run     vllm 0.33.0, PTX, sm_90: reshape_and_cache_flash_kernel<bfloat16, e4m3>" in out
    _, out, _ = run(capsys, "recipes", "show", "vllm-0.33/csrc/fp8_per_tensor", "--json")
    document = json.loads(out)
    assert document["evidence"] == "executed"
    assert {each["engine"] for each in document["executed"]} == {"vllm"}
    _, out, _ = run(capsys, "recipes", "--json")
    said = {each["name"]: each["evidence"] for each in json.loads(out)["recipes"]}
    assert said["golden/nvfp4"] == "defined"
    assert said["vllm-0.33/rocm-fnuz/fp8_per_tensor"] == "read"


def test_diff_says_1_where_bytes_differ_and_0_where_recipes_are_equal(capsys):
    status, out, _ = run(
        capsys, "recipes", "diff", "fp8_per_tensor", "vllm-0.33/csrc-reciprocal/fp8_per_tensor", "--json"
    )
    document = json.loads(out)
    assert (status, document["equal"]) == (1, False)
    assert document["witness"]["left"]["codes"] != document["witness"]["right"]["codes"]
    status, out, _ = run(capsys, "recipes", "diff", "fp8_per_tensor", "vllm-0.33/csrc/fp8_per_tensor")
    assert status == 0
    assert out.startswith("equal: ")


def test_an_unknown_recipe_names_the_close_ones(capsys):
    status, out, err = run(capsys, "recipes", "show", "nvpf4")
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert "nvfp4" in err


@pytest.mark.parametrize(
    "old, new, said",
    [
        ("half_away", "half_way", "half_away"),
        ("encode(", "encodes(", "encode"),
        ('element = "int8"\n', "", "'element'"),
        ("granularity", "granularty", "granularity"),
        ("per_token_head", "per_tokn_head", "per_token_head"),
        ('name = "mine/halfway"', "name = ", "TOML"),
        ('source = "a test"', "source = 5", "source must be text"),
    ],
)
def test_a_malformed_recipe_file_is_one_line_that_says_where(tmp_path, capsys, old, new, said):
    path = tmp_path / "mine.toml"
    assert old in RECIPE
    path.write_text(RECIPE.replace(old, new))
    status, out, err = run(capsys, "recipes", "show", str(path))
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert str(path) in err
    assert said in err


def test_a_recipe_and_a_layout_from_outside_judge_a_dump(tmp_path, capsys):
    (tmp_path / "recipe.toml").write_text(RECIPE)
    (tmp_path / "layout.toml").write_text(LAYOUT)
    arguments = ["--recipe", str(tmp_path / "recipe.toml"), "--layout-file", str(tmp_path / "layout.toml")]
    path = tmp_path / "dump.safetensors"
    assert run(capsys, "check", str(path), *arguments)[0] == 2  # registers the layout; there is no dump yet
    key, value = np.zeros((2, 5, 2, 16), np.float32)
    key[..., :3] = value[..., :3] = [127, 2.5, -0.5]  # scale 1: two ties
    made = layout("mine-1.0", mode="int8_per_token_head", block_size=4, num_kv_heads=2, head_size=16)
    cache = PagedCache(made, 2)
    slots = np.arange(5)
    cache.write(key, value, slots, recipe=load_recipe(tmp_path / "recipe.toml"))
    # page: V scales (4 slots x 2 heads x 4 bytes), K scales, V codes, K codes: the first K row starts at 32 + 32 + 128
    assert cache.pages[0, 192:195].view(np.int8).tolist() == [127, 3, -1]
    Dump.from_arrays(key, value, cache.pages, slots, layout=made).save(path)
    assert run(capsys, "check", str(path), *arguments)[0] == 0
    status, out, _ = run(capsys, "check", str(path))
    assert status == 1
    assert "quotient    2.5, a tie between 2 and 3" in out


def test_a_dump_that_declares_what_a_file_defines_is_judged_with_that_file_and_refused_without(tmp_path, capsys):
    mine = tmp_path / "mine.toml"
    mine.write_text(RECIPE.replace("mine/halfway", "test/declared"))
    key, value = np.zeros((2, 5, 2, 16), np.float32)
    key[..., :3] = value[..., :3] = [127, 2.5, -0.5]
    made = layout("vllm-0.33", mode="int8_per_token_head", block_size=4, num_kv_heads=2, head_size=16)
    cache = PagedCache(made, 2)
    cache.write(key, value, np.arange(5), recipe=load_recipe(mine))
    path = tmp_path / "dump.safetensors"
    dump = Dump.from_arrays(key, value, cache.pages, np.arange(5), layout=made, recipe="test/declared")
    dump.save(path)
    del catalogue._RECIPES["test/declared"], catalogue._LOADED["test/declared"]  # as in another process
    status, out, err = run(capsys, "check", str(path))
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "unknown recipe 'test/declared'" in err
    status, out, _ = run(capsys, "check", str(path), "--recipe", str(mine))
    assert (status, out.splitlines()[0].split(": ", 1)[1][:27]) == (0, "holds: test/declared in vll")
    assert run(capsys, "diagnose", str(path), "--recipe", str(mine))[0] == 0


def test_a_file_that_takes_the_name_of_a_shipped_recipe_judges_nothing(tmp_path, capsys):
    mine = tmp_path / "mine.toml"
    mine.write_text(RECIPE.replace("mine/halfway", "golden/int8_per_token_head"))
    status, out, err = run(capsys, "check", str(tmp_path / "any.safetensors"), "--recipe", str(mine))
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "'golden/int8_per_token_head' ships with kvformat; give yours another name" in err


def test_a_dump_opens_no_file_that_it_names_as_its_recipe(tmp_path, capsys):
    from tests.verify.dumps import metadata, write

    (tmp_path / "mine.toml").write_text(RECIPE)
    path = write(tmp_path / "d.safetensors", metadata(recipe=str(tmp_path / "mine.toml")))
    status, out, err = run(capsys, "check", str(path))
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "unknown recipe" in err

"""Two caches may share pages only where the bytes mean the same, and the answer says which case it is."""

from __future__ import annotations

import json

import numpy as np
import pytest

import kvformat as kvf
from kvformat.cli import main
from kvformat.prefix.compat import CacheConfig, compatible

INT8 = {"kv_cache_dtype": "int8_per_token_head", "block_size": 16, "num_kv_heads": 2, "head_size": 64}
FP8 = {**INT8, "kv_cache_dtype": "fp8", "k_scale": 0.5, "v_scale": 0.25}


def verdict(one, other):
    return compatible(CacheConfig.of(one), CacheConfig.of(other)).verdict


@pytest.mark.parametrize(
    "one, other, expected",
    [
        (INT8, INT8, "same bytes"),
        ({**FP8, "kv_cache_dtype": "fp8_e4m3"}, FP8, "same bytes"),  # two strings, one format
        (INT8, {**INT8, "recipe": "golden/int8_per_token_head"}, "readable"),
        (INT8, {**INT8, "order": "HND"}, "convertible"),
        (INT8, {**INT8, "block_size": 32}, "convertible"),
        (INT8, {**INT8, "layout": "vllm-split"}, "convertible"),
        ({**FP8, "recipe": "vllm-0.33/rocm-fnuz/fp8_per_tensor"}, FP8, "convertible"),
        (FP8, {**FP8, "k_scale": 0.25}, "lossy"),
        (FP8, INT8, "lossy"),
        ({**FP8, "kv_cache_dtype": "fp8_e5m2"}, FP8, "lossy"),
        (INT8, {**INT8, "num_kv_heads": 4}, "not"),
        (INT8, {**INT8, "head_size": 128}, "not"),
    ],
)
def test_each_pair_has_its_verdict(one, other, expected):
    assert verdict(one, other) == expected


def test_what_is_called_the_same_bytes_is_written_alike_and_what_is_readable_is_not():
    """The verdicts against the pages themselves."""
    key, value = np.random.default_rng(0).standard_normal((2, 16, 2, 64)).astype(np.float32)
    made = {}
    for name, change in {"a": {}, "b": {}, "golden": {"recipe": "golden/int8_per_token_head"}}.items():
        config = CacheConfig.of({**INT8, **change})
        cache = kvf.PagedCache(config.layout, 1)
        cache.write(key * 3, value, np.arange(16), recipe=config.recipe)
        made[name] = cache
    np.testing.assert_array_equal(made["a"].pages, made["b"].pages)
    assert (made["a"].pages != made["golden"].pages).any()
    swapped = kvf.PagedCache(made["golden"].layout, 1)
    swapped.pages, swapped.recipe = made["a"].pages, made["golden"].recipe
    np.testing.assert_array_equal(swapped.gather([0], 16)[0], made["a"].gather([0], 16)[0])  # readable


@pytest.mark.parametrize(
    "document, message",
    [
        ({**INT8, "kv_cache_dtype": "int9"}, "unknown --kv-cache-dtype 'int9'"),
        ({**INT8, "heads": 2}, "unknown key 'heads'"),
        ({"block_size": 16}, "needs kv_cache_dtype"),
        ({**INT8, "kv_cache_dtype": "fp8_inc"}, "no recipe and layout describe fp8_inc yet"),
        ({**FP8, "k_scale": None}, "needs k_scale, a number > 0, since no page holds it"),
        ({**FP8, "k_scale": 0}, "k_scale must be a number > 0"),
        ({**FP8, "v_scale": "nan"}, "needs v_scale"),
        ({**INT8, "k_scale": 1}, "has no k_scale; leave it out"),
        ({**INT8, "head_size": 6}, "head_size"),
        ({**INT8, "block_size": "16"}, "block_size"),
    ],
)
def test_a_configuration_that_cannot_be_read_is_refused_by_its_key(document, message):
    with pytest.raises(kvf.InputError, match=message):
        CacheConfig.of(document)


def test_the_command_ends_with_0_for_the_same_bytes_alone(tmp_path, capsys):
    paths = []
    for name, document in (("a", INT8), ("b", {**INT8, "engine": "vllm"}), ("c", {**INT8, "order": "HND"})):
        paths.append(str(tmp_path / f"{name}.json"))
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    assert main(["compat", paths[0], paths[1]]) == 0
    assert capsys.readouterr().out == f"{paths[0]} -> {paths[1]}: same bytes\n"
    assert main(["compat", paths[0], paths[2]]) == 1
    assert "  order: NHD and HND\n" in capsys.readouterr().out
    assert main(["compat", paths[0], paths[2], "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["verdict"] == "convertible"
    assert main(["compat", paths[0], "nowhere.json"]) == 2
    assert "cannot be read as JSON" in capsys.readouterr().err

"""kvformat convert: a dump in another layout is judged as before, goes back byte for byte, or is not written at all."""

from __future__ import annotations

import json

import numpy as np
import pytest

import kvformat as kvf
from kvformat.cli import main
from kvformat.dump.dump import Pages

SIZES = {"block_size": 4, "num_kv_heads": 2, "head_size": 64}


@pytest.fixture
def dump(tmp_path):
    """An nvfp4 dump of vLLM, golden codes."""
    return saved(tmp_path, kvf.layout("vllm-0.33", mode="nvfp4", order="HND", **SIZES))


def saved(tmp_path, page, **more):
    rng = np.random.default_rng(0)
    k, v = rng.standard_normal((2, 6, page.num_kv_heads, page.head_size)).astype(np.float32)
    cache = kvf.PagedCache(page, 2)
    slots = np.array([3, -1, 0, 7, 5, 1])
    cache.write(k, v, slots, **more)
    path = tmp_path / "dump.safetensors"
    scales = {"k_scale": cache.k_scale, "v_scale": cache.v_scale}
    kvf.Dump.from_arrays(k, v, cache.pages, slots, layout=page, recipe=cache.recipe, **scales).save(path)
    return path


def convert(capsys, source, target, *arguments):
    status = main(["convert", str(source), str(target), *arguments, "--json"])
    captured = capsys.readouterr()
    assert captured.err == ""
    document = json.loads(captured.out)
    assert document["status"] == status
    return document


def test_a_converted_dump_holds_and_comes_back(capsys, tmp_path, dump):
    there, back = tmp_path / "there.safetensors", tmp_path / "back.safetensors"
    document = convert(capsys, dump, there, "--layout", "flashinfer", "--order", "NHD", "--nibbles", "high_first")
    assert document["changed"] == {
        "name": ["vllm-0.33", "flashinfer"], "order": ["HND", "NHD"], "v_scales": ["swizzled", None],
        "nibbles": [None, "high_first"],
    }  # fmt: skip
    assert kvf.check(kvf.Dump.load(there)).ok
    convert(capsys, there, back, "--layout", "vllm-0.33", "--order", "HND", "--nibbles", "low_first")
    assert np.array_equal(kvf.Dump.load(back).pages, kvf.Dump.load(dump).pages)
    assert kvf.Dump.load(back).layout == kvf.Dump.load(dump).layout


@pytest.mark.parametrize(
    "change",
    [
        ("--v-scales", "linear"),
        ("--order", "NHD"),
        ("--block-size", "8"),
        ("--page-bytes", "700"),
        ("--layout", "tensorrt-llm"),
        ("--layout", "sglang-native"),
        ("--layout", "tiles-128x4"),
    ],
)
def test_each_change_alone_holds(capsys, tmp_path, dump, change):
    target = tmp_path / "out.safetensors"
    convert(capsys, dump, target, *change)
    made = kvf.Dump.load(target)
    assert kvf.check(made).ok
    assert made.recipe == "golden/nvfp4"
    assert np.array_equal(made.slot_mapping, kvf.Dump.load(dump).slot_mapping)


def test_fn_becomes_fnuz_with_twice_the_scale(capsys, tmp_path):
    page = kvf.layout("vllm-0.33", mode="fp8_per_tensor", **SIZES)
    source = saved(tmp_path, page, recipe="vllm-0.33/csrc/fp8_per_tensor", k_scale=0.03125, v_scale=0.02)
    target = tmp_path / "fnuz.safetensors"
    document = convert(capsys, source, target, "--recipe", "vllm-0.33/rocm-fnuz/fp8_per_tensor")
    assert document["recipe"] == "vllm-0.33/rocm-fnuz/fp8_per_tensor"
    assert document["changed"] == {"k_scale": [0.03125, 0.0625],
                                   "v_scale": [float(np.float32(0.02)), float(np.float32(0.04))]}  # fmt: skip
    assert kvf.check(kvf.Dump.load(target)).ok


def test_a_dump_that_declares_no_recipe_keeps_that_of_its_layout(capsys, tmp_path, dump):
    loaded = kvf.Dump.load(dump)
    bare = tmp_path / "bare.safetensors"
    kvf.Dump.from_arrays(loaded.key, loaded.value, loaded.pages, loaded.slot_mapping, layout=loaded.layout).save(bare)
    assert (
        convert(capsys, bare, tmp_path / "out.safetensors", "--layout", "flashinfer")["recipe"]
        == "vllm-0.33/csrc/nvfp4"
    )


def test_the_text_says_what_changed(capsys, tmp_path, dump):
    target = tmp_path / "out.safetensors"
    assert main(["convert", str(dump), str(target), "--layout", "tensorrt-llm"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "name: vllm-0.33 -> tensorrt-llm",
        "v_scales: swizzled -> -",
        f"{target}: 2 pages of 576 bytes, tensorrt-llm, golden/nvfp4",
    ]


@pytest.mark.parametrize(
    "arguments, says",
    [
        (("--layout", "flashinfr"), "unknown layout 'flashinfr'; did you mean flashinfer"),
        (("--layout", "vllm-unfused"), "layout vllm-unfused has no mode nvfp4; it has none, fp8_per_tensor"),
        (("--order", "NHW"), "unknown order 'NHW'"),
        (("--layout", "tensorrt-llm", "--order", "NHD"), "has the order HND only; got NHD"),
        (("--block-size", "16"), "do not fill blocks of 16"),
        (("--nibbles", "high"), "unknown nibbles 'high'; did you mean high_first"),
        (("--page-bytes", "100"), "page_bytes must be at least 576"),
        (("--recipe", "vllm-0.33/csrc/nvfp4"), "only who made them differs"),
        (("--recipe", "nvfp"), "unknown recipe 'nvfp'"),
    ],
)
def test_what_cannot_be_converted_is_one_line_and_no_file(capsys, tmp_path, dump, arguments, says):
    target = tmp_path / "out.safetensors"
    assert main(["convert", str(dump), str(target), *arguments]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert says in captured.err
    assert not target.exists()


def test_padding_that_holds_something_is_refused_or_dropped(capsys, tmp_path):
    source = saved(tmp_path, kvf.layout("vllm-0.33", mode="nvfp4", order="HND", page_bytes=600, **SIZES))
    loaded = kvf.Dump.load(source)
    pages = loaded.pages.copy()
    pages[1, 599] = 7
    scales = {"k_scale": loaded.k_scale, "v_scale": loaded.v_scale}
    arrays = (loaded.key, loaded.value, pages, loaded.slot_mapping)
    kvf.Dump.from_arrays(*arrays, layout=loaded.layout, recipe=loaded.recipe, **scales).save(source)
    target = tmp_path / "out.safetensors"
    assert main(["convert", str(source), str(target), "--order", "NHD"]) == 2
    assert "byte 599 of page 1 is padding and holds 0x07" in capsys.readouterr().err
    assert main(["convert", str(source), str(target), "--order", "NHD", "--drop-padding"]) == 0
    made = kvf.Dump.load(target)
    assert made.layout.page_bytes == 600  # what is not named stays
    assert kvf.check(made).ok


def test_v_is_not_lost_and_not_made_up(capsys, tmp_path):
    fused = kvf.layout("vllm-0.33", mode="none", block_size=4, num_kv_heads=1, head_size=576)
    latent = kvf.layout("vllm-0.33-mla", mode="none", block_size=4)
    source, target = tmp_path / "source.safetensors", tmp_path / "target.safetensors"
    for page, name, says in (
        (fused, "vllm-0.33-mla", "layout vllm-0.33-mla in mode none has no place for V, which would be lost"),
        (latent, "vllm-0.33", "layout vllm-0.33 in mode none stores V, which these pages lack"),
    ):
        Pages(np.zeros((1, page.page_bytes), np.uint8), page, None).save(source)
        assert main(["convert", str(source), str(target), "--layout", name]) == 2
        assert says in capsys.readouterr().err
    convert(capsys, source, target, "--layout", "flashinfer-mla")
    assert Pages.load(target).layout.name == "flashinfer-mla"


def test_pages_alone_are_converted_without_k_and_v(capsys, tmp_path, dump):
    loaded = kvf.Dump.load(dump)
    source, there, back = (tmp_path / f"{name}.safetensors" for name in ("source", "there", "back"))
    Pages(loaded.pages, loaded.layout, loaded.recipe, loaded.k_scale, loaded.v_scale).save(source)
    convert(capsys, source, there, "--layout", "sglang")
    made = Pages.load(there)
    assert (made.layout.name, made.layout.order, made.recipe) == ("sglang", "NHD", "golden/nvfp4")
    assert (made.k_scale, made.v_scale, made.slot_mapping) == (loaded.k_scale, loaded.v_scale, None)
    convert(capsys, there, back, "--layout", "vllm-0.33", "--order", "HND")
    assert np.array_equal(Pages.load(back).pages, loaded.pages)


def test_the_slots_of_pages_alone_go_with_them(capsys, tmp_path, dump):
    loaded = kvf.Dump.load(dump)
    source, target = tmp_path / "source.safetensors", tmp_path / "target.safetensors"
    Pages(loaded.pages, loaded.layout, None, slot_mapping=loaded.slot_mapping, producer="a test").save(source)
    convert(capsys, source, target, "--block-size", "8")
    made = Pages.load(target)
    assert np.array_equal(made.slot_mapping, loaded.slot_mapping)
    assert (made.recipe, made.producer, made.pages.shape) == ("vllm-0.33/csrc/nvfp4", "a test", (1, 1152))


def test_a_file_that_is_no_dump_is_refused(capsys, tmp_path):
    assert main(["convert", str(tmp_path / "none.safetensors"), str(tmp_path / "out.safetensors")]) == 2
    assert "cannot be read" in capsys.readouterr().err

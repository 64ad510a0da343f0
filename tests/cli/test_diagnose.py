"""kvformat diagnose and kvformat lint: exit status, one line for what cannot be judged, one JSON document."""

from __future__ import annotations

import json

import numpy as np
import pytest

from kvformat import Dump, PagedCache, layout
from kvformat.cli import main


def dump_file(folder, *, encode=None, damage=None, slots=range(32)):
    """An int8 dump of 32 tokens, written by golden, or truncated, or with one byte damaged."""
    made = layout("vllm-0.33", mode="int8_per_token_head", block_size=16, num_kv_heads=2, head_size=32, order="NHD")
    x = np.random.default_rng(1).normal(size=(32, 2, 32)).astype(np.float32)
    cache = PagedCache(made, 3)
    cache.write(x, x, np.arange(32))
    if encode is not None:
        scale = np.abs(x).max(axis=2, keepdims=True) / np.float32(127)
        codes = encode(x / scale).astype(np.int8).view(np.uint8)
        cells = cache.pages[:2].reshape(2, 16, 2, 72)
        cells[..., :32] = cells[..., 36:68] = codes.reshape(2, 16, 2, 32)
    if damage is not None:
        cache.pages[0, damage] ^= 0x40
    path = folder / "d.safetensors"
    recipe = "golden/int8_per_token_head"
    Dump.from_arrays(x, x, cache.pages, np.array(slots), layout=made, recipe=recipe).save(path)
    return path


def document(capsys):
    captured = capsys.readouterr()
    assert captured.out.count("\n") == 1
    return json.loads(captured.out)


def test_right_bytes_are_status_0(capsys, tmp_path):
    path = dump_file(tmp_path)
    assert main(["diagnose", str(path)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.startswith(f"{path}: as declared: golden/int8_per_token_head in vllm-0.33 NHD explains all")


def test_a_fault_is_status_1_and_named_in_the_first_line_with_its_reason_and_a_source(capsys, tmp_path):
    path = dump_file(tmp_path, encode=np.trunc)
    assert main(["diagnose", str(path)]) == 1
    first, reason, *_ = capsys.readouterr().out.splitlines()
    assert "but round-toward-zero: truncated, not rounded" in first
    assert "vllm-project/vllm#45361" in reason


def test_the_document_lists_the_explanations_in_order(capsys, tmp_path):
    path = dump_file(tmp_path, encode=np.trunc)
    assert main(["diagnose", str(path), "--json"]) == 1
    found = document(capsys)
    assert (found["ok"], found["status"], found["explained"]) == (False, 1, True)
    first, *others = found["explanations"]
    assert (first["faults"], first["recipe"]) == (["round-toward-zero"], "golden/int8_per_token_head")
    assert (first["explained"], first["wrong"], first["open"], first["allowance"]) == (first["total"], 0, 0, 0)
    assert first["only"] > 0
    assert [] in [each["faults"] for each in others]  # what the dump declares
    assert all(first["bits"] + 20 <= each["bits"] for each in others if each["wrong"])


def test_one_wrong_byte_is_an_exception_from_what_is_declared(capsys, tmp_path):
    path = dump_file(tmp_path, damage=7)
    assert main(["diagnose", str(path), "--json"]) == 1
    found = document(capsys)
    assert (found["ok"], found["explained"]) == (False, False)
    assert (found["explanations"][0]["faults"], found["explanations"][0]["wrong"]) == ([], 1)
    assert main(["diagnose", str(path)]) == 1
    line = capsys.readouterr().out.splitlines()[0]
    assert "as declared, except byte 7 of block 0 (K code of slot 0, head 0) (1 byte holds something else)" in line


def test_another_recipe_may_be_declared_on_the_command_line(capsys, tmp_path):
    path = dump_file(tmp_path)
    assert main(["diagnose", str(path), "--recipe", "exact/int8_per_token_head", "--json"]) == 0
    assert document(capsys)["recipe"] == "exact/int8_per_token_head"


@pytest.mark.parametrize(
    "arguments, says",
    [
        (("diagnose",), "name a dump"),
        (("diagnose", "none.safetensors"), "No such file"),
        (("diagnose", "--probe", "--mode", "nvfp4"), "-o FILE"),
        (("diagnose", "--probe", "-o", "x"), "--mode"),
        (("diagnose", "--probe", "--mode", "nvfp5", "-o", "x"), "did you mean"),
        (("diagnose", "--probe", "--mode", "nvfp4", "-o", "x", "--head-size", "40"), "head_size"),
        (("lint", "none.safetensors"), "No such file"),
    ],
)
def test_what_cannot_be_judged_is_status_2_and_one_line(capsys, arguments, says):
    assert main(list(arguments)) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert says in captured.err
    assert main([*arguments, "--json"]) == 2
    assert document(capsys)["status"] == 2


def test_a_dump_without_a_slot_cannot_be_judged(capsys, tmp_path):
    path = dump_file(tmp_path, slots=[-1] * 32)
    assert main(["diagnose", str(path)]) == 2
    assert "nothing to judge" in capsys.readouterr().err


def test_a_probe_is_a_dump_to_be_filled(capsys, tmp_path):
    path = tmp_path / "probe.safetensors"
    assert main(["diagnose", "--probe", "--mode", "fp8_per_tensor", "-o", str(path), "--head-size", "32"]) == 0
    assert str(path) in capsys.readouterr().out
    made = Dump.load(path)
    assert made.layout.head_size == 32
    cache = PagedCache(made.layout, len(made.pages))
    cache.write(made.key, made.value, made.slot_mapping, k_scale=made.k_scale, v_scale=made.v_scale)
    Dump.from_arrays(
        made.key, made.value, cache.pages, made.slot_mapping, layout=made.layout,
        k_scale=made.k_scale, v_scale=made.v_scale, producer=made.producer,
    ).save(path)  # fmt: skip
    assert main(["diagnose", str(path), "--json"]) == 0
    assert document(capsys)["inseparable"]


# --- lint ---


def test_right_pages_are_status_0(capsys, tmp_path):
    path = dump_file(tmp_path)
    assert main(["lint", str(path)]) == 0
    assert capsys.readouterr().out.startswith(f"{path}: nothing found in 32 slots in 3 blocks")


def test_a_finding_is_status_1_and_says_where(capsys, tmp_path):
    path = dump_file(tmp_path, damage=35)  # the last byte of the first K scale: negative exponents become huge ones
    dump = Dump.load(path)
    pages = dump.pages.copy()
    pages[0, 32:36] = np.frombuffer(np.float32(np.nan).tobytes(), np.uint8)
    Dump.from_arrays(dump.key, dump.value, pages, dump.slot_mapping, layout=dump.layout).save(path)
    assert main(["lint", str(path)]) == 1
    assert "scale-not-finite (1)" in capsys.readouterr().out
    assert main(["lint", str(path), "--json"]) == 1
    (found,) = document(capsys)["findings"]
    assert (found["block"], found["slot"], found["head"], found["byte"]) == (0, 0, 0, 32)


def test_pages_alone_are_enough(capsys, tmp_path):
    from safetensors.numpy import save_file

    dump = Dump.load(dump_file(tmp_path))
    metadata = {"kvformat_dump": "1", "mode": dump.mode, "layout": "vllm-0.33", "order": "NHD", "block_size": "16",
                "num_kv_heads": "2", "head_size": "32", "head_size_v": "32"}  # fmt: skip
    path = tmp_path / "pages.safetensors"
    save_file({"pages": dump.pages.copy()}, path, metadata)
    assert main(["lint", str(path)]) == 0
    assert "32 slots in 3 blocks" in capsys.readouterr().out
    save_file({"pages": dump.pages[0].copy()}, path, metadata)
    assert main(["lint", str(path)]) == 2
    assert "must be uint8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["dump.safetensors", "--mode", "nvfp4"], "are for a probe"),
        (["dump.safetensors", "-o", "other"], "are for a probe"),
        (["--probe", "--mode", "nvfp4", "-o", "p", "--recipe", "golden/nvfp4"], "--recipe is for a dump"),
    ],
)
def test_options_of_the_other_use_are_refused(tmp_path, monkeypatch, capsys, arguments, said):
    monkeypatch.chdir(tmp_path)
    assert main(["diagnose", *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())

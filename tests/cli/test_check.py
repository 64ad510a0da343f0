"""kvformat check: what it does with files that are no dumps, and the sample that it judges without one."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from importlib.resources import files

import ml_dtypes
import numpy as np
import pytest

from kvformat.cli import main
from kvformat.data import LAYERS, SAMPLE_FILE, sample


def test_of_several_files_each_one_that_cannot_be_judged_has_its_own_line(capsys, tmp_path):
    cut, empty = tmp_path / "cut.safetensors", tmp_path / "empty"
    cut.write_bytes(b"\x10")
    empty.mkdir()
    assert main(["check", str(cut), str(empty), str(tmp_path / "none")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 3
    for line, path in zip(lines, (cut, empty, tmp_path / "none"), strict=True):
        assert line.startswith(f"kvformat: {path}: ")


def test_of_several_files_the_document_has_a_report_each(capsys, tmp_path):
    assert main(["check", str(tmp_path), str(tmp_path / "none"), "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert (document["ok"], document["status"]) == (False, 2)
    assert [(report["dump"], report["status"]) for report in document["reports"]] == [
        (str(tmp_path), 2),
        (str(tmp_path / "none"), 2),
    ]


@pytest.mark.parametrize("name", ["with\nnewline", "with\x1b[31mescape", "with\udcffbyte"])
def test_the_name_of_a_file_does_not_break_the_line(capsys, tmp_path, name):
    assert main(["check", str(tmp_path / name)]) == 2
    text = capsys.readouterr().err
    assert text.count("\n") == 1
    assert "\x1b" not in text


def test_the_sample_is_the_file_that_its_readme_describes():
    readme = files("kvformat.data").joinpath("README.md").read_text("utf-8")
    content = files("kvformat.data").joinpath(SAMPLE_FILE).read_bytes()
    row = re.search(rf"\| {re.escape(SAMPLE_FILE)} \| ([0-9a-f]{{64}}) \|", readme)
    assert row is not None
    assert row[1] == hashlib.sha256(content).hexdigest()
    assert len(content) <= 200_000


def test_the_sample_is_finite_bfloat16_of_equal_shapes():
    layers = sample()
    assert tuple(layer.layer for layer in layers) == LAYERS
    for layer in layers:
        for side in (layer.key, layer.value):
            assert (side.dtype, side.shape) == (ml_dtypes.bfloat16, (128, 3, 64))
            assert np.isfinite(side.astype(np.float32)).all()


def test_the_deep_layer_begins_with_the_attention_sink():
    """A sink's key and value are much shorter than the other tokens'; the first layer has none."""
    ratios = {}
    for layer in sample():
        for side, rows in (("k", layer.key), ("v", layer.value)):
            norms = np.linalg.norm(rows.astype(np.float32), axis=-1)
            ratios[layer.layer, side] = norms[0] / np.median(norms, axis=0)
    assert (ratios[20, "k"] < 0.4).all()
    assert (ratios[20, "v"] < 0.4).all()
    assert (ratios[0, "k"] > 0.5).all()


# --- verdicts ---


def dump_file(folder, name="d.safetensors", *, edits=(), **changes):
    """A small int8 dump whose pages hold, but for the bytes of page 0 in `edits`: head rows of 4 codes, then scale."""
    from kvformat import Dump, PagedCache, layout

    made = layout("vllm-0.33", mode="int8_per_token_head", block_size=2, num_kv_heads=1, head_size=4, order="NHD")
    x = np.array([[[127, 2.5, 0, 0]], [[254, 1, 2, 3]]], np.float32)
    cache = PagedCache(made, 1)
    cache.write(x, x, [0, 1])
    for byte, code in edits:
        cache.pages[0, byte] = code
    path = folder / name
    slots = changes.pop("slots", [0, 1])
    changes.setdefault("recipe", "golden/int8_per_token_head")
    Dump.from_arrays(x, x, cache.pages, slots, layout=made, **changes).save(path)
    return path


def run_process(*arguments):
    environment = {name: text for name, text in os.environ.items() if name not in ("FORCE_COLOR", "TTY_COMPATIBLE")}
    command = [sys.executable, "-m", "kvformat.cli", "check", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)


def refuse_constant(name):
    raise ValueError(f"{name} is no JSON")


def strict(text):
    return json.loads(text, parse_constant=refuse_constant)


def test_a_dump_that_holds_is_status_0_and_says_what_was_compared(capsys, tmp_path):
    path = dump_file(tmp_path, recipe="golden/int8_per_token_head")
    assert main(["check", str(path)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    # 2 tokens, K and V of 4 codes and a scale
    holds = f"{path}: holds: golden/int8_per_token_head in vllm-0.33 NHD, 20 codes and scales equal"
    assert captured.out.splitlines()[0] == holds


def test_a_wrong_code_is_status_1_and_says_which_token_head_and_dim(capsys, tmp_path):
    path = dump_file(tmp_path, edits=[(1, 3)])
    assert main(["check", str(path)]) == 1
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.startswith(f"{path}: these are ")  # 2.5 to 3: half away from zero, as a library rounds
    assert "\nDIFFERS: golden/int8_per_token_head in vllm-0.33 NHD, 1 of 20 " in captured.out
    assert "first difference: K code of token 0, head 0, dim 1\n" in captured.out
    assert "2.5, a tie between 2 and 3\n" in captured.out


def test_a_dump_without_a_slot_is_status_2_and_one_line(capsys, tmp_path):
    path = dump_file(tmp_path, slots=[-1, -1])
    assert main(["check", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("kvformat: ")
    assert "nothing to judge" in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    "kinds, status",
    [(("right",), 0), (("right", "right"), 0), (("right", "wrong"), 1), (("wrong", "right"), 1), (("none", "wrong"), 2),
     (("wrong", "empty", "right"), 2)],
)  # fmt: skip
def test_of_several_dumps_the_worst_counts_and_all_are_judged(capsys, tmp_path, kinds, status):
    paths = {
        "right": dump_file(tmp_path, "right"),
        "wrong": dump_file(tmp_path, "wrong", edits=[(0, 0)]),
        "empty": dump_file(tmp_path, "empty", slots=[-1, -1]),
        "none": tmp_path / "none",
    }
    arguments = ["check", *(str(paths[kind]) for kind in kinds)]
    assert main(arguments) == status
    captured = capsys.readouterr()
    judged = {"right": "holds: ", "wrong": "DIFFERS: "}
    for kind in kinds:
        if kind in judged:
            assert f"{paths[kind]}: {judged[kind]}" in captured.out
    assert captured.err.count("\n") == sum(kind not in judged for kind in kinds)
    assert main([*arguments, "--json"]) == status
    captured = capsys.readouterr()
    assert captured.err == ""
    document = strict(captured.out)
    assert (document["ok"], document["status"]) == (status == 0, status)
    reports = document.get("reports", [document])
    assert [report["status"] for report in reports] == [{"right": 0, "wrong": 1}.get(kind, 2) for kind in kinds]


def test_as_a_process_the_document_of_a_dump_is_all_there_is_on_stdout(tmp_path):
    done = run_process(dump_file(tmp_path, edits=[(1, 3)]), "--json")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.count("\n") == 1
    document = strict(done.stdout)
    assert list(document)[:2] == ["ok", "status"]
    assert (document["ok"], document["status"]) == (False, 1)
    assert (document["compared"], document["mismatches"]) == (20, 1)
    assert document["recipe"] == "golden/int8_per_token_head"
    assert document["layout"] == {
        "name": "vllm-0.33", "mode": "int8_per_token_head", "order": "NHD", "block_size": 2, "num_kv_heads": 1,
        "head_size": 4, "head_size_v": 4, "page_bytes": 32,
    }  # fmt: skip
    first = document["first"]
    assert [first[name] for name in ("side", "part", "token", "head", "dim", "slot", "byte")] == [
        "k", "code", 0, 0, 1, 0, 1,
    ]  # fmt: skip
    assert (first["expected"]["code"], first["found"]["code"]) == ("2", "3")


def test_the_document_is_strict_json_where_a_scale_is_nan(capsys, tmp_path):
    path = dump_file(tmp_path, edits=[(6, 0xC0), (7, 0x7F)])
    assert main(["check", str(path), "--json"]) == 1
    found = strict(capsys.readouterr().out)["first"]["found"]
    assert (found["value"], found["bits"]) == ("nan", "0x7FC00000")


def test_a_report_that_holds_has_no_first_difference(capsys, tmp_path):
    assert main(["check", str(dump_file(tmp_path)), "--json"]) == 0
    document = strict(capsys.readouterr().out)
    assert (document["ok"], document["first"], document["mismatches"]) == (True, None, 0)


def test_without_a_dump_a_pipe_gets_one_plain_table_and_the_verdict():
    done = run_process()
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert done.stdout.count("found: V token ") == 18
    assert "NOT" not in done.stdout
    assert done.stdout.splitlines()[-1].startswith("all hold, every planted byte was found: 128 tokens of real K and V")


def test_without_a_dump_the_document_has_a_row_for_every_layout(capsys):
    assert main(["check", "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    document = strict(captured.out)
    assert (document["ok"], document["status"], document["mismatches"], document["first"]) == (True, 0, 0, None)
    assert len(document["rows"]) == 18
    assert document["compared"] == sum(row["compared"] for row in document["rows"])


def test_a_built_in_check_that_fails_says_so(capsys, monkeypatch):
    from kvformat.verify import builtin

    right = builtin.write_pages

    def wrong(*arguments, **options):
        pages = right(*arguments, **options)
        pages[0, 0] ^= arguments[1] == "none"
        return pages

    monkeypatch.setattr(builtin, "write_pages", wrong)
    assert main(["check"]) == 1
    text = capsys.readouterr().out
    assert text.count("NOT FOUND: V token 121 head 1 dim 37, but 2 differences") == 4
    assert text.splitlines()[-1].startswith("NOT ALL HOLD: ")
    assert main(["check", "--json"]) == 1
    document = strict(capsys.readouterr().out)
    assert (document["ok"], document["status"], document["mismatches"]) == (False, 1, 4)
    assert document["first"]["mode"] == "none"

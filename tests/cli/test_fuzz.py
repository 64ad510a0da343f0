"""kvformat fuzz: statuses, one line for bad input, one document with --json, a dump that check refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvformat.cli import main

TRUNCATED = ("fuzz", "tests.fuzz.kernels:truncated", "--mode", "int8_per_token_head", "--seed", "0")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path.cwd())  # where tests.fuzz.kernels is
    monkeypatch.chdir(tmp_path)  # where counterexamples go


def run(capsys, *arguments):
    status = main(list(arguments))
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_a_fault_is_status_1_and_its_dump_is_refused_by_check(capsys, tmp_path):
    path = str(tmp_path / "counterexample.safetensors")
    status, out, err = run(capsys, *TRUNCATED, "--output", path)
    assert (status, err) == (1, "")
    assert out.startswith("FAILS: tests.fuzz.kernels:truncated, quantizer, by golden/int8_per_token_head")
    assert f"reproduce: kvformat check {path}" in out
    assert run(capsys, "check", path)[0] == 1


def test_a_right_kernel_is_status_0(capsys):
    arguments = ("fuzz", "tests.fuzz.kernels:right_int8", "--mode", "int8_per_token_head", "--examples", "30")
    status, out, _ = run(capsys, *arguments, "--seed", "1")
    assert status == 0
    assert out.startswith("holds: ")


def test_json_is_one_document(capsys, tmp_path):
    path = str(tmp_path / "found.safetensors")
    status, out, _ = run(capsys, *TRUNCATED, "-o", path, "--json")
    document = json.loads(out)
    assert status == document["status"] == 1
    assert document["ok"] is False
    assert document["saved"] == path
    assert document["fault"] == "bytes differ"


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((), "name a candidate"),
        (("tests.fuzz.kernels:truncated",), "--mode"),
        (("tests.fuzz.kernels:nothing", "--mode", "nvfp4"), "unknown function"),
        (("tests.fuzz.kernels:takes_two", "--mode", "nvfp4"), "a reader (pages, block_table, seq_len, **meta)"),
        (("tests.fuzz.kernels:truncated", "--mode", "int7"), "unknown mode"),
        (("tests.fuzz.kernels:truncated", "--zoo"), "--zoo brings its own kernels"),
        (("--zoo", "--only", "no such fault"), "no kernel of the zoo"),
        (("--zoo", "--seeds", "0"), "--seeds must be at least 1"),
        (("tests.fuzz.kernels:truncated", "--mode", "nvfp4", "--recipe", "golden/nvfp"), "did you mean golden/nvfp4"),
    ],
)
def test_bad_input_is_status_2_and_one_line(capsys, arguments, message):
    status, out, err = run(capsys, "fuzz", *arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_part_of_the_zoo_prints_its_scoreboard(capsys):
    status, out, _ = run(capsys, "fuzz", "--zoo", "--only", "nibble-order")
    assert status == 0
    assert "high nibble first" in out
    assert "1/1" in out
    assert "3 of 3 broken kernels (1 faults) caught" in out


def test_torch_without_a_device_is_the_cpu(capsys):
    pytest.importorskip("torch", reason="torch is not in the test extra; CI installs it first")
    arguments = ("fuzz", "--torch", "tests.fuzz.kernels:truncated", "--mode", "int8_per_token_head", "--seed", "0")
    status, out, _ = run(capsys, *arguments)
    assert status == 1
    assert "raises AttributeError" in out  # it takes NumPy arrays


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["x:y", "--mode", "nvfp4", "--seed", "-1"], "--seed must be 0 or more"),
        (["x:y", "--mode", "nvfp4", "--limit", "nan"], "--limit must be a number of seconds above 0"),
        (["x:y", "--mode", "nvfp4", "--limit", "0"], "--limit must be a number of seconds above 0"),
        (["--zoo", "--recipe", "golden/nvfp4"], "leave those options out"),
    ],
)
def test_options_that_say_nothing_are_refused(capsys, arguments, said):
    assert main(["fuzz", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_what_a_candidate_prints_is_no_part_of_the_document(tmp_path, capfd):
    (tmp_path / "loud.py").write_text("def quantize(x):\n    print('hello')\n    return x\n")
    main(["fuzz", f"{tmp_path / 'loud.py'}:quantize", "--mode", "nvfp4", "--examples", "2", "--json"])
    printed = capfd.readouterr()  # of the files: the candidate runs in a process of its own
    assert "hello" in printed.err
    json.loads(printed.out)

"""kvformat stream: bit patterns in, bit patterns out, for programs in any language."""

from __future__ import annotations

import io
import subprocess
import sys

import numpy as np
import pytest

import kvformat as kvf
from kvformat.cli import main
from kvformat.recipes import exact
from kvformat.vectors.vectors import VectorSet

VECTORS = VectorSet.load()


@pytest.fixture
def stream(monkeypatch, capsys):
    """One run of the filter: its status, the lines it wrote, and what it said on stderr."""

    def run(text, *arguments):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        status = main(["stream", *arguments])
        captured = capsys.readouterr()
        return status, captured.out.split("\n")[:-1], captured.err

    return run


def groups(name):
    return VECTORS.document(VECTORS.find(name))["testGroups"]


@pytest.mark.parametrize("name", ["e4m3fn", "e5m2fnuz", "e2m1fn", "e8m0fnu", "int8", "int4"])
def test_encode_gives_the_codes_of_the_vectors(stream, name):
    for group in groups(f"elements/{name}_encode"):
        source = {"binary32": "float32", "binary64": "float64"}[group["source"]]
        policy = ("--overflow", group["overflow"], "--rounding", group["rounding"], "--from", source)
        text = "".join(f"{test['x']}\n" for test in group["tests"])
        status, lines, _ = stream(text, "encode", "--format", name, *policy)
        assert status == 0
        for test, code in zip(group["tests"], lines, strict=True):
            assert code in (group["nanCodes"] if test["code"] == "nan" else [test["code"]]), test


@pytest.mark.parametrize("name", ["e4m3fn", "e2m1fn", "e8m0fnu", "int4"])
def test_decode_gives_the_values_of_the_vectors(stream, name):
    for group in groups(f"elements/{name}_decode"):
        target = {"binary32": "float32", "binary16": "float16", "bfloat16": "bfloat16"}[group["target"]]
        text = "\n".join(test["code"] for test in group["tests"])  # the last line without its end
        status, lines, _ = stream(text, "decode", "--format", name, "--to", target)
        assert status == 0
        for test, value in zip(group["tests"], lines, strict=True):
            assert value == test["value"] or (test["value"] == "nan" and value in ("7FC00000", "7E00", "7FC0"))


def test_a_row_becomes_its_scales_and_codes(stream):
    x = np.array([1.5, -0.25, 3.0, 127.0], np.float32)
    text = " ".join(f"{bits:08x}" for bits in x.view(np.uint32))
    status, lines, _ = stream(f"{text}\n0x{text}\n", "quantize", "--recipe", "int8_per_token_head")
    assert status == 0
    assert lines == ["3F800000 | 02 00 03 7F"] * 2  # 1.5 is a tie: to the even 2


def test_rows_of_two_levels_lead_with_the_global_scale_and_agree_with_the_twin(stream):
    x = np.random.default_rng(5).standard_normal((4, 1, 32)).astype(np.float32)
    text = "".join(" ".join(f"{b:08X}" for b in row.view(np.uint32).reshape(-1)) + "\n" for row in x)
    status, lines, _ = stream(text, "quantize", "--recipe", "nvfp4", "--scale", "3C23D70A")
    assert status == 0
    given = float(np.array([0x3C23D70A], np.uint32).view(np.float32)[0])
    codes, scales, shared = exact.quantize(x, kvf.recipe("nvfp4"), given)
    for row in range(4):
        words = [f"{int(shared.view(np.uint32)):08X}", *(f"{s:02X}" for s in scales[row, 0])]
        assert lines[row] == f"{' '.join(words)} | {' '.join(f'{c:X}' for c in codes[row, 0])}"


@pytest.mark.parametrize(
    "text, arguments, answered, says",
    [
        ("3FC00000\nnope\n3FC00000\n", ("encode", "--format", "e4m3fn"), ["3C"], "line 2: 'nope' is not a float32"),
        ("3FC00000\n\n", ("encode", "--format", "e4m3fn"), ["3C"], "line 2: '' is not a float32"),
        ("+7F\n", ("decode", "--format", "e4m3fn"), [], "line 1: '+7F' is not a code of e4m3fn"),
        ("17\n", ("decode", "--format", "e2m1fn"), [], "1 hex digits"),
        ("3FC000001\n", ("encode", "--format", "e4m3fn"), [], "line 1"),
        ("3FC00000\n", ("quantize", "--recipe", "nvfp4"), [], "line 1: golden/nvfp4 needs a head_dim"),
        ("3FC00000\n\n", ("quantize", "--recipe", "int8_per_token_head"), ["3C418306 | 7F"], "line 2 is empty"),
        ("", ("encode", "--format", "e4m3f"), [], "did you mean e4m3fn"),
        ("", ("encode", "--format", "e8m0fnu"), [], "needs a rounding by name"),
        ("", ("encode", "--format", "e4m3fn", "--from", "float23"), [], "did you mean"),
        ("", ("quantize", "--recipe", "nvfp4", "--scale", "00000000"), [], "finite and > 0"),
        ("", ("quantize", "--recipe", "nvfp4", "--scale", "0"), [], "--scale takes float32 bits as 8 hex digits"),
        ("3E9\n", ("encode", "--format", "e2m1fn"), [], "line 1: '3E9' is not a float32 in hex: 8 hex digits"),
        ("7\n", ("decode", "--format", "e4m3fn"), [], "line 1: '7' is not a code of e4m3fn: 2 hex digits"),
        ("", ("quantize", "--recipe", "int8_per_token_head", "--scale", "3F800000"), [], "takes no scale"),
        ("", (), [], "say what to do with the stream"),
    ],
)
def test_a_bad_line_is_named_after_those_before_it_are_answered(stream, text, arguments, answered, says):
    status, lines, error = stream(text, *arguments)
    assert status == 2
    assert lines == answered
    assert says in error
    assert error.count("\n") == 1


def test_no_input_is_no_output(stream):
    assert stream("", "encode", "--format", "e4m3fn") == (0, [], "")


def test_a_program_that_waits_for_each_answer_gets_it():
    command = [sys.executable, "-m", "kvformat.cli", "stream", "encode", "--format", "e4m3fn"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        for x, code in (("3FC00000", "3C"), ("43E80001", "7E"), ("80000000", "80")):
            process.stdin.write(f"{x}\n")
            process.stdin.flush()
            assert process.stdout.readline() == f"{code}\n"
        process.stdin.close()
        assert process.wait(timeout=60) == 0

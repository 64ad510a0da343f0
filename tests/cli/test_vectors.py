"""kvformat vectors: lists, verifies, and runs somebody's function with an exit status that says how it went."""

from __future__ import annotations

import json
import sys

import pytest

from kvformat.cli import main

MODULE = """
import numpy as np
import ml_dtypes

def right(x):
    with np.errstate(all="ignore"):
        return x.astype(ml_dtypes.float8_e5m2).view(np.uint8)

def wrong(x):
    return right(x) ^ (x == 1)

def raises(x):
    raise RuntimeError("no device\\nmore")

number = 3
"""
IEEE = ("elements/e5m2_encode", "--group", "binary32/*/ieee")


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A module of a user in the current folder."""
    (tmp_path / "my_kernels.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    yield "my_kernels"
    sys.modules.pop("my_kernels", None)


def test_list_and_verify_agree_on_how_much_there_is(capsys):
    assert main(["vectors", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert main(["vectors", "verify", "--json"]) == 0
    verified = json.loads(capsys.readouterr().out)
    assert verified["files"] == len(listed["files"]) > 100
    assert verified["tests"] == sum(row["tests"] for row in listed["files"])
    assert verified["problems"] == []
    assert main(["vectors", "list"]) == 0
    assert "elements/e4m3fn_encode.json" in capsys.readouterr().out


def test_a_right_function_holds(capsys, mine):
    assert main(["vectors", "run", *IEEE, "--against", f"{mine}:right"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith(f"holds: {mine}:right, ")


def test_a_wrong_function_is_named_with_its_first_wrong_input(capsys, mine):
    assert main(["vectors", "run", *IEEE, "--against", f"{mine}:wrong", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["status"], found["mismatches"]) == (False, 1, 1)
    assert found["groups"][0]["first"] == {"id": "3F800000", "what": "x 3F800000: code 3D, right: 3C"}


@pytest.mark.parametrize(
    "arguments, says",
    [
        ((), "say what to do with the vectors"),
        (("run", *IEEE), "--against"),
        (("run", *IEEE, "--against", "my_kernels"), "MODULE:FUNCTION"),
        (("run", *IEEE, "--against", "no_such_module:f"), "there is no module 'no_such_module'"),
        (("run", *IEEE, "--against", "my_kernels:left"), "unknown function in my_kernels: 'left'"),
        (("run", *IEEE, "--against", "my_kernels:number"), "is no function: int"),
        (("run", *IEEE, "--against", "my_kernels:raises"), "raises raised RuntimeError: no device"),
        (("run", "elements/e5m2", "--against", "my_kernels:right"), "did you mean elements/e5m2_"),
        (("run", *IEEE, "--skip", "Exact", "--skip", "Tie", "--against", "my_kernels:right"), ""),
        (("run", *IEEE, "--skip", "Nan", "--against", "my_kernels:right"), "did you mean NaN"),
        (("verify", "--folder", "nowhere"), "no vectors in nowhere"),
    ],
    ids=str,
)
@pytest.mark.usefixtures("mine")
def test_what_cannot_be_judged_is_one_line(capsys, arguments, says):
    status = main(["vectors", *arguments])
    captured = capsys.readouterr()
    assert status == (2 if says else 0)
    assert says in captured.err
    assert captured.err.count("\n") == (1 if says else 0)


def test_skipping_every_test_is_no_success(capsys, mine):
    skips = ["--skip", "Tie", "--skip", "NearTie"]
    files = ["elements/e2m1fn_encode", "--group", "binary64/*"]
    assert main(["vectors", "run", *files, *skips, "--against", f"{mine}:right"]) == 2
    assert "every one is skipped" in capsys.readouterr().err


def test_a_function_that_exits_is_no_function_that_holds(tmp_path, capsys):
    (tmp_path / "exits.py").write_text("import sys\n\ndef encode(x):\n    sys.exit(0)\n")
    assert main(["vectors", "run", "elements/e2m1fn_encode", "--against", f"{tmp_path / 'exits.py'}:encode"]) == 2
    assert "encode raised SystemExit" in capsys.readouterr().err

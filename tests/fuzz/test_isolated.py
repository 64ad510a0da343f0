"""Candidates in a child process: what crashes, exits, hangs or answers with anything is a verdict in one line."""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import kvformat as kvf
from kvformat.cli import main
from kvformat.fuzz import fuzz
from kvformat.fuzz.calls import Child
from kvformat.fuzz.candidate import NoArray, readable, recognise
from kvformat.fuzz.report import FuzzReport
from kvformat.fuzz.zoo.writers import RightWriter
from tests.fuzz.kernels import INT8, right_int8

KERNEL = f"""
import sys
sys.path.insert(0, {str(Path.cwd())!r})
import numpy as np
import helper_beside_it
from tests.fuzz.kernels import right_int8

def exits(x):
    if x.shape[1] > 1:
        helper_beside_it.leave()
    return right_int8(x)

def writer(key, value, pages, slot_mapping, *, block_size, num_kv_heads, head_size, layout, order):
    print("a line that is no part of the answer")
    pages[:] = 0
"""


def exits(x):
    if x.shape[1] > 1:
        os._exit(0)
    return right_int8(x)


def crashes(x):
    if x.shape[1] > 1:
        ctypes.string_at(0)
    return right_int8(x)


def hangs(x):
    while x.shape[1] > 1:
        pass
    return right_int8(x)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (exits, "ends its process with status 0"),
        (crashes, "its process dies of SIGSEGV"),
        (hangs, "not returned after 0.5 s"),
    ],
)
def test_an_exit_a_crash_and_a_hang_are_found_and_this_process_goes_on(function, says):
    report = fuzz(function, mode=INT8, seed=3, examples=60, limit=0.5)
    assert (report.status, report.finding.fault) == (1, "no answer")
    assert says in report.finding.message
    assert report.finding.case.key.shape[1] == 2
    if function is not hangs:  # each smaller case of that would take as long
        assert report.finding.case.nonzero == 0


def test_a_child_that_died_is_replaced_and_one_that_is_closed_is_gone():
    child = Child(lambda x: os._exit(3) if x == 0 else (x + 1, os.getpid()))
    first = child.call((1,), 10)
    assert first[0] == 2
    assert first[1] != os.getpid()
    with pytest.raises(Exception, match="ends its process with status 3"):
        child.call((0,), 10)
    again = child.call((5,), 10)
    assert again[0] == 6
    assert again[1] != first[1]
    child.close()
    with pytest.raises(ProcessLookupError):
        os.kill(again[1], 0)


def test_what_a_writer_changes_comes_back_and_so_does_what_it_must_not_change():
    writer = recognise(RightWriter(INT8), kind="writer", isolated=True)
    report = fuzz(RightWriter(INT8), mode=INT8, kind="writer", seed=1, examples=40)
    assert report.ok
    assert writer.isolated

    def doubles(x):
        answer = right_int8(x)
        x *= 2
        return answer

    assert fuzz(doubles, mode=INT8, seed=1, examples=20).finding.fault == "changes its input"


class Odd:
    """No array."""


def odd_answers():
    torch = pytest.importorskip("torch", reason="torch is not in the test extra; CI installs it first")
    x = torch.ones(2, requires_grad=True)
    return [
        (x, np.ones(2, np.float32)),
        (torch.ones(2).to(torch.float8_e4m3fn), np.full(2, 0x38, np.uint8)),
        ([[1], [1, 2]], NoArray("list")),
        (Odd(), NoArray("Odd")),
        (torch.ones(3, 3).to_sparse(), NoArray("Tensor")),
        (None, None),
    ]


def test_tensors_lists_and_objects_are_told_apart():
    for given, expected in odd_answers():
        found = readable((given, given))[0]
        assert type(found) is type(expected)
        assert np.array_equal(found, expected) if isinstance(expected, np.ndarray) else found == expected


@pytest.mark.parametrize("isolated", [True, False])
def test_an_answer_with_a_gradient_is_judged_and_a_ragged_list_is_refused_in_one_line(isolated):
    torch = pytest.importorskip("torch", reason="torch is not in the test extra; CI installs it first")

    def with_gradient(x):
        codes, scales = right_int8(x)
        return torch.tensor(codes), torch.tensor(scales, requires_grad=True)

    def ragged(x):
        return [[1], [1, 2]], right_int8(x)[1]

    assert fuzz(with_gradient, mode=INT8, seed=1, examples=5, isolated=isolated).ok
    message = fuzz(ragged, mode=INT8, seed=1, examples=5, isolated=isolated).finding.message
    assert message == "returns codes as list, which is no array"


@pytest.mark.slow
def test_a_writer_that_does_not_name_the_order_gets_the_layout_s_own():
    """vllm-split, whose default a writer without `order` must assume: HND was drawn, and the writer accused."""
    seen = set()

    def writer(key, value, pages, slot_mapping, *, block_size, num_kv_heads, head_size):
        sizes = {"block_size": block_size, "num_kv_heads": num_kv_heads, "head_size": head_size}
        made = kvf.layout("vllm-split", mode=INT8, **sizes, page_bytes=pages.shape[1])
        seen.add(made.order)
        cache = kvf.PagedCache(made, len(pages))
        cache.pages[:] = pages
        cache.write(key, value, slot_mapping, recipe="golden/int8_per_token_head")
        pages[:] = cache.pages

    report = fuzz(writer, mode=INT8, layout="vllm-split", seed=0, examples=260, isolated=False)
    assert report.ok, str(report)
    assert len(seen) == 1


def tails(x):
    """Wrong in the last lanes of a head that is no multiple of 16."""
    codes, scales = right_int8(x)
    whole = x.shape[2] // 16 * 16
    codes[..., whole:] = np.where(np.abs(codes[..., whole:]) > 1, codes[..., whole:] - 1, codes[..., whole:])
    return codes, scales


def shared_amax(x):
    """Two neighbouring heads share their scale where there are four or more."""
    codes, scales = right_int8(x)
    if x.shape[1] < 4:
        return codes, scales
    wide = x.astype(np.float32)
    amax = np.maximum(scales, np.roll(scales, 1, axis=1))
    with np.errstate(all="ignore"):
        made = np.nan_to_num(np.rint(wide / amax[..., None]), nan=0, posinf=127, neginf=-127)
    return np.clip(made, -127, 127).astype(np.int8), amax


@pytest.mark.parametrize("function", [tails, shared_amax])
def test_faults_in_tails_and_among_many_heads_are_found_by_default(function):
    assert fuzz(function, mode=INT8, seed=0, examples=400, isolated=False).status == 1


def test_the_command_it_prints_searches_the_same_again(tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch")
    (tmp_path / "kernel file.py").write_text(KERNEL)
    (tmp_path / "helper_beside_it.py").write_text("import os\n\n\ndef leave():\n    os._exit(0)\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    sizes = ["--head-dim", "24", "--head-dim", "32", "--dtype", "float32"]
    where = ["--layout", "vllm-0.33", "--order", "HND", "--recipe", "vllm-0.33/triton/int8_per_token_head", "--torch"]
    for arguments in (
        ["kernel file.py:exits", "--mode", INT8, "--examples", "40", *sizes],
        ["kernel file.py:writer", "--mode", INT8, "--examples", "30", *where],
    ):
        assert main(["fuzz", *arguments, "--seed", "5"]) == 1
        first = capsys.readouterr().out
        (again,) = re.findall(r"  again: kvformat (.*)", first)
        words = shlex.split(again)
        given = [each for each in arguments if each != "--torch"]
        assert set(given) <= set(words)
        assert main(words) == 1
        second = capsys.readouterr().out
        assert [re.sub(r"in [0-9.]+ s", "", text) for text in first.splitlines()] == [
            re.sub(r"in [0-9.]+ s", "", text) for text in second.splitlines()
        ]
        assert "a line that is no part" not in first


def test_a_layout_file_is_a_layout(tmp_path, capsys, monkeypatch):
    from tests.cli.test_recipes import LAYOUT

    (tmp_path / "layout.toml").write_text(LAYOUT)
    (tmp_path / "kernel.py").write_text("def f(key, value, pages, slot_mapping, **meta):\n    pages[:] = 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    arguments = ["fuzz", "kernel.py:f", "--mode", INT8, "--layout", "mine-1.0", "--examples", "5", "--seed", "1"]
    assert main([*arguments, "--layout-file", "layout.toml"]) == 1
    assert "in mine-1.0; " in capsys.readouterr().out


def test_triton_s_interpreter_is_named(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    report = fuzz(right_int8, mode=INT8, seed=1, examples=3)
    assert "interpreter" not in str(report)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setitem(sys.modules, "triton", sys)
    assert isinstance(report, FuzzReport)
    assert "its interpreter (TRITON_INTERPRET), whose casts are not the GPU's: to fp8 it makes 500" in str(report)
    assert "smallest" in report.to_json()["note"]


def test_no_process_is_left_when_the_parent_is_ended():
    program = (
        "import os, sys; sys.path.insert(0, '.')\n"
        "from kvformat.fuzz.calls import Child\n"
        "def spin(x):\n    print(os.getpid(), flush=True)\n    while True: pass\n"
        "Child(spin).call((1,), 60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True) as parent:
        number = int(parent.stderr.readline())
        parent.kill()
    for _ in range(100):
        try:
            os.kill(number, 0)
        except ProcessLookupError:
            return
        if Path(f"/proc/{number}/stat").read_text().split()[2] == "Z":
            return
        time.sleep(0.05)
    pytest.fail("the child goes on")

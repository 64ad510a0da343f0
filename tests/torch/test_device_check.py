"""tools/device_check.py as a GPU owner will run it, as far as a machine without a GPU can tell."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

import kvformat as kvf
from kvformat.ptx import single
from kvformat.ptx.emit import bits_of
from kvformat.torch import attention as kernels
from kvformat.torch import ops
from tools import device_check
from tools.device import attention, codecs, operators, pages, table
from tools.device.run import Run

ROOT = Path(__file__).parents[2]


def run(*arguments):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "tools" / "device_check.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_a_dry_run_compiles_codecs_and_instructions_and_measures_nothing(tmp_path):
    done = run(str(tmp_path / "out"), "--dry-run", "--only", "codec,instructions")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("compiled") == 12
    assert "dry run: nothing was measured" in done.stdout
    assert not (tmp_path / "out").exists()


@pytest.mark.exhaustive
def test_a_whole_dry_run_compiles_every_part(tmp_path):
    done = run(str(tmp_path / "out"), "--dry-run")
    assert done.returncode == 0, done.stderr
    for part in device_check.PARTS:
        assert f"\n{part}" in done.stdout


def test_without_a_gpu_it_says_so(tmp_path):
    done = run(str(tmp_path / "out"))
    assert done.returncode == 2
    assert done.stderr.strip() == "device_check: torch sees no GPU; --dry-run shows what would be run"


@pytest.mark.parametrize("name", ["e4m3fn", "e2m1fn", "int8", "e5m2"])
def test_borders_are_where_the_golden_code_changes(name):
    edges = codecs.borders(name)
    at, below = (kvf.encode(patterns.astype(np.uint32).view(np.float32), name) for patterns in (edges, edges[1:] - 1))
    np.testing.assert_array_equal(at, np.arange(len(edges)))
    np.testing.assert_array_equal(below, np.arange(len(edges) - 1))


def test_configurations_cover_every_mode_layout_order_dtype_head_and_block_size():
    found = {
        (made.mode, made.name, made.order, dtype, made.head_size, made.block_size)
        for made, dtype in pages.configurations()
        if made.head_size == 128
    }
    assert len(found) == 8 * 2 * 3 * 3
    others = {(made.mode, made.name, made.head_size, made.block_size) for made, _ in pages.configurations()}
    assert len(others) == 8 * 3 * 3
    assert {dtype for made, dtype in pages.configurations() if made.head_size == 64} == {
        "bfloat16", "float16", "float32",
    }  # fmt: skip
    assert {how.made for how in attention.attentions()} == {made for made, _ in pages.configurations()}
    assert {(how.dtype, how.group) for how in attention.attentions()} == set(product(pages.DTYPES, (1, 3, 4, 8)))
    assert len(list(operators.quantizers())) == (5 + 2) * 3 * 3  # two modes have a scale of the tensor


JUDGES = [(pages._bytes, 0), (operators._quantized, 0), (attention._attended, 5)]


@pytest.mark.parametrize(("judge", "number"), JUDGES, ids=["bytes", "operators", "attention"])
def test_a_comparison_holds_where_both_devices_are_the_cpu(judge, number):
    result = judge(number, "cpu")
    assert result["wrong"] == 0
    assert result["compared"] > 8000


def test_configurations_are_judged_by_a_pool_and_those_without_time_are_named(capsys):
    late = Run(dry=False, deadline=time.monotonic(), device="cpu")
    late.compare("operators", ["first", "second"], operators._quantized)
    assert [row["result"] for row in late.rows[:2]] == ["not run: no time left"] * 2
    assert late.rows[2] == {"part": "operators", "what": "0 of 2 configurations run", "compared": 0}
    run = Run(dry=False, deadline=time.monotonic() + 600, device="cpu")
    run.compare("operators", ["first"], operators._quantized)
    (row,) = run.rows
    assert row["what"] == "1 of 1 configurations run"
    assert row["compared"] > 100_000
    assert "not run: no time left" in capsys.readouterr().out


def test_elements_are_compared_bit_for_bit_and_nan_as_a_class():
    x = torch.tensor([0.0, 1.0, torch.nan, -torch.nan])
    assert operators._different(x, torch.tensor([-0.0, 1.0, -torch.nan, 2.0])) == 2
    assert operators._different(x, x.double()) == 4
    assert operators._different(torch.tensor([1, 2]), torch.tensor([1, 3])) == 1


@pytest.fixture
def through_the_interpreter(monkeypatch):
    """Attention goes to the kernels; the pages are still written and read by the engine."""
    right = ops.paged_attention

    def attend(*arguments):
        with monkeypatch.context() as inside:
            inside.setattr(ops, "_by_engine", lambda _: False)
            return right(*arguments)

    monkeypatch.setattr(ops, "paged_attention", attend)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter computes on NumPy arrays
@pytest.mark.usefixtures("through_the_interpreter")
def test_attention_by_kernels_holds_and_a_wrong_one_is_counted(monkeypatch):
    monkeypatch.setattr(attention, "LENGTHS", (1, 0, 40))
    int8 = next(i for i, how in enumerate(attention.attentions()) if how.made.mode == "int8_per_token_head")
    assert attention._attended(int8, "cpu")["wrong"] == 0
    monkeypatch.setattr(kernels, "log2_scale", lambda tau: 1.5 * tau)  # log2(e) is 1.4427
    assert attention._attended(int8, "cpu")["wrong"] > 100
    monkeypatch.setattr(kernels, "log2_scale", lambda _: float("nan"))
    wrong = attention._attended(int8, "cpu")
    assert wrong["wrong"] == wrong["compared"] * 2 // 3  # the empty sequence is still 0


@pytest.mark.parametrize("entry", table.ENTRIES, ids=lambda entry: entry.opcode)
def test_each_instruction_of_the_table_is_modelled(entry):
    """What a GPU will be asked has an answer: as many sources, and the register's bits."""
    *_, kind = single._program(entry.opcode, (None,) * entry.sources, "ptxas")
    assert {"pred": 1}.get(kind) == entry.bits or bits_of(kind) == entry.bits

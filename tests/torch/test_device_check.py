"""tools/device_check.py as a GPU owner will run it, as far as a machine without a GPU can tell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import kvformat as kvf
from tools import device_check
from tools.device import codecs, pages

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
        for made, dtype in pages._configurations()
        if made.head_size == 128
    }
    assert len(found) == 8 * 2 * 3 * 3
    others = {(made.mode, made.name, made.head_size, made.block_size) for made, _ in pages._configurations()}
    assert len(others) == 8 * 3 * 3
    assert {dtype for made, dtype in pages._configurations() if made.head_size == 64} == {
        "bfloat16", "float16", "float32",
    }  # fmt: skip


def test_the_comparison_runs_where_both_devices_are_the_cpu():
    made, dtype = next(iter(pages._configurations()))
    assert (made.mode, dtype) == ("none", "bfloat16")
    result = pages._bytes(0, "cpu", float("inf"))
    assert result["wrong"] == 0
    assert result["compared"] > 100_000
    assert pages._bytes(0, "cpu", 0.0) is None

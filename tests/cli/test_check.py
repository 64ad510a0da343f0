"""kvformat check: what it does with files that are no dumps, and the sample that it judges without one."""

from __future__ import annotations

import hashlib
import json
import re
from importlib.resources import files

import ml_dtypes
import numpy as np
import pytest

from kvformat.cli import main
from kvformat.data import LAYERS, SAMPLE_FILE, sample


def test_of_several_files_each_one_that_cannot_be_judged_has_its_own_line(capsys, tmp_path):
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(b"\x10")
    assert main(["check", str(cut), str(tmp_path), str(tmp_path / "none")]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 3
    for line, path in zip(lines, (cut, tmp_path, tmp_path / "none"), strict=True):
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

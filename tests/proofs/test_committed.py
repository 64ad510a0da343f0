"""The proofs in spec/: about the recipes as they are, and what they list is what the codecs say."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import kvformat as kvf

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import make_proofs  # noqa: E402 from the folder named above

LOGGED = [plan for plan in make_proofs.PROOFS if make_proofs.log_of(plan).exists()]


@pytest.mark.parametrize("plan", LOGGED, ids=lambda plan: plan.name)
def test_a_log_is_about_the_recipes_as_they_are(plan):
    assert make_proofs.current(plan), f"run: python tools/make_proofs.py {plan.name}"


def test_the_page_is_made_from_the_logs():
    assert (make_proofs.FOLDER / "README.md").read_text("utf-8") == make_proofs.page()


@pytest.mark.parametrize("plan", [plan for plan in LOGGED if plan.listed], ids=lambda plan: plan.name)
def test_listed_differences_are_differences(plan):
    """Each 97th line: a row of amax and x, quantized by both recipes."""
    rows = list(csv.DictReader((make_proofs.FOLDER / f"{plan.name}.csv").read_text("utf-8").splitlines()))
    log = json.loads(make_proofs.log_of(plan).read_text("utf-8"))
    assert len(rows) == log["different_codes"] + log["different_scales"]
    sampled = rows[::97]
    pairs = [[float.fromhex(row["amax"]), float.fromhex(row["x"])] for row in sampled]
    x = np.array(pairs)[:, None].astype(ml_dtypes.bfloat16)
    for name, side in ((plan.left, "left"), (plan.right, "right")):
        codes = kvf.quantize(x, name).codes[:, 0, 1].view(np.uint8)
        assert codes.tolist() == [int(row[side], 16) for row in sampled]

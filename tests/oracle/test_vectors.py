"""The vectors are what their generator makes, every expectation confirmed by its sources once more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def confirmed(prefix):
    """Make the files whose path begins so once more, and compare."""
    command = [sys.executable, str(ROOT / "tools" / "make_vectors.py"), "--check", "--only", prefix]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def needs_oracles():
    if os.environ.get("KVFORMAT_ORACLES") != "1":
        pytest.skip("takes minutes; CI runs it with KVFORMAT_ORACLES=1, you with tools/make_vectors.py --check")


def test_every_vector_of_an_element_is_confirmed_again_by_its_sources():
    needs_oracles()
    confirmed("elements")


@pytest.mark.exhaustive  # ten minutes; `.ci/engines` runs it. The slow tests hold the recipes to their vectors
@pytest.mark.parametrize("prefix", ["recipes", "pages"])
def test_every_vector_of_a_recipe_or_a_page_is_confirmed_again_by_its_sources(prefix):
    needs_oracles()
    confirmed(prefix)

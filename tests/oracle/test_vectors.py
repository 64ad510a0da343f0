"""The vectors are what their generator makes, every expectation confirmed by its sources once more: some minutes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_every_vector_is_confirmed_again_by_its_sources():
    if os.environ.get("KVFORMAT_ORACLES") != "1":
        pytest.skip("takes minutes; CI runs it with KVFORMAT_ORACLES=1, you with tools/make_vectors.py --check")
    command = [sys.executable, str(ROOT / "tools" / "make_vectors.py"), "--check"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

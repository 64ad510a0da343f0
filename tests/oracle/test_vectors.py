"""The vectors are what their generator makes, every expectation confirmed by its sources once more: some minutes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VECTORS = ROOT / "spec" / "vectors"


def halves():
    """Beginnings of paths, in two parts that take about as long: a recipe's file takes the time of its kernels."""
    recipes = [path.name for path in (VECTORS / "recipes").iterdir()]
    weights = {f"recipes/{letter}": 0 for letter in sorted({name[0] for name in recipes})}
    for path in (VECTORS / "recipes").rglob("*.json"):
        weights[f"recipes/{path.relative_to(VECTORS / 'recipes').parts[0][0]}"] += 1
    parts, sums = (["elements"], ["pages"]), [0, len(list((VECTORS / "pages").iterdir()))]
    for prefix in sorted(weights, key=weights.__getitem__, reverse=True):
        least = sums.index(min(sums))
        parts[least].append(prefix)
        sums[least] += weights[prefix]
    return parts


@pytest.mark.parametrize("prefixes", halves(), ids=["first half", "second half"])
def test_every_vector_is_confirmed_again_by_its_sources(prefixes):
    if os.environ.get("KVFORMAT_ORACLES") != "1":
        pytest.skip("takes minutes; CI runs it with KVFORMAT_ORACLES=1, you with tools/make_vectors.py --check")
    command = [sys.executable, str(ROOT / "tools" / "make_vectors.py"), "--check"]
    command += [word for prefix in prefixes for word in ("--only", prefix)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

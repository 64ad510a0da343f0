"""What was executed is what is here now: no recipe, layout or adapter has changed since its log was written."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kvformat.recipes.catalogue import recipe as find
from kvformat.recipes.evidence import evidence, executions, program_hash
from tests.engines import record

LOGS = sorted(record.LOGS.glob("*.json"))
AGAIN = "run .ci/engines, and commit what it writes"


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_nothing_has_changed_since_the_engines_ran(path):
    log = json.loads(path.read_text(encoding="utf-8"))
    stale = [name for name, found in log["recipes"].items() if program_hash(find(name)) != found]
    stale += [name for name, found in log["layouts"].items() if record.layout_hash(name) != found]
    stale += [name for name, found in log["adapters"].items() if record.file_hash(record.ROOT / name) != found]
    assert not stale, f"changed since {path.name} was written: {', '.join(stale)}; {AGAIN}"


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_every_comparison_in_the_log_holds(path):
    runs = json.loads(path.read_text(encoding="utf-8"))["runs"]
    assert runs
    assert not [run for run in runs if run["differ"]]
    assert all(run["compared"] >= 16 for run in runs)


def test_the_package_says_what_the_logs_say():
    said = record.EXECUTED.read_text(encoding="utf-8")
    assert json.loads(said) == record.collected(), AGAIN


def test_a_recipe_that_changed_counts_as_read():
    recipe = find("vllm-0.33/csrc/fp8_per_tensor")
    assert evidence(recipe) == "executed"
    assert executions(recipe)[0].engine == "vllm"
    changed = find("vllm-0.33/csrc-e5m2/fp8_per_tensor").code
    assert evidence(replace(recipe, code=changed, element="e5m2")) == "read"
    assert evidence(find("golden/fp8_per_tensor")) == "defined"

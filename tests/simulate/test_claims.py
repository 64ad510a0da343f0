"""spec/claims.md: it is what its tool makes of the committed measurements, and its verdicts follow the numbers."""

from __future__ import annotations

import copy
import json

import pytest

from kvformat.simulate.experiments import EXPERIMENTS, Settings
from tools import make_claims
from tools.make_claims import CLAIMS, HOLDS, NOT, PAGE, WHEN, Data


@pytest.fixture
def data():
    return copy.deepcopy(Data.load())


def test_the_committed_page_is_what_the_tool_makes(data):
    assert PAGE.read_text(encoding="utf-8") == make_claims.page(data)


def test_every_claim_has_a_verdict_a_figure_and_a_command(data):
    for claim, judge in CLAIMS.items():
        found = judge(data)
        assert found.verdict in (HOLDS, WHEN, NOT), claim
        assert any(c.isdigit() for c in found.figure) or claim == "quantization does not change prefix hits"
        assert found.command
        assert "|" not in found.figure


@pytest.mark.parametrize(
    ("claim", "case", "changes", "verdict"),
    [
        ("FP8 per token head costs about 0", "FP8 per token head", {"dnll": 0.1}, NOT),
        ("NVFP4 costs 0.3 to 1.0 PPL", "NVFP4, scale 1.0", {"dnll": 0.001}, NOT),
        ("INT8 per token head costs 0.1 to 0.3 PPL", "INT8 per token head, biased keys", {"dnll": 0.0}, NOT),
        ("FP8 per tensor costs less than 0.1 PPL", "FP8 per tensor, calibrated", {"dnll": 0.2}, NOT),
        ("FP8 per token head is the best choice today", "INT8 per token head", {"kl": 1.0}, HOLDS),
        ("the cache is more sensitive than the weights", "NVFP4, weights only", {"kl": 0.0}, HOLDS),
    ],
)
def test_a_verdict_changes_with_its_number(data, claim, case, changes, verdict):
    assert CLAIMS[claim](data).verdict != verdict
    data.case(case).update(changes)
    assert CLAIMS[claim](data).verdict == verdict


def test_a_larger_sink_would_make_the_claim_hold(data):
    claim = CLAIMS["a sink token has a far larger K"]
    assert claim(data).verdict == NOT
    for row in data.rows("sink"):
        row["norm 0 / median"] = 10.0
    assert claim(data).verdict == HOLDS


@pytest.mark.parametrize("name", ["sink", "sharing"])
def test_the_committed_experiments_are_what_they_give(name):
    committed = json.loads(make_claims.EXPERIMENT_FILE.read_text())["experiments"]
    (there,) = (each for each in committed if each["name"] == name)
    made = EXPERIMENTS[name].run(Settings(), lambda _done, _total: None).to_json()
    assert made["says"] == there["says"]
    assert [list(row) for row in made["rows"]] == [list(row) for row in there["rows"]]

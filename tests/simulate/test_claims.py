"""spec/claims.md: it is what its tool makes of the committed measurements, and its verdicts follow the numbers."""

from __future__ import annotations

import copy
import json
from dataclasses import replace

import pytest

from kvformat.simulate.experiments import EXPERIMENTS, Settings
from kvformat.simulate.model.cases import CASES
from tools import make_claims, measure_model
from tools.make_claims import CLAIMS, HOLDS, NOT, PAGE, UNDECIDED, WHEN, Data


@pytest.fixture
def data():
    return copy.deepcopy(Data.load())


def test_the_committed_page_is_what_the_tool_makes(data):
    assert PAGE.read_text(encoding="utf-8") == make_claims.page(data)


def test_every_claim_has_a_verdict_a_figure_and_a_command(data):
    for claim, judge in CLAIMS.items():
        found = judge(data)
        assert found.verdict in (HOLDS, WHEN, NOT, UNDECIDED), claim
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


RANGES = {
    "FP8 per tensor costs less than 0.1 PPL": "FP8 per tensor, calibrated",
    "FP8 per token head costs about 0": "FP8 per token head",
    "INT8 per token head costs 0.1 to 0.3 PPL": "INT8 per token head, biased keys",
    "NVFP4 costs 0.3 to 1.0 PPL": "NVFP4, scale 1.0",
}


@pytest.mark.parametrize("claim", RANGES)
def test_fewer_tokens_decide_no_claim(data, claim):
    data.case(RANGES[claim])["dnll_se"] = 1.0
    assert CLAIMS[claim](data).verdict == UNDECIDED


def test_an_error_bar_that_reaches_out_of_the_range_decides_nothing(data):
    data.case("INT8 per token head, biased keys").update(dnll=0.0384, dnll_se=0.0070)  # 0.147 to 0.323 at PPL 6
    assert CLAIMS["INT8 per token head costs 0.1 to 0.3 PPL"](data).verdict == UNDECIDED
    data.case("INT8 per token head, biased keys").update(dnll_se=0.0030)
    assert CLAIMS["INT8 per token head costs 0.1 to 0.3 PPL"](data).verdict == WHEN


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
    # six digits are committed, and a matrix product adds in another order on another machine
    for found, kept in zip(made["rows"], there["rows"], strict=True):
        assert found.keys() == kept.keys()
        for column, value in kept.items():
            assert found[column] == (pytest.approx(value, rel=1e-5) if isinstance(value, float) else value), column


def test_a_kept_measurement_is_found_only_for_what_it_was_made_of(tmp_path):
    case, work = CASES[0], tmp_path / "work"
    model = tmp_path / "model.gguf"
    model.write_bytes(b"one")
    made_of = measure_model.inputs(model, "text")
    there = measure_model.place(work, made_of, case, 512, 0)
    assert there == measure_model.place(work, measure_model.inputs(model, "text"), case, 512, 0)
    model.write_bytes(b"two")
    others = [
        measure_model.place(work, measure_model.inputs(model, "text"), case, 512, 0),
        measure_model.place(work, measure_model.inputs(tmp_path / "model.gguf", "other"), case, 512, 0),
        measure_model.place(work, made_of, replace(case, key="golden/nvfp4"), 512, 0),
        measure_model.place(work, made_of, case, 512, 1),
    ]
    assert len({there, *others}) == 5


def test_a_changed_source_makes_other_measurements(tmp_path, monkeypatch):
    model = tmp_path / "model.gguf"
    model.write_bytes(b"one")
    source = tmp_path / "package" / "recipes" / "a.py"
    source.parent.mkdir(parents=True)
    source.write_text("a = 1")
    monkeypatch.setattr(measure_model.kvformat, "__file__", str(tmp_path / "package" / "__init__.py"))
    before = measure_model.inputs(model, "text")
    source.write_text("a = 2")
    assert measure_model.inputs(model, "text") != before

"""Experiments and how they are reported: rows of one shape, plots that show something, one page without links."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from kvformat.cli import main
from kvformat.simulate.experiments import EXPERIMENTS, Plot, Result, Settings, rounding
from kvformat.simulate.experiments import depth as depths
from kvformat.simulate.storage import Storage

CHEAP = ("scale", "rounding", "sink", "pareto", "debias", "eviction", "sharing")


@pytest.fixture(scope="module")
def results():
    """The cheap experiments at their smallest."""
    steps = []
    found = {}
    for name in CHEAP:
        found[name] = EXPERIMENTS[name].run(Settings(tokens=48, budget=16), lambda *step: steps.append(step))
        assert steps[-1][0] == steps[-1][1], "progress ends at its total"
    return found


def test_rows_have_one_shape_and_no_number_is_nan(results):
    for result in results.values():
        assert result.rows
        assert result.says
        for row in result.rows:
            assert list(row) == list(result.rows[0])
            assert all(np.isfinite(value) for value in row.values() if isinstance(value, float)), row
        json.dumps(result.to_json(), allow_nan=False)


def test_evicted_mass_is_the_total_variation_of_eviction_alone_and_the_bound_holds(results):
    for row in results["eviction"].rows:
        assert row["tv"] <= row["bound on tv"] + 1e-9
        if row["mode"] == "none":  # bf16 pages add their own rounding
            assert row["tv"] == pytest.approx(row["evicted mass"], abs=0.01)


def test_the_best_scale_is_never_worse_than_the_recipe_by_more_than_its_own_rounding(results):
    assert all(row["cost of the scale dB"] > -0.01 for row in results["rounding"].rows)
    assert any(row["cost of the scale dB"] > 0.5 for row in results["rounding"].rows)


def test_the_best_scale_reaches_an_exact_one():
    x = np.array([[[0.5, 1.0, 1.5, 6.0] * 4]]) * 0.25
    assert np.array_equal(rounding.best_scale(x, "e2m1fn", 6.0, 16), x)


def test_the_front_has_no_storage_that_another_one_beats(results):
    for row in results["pareto"].rows:
        beaten = [
            other
            for other in results["pareto"].rows
            if other["profile"] == row["profile"] and other["bytes"] < row["bytes"] and other["kl"] < row["kl"]
        ]
        assert not (row["on the front"] and beaten)


@pytest.mark.slow
def test_normalisation_holds_the_error_of_a_deep_stack():
    norm = depths.NORMS["RMSNorm"]
    storage = Storage.of("golden/int8_per_token_head")
    exact, other = depths.stack(0, norm, None), depths.stack(0, norm, storage)
    errors = [np.linalg.norm(b - a) / np.linalg.norm(a) for a, b in zip(exact, other, strict=True)]
    assert len(errors) == 80
    assert errors[-1] < 10 * errors[0]


@pytest.mark.slow
def test_the_long_experiments_run():
    for name in ("depth", "length"):
        result = EXPERIMENTS[name].run(Settings(), lambda _done, _total: None)
        assert result.rows
        assert all(np.isfinite(value) for row in result.rows for value in row.values() if isinstance(value, float))


def drawn(svg):
    """The lines that a plot shows: by axes element, how many points each path has."""
    root = ET.fromstring(svg)
    axes = next(g for g in root.iter("{http://www.w3.org/2000/svg}g") if g.get("id") == "axes_1")
    lines = [g for g in axes if (g.get("id") or "").startswith("line2d")]
    return [
        len(re.findall(r"[ML] ", path.get("d", ""))) for g in lines for path in g.iter() if path.tag.endswith("path")
    ]


def test_the_report_is_one_file_whose_plots_show_every_point(results, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not in the test extra (it is in plots); CI installs it")
    from kvformat.simulate import html

    results = {name: results[name] for name in ("sink", "pareto", "eviction")}
    page = html.page(list(results.values()))
    (tmp_path / "a").mkdir()
    html.write(tmp_path / "a" / "out.html", list(results.values()))
    assert (tmp_path / "a" / "out.html").read_text("utf-8") == page
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["out.html"]
    assert not re.search(r'(src|href)="https?:', page)
    assert "<script" not in page
    plots = [plot for result in results.values() for plot in result.plots]
    assert page.count("<svg") == len(plots) > 4
    for plot in plots:
        svg = html.svg(plot)
        shown = [points for points in plot.series.values() if any(y > 0 or not plot.log_y for _, y in points)]
        assert len(drawn(svg)) >= len(shown), plot.title
        assert max(drawn(svg)) > 1 or plot.kind == "points", plot.title
        assert all(name in svg for name in plot.series)
    assert svg == html.svg(plot)


def test_text_from_a_result_is_escaped():
    pytest.importorskip("matplotlib", reason="matplotlib is not in the test extra (it is in plots); CI installs it")
    from kvformat.simulate import html

    result = Result("x", "<b>", [{"a": "<script>"}], ["1 < 2"], [Plot("a & b", "x", "y", {"s<": [(1, 1), (2, 2)]})])
    page = html.page([result])
    assert "<script>" not in page
    assert "<h2>&lt;b&gt;</h2>" in page


def test_the_command_prints_tables_json_and_a_report(tmp_path, capsys):
    pytest.importorskip("matplotlib", reason="matplotlib is not in the test extra (it is in plots); CI installs it")
    report = tmp_path / "out.html"
    assert main(["simulate", "sink", "--json", "--report", str(report)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is True
    assert [each["name"] for each in document["experiments"]] == ["sink"]
    assert report.is_file()
    assert main(["simulate", "sink"]) == 0
    assert "it sets no scale" in capsys.readouterr().out
    assert main(["simulate", "--list", "--json"]) == 0
    assert [e["name"] for e in json.loads(capsys.readouterr().out)["experiments"]] == list(EXPERIMENTS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["eviction", "--budget", "0"], "budget must be at least 1; got 0"),
        (["scale", "--tokens", "3"], "tokens must be at least 16"),
        (["scale", "--seed", "-1"], "seed must be at least 0"),
        (["model", "--layers", "0"], "layers must be at least 1"),
        (["model", "--chunks", "0"], "chunks must be at least 1"),
        (["evction"], "did you mean eviction?"),
        (["sink", "--report", "/nowhere/at/all.html"], "there is no such folder"),
        (["sink", "--report", "/"], "is a directory"),
    ],
)
def test_bad_input_is_one_line_and_status_2(arguments, message, capsys):
    pytest.importorskip("matplotlib", reason="matplotlib is not in the test extra (it is in plots); CI installs it")
    assert main(["simulate", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1

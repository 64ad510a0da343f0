"""Many dumps: files, folders and patterns; one verdict each, the same for any team; faults in groups."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

import kvformat as kvf
from kvformat.cli import main
from kvformat.many import check_files
from kvformat.many.files import expand, layer_in
from tests.cli.test_check import dump_file


@pytest.fixture
def folder(tmp_path):
    """Two layers in a folder each, one file that is wrong and one that is none."""
    for name, edits in (("a/layer3.safetensors", ()), ("b/layer10.safetensors", [(0, 0)])):
        (tmp_path / name).parent.mkdir()
        dump_file(tmp_path, name, edits=edits)
    (tmp_path / "b" / "cut.safetensors").write_bytes(b"\x10")
    (tmp_path / "notes.txt").write_text("no dump")
    return tmp_path


def test_a_folder_is_every_safetensors_file_in_it_and_a_pattern_what_it_matches(folder):
    every = [str(folder / name) for name in ("a/layer3.safetensors", "b/cut.safetensors", "b/layer10.safetensors")]
    assert expand([str(folder)]) == every
    assert expand([str(folder / "*" / "layer*.safetensors")]) == [every[0], every[2]]
    assert expand([every[2], str(folder)]) == [every[2], *every[:2]]  # each once
    assert expand([str(folder / "none*")]) == [str(folder / "none*")]  # it says itself that it is none


def test_a_file_whose_name_is_a_pattern_is_that_file(tmp_path):
    path = dump_file(tmp_path, "[0-9].safetensors")
    dump_file(tmp_path, "7.safetensors")
    assert expand([str(path)]) == [str(path)]


@pytest.mark.parametrize(
    "path, layer",
    [("x/layer12.safetensors", "12"), ("layers.3/rank0.st", "3"), ("Layer_07", "07"), ("player.st", None)],
)
def test_the_layer_is_read_from_the_name(path, layer):
    assert layer_in(path) == layer


def test_verdicts_come_in_order_and_are_the_same_for_any_team(folder):
    alone = list(check_files(folder))
    assert [verdict.status for verdict in alone] == [0, 2, 1]
    with ThreadPoolExecutor(2) as pool, kvf.parallel(pool):
        assert list(check_files(folder)) == alone


def test_the_table_has_a_row_for_each_file_and_the_document_all_reports(folder, capsys):
    assert main(["check", str(folder), "--workers", "1"]) == 2
    lines = capsys.readouterr().out.splitlines()
    rows = [" ".join(line.split()) for line in lines[1:4]]
    assert rows[0] == f"{folder}/a/layer3.safetensors 3 holds 0 20 golden/int8_per_token_head"
    assert rows[1].startswith(f"{folder}/b/cut.safetensors CANNOT TELL is not a whole safetensors file")
    first = "K code of token 0, head 0, dim 0: 127, found 0"
    assert rows[2] == f"{folder}/b/layer10.safetensors 10 DIFFERS 1 20 golden/int8_per_token_head: {first}"
    assert lines[-1] == "1 of 3 files hold, 2 do not, in 2 groups"
    assert main(["check", str(folder), "--workers", "1", "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert (document["ok"], document["status"], document["files"]) == (False, 2, 3)
    assert (document["compared"], document["mismatches"]) == (40, 1)
    assert document["first"]["dump"] == str(folder / "b/layer10.safetensors")
    assert [report["status"] for report in document["reports"]] == [0, 2, 1]
    assert [(group["status"], group["count"]) for group in document["groups"]] == [(2, 1), (1, 1)]


def test_a_stopped_run_goes_on_where_it_was_and_a_changed_file_is_judged_again(folder, tmp_path_factory, capsys):
    runs = tmp_path_factory.mktemp("runs")
    arguments = ["check", str(folder), "--resume", str(runs), "--workers", "1", "--json"]
    assert main(arguments) == 2
    whole = capsys.readouterr().out
    path = runs / "results.jsonl"
    head, first = path.read_text().splitlines(keepends=True)[:2]
    path.write_text(head + first.replace('"compared": 20', '"compared": 21'))  # marked, and the others forgotten
    assert main(arguments) == 2
    assert capsys.readouterr().out == whole.replace('"compared": 20', '"compared": 21', 1).replace(
        '"compared": 40', '"compared": 41'
    )
    dump_file(folder, "a/layer3.safetensors", edits=[(0, 0)])
    assert main(arguments) == 2
    assert [report["status"] for report in json.loads(capsys.readouterr().out)["reports"]] == [1, 2, 1]
    assert main([*arguments, "--recipe", "vllm-0.33/triton/int8_per_token_head"]) == 2
    assert "holds another run" in json.loads(capsys.readouterr().out)["error"]


def test_the_built_in_check_has_no_workers_and_no_journal(capsys, tmp_path):
    assert main(["check", "--resume", str(tmp_path / "x")]) == 2
    assert "are for dumps; name one" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_lint_takes_a_folder_and_every_file_has_its_report(folder, capsys):
    assert main(["lint", str(folder), "--workers", "1", "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert document["files"] == 3
    assert [report["status"] == 2 for report in document["reports"]] == [False, True, False]

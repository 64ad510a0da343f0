"""The journal: what is finished stays finished, whatever ends the program, and foreign results are refused."""

from __future__ import annotations

import errno
import json
from contextlib import suppress

import pytest

import kvformat as kvf
from kvformat.tasks import journal as journals
from kvformat.tasks.journal import Journal


def written(folder, results, name="a run"):
    journal = Journal(folder, name)
    for key, result in results.items():
        journal.put(key, result)
    journal.finish()
    return folder / "results.jsonl"


def held(folder, name="a run"):
    """What another program reads there, by key."""
    journal = Journal(folder, name)
    try:
        return {key: journal.get(key) for key in journal._places}
    finally:
        journal.close()


def test_results_are_read_back_in_another_program(tmp_path):
    results = {"a": {"x": [1, 2.5, None]}, "ü b": "text", "c": 0}
    written(tmp_path / "new" / "folder", results)
    assert held(tmp_path / "new" / "folder") == results


@pytest.mark.parametrize("cut", [1, 7, 30])
def test_a_line_that_was_cut_is_a_task_that_is_not_finished(tmp_path, cut):
    """As kill -9 or a full disk leave it: the other results are there, and what comes after is whole."""
    path = written(tmp_path, {"a": 1, "b": 2})
    path.write_bytes(path.read_bytes()[:-cut])
    again = Journal(tmp_path, "a run")
    assert "a" in again
    assert "b" not in again
    again.put("b", 3)
    again.finish()
    assert [json.loads(line)["key"] for line in path.read_text().splitlines()[1:]] == ["a", "b"]


def test_a_file_cut_in_its_first_line_is_a_new_one(tmp_path):
    path = written(tmp_path, {"a": 1})
    path.write_bytes(path.read_bytes()[:10])
    again = Journal(tmp_path, "a run")
    assert len(again) == 0
    again.put("a", 2)
    again.finish()
    assert held(tmp_path) == {"a": 2}


def test_results_of_another_run_or_of_other_code_are_refused(tmp_path, monkeypatch):
    written(tmp_path, {"a": 1})
    with pytest.raises(kvf.InputError, match="holds another run"):
        Journal(tmp_path, "another run")
    monkeypatch.setattr(journals, "code_digest", lambda: "0123456789abcdef")
    with pytest.raises(kvf.InputError, match="holds another run"):
        Journal(tmp_path, "a run")


def test_a_file_that_is_no_journal_is_refused_and_stays(tmp_path):
    (tmp_path / "results.jsonl").write_text("precious\n")
    with pytest.raises(kvf.InputError, match="is no journal"):
        Journal(tmp_path, "a run")
    assert (tmp_path / "results.jsonl").read_text() == "precious\n"


def test_two_runs_do_not_write_to_one_folder(tmp_path):
    first = Journal(tmp_path, "a run")
    with pytest.raises(kvf.InputError, match="another run writes"):
        Journal(tmp_path, "a run")
    first.close()
    Journal(tmp_path, "a run").close()


def test_a_full_disk_is_one_line_and_what_was_written_stays(tmp_path, monkeypatch):
    journal = Journal(tmp_path, "a run")
    journal.put("a", 1)
    journal.write()
    size = (tmp_path / "results.jsonl").stat().st_size

    def full(_descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(journals.os, "fsync", full)
    journal.put("b", 2)
    with pytest.raises(kvf.InputError, match="No space left on device"):
        journal.write()
    assert (tmp_path / "results.jsonl").stat().st_size == size
    monkeypatch.undo()
    journal.write()  # room again: nothing was lost
    journal.close()
    assert held(tmp_path) == {"a": 1, "b": 2}


def test_there_is_at_most_one_sync_for_half_a_second_of_work(tmp_path, monkeypatch):
    now, syncs = [0.0], []
    monkeypatch.setattr(journals, "monotonic", lambda: now[0])
    monkeypatch.setattr(journals.os, "fsync", syncs.append)
    journal = Journal(tmp_path, "a run")
    for number in range(1000):
        now[0] += 0.01
        journal.put(str(number), number)
    journal.finish()
    assert 15 <= len(syncs) <= 10 / 0.5 + 2  # ten seconds; the head, and the end


def test_a_folder_of_its_own_is_there_only_until_the_run_is_over(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with Journal.opened(None, "a run") as journal:
        journal.put("a", 1)
        assert journal.resumable is None  # a short run writes nothing
        journal.write()
        assert journal.resumable is not None
        assert journal.get("a") == 1
    assert list(tmp_path.rglob("*.jsonl")) == []
    with suppress(KeyboardInterrupt), Journal.opened(None, "a run") as journal:
        journal.put("a", 1)
        raise KeyboardInterrupt
    stopped = journal.resumable
    assert stopped is not None
    assert held(stopped) == {"a": 1}

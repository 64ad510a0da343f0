"""kvformat sweep: status, document, and going on after an interruption; the sweep of the first patterns only."""

from __future__ import annotations

import json

import numpy as np
import pytest

from kvformat.cli import main
from kvformat.elements import sweep

TOTAL = 1 << 18


@pytest.fixture(autouse=True)
def _short(monkeypatch, tmp_path):
    monkeypatch.setattr(sweep, "_PATTERNS", TOTAL)
    monkeypatch.setattr(sweep, "_NOTE", TOTAL // 2)
    monkeypatch.setattr(sweep, "_CHUNK", TOTAL // 4)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def break_codec(monkeypatch, pattern):
    right = sweep.encode

    def wrong(x, fmt, **policy):
        codes = right(x, fmt, **policy)
        codes[x.view(np.uint32) == pattern] = 3
        return codes

    monkeypatch.setattr(sweep, "encode", wrong)


def test_a_codec_that_holds_is_status_0(capsys):
    assert main(["sweep", "e2m1fn"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert captured.out.startswith(f"holds: e2m1fn, {TOTAL:,} conversions")
    assert captured.out.count("\n") == 1


def test_a_codec_that_is_wrong_once_is_status_1_with_the_pattern(capsys, monkeypatch):
    break_codec(monkeypatch, 0x12345)
    assert main(["sweep", "e2m1fn"]) == 1
    captured = capsys.readouterr()
    assert captured.out.startswith("DIFFERS: e2m1fn, 1 of ")
    assert "0x00012345" in captured.out


def test_the_document_says_how_much_was_judged_and_what_was_found_first(capsys, monkeypatch):
    assert main(["sweep", "e5m2", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["ok"], document["status"], document["mismatches"], document["first"]) == (True, 0, 0, None)
    assert (document["format"], document["policies"], document["judged"]) == ("e5m2", 2, 2 * TOTAL)
    break_codec(monkeypatch, 9)
    assert main(["sweep", "e5m2", "--json"]) == 1
    captured = capsys.readouterr()
    assert captured.err == ""
    document = json.loads(captured.out)
    assert (document["ok"], document["status"], document["mismatches"]) == (False, 1, 2)
    assert document["first"] == {
        "pattern": "0x00000009", "overflow": "saturate", "rounding": "nearest_even", "expected": "0x00",
        "found": "0x03",
    }  # fmt: skip


def test_an_interrupted_sweep_goes_on_and_says_where(capsys, monkeypatch):
    right, calls = sweep._judge, []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == 4:
            raise KeyboardInterrupt
        right(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(sweep, "_judge", interrupted)
        assert main(["sweep", "e2m1fn"]) not in (0, 1)
    capsys.readouterr()
    assert main(["sweep", "e2m1fn"]) == 0
    assert f"resumed at {TOTAL // 2:,}" in capsys.readouterr().out


def test_an_unknown_format_is_refused_before_anything_is_swept(capsys, monkeypatch):
    monkeypatch.setattr(sweep, "run", lambda *_arguments, **_options: pytest.fail("swept"))
    assert main(["sweep", "e4m3f"]) == 2
    assert "e4m3fn" in capsys.readouterr().err

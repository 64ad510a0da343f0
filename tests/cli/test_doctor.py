"""kvformat doctor: one line for each thing that may be missing, and status 2 only for what all commands need."""

from __future__ import annotations

import json

import pytest

from kvformat import installation
from kvformat.cli import main
from kvformat.installation import Finding

FINDINGS = (
    Finding("numba cache", "/somewhere"),
    Finding("extra torch", "torch is missing", remedy="pip install 'kvformat[torch]'"),
)
WRONG = Finding("numpy", "numpy is missing", good=False, remedy="pip install 'numpy>=1.23.3'")


@pytest.mark.parametrize("found, status", [(FINDINGS, 0), ((*FINDINGS, WRONG), 2)])
def test_a_missing_extra_is_no_fault_and_a_missing_core_package_is(monkeypatch, capsys, found, status):
    monkeypatch.setattr(installation, "findings", lambda: iter(found))
    assert main(["doctor"]) == status
    text = capsys.readouterr().out
    assert all(each.says in text and each.remedy in text for each in found)
    assert ("numpy: WRONG" in text) == bool(status)
    assert main(["doctor", "--json"]) == status
    document = json.loads(capsys.readouterr().out)
    assert (document["ok"], document["status"]) == (not status, status)
    assert [each["name"] for each in document["findings"]] == [each.name for each in found]


def test_this_installation_can_run_kvformat(capsys):
    assert main(["doctor", "--json"]) == 0
    names = [each["name"] for each in json.loads(capsys.readouterr().out)["findings"]]
    assert {"python", "numba cache", "threads", "cc", "g++", "nvcc", "gpu"} <= set(names)

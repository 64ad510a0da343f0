"""A Dask cluster on this machine: a killed worker, a killed client, and the same bytes in the end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep
from types import ModuleType

import pytest

from kvformat.cli import main
from tests.cli.test_check import dump_file

pytestmark = pytest.mark.slow  # starts a cluster

ROOT = Path(__file__).parents[2]
FILES = 400


@pytest.fixture
def cluster(monkeypatch):
    """A scheduler and two workers, processes of their own."""
    distributed = pytest.importorskip("distributed")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))  # pytest's own script would run in each worker
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    ) as made:
        yield made


def journaled(folder):
    path = folder / "results.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.filterwarnings("ignore")  # Dask's own, about sockets of what was killed
def test_a_killed_worker_and_a_killed_client_leave_the_same_bytes(cluster, tmp_path, capsys):
    folder, kept = tmp_path / "dumps", tmp_path / "run"
    folder.mkdir()
    wrong = dump_file(tmp_path, edits=[(0, 0)])
    right = dump_file(tmp_path, "right.safetensors")
    for number in range(FILES):
        os.link(wrong if number % 7 == 3 else right, folder / f"{number:03}.safetensors")
    arguments = ["check", str(folder), "--json", "--resume", str(kept)]
    assert main(["check", str(folder), "--json", "--workers", "1"]) == 1
    alone = capsys.readouterr().out

    command = [sys.executable, "-m", "kvformat.cli", *arguments, "--scheduler", cluster.scheduler_address]
    client = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    deadline = monotonic() + 120
    while journaled(kept) < 20 and client.poll() is None and monotonic() < deadline:
        sleep(0.02)
    os.kill(next(iter(cluster.workers.values())).pid, signal.SIGKILL)  # the nanny starts another one
    os.kill(client.pid, signal.SIGKILL)
    client.communicate()
    finished = journaled(kept) - 1
    assert 0 < finished < FILES, "the client was to be stopped in the middle"

    assert main([*arguments, "--scheduler", cluster.scheduler_address]) == 1
    assert capsys.readouterr().out == alone
    assert journaled(kept) == FILES + 1  # what was finished was not done again


def test_without_a_scheduler_there_is_one_line(capsys):
    pytest.importorskip("distributed")
    assert main(["check", "x", "--scheduler", "tcp://127.0.0.1:9"]) == 2
    error = capsys.readouterr().err
    assert "no Dask scheduler answers at tcp://127.0.0.1:9" in error


def test_workers_beside_a_scheduler_are_refused(capsys):
    assert main(["check", "x", "--scheduler", "tcp://127.0.0.1:9", "--workers", "2"]) == 2
    assert "leave --workers out" in capsys.readouterr().err

"""Whatever the input, the streams and the signals: no traceback, no hang, one line, status 2, nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kvformat.cli import main
from kvformat.errors import unknown_name
from tests.cli.test_check import dump_file
from tests.verify.dumps import metadata

KVFORMAT = [sys.executable, "-m", "kvformat.cli"]


@pytest.fixture(autouse=True)
def _children_hear_signals():
    """A shell ignores SIGINT for what it starts in the background, nohup SIGHUP, and children inherit that."""
    heard = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in heard.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def refused(capsys, *arguments):
    """The one line on stderr of a command with status 2."""
    assert main([str(each) for each in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.rstrip("\n").isprintable()
    assert len(captured.err) < 450
    return captured.err


READERS = (("check",), ("lint",), ("diagnose",), ("recipes", "show"), ("check", "x", "--recipe"),
           ("lint", "x", "--layout-file"), ("check", "x", "--layout-file"))  # fmt: skip


@pytest.mark.parametrize("arguments", READERS, ids=" ".join)
def test_a_pipe_that_nobody_writes_to_and_a_device_are_not_waited_for(capsys, tmp_path, arguments):
    pipe = tmp_path / "pipe.toml"
    os.mkfifo(pipe)
    assert "pipe or a device" in refused(capsys, *arguments, pipe)
    assert "/dev/zero" in refused(capsys, *arguments, "/dev/zero")


def by_header(tensors, end, data=b"", **changes):
    """A file of a header alone, as long as the header says; what is not given is a hole, which takes no room."""
    text = json.dumps({"__metadata__": metadata(**changes)} | tensors).encode()
    return len(text).to_bytes(8, "little") + text + data, 8 + len(text) + end


def write_sparse(path, tensors, end, data=b"", **changes):
    head, size = by_header(tensors, end, data, **changes)
    with path.open("wb") as file:
        file.write(head)
        file.truncate(size)
    return path


@pytest.mark.parametrize("command", ["check", "lint", "diagnose"])
def test_a_header_of_a_quarter_million_heads_takes_no_memory(capsys, tmp_path, command):
    heads, dim, tokens = 262_144, 128, 2
    page = tokens * heads * (2 * dim + 8)
    sizes = {"slot_mapping": ("I64", [tokens], 8), "key": ("BF16", [tokens, heads, dim], 2),
             "value": ("BF16", [tokens, heads, dim], 2), "pages": ("U8", [1, page], 1)}  # fmt: skip
    end, tensors = 0, {}
    for name, (kind, shape, width) in sizes.items():
        last = end + int(np.prod(shape)) * width
        tensors[name] = {"dtype": kind, "shape": shape, "data_offsets": [end, last]}
        end = last
    sizes = {"block_size": "2", "num_kv_heads": str(heads), "head_size": str(dim), "head_size_v": str(dim)}
    path = write_sparse(tmp_path / "d", tensors, end, np.arange(2, dtype="<i8").tobytes(), **sizes)
    assert path.stat().st_blocks * 512 < 65536
    assert "a token has 262144 heads of 128 dims" in refused(capsys, command, path)


@pytest.mark.parametrize("command", ["check", "diagnose", "lint"])
def test_a_tensor_of_65_dimensions_and_one_of_2_to_the_80_elements_are_refused(capsys, tmp_path, command):
    one = {"dtype": "F32", "shape": [1] * 65}
    slots = {"slot_mapping": {"dtype": "I64", "shape": [1], "data_offsets": [8, 16]}}
    pages = {"pages": {"dtype": "U8", "shape": [1, 64], "data_offsets": [16, 80]}}
    tensors = {"key": one | {"data_offsets": [0, 4]}, "value": one | {"data_offsets": [4, 8]}, **slots, **pages}
    assert "key has 65 dimensions" in refused(capsys, command, write_sparse(tmp_path / "a", tensors, 80))
    tensors = {
        "key": {"dtype": "F32", "shape": [0, 2**40, 2**40], "data_offsets": [0, 0]},
        "value": {"dtype": "F32", "shape": [0, 1, 1], "data_offsets": [0, 0]},
        "slot_mapping": {"dtype": "I64", "shape": [0], "data_offsets": [0, 0]},
        "pages": {"dtype": "U8", "shape": [1, 64], "data_offsets": [0, 64]},
    }
    assert "key cannot have the shape" in refused(capsys, command, write_sparse(tmp_path / "b", tensors, 64))


@pytest.mark.parametrize("name", ["x" * 100_000, "\x1b[31m\n\u202e" * 10_000])
@pytest.mark.parametrize(
    "arguments",
    [("recipes", "show"), ("layout",), ("table",), ("size", "--context", "10"), ("check", "--recipe", "x", "y"),
     ("explain", "1", "--format"), ("fuzz", "m:f", "--mode"), ("vectors", "run", "--against", "m:f")],
    ids=" ".join,
)  # fmt: skip
def test_a_name_of_100_kb_is_not_repeated(capsys, name, arguments):
    refused(capsys, *arguments, name)
    assert main([*arguments, name, "--json"]) == 2
    assert len(capsys.readouterr().out) < 2000


def test_an_unknown_name_gets_the_closest_three_of_many_and_all_of_few():
    many = [f"golden/recipe_{i}" for i in range(50)]
    assert str(unknown_name("recipe", "zzz", many)).startswith("unknown recipe 'zzz'; the closest of 50 are golden/")
    assert str(unknown_name("recipe", "zzz", many)).count("golden/") == 3
    assert str(unknown_name("order", "zzz", ["NHD", "HND"])) == "unknown order 'zzz'; known: HND, NHD"
    assert len(str(unknown_name("recipe", "z" * 100_000, many))) < 400


def test_a_fault_of_kvformat_itself_is_status_2_and_one_line(capsys, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("a\nb")

    monkeypatch.setattr("kvformat.dump.dump.Dump.load", broken)
    assert "kvformat failed (ZeroDivisionError: a b)" in refused(capsys, "check", "x")
    monkeypatch.setenv("KVFORMAT_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        main(["check", "x"])


def test_a_file_that_ends_too_early_is_not_called_an_interruption(capsys, monkeypatch):
    def cut(*_, **__):
        raise EOFError

    monkeypatch.setattr("kvformat.dump.dump.Dump.load", cut)
    assert "a file ends too early" in refused(capsys, "check", "x")


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("arguments", [("table", "e2m1fn"), ("stream", "encode", "--format", "e4m3fn")], ids=" ".join)
def test_closed_streams_are_no_traceback(tmp_path, closed, arguments):
    said = tmp_path / "said"
    names = {0: "<&-", 1: ">&-", 2: "2>&-"}
    given = {0: "</dev/null", 1: f">{tmp_path}/out", 2: f"2>{said}"}
    redirections = " ".join(names[each] if each in closed else given[each] for each in range(3))
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {redirections}', "sh", *KVFORMAT, *arguments], timeout=120, check=False
    )
    assert done.returncode == (2 if 1 in closed else 0)
    text = said.read_text() if said.exists() else ""
    assert text == ("kvformat: cannot write: stdout is closed\n" if 1 in closed and 2 not in closed else "")


def test_no_answer_goes_into_a_file_that_got_the_number_of_a_closed_stream(tmp_path):
    path = dump_file(tmp_path)
    before = path.read_bytes()
    subprocess.run(["sh", "-c", 'exec "$@" <&- >&-', "sh", *KVFORMAT, "check", str(path)], timeout=120, check=False)
    assert path.read_bytes() == before


SLOW_WRITER = """
import sys, time
from pathlib import Path
from kvformat import cli
from kvformat.files import write_whole

def make(finished):
    finished.write_bytes(bytes(1000))
    print("writing", flush=True)
    time.sleep(60)

cli._end_in_order()
write_whole(sys.argv[1], make)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_leaves_nothing_behind(tmp_path, number):
    command = [sys.executable, "-c", SLOW_WRITER, str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout.readline() == b"writing\n"
        assert len(list(tmp_path.iterdir())) == 1
        process.send_signal(number)
        process.wait(30)
    assert process.returncode in (128 + number, -number)
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_while_modules_are_imported_is_one_word(tmp_path):
    program = "import os, signal; os.kill(os.getpid(), signal.SIGINT)\n"
    (tmp_path / "typer.py").write_text(program)
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [*KVFORMAT, "check"], capture_output=True, text=True, timeout=120, env=environment, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "kvformat: interrupted\n")


@pytest.mark.slow  # processes that compile
def test_dumps_and_reports_are_the_same_bytes_in_every_process(tmp_path):
    outcomes = set()
    for seed in ("1", "2"):
        folder = tmp_path / seed
        folder.mkdir()
        program = f"""
import sys
sys.path.insert(0, {str(Path.cwd())!r})
from pathlib import Path
from tests.cli.test_check import dump_file
path = dump_file(Path("."), edits=[(1, 3)])
from kvformat.cli import main
main(["check", str(path), "--json"])
main(["convert", str(path), "out.safetensors", "--order", "HND"])
"""
        environment = os.environ | {"PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, timeout=300,
                              env=environment, check=True)  # fmt: skip
        outcomes.add((done.stdout, *((path.name, path.read_bytes()) for path in sorted(folder.iterdir()))))
    assert len(outcomes) == 1


@pytest.mark.parametrize("count", [40, pytest.param(2000, marks=pytest.mark.exhaustive)])
def test_a_dump_with_wrong_bytes_in_its_header_is_never_a_traceback(tmp_path, capsys, count):
    rng = np.random.default_rng(5)
    whole = dump_file(tmp_path).read_bytes()
    path = tmp_path / "mutated"
    for _ in range(count):
        data = bytearray(whole)
        for _ in range(rng.integers(1, 6)):
            data[rng.integers(min(len(data), 700))] = rng.integers(256)
        path.write_bytes(bytes(data))
        status = main(["check", str(path)])
        captured = capsys.readouterr()
        assert status in (0, 1, 2)
        assert "kvformat failed" not in captured.err
        assert (captured.err.count("\n") == 1) == (status == 2)

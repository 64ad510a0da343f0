"""The command line as a process: exit status, one document on stdout, pipes, terminals, and never a traceback."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kvformat import __version__
from kvformat.cli import main
from kvformat.cli.app import app
from kvformat.cli.outcome import worst

PLAIN = {name: text for name, text in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE")}


def kvformat(*arguments, **options):
    command = [sys.executable, "-m", "kvformat.cli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=PLAIN, check=False, **options)


def on_a_terminal(*arguments, env):
    """What the command writes when stdout and stderr are a terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen([sys.executable, "-m", "kvformat.cli", *arguments], stdout=theirs, stderr=theirs, env=env):
        os.close(theirs)
        text = b""
        try:
            while chunk := os.read(ours, 65536):
                text += chunk
        except OSError:  # Linux says so when the other end is closed
            pass
    os.close(ours)
    return text.decode()


@pytest.mark.parametrize(
    "arguments, says",
    [
        (("frobnicate",), "frobnicate"),
        (("table",), "FORMAT"),
        (("table", "e5m2", "--bogus"), "--bogus"),
        (("table", "e5m2", "e4m3fn"), "e4m3fn"),
        (("explain", "1"), "--format"),
        (("explain", "1", "--fromat", "e5m2"), "--format"),
        (("check", "no such file.safetensors"), "No such file"),
        (("sweep", "e4m4"), "did you mean"),
    ],
)
def test_misuse_is_status_2_and_one_line_on_stderr(capsys, arguments, says):
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("kvformat: ")
    assert captured.err.count("\n") == 1
    assert says in captured.err


@pytest.mark.parametrize(
    "arguments",
    [(), ("frobnicate",), ("stream",), ("table", "e4m4"), ("table", "e5m2", "--bogus"),
     ("explain", "x", "--format", "e5m2"), ("layout", "vllm"), ("check", "no such file"),
     ("check", "no such file", "nor this")],
)  # fmt: skip
def test_with_json_every_error_is_one_document_on_stdout(capsys, arguments):
    assert main([*arguments, "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.err == ""
    document = json.loads(captured.out)
    assert (document["ok"], document["status"]) == (False, 2)


def test_of_several_inputs_the_worst_counts_and_none_is_no_success():
    assert worst([0, 0]) == 0
    assert worst([0, 1, 0]) == 1
    assert worst([1, 2, 0]) == 2
    assert worst([]) == 2


def test_kvformat_alone_shows_every_command_under_its_verb_and_where_to_go_on(capsys):
    assert main([]) == 2  # nothing was judged
    captured = capsys.readouterr()
    assert captured.err == ""
    lines = captured.out.splitlines()
    assert max(map(len, lines)) <= 80
    sections = {}
    for line in lines:
        if line and not line.startswith(" "):
            section = sections.setdefault(line.split()[0], [])
        elif line.startswith("  ") and not line.startswith("   "):
            section.append(line.split()[0])
    assert sections["Validate"] == ["check", "diagnose", "lint", "scales", "compat"]
    assert set(sections["Fuzz"]) == {"fuzz", "vectors", "sweep", "stream"}
    shown = {name for section in ("Validate", "Fuzz", "Document", "This") for name in sections[section]}
    commands = {command.name for command in app.registered_commands} | {group.name for group in app.registered_groups}
    assert commands == shown
    assert "kvformat check  " in captured.out
    assert main(["-h"]) == 0
    assert capsys.readouterr().out == captured.out


def test_the_version_is_the_package_s_and_those_that_decide_about_bytes(capsys):
    assert main(["--version"]) == 0
    rows = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert rows["kvformat"] == __version__
    assert rows["numpy"] == np.__version__
    assert {"python", "numba", "ml_dtypes"} <= rows.keys()


COMMANDS = [command.name for command in app.registered_commands]
INNER = [
    (group.name, each.name) for group in app.registered_groups for each in group.typer_instance.registered_commands
]


@pytest.mark.parametrize("command", [*((name,) for name in COMMANDS), *INNER], ids=" ".join)
def test_every_command_explains_itself_and_knows_json(capsys, command):
    assert main([*command, "--help"]) == 0
    text = capsys.readouterr().out
    assert "--json" in text or command[0] == "stream"  # hex in, hex out: a format of its own
    assert main([*command, "-h"]) == 0
    assert capsys.readouterr().out == text


@pytest.mark.parametrize(
    "words, expected",
    [
        (("di",), "diagnose"),
        (("explain", "1", "--format", "e4m3fnu"), "e4m3fnuz"),
        (("recipes", "show", "golden/nv"), "golden/nvfp4"),
        (("layout", "sglang-ml"), "sglang-mla"),
        (("layout", "vllm-0.33", "--mode", "fp8_per_token"), "fp8_per_token_head"),
        (("size", "deepseek-v3."), "deepseek-v3.2"),
    ],
)
def test_the_tab_key_completes_commands_and_names(monkeypatch, capsys, words, expected):
    monkeypatch.setenv("_KVFORMAT_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", " ".join(("kvformat", *words)))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    with pytest.raises(SystemExit) as end:
        main([])
    assert end.value.code == 0
    assert capsys.readouterr().out.split() == [expected]


def test_the_process_ends_with_the_status():
    good, bad = kvformat("table", "e2m1fn"), kvformat("table", "e2m2fn")
    assert (good.returncode, good.stderr) == (0, "")
    assert (bad.returncode, bad.stdout, bad.stderr.count("\n")) == (2, "", 1)
    assert "Traceback" not in bad.stderr


def test_a_pipe_gets_no_colours_and_whole_lines():
    text = kvformat("explain", "1/3", "--format", "e4m3fn").stdout
    assert "\x1b" not in text
    assert "\N{HORIZONTAL ELLIPSIS}" not in text


def test_a_terminal_gets_colours_unless_no_color_is_set():
    terminal = PLAIN | {"TERM": "xterm-256color"}
    assert "\x1b[" in on_a_terminal("explain", "0.3", "--format", "e4m3fn", env=terminal)
    assert "\x1b[3" not in on_a_terminal("explain", "0.3", "--format", "e4m3fn", env=terminal | {"NO_COLOR": "1"})


def test_a_reader_that_stops_early_ends_the_command_quietly():
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "kvformat.cli", "table", "e5m2"]
    result = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    os.close(writing)
    assert result.stderr == ""
    assert result.returncode not in (0, 1, 2)


@pytest.mark.parametrize("missing", ["typer", "rich"])
@pytest.mark.parametrize("as_json", [False, True])
def test_without_the_cli_extra_one_line_says_what_to_install(missing, as_json):
    arguments = ["table", "e5m2", *(["--json"] if as_json else [])]
    program = f"import sys; sys.modules[{missing!r}] = None; from kvformat.cli import main; sys.exit(main({arguments}))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 2
    said = json.loads(result.stdout)["error"] if as_json else result.stderr
    assert "pip install 'kvformat[cli]'" in said
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("arguments", [("table", "e5m2"), ("table", "int4", "--csv"), ("table", "x", "--json")])
def test_an_answer_that_cannot_be_written_is_no_success(arguments):
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        command = [sys.executable, "-m", "kvformat.cli", *arguments]
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert result.stderr.count("\n") == 1

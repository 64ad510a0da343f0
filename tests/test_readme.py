"""The README is true: its Python runs and prints what stands below it, its commands exist, its links lead somewhere."""

import contextlib
import io
import re
from pathlib import Path

import pytest

from kvformat.cli import main
from kvformat.cli.app import app

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAIRS = re.findall(r"```python\n((?:(?!```).)*)```\n\n```text\n(.*?)```", README, re.DOTALL)
COMMANDS = re.findall(r"^(?:kvformat|.*&& kvformat) (\w+)", README, re.MULTILINE)


def test_python_blocks_print_the_text_below_them():
    assert len(PAIRS) == 3
    names = {}
    for code, expected in PAIRS:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "README.md", "exec"), names)
        assert printed.getvalue() == expected


def test_commands_exist():
    wanted = {"check", "diagnose", "lint", "fuzz", "explain", "table", "layout", "convert", "size", "simulate", "sweep"}
    assert wanted <= set(COMMANDS)
    known = {command.name for command in app.registered_commands} | {group.name for group in app.registered_groups}
    assert set(COMMANDS) <= known


def test_the_fuzz_example_finds_its_counterexample(tmp_path, monkeypatch, capsys):
    code, command, expected = re.search(
        r"```python\n(# mykernel.py\n.*?)```\n\n```sh\nkvformat (fuzz .*?)\n```\n\n```text\n(.*?)```", README, re.DOTALL
    ).groups()
    (tmp_path / "mykernel.py").write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert main(command.split()) == 1
    printed = capsys.readouterr().out
    assert re.sub(r"in [0-9.]+ s", "", printed).startswith(re.sub(r"in [0-9.]+ s", "", expected))
    assert (tmp_path / "counterexample.safetensors").exists()


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#]+)", README))
def test_links_lead_to_files(target):
    assert (ROOT / target).exists()

"""The README and the guides are true: what they run prints what stands below it, their commands exist, links hold."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from kvformat.cli.app import app

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROSE = re.sub(r"^```.*?^```", "", README, flags=re.MULTILINE | re.DOTALL)
GUIDES = [*sorted((ROOT / "spec" / "guides").glob("*.md")), *sorted((ROOT / "spec" / "engines").glob("[!R]*.md"))]
TOOL = ROOT / "tools" / "make_outputs.py"


def make_outputs(*arguments):
    command = [sys.executable, str(TOOL), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def tool():
    spec = spec_from_file_location("make_outputs", TOOL)
    module = module_from_spec(spec)
    sys.modules["make_outputs"] = module  # where a NamedTuple looks for its module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["make_outputs"]


@pytest.mark.parametrize(
    "page",
    [
        ROOT / "README.md",
        *(pytest.param(page, marks=pytest.mark.slow) for page in GUIDES),  # diagnose compiles the recipes it tries
    ],
    ids=lambda page: page.name,
)
def test_what_a_page_runs_prints_what_stands_below_it(page):
    text = page.read_text(encoding="utf-8")
    for library in ("torch", "transformers"):
        if re.search(rf"^(import|from) {library}\b", text, re.MULTILINE) and find_spec(library) is None:
            pytest.skip(f"this page is about {library}, which is not installed")
    done = make_outputs("--check", page)
    # libraries that a page imports may log to stderr
    assert (done.returncode, done.stdout) == (0, ""), f"run: python tools/make_outputs.py\n{done.stderr[-2000:]}"


def test_the_three_verbs_have_a_section_and_every_command_of_theirs_is_shown():
    titles = re.findall(r"^## (\w+)", README, re.MULTILINE)
    assert [title for title in titles if title in {"Validate", "Fuzz", "Document"}] == ["Validate", "Fuzz", "Document"]
    shown = set(re.findall(r"kvformat ([a-z]+)", README))
    known = {command.name for command in app.registered_commands} | {group.name for group in app.registered_groups}
    wanted = {"check", "diagnose", "lint", "fuzz", "explain", "table", "layout", "convert", "size", "simulate", "sweep"}
    assert wanted <= shown & known


def test_the_readme_reaches_its_first_verdict_on_the_first_screen_and_ends_soon():
    lines = README.splitlines()
    assert lines.index("pip install -e '.[cli]' && kvformat check") < 20
    assert len(lines) <= 180


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)#]+)", PROSE))
def test_links_lead_to_files(target):
    assert (ROOT / target).exists()


PAGE = """
```python
# made.py
x = 3
```

```python
from made import x
print(x, "a", sep="\\n")
```

```text
3
b
```

```sh
kvformat table e2m1fn --csv   # all codes
```

```text
code,value
...
0xF,-0x1.0p+2
```
"""


def test_a_page_is_run_and_what_is_wrong_in_it_is_put_right(tool, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    made = tool.run(PAGE)
    assert "```text\n3\na\n```" in made
    assert "```text\ncode,value\n...\n0xF,-0x1.8p+2\n```" in made  # -6
    assert tool.run(made) == made


@pytest.mark.parametrize("line", ["kvformat frobnicate", "kvformat table e5m2 --bogus", "kvformat recipes shw nvfp4"])
def test_a_command_or_an_option_that_does_not_exist_is_an_error(tool, line):
    with pytest.raises(Exception, match=r"frobnicate|bogus|shw"):
        tool.run(f"```sh\n{line}\n```\n")


def test_seconds_may_differ_and_nothing_else_may(tool):
    assert tool.shown("took 0.31 s, 4 of 5\n", "took 0.1 s, 4 of 5\n") == "took 0.1 s, 4 of 5\n"
    assert tool.shown("took 0.31 s, 5 of 5\n", "took 0.1 s, 4 of 5\n") == "took 0.31 s, 5 of 5\n"

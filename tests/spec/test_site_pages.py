"""Pages for people: every command and every public name stands in the reference, every page in one place of the site."""

from __future__ import annotations

import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

import kvformat as kvf
from kvformat.cli.app import app

ROOT = Path(__file__).parents[2]
SPEC = ROOT / "spec"


@pytest.fixture(scope="module")
def build_site():
    spec = spec_from_file_location("build_site", ROOT / "tools" / "build_site.py")
    module = module_from_spec(spec)
    sys.modules["build_site"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["build_site"]


def leaves(nav):
    for entry in nav:
        for value in entry.values():
            yield from [value] if isinstance(value, str) else leaves(value)


def test_each_page_of_the_reference_has_one_place_in_the_navigation(build_site):
    pages = {path.relative_to(SPEC).as_posix() for path in SPEC.rglob("*.md")}
    found = list(leaves(build_site.navigation(pages)))
    assert sorted(found) == sorted({*pages, "explorer.html"})


def test_tasks_come_first_and_nothing_is_left_without_one(build_site):
    pages = {path.relative_to(SPEC).as_posix() for path in SPEC.rglob("*.md")}
    titles = [title for entry in build_site.navigation(pages) for title in entry]
    assert titles[:4] == ["Start", "Guides", "Reference", "Evidence"]
    assert {"new": "new.md"} in build_site.navigation({*pages, "new.md"})[4]["More"]


def test_every_command_and_every_public_name_has_a_heading():
    commands = re.findall(r"^### kvformat (.+)$", (SPEC / "cli.md").read_text("utf-8"), re.MULTILINE)
    groups = {group.name: group.typer_instance for group in app.registered_groups}
    inner = {f"{name} {each.name}" for name, group in groups.items() for each in group.registered_commands}
    assert set(commands) == {command.name for command in app.registered_commands} | set(groups) | inner
    names = re.findall(r"^### (\w+)$", (SPEC / "python.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(names) == sorted(set(kvf.__all__) - {"__version__"})

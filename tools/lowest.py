"""Prints the lowest versions that pyproject.toml allows, one `name==version` a line: a pip constraints file.

    python tools/lowest.py [EXTRA ...]      the core, and these extras (default: test)

Standard library only, so that it runs before anything is installed.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"
_REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9._-]+)\s*(\[(?P<extras>[^]]*)\])?\s*(?P<bound>[^;]*)(;.*)?")


def lowest(project: dict[str, object], extras: list[str]) -> dict[str, str]:
    """The lowest version of each requirement of the core and the extras. Raises ValueError for one without a bound."""
    found: dict[str, str] = {}
    optional = project["optional-dependencies"]
    assert isinstance(optional, dict)
    wanted = [project["dependencies"], *(optional[extra] for extra in extras)]
    while wanted:
        for text in wanted.pop():
            match = _REQUIREMENT.fullmatch(text)
            if match is None:
                raise ValueError(f"cannot read the requirement {text!r}")
            name = re.sub(r"[-_.]+", "-", match["name"]).lower()
            if name == project["name"]:
                wanted += [optional[extra.strip()] for extra in match["extras"].split(",")]
                continue
            bound = match["bound"].strip()
            if not re.fullmatch(r"(>=|==)\s*[0-9][0-9A-Za-z.]*", bound):
                raise ValueError(f"{text!r} needs one lower bound and nothing else, such as {name}>=1.2")
            version = bound[2:].strip()
            if found.setdefault(name, version) != version:
                raise ValueError(f"{name} has two lower bounds: {found[name]} and {version}")
    return found


def main() -> None:
    """Print the constraints."""
    project = tomllib.loads(PYPROJECT.read_text())["project"]
    for name, version in sorted(lowest(project, sys.argv[1:] or ["test"]).items()):
        print(f"{name}=={version}")


if __name__ == "__main__":
    main()

"""Build the format reference as a static site: spec/ through MkDocs Material, explorer and vectors beside it.

    python tools/build_site.py [--output DIR]      default build/site; needs the extra `site`

A warning is an error. The site asks no other host for anything: no fonts, no scripts, no trackers.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SPEC = ROOT / "spec"
_CONFIG = "mkdocs.yml"

Nav = list[dict[str, Any]]


def navigation(pages: Iterable[str]) -> Nav:
    """The navigation of these pages, paths under spec/: the first ones by name, then each folder as a section."""
    left = set(pages)

    def take(title: str, path: str) -> dict[str, str]:
        left.remove(path)
        return {title: path}

    head: Nav = [
        take("The reference", "README.md"),
        take("What does this flag store?", "flags.md"),
        take("Which one am I holding?", "which.md"),
        {"Explorer": "explorer.html"},
        take("Glossary", "glossary.md"),
    ]
    sections: Nav = [
        {"Guides": _leaves(left, "guides/")},
        {"Element formats": _leaves(left, "elements/")},
        {"Recipes": [take("Atlas", "recipes/atlas.md"), *_families(left)]},
        {"Layouts": _leaves(left, "layouts/")},
        {"Vectors": _leaves(left, "vectors/")},
    ]
    others = [_leaf(left, path, path.removesuffix(".md").replace("_", " ")) for path in sorted(left)]
    return [*head, *sections, *others]


def _leaf(left: set[str], path: str, title: str) -> dict[str, str]:
    left.remove(path)
    return {title: path}


def _leaves(left: set[str], folder: str) -> Nav:
    held = sorted(path for path in left if path.startswith(folder))
    return [
        _leaf(left, path, path.removeprefix(folder).removesuffix(".md").replace("README", "Overview")) for path in held
    ]


def _families(left: set[str]) -> Nav:
    """The recipes by the library that they describe, the golden ones first."""
    names = sorted({path.split("/")[1] for path in left if path.startswith("recipes/")})
    order = sorted(names, key=lambda name: (name not in ("golden", "exact"), name != "golden", name))
    return [{name: _leaves(left, f"recipes/{name}/")} for name in order]


class _Warnings(logging.Handler):
    """Keeps what MkDocs warns of."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record.getMessage())


def build(output: Path) -> list[str]:
    """Build the site into a folder; returns the warnings, none of which should be."""
    from mkdocs.commands.build import build as mkdocs_build
    from mkdocs.config import load_config

    warnings = _Warnings()
    logging.getLogger("mkdocs").addHandler(warnings)
    with tempfile.TemporaryDirectory(prefix="kvformat-site-") as folder:
        docs = Path(folder) / "docs"
        shutil.copytree(SPEC, docs, ignore=shutil.ignore_patterns(_CONFIG))
        pages = [path.relative_to(docs).as_posix() for path in docs.rglob("*.md")]
        config = load_config(
            str(SPEC / _CONFIG), docs_dir=str(docs), site_dir=str(output), nav=navigation(pages), strict=False
        )
        config.plugins.on_startup(command="build", dirty=False)
        mkdocs_build(config)
        config.plugins.on_shutdown()
    logging.getLogger("mkdocs").removeHandler(warnings)
    return warnings.found


def main() -> int:
    """Run one command line and return its exit status."""
    parser = argparse.ArgumentParser(description="Build the format reference as a static site.")
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "site", metavar="DIR")
    arguments = parser.parse_args()
    try:
        warnings = build(arguments.output.resolve())
    except ImportError as error:
        print(f"{error}; pip install 'kvformat[site]'", file=sys.stderr)
        return 2
    if warnings:
        print("\n".join(f"warning: {each}" for each in warnings), file=sys.stderr)
        return 1
    print(f"{sum(1 for _ in arguments.output.rglob('*.html'))} pages in {arguments.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

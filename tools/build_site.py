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
from collections.abc import Container, Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SPEC = ROOT / "spec"
_CONFIG = "mkdocs.yml"

Nav = list[dict[str, Any]]


#: by task: pages by their titles, and folders, whose pages go by their names
_TASKS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "Start": (
        ("Install, and a first verdict", "guides/start.md"),
        ("My output is wrong", "guides/wrong_output.md"),
        ("In a kernel's own tests", "guides/kernel_tests.md"),
    ),
    "Guides": (
        ("What does this flag store?", "flags.md"),
        ("Whose bits are these?", "guides/whose_bits.md"),
        ("Many dumps, many cores", "guides/many.md"),
        ("vLLM, while it runs", "guides/vllm.md"),
        ("Which one am I holding?", "which.md"),
        ("What does it cost on my model?", "guides/model.md"),
        ("Are my checkpoint's scales used?", "guides/scales.md"),
        ("Prefix caching, transfer, and precision", "guides/share.md"),
        ("Fuzz a kernel", "fuzz.md"),
        ("Run a kernel as compiled", "ptx.md"),
        ("Convert and transfer", "convert.md"),
        ("How many bytes?", "size.md"),
        ("More guides", "guides/"),
    ),
    "Reference": (
        ("Overview", "README.md"),
        ("Command line", "cli.md"),
        ("Python", "python.md"),
        ("Explorer", "explorer.html"),
        ("Glossary", "glossary.md"),
        ("Faults", "faults.md"),
        ("Rules of lint", "lint.md"),
        ("Judging attention", "attention.md"),
        ("Definitions of one's own", "definitions.md"),
        ("vLLM's --kv-cache-dtype", "cache_dtypes.md"),
        ("Element formats", "elements/"),
        ("Recipes", "recipes/"),
        ("Layouts", "layouts/"),
        ("Vectors", "vectors/"),
    ),
    "Evidence": (
        ("Why believe it", "evidence/README.md"),
        ("The engines' own code", "engines/"),
        ("Proofs", "proofs/"),
        ("Claims, measured", "claims.md"),
        ("Kernels without a GPU", "emulate.md"),
        ("Keys without their bias", "debias.md"),
        ("Speed", "speed.md"),
        ("More evidence", "evidence/"),
    ),
}


def navigation(pages: Iterable[str]) -> Nav:
    """The navigation of these pages, paths under spec/: by task, what no task names under "More"."""
    left = set(pages)
    named = {path for entries in _TASKS.values() for _, path in entries}
    sections: Nav = []
    for task, entries in _TASKS.items():
        leaves: Nav = []
        for title, path in entries:
            if path == "recipes/":
                leaves.append({title: [_leaf(left, "recipes/atlas.md", "Atlas"), *_families(left)]})
            elif path.endswith("/"):
                held = _leaves(left, path, but=named)
                leaves += [{title: held}] if held else []
            else:
                left.discard(path)
                leaves.append({title: path})
        sections.append({task: leaves})
    others = [_leaf(left, path, path.removesuffix(".md").replace("_", " ")) for path in sorted(left)]
    return [*sections, *([{"More": others}] if others else [])]


def _leaf(left: set[str], path: str, title: str) -> dict[str, str]:
    left.remove(path)
    return {title: path}


def _leaves(left: set[str], folder: str, but: Container[str] = ()) -> Nav:
    held = sorted(path for path in left if path.startswith(folder) and path not in but)
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

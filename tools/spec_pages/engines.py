"""What was executed of each engine, as one table: from `kvformat/recipes/executed.json`."""

from __future__ import annotations

from collections import defaultdict

from kvformat.recipes.evidence import Execution, executions
from kvformat.recipes.program import Recipe
from spec_pages import vendors
from spec_pages.text import page, table


def files() -> dict[str, str]:
    """The index of the engines' pages; the pages themselves are written by people."""
    return {"engines/README.md": page("engines.md", {"executed": _executed()})}


def _executed() -> str:
    found: dict[tuple[str, str, str], list[tuple[Recipe, Execution]]] = defaultdict(list)
    for recipe in vendors.recipes():
        for run in executions(recipe):
            found[run.engine, run.version, run.log].append((recipe, run))
    rows = []
    for (engine, version, log), runs in sorted(found.items()):
        recipes = {recipe.name: f"[{recipe.name}](../{vendors.path(recipe)})" for recipe, _ in runs}
        ways = sorted({run.how for _, run in runs})
        compared = sum(run.compared for _, run in runs)
        link = f"[log](../{log.removeprefix('spec/')})"
        rows.append((f"{engine} {version}", "<br>".join(recipes.values()), "<br>".join(ways), f"{compared:,}", link))
    return table(("engine", "recipes", "executed as", "codes, scales and bytes, all equal", ""), rows)

"""The first page: what the reference is, its policies, its vocabulary, its notation."""

from __future__ import annotations

from spec_pages import elements, layouts, recipes, vendors
from spec_pages.text import page


def files() -> dict[str, str]:
    """Path under spec/ and text of the index."""
    tables = {
        "formats": elements.summary(),
        "policies": elements.policies(),
        "recipes": recipes.summary(),
        "vendors": vendors.summary(),
        "words": recipes.vocabulary(),
        "layouts": layouts.summary(),
    }
    return {"README.md": page("index.md", tables)}

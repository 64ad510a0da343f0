"""The glossary: every word of the reference, and the tables of names that stand behind some of them."""

from __future__ import annotations

from kvformat.layouts.swizzle import SWIZZLES
from kvformat.modes import MODES
from kvformat.recipes.vocabulary import GRANULARITIES, Granularity
from spec_pages.text import page, table


def files() -> dict[str, str]:
    """Path under spec/ and text of the page."""
    shares = [(f"`{each.name}`", _shares(each)) for each in GRANULARITIES.values()]
    swizzles = [(f"`{each.name}`", each.source) for each in SWIZZLES.values()]
    modes = [
        (
            f"`{each.name}`",
            each.element or "the values themselves",
            _page_scale(each),
            "yes" if each.tensor_scale else "no",
        )
        for each in MODES.values()
    ]
    values = {
        "granularities": table(("name", "what shares one scale"), shares),
        "swizzles": table(("name", "where it is written down"), swizzles),
        "modes": table(("mode", "codes", "scales in the page", "one float32 scale per tensor beside it"), modes),
    }
    return {"glossary.md": page("glossary.md", values)}


def _shares(each: Granularity) -> str:
    tokens = "all tokens" if each.shares_tokens else "one token"
    heads = "all heads" if each.shares_heads else "one head"
    dims = {0: "all dims", 1: "one dim"}.get(each.dims, f"{each.dims} consecutive dims")
    return f"{dims} of {heads} of {tokens}"


def _page_scale(mode: object) -> str:
    stored, dims = getattr(mode, "page_scale", None), getattr(mode, "dims_per_scale", 0)
    if stored is None:
        return "none"
    return f"{stored}, {f'one for {dims} dims' if dims else 'one for a head'}"

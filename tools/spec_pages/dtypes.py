"""The page of --kv-cache-dtype strings: what each one stores, who runs it, and where it bites."""

from __future__ import annotations

from kvformat.cache_dtypes import CACHE_DTYPES, CacheDtype, KVQuantMode
from kvformat.recipes.catalogue import recipe
from spec_pages import vendors
from spec_pages.text import page, table

_ARCHITECTURES = ("sm_80", "sm_89", "sm_90", "sm_100", "sm_120", "gfx942", "gfx950", "cpu")


def files() -> dict[str, str]:
    """Path under spec/ and text of the page."""
    rows = [(f"`{e.name}`", f"`{e.mode.name}`", e.storage, _recipe(e), e.layout or "") for e in CACHE_DTYPES.values()]
    matrix = [
        (f"`{e.name}`", *("yes" if each in e.native else "" for each in _ARCHITECTURES)) for e in CACHE_DTYPES.values()
    ]
    traps = "\n".join(f"- `{e.name}`: {trap}." for e in CACHE_DTYPES.values() for trap in e.traps)
    values = {
        "strings": table(("string", "mode", "torch storage", "recipe of the default writer", "layout"), rows),
        "matrix": table(("string", *_ARCHITECTURES), matrix),
        "traps": traps,
        "sources": "\n".join(f"- {source}" for source in dict.fromkeys(e.source for e in CACHE_DTYPES.values())),
        "modes": table(
            ("member", "integer"), [(f"`{name}`", str(int(m))) for name, m in KVQuantMode.__members__.items()]
        ),
    }
    return {"cache_dtypes.md": page("cache_dtypes.md", values)}


def _recipe(entry: CacheDtype) -> str:
    return f"[{entry.recipe}]({vendors.path(recipe(entry.recipe))})" if entry.recipe else "none here yet"

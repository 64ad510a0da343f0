"""The page of --kv-cache-dtype strings: what each one stores, who runs it, and where it bites."""

from __future__ import annotations

from kvformat.cache_dtypes import ARCHITECTURES, CACHE_DTYPES, CacheDtype, KVQuantMode
from kvformat.recipes.catalogue import recipe
from spec_pages import vendors
from spec_pages.text import page, table


def files() -> dict[str, str]:
    """Path under spec/ and text of the page."""
    rows = [(f"`{e.name}`", f"`{e.mode.name}`", e.storage, _recipe(e), e.layout or "") for e in CACHE_DTYPES.values()]
    matrix = [
        (f"`{e.name}`", f"`{e.mode.name}`", *(_backends(e, each) for each in ARCHITECTURES))
        for e in CACHE_DTYPES.values()
    ]
    traps = "\n".join(f"- `{e.name}`: {trap}." for e in CACHE_DTYPES.values() for trap in e.traps)
    values = {
        "strings": table(("string", "mode", "torch storage", "recipe of the default writer", "layout"), rows),
        "matrix": table(("string", "mode", *ARCHITECTURES), matrix),
        "traps": traps,
        "sources": table(("backend", "architectures", "vLLM 0.33.0"), _sources()),
        "modes": table(
            ("member", "integer"), [(f"`{name}`", str(int(m))) for name, m in KVQuantMode.__members__.items()]
        ),
    }
    return {"cache_dtypes.md": page("cache_dtypes.md", values)}


def _recipe(entry: CacheDtype) -> str:
    return f"[{entry.recipe}]({vendors.path(recipe(entry.recipe))})" if entry.recipe else "none here yet"


def _backends(entry: CacheDtype, architecture: str) -> str:
    return ", ".join(writer.backend for writer in entry.writers if architecture in writer.architectures)


def _sources() -> list[tuple[str, str, str]]:
    writers = dict.fromkeys(writer for entry in CACHE_DTYPES.values() for writer in entry.writers)
    return [(writer.backend, " ".join(writer.architectures), writer.source) for writer in writers]

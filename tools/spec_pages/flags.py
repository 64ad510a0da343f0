"""The page "What does this flag store?": every value of every engine's option, from the data of kvformat.flags."""

from __future__ import annotations

import json
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

from kvformat.flags import ENGINES, FLAGS, Flag
from kvformat.layouts import layout
from kvformat.layouts.catalogue import find_entry
from kvformat.recipes.catalogue import recipe
from spec_pages import vendors
from spec_pages.text import page, table, wrap

_MEASURED = Path(__file__).resolve().parents[2] / "spec" / "accuracy" / "measured.json"
#: the cache that bytes are counted for, and a token of it in bfloat16
_HEADS, _HEAD_SIZE = 8, 128
_PLAIN = 2 * _HEADS * _HEAD_SIZE * 2
_STORES = ("value", "stores", "the scale is", "bytes a token", "KL")
_WHERE = ("value", "recipe", "evidence", "layout")


def files() -> dict[str, str]:
    """Path under spec/ and text of the page."""
    measured = json.loads(_MEASURED.read_text(encoding="utf-8"))
    sections = "\n\n".join(_section(name, measured) for name in ENGINES)
    values = {
        "engines": ", ".join(f"[{name}](#{_anchor(name)})" for name in ENGINES),
        "sections": sections,
        "command": f"`{measured['command']}`",
        "model": measured["rows"][0]["model"],
        "tokens": f"{measured['rows'][0]['tokens']:,}",
    }
    return {"flags.md": page("flags.md", values)}


def _anchor(name: str) -> str:
    return name.lower().replace(".", "").replace(" ", "-")


def _section(name: str, measured: dict[str, Any]) -> str:
    engine = ENGINES[name]
    flags = [flag for flag in FLAGS if flag.engine == name]
    stores = _grouped((flag, _stored(flag, measured)) for flag in flags)
    where = _grouped((flag, _found(flag)) for flag in flags if flag.recipe or flag.layout)
    runs = dict.fromkeys(flag.runs_on for flag in flags)
    places = [f"- On {each}: {_values(flag for flag in flags if flag.runs_on == each)}." for each in runs]
    traps = [
        f"- {_values(flag for flag in flags if trap in flag.traps)}: {trap}."
        for trap in dict.fromkeys(trap for flag in flags for trap in flag.traps)
    ]
    notes = [f"- {note}" for note in engine.notes]
    lines = "\n".join(wrap(line, indent="  ") for line in (*notes, *places, *traps))
    tables = [table(_STORES, stores), *([table(_WHERE, where)] if where else [])]
    return "\n\n".join((f"## {name}", f"Option: `{engine.option}`. Read in: {engine.source}.", *tables, lines))


def _grouped(rows: Iterable[tuple[Flag, tuple[str, ...]]]) -> list[tuple[str, ...]]:
    """A row for all values that have the same cells."""
    found: dict[tuple[str, ...], list[Flag]] = {}
    for flag, cells in rows:
        found.setdefault(cells, []).append(flag)
    return [(_values(flags), *cells) for cells, flags in found.items()]


def _values(flags: Iterable[Flag]) -> str:
    return ", ".join(f"`{flag.value}`" for flag in flags)


def _stored(flag: Flag, measured: dict[str, Any]) -> tuple[str, ...]:
    count = _bytes(flag)
    size = "" if count is None else f"{float(count):,.10g}, {float(_plain(flag) / count):.2f} times smaller"
    if count is not None and count >= _plain(flag):
        size = f"{float(count):,.10g}"
    return flag.stores, flag.scale, f"{size} (a latent row)" if _latent(flag) else size, _kl(flag, measured)


def _found(flag: Flag) -> tuple[str, ...]:
    found = recipe(flag.recipe) if flag.recipe else None
    return (
        f"[{found.name}]({vendors.path(found)})" if found else "none here yet",
        found.status if found else "",
        f"[{flag.layout}](layouts/{flag.layout}.md)" if flag.layout else "none here yet",
    )


def _latent(flag: Flag) -> bool:
    """Whether it stores latent rows, which have one head of a size of their own."""
    return flag.layout is not None and find_entry(flag.layout).form(str(flag.mode)).num_kv_heads == 1


def _plain(flag: Flag) -> Fraction:
    """What the same takes in bfloat16: a latent row is 512 + 64 dims."""
    return Fraction((512 + 64) * 2 if _latent(flag) else _PLAIN)


def _bytes(flag: Flag) -> Fraction | None:
    """Bytes of a token in one layer: of its layout's page, or by the bits of a value. None: nobody here says it."""
    if flag.layout is not None:
        sizes = {} if _latent(flag) else {"num_kv_heads": _HEADS, "head_size": _HEAD_SIZE}
        made = layout(flag.layout, mode=str(flag.mode), block_size=64, **sizes)
        return Fraction(made.page_bytes, 64)
    return None if flag.bits is None else sum(flag.bits) * _HEADS * _HEAD_SIZE / 8


def _kl(flag: Flag, measured: dict[str, Any]) -> str:
    """The KL divergence that was measured with its recipe, or with the golden one of its mode; "" for neither.

    Whole caches only, and keys as the model has them; a scale of 1.0 before a calibrated one, as engines start with it.
    """
    whole = [
        row for row in measured["rows"]
        if not row["profile"] and not any(word in row["case"] for word in ("only", "weights", ", V"))
    ]  # fmt: skip
    if flag.recipe is None:
        return ""
    for name, label in ((flag.recipe, ""), (f"golden/{flag.mode}", "golden ")):
        rows = sorted((row for row in whole if row["recipe"] == name), key=lambda row: row["scale"] != "1.0")
        if rows and recipe(name).element == recipe(flag.recipe).element:
            kl, error = rows[0]["kl"], rows[0]["kl_se"]
            return "0" if not kl else f"{label}{kl:.5f} ± {error:.5f}"
    return ""

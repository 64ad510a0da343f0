"""The page of the search: what it looks for, and what it caught of the zoo, from the logs of tools/fuzz_zoo.py."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

from spec_pages.text import page, table, wrap

_EVIDENCE = Path(__file__).resolve().parents[2] / "spec" / "evidence"


def files() -> dict[str, str]:
    """Path under spec/ and text of the page."""
    broken, normal, right = (_measured(what) for what in ("broken", "normal", "right"))
    shown = {(row["name"], row["kind"], row["mode"]): row["random"] for row in normal["kernels"]}
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in broken["kernels"]:
        groups.setdefault((row["name"], row["kind"]), []).append(row)
    lines = [_line(rows, shown) for rows in groups.values()]
    names = ("fault", "kind", "modes", "caught", "seconds", "size", "random")
    logs = ", ".join(f"[{what}](evidence/fuzz-{what}.txt)" for what in ("broken", "right", "normal"))
    values = {
        "counts": wrap(_counts(broken, right, groups)),
        "budget": f"within {normal['budget']:g} s each",
        "zoo": table(("kernel and source", *names), lines, right=("caught", "seconds")),
        "random": wrap(_compared(normal)),
        "logs": logs,
    }
    return {"fuzz.md": page("fuzz.md", values)}


def _measured(what: str) -> Any:
    return json.loads((_EVIDENCE / f"fuzz-{what}.json").read_text(encoding="utf-8"))


def _counts(broken: Any, right: Any, groups: Any) -> str:
    faults = {row["fault"] for row in broken["kernels"]}
    examples = sorted({row["examples"] for row in right["kernels"]})
    wrong = sum(bool(row["found"]) for row in right["kernels"])
    accused = f"{wrong or 'none'} {'were' if wrong > 1 else 'was'}"
    tried = " or ".join(f"{count:,}" for count in examples)
    return (
        f"{len(groups)} broken kernels with {len(faults)} faults, each in every mode it can occur in, which makes"
        f" {len(broken['kernels'])}: {broken['verdict']}. Of {len(right['kernels'])} right ones, {accused} accused in"
        f" {tried} examples each."
    )


def _compared(normal: Any) -> str:
    rows = normal["kernels"]
    shown = {row["fault"] for row in rows if row["random"]}
    hidden = [f"`{fault}`" for fault in dict.fromkeys(row["fault"] for row in rows) if fault not in shown]
    missed = [f"{row['name']} ({row['kind']})" for row in rows if not row["search"]]
    late = f", all but {' and '.join(missed)}, which take it longer" if missed else ""
    return (
        f"With {normal['budget']:g} s for each of the {normal['of']} broken kernels, standard normal K and V (16"
        " tokens, 2 heads of 64, blocks of 16 slots, no padding)"
        f" show {normal['random']} of them and the search {normal['search']}{late}. What random data does not show in"
        f" any mode: {', '.join(hidden)}."
    )


def _line(rows: list[dict[str, Any]], shown: dict[Any, bool]) -> tuple[str, ...]:
    first = rows[0]
    found, of = sum(row["found"] for row in rows), sum(row["seeds"] for row in rows)
    times = [seconds for row in rows for seconds in row["seconds"]]
    largest = max(rows, key=lambda row: (row["tokens"] * row["heads"], row["nonzero"]))
    random = sum(shown[row["name"], row["kind"], row["mode"]] for row in rows)
    return (
        f"**{first['name']}** {first['meaning']} {first['source']}",
        f"`{first['fault']}`",
        first["kind"],
        ", ".join(_short(row["mode"]) for row in rows),
        f"{found}/{of}",
        f"{median(times):.2f}, {max(times):.2f}",
        f"{largest['tokens']} x {largest['heads']}, {largest['nonzero']}",
        f"{random}/{len(rows)}",
    )


def _short(mode: str) -> str:
    return mode.replace("_per_token_head", "_pth").replace("_per_tensor", "_pt")

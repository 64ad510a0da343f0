"""Files with the same fault: a verdict's signature, and the groups of those that share one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvformat.many.check import Verdict

#: what of a message is about one file alone
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+(\.\d+)?(e[-+]?\d+)?")


@dataclass
class Group:
    """Files whose bytes differ in the same way. says: the fault in words."""

    status: int
    says: str
    files: list[str] = field(default_factory=list)
    #: of the first file, as its report has it
    first: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {"status": self.status, "fault": self.says, "count": len(self.files), "files": self.files}


def signature(verdict: Verdict) -> tuple[int, str]:
    """What files with the same fault have in common: the status, and what differs and where, in words."""
    document = verdict.document
    if "error" in document:
        about = str(document["error"]).replace(verdict.path, "FILE")
        return verdict.status, _NUMBER.sub("#", about)
    return verdict.status, _pattern(document)


def _pattern(document: Mapping[str, Any]) -> str:
    parts = [
        f"{side.upper()} {part}s{_spread(counts)}"
        for side, tally in document["where"].items()
        for part, counts in tally.items()
        if part in ("code", "scale") and counts["wrong"]
    ]
    named = document["reproduced_by"] or {}
    others = [*named.get("exact", ()), *named.get("allowed", ())]
    as_recipe = f"bytes of {others[0]}" if others else ""
    attention = "" if parts or "attention" not in document else "attention"
    layout = document["layout"]
    where = f"{document['recipe']} in {layout['name']} {layout['order']}"
    return f"{where}: {as_recipe or ', '.join(parts) or attention}"


def _spread(counts: Mapping[str, Any]) -> str:
    """How the wrong ones lie: all of them, or the heads and columns in words that do not depend on the file's size."""
    if counts["wrong"] == counts["compared"]:
        return " all"
    share = "one" if counts["wrong"] == 1 else "some"
    return f", {share}{_kind('head', counts['heads'])}{_kind('column', counts['columns'])}"


def _kind(name: str, places: list[int]) -> str:
    if len(places) == 1:
        return f", one {name}"
    for parity, word in ((0, "even"), (1, "odd")):
        if all(place % 2 == parity for place in places):
            return f", {word} {name}s"
    return ""


class Groups:
    """Verdicts, one after the other, by what is wrong."""

    def __init__(self) -> None:
        self._groups: dict[tuple[int, str], Group] = {}

    def add(self, verdict: Verdict, named: str = "") -> None:
        """Put a file that does not hold with those like it. named: the name of its fault, where it was diagnosed."""
        if not verdict.status:
            return
        status, says = key = (verdict.status, named) if named else signature(verdict)
        group = self._groups.setdefault(key, Group(status, says, first=verdict.document.get("first")))
        group.files.append(verdict.path)

    def found(self) -> list[Group]:
        """The groups, in the order of their first files."""
        return list(self._groups.values())

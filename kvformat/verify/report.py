"""The report of a check: how much was compared, how much differs and where, and the first difference explained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kvformat.attention.judge import Judgement
from kvformat.dump.dump import Dump
from kvformat.recipes.program import Recipe
from kvformat.verify.identify import Identity
from kvformat.verify.reach import Reach


@dataclass
class Tally:
    """What was counted of the dims of a side that one recipe covers, over all chunks.

    By part, and for the differences by token, head and column.
    """

    side: Literal["k", "v"]
    #: what reports call these dims: the side, or the name that the layout gives them
    name: str
    #: the recipe that covers these dims alone; "": that of the report
    recipe: str = ""
    first_dim: int = 0
    compared: dict[str, int] = field(default_factory=dict)
    wrong: dict[str, int] = field(default_factory=dict)
    tokens: int = 0
    wrong_tokens: dict[str, list[int]] = field(default_factory=dict)
    wrong_token_count: dict[str, int] = field(default_factory=dict)
    heads: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    columns: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    #: codes and scales that are not the IEEE ones but within the bounds of the recipe's approximate instructions
    allowed: int = 0
    #: wrong codes beside wrong scales that were looked at, and those of them that are right for the scale that is there
    beside: int = 0
    consistent: int = 0
    #: what the given per-tensor scale does not reach; None where none was given
    reach: Reach | None = None

    def add(self, part: str, wrong: NDArray[np.bool_], tokens: NDArray[np.int64]) -> None:
        """Count a chunk: wrong (tokens, heads, columns), tokens: their rows in the dump."""
        self.compared[part] = self.compared.get(part, 0) + wrong.size
        self.wrong[part] = self.wrong.get(part, 0) + int(np.count_nonzero(wrong))
        if part == "code":
            self.tokens += len(tokens)
        by_token = wrong.any(axis=(1, 2))
        self.wrong_token_count[part] = self.wrong_token_count.get(part, 0) + int(np.count_nonzero(by_token))
        seen = self.wrong_tokens.setdefault(part, [])
        seen.extend(int(token) for token in tokens[by_token][: max(0, 4 - len(seen))])
        self.heads[part] = self.heads.get(part, np.zeros(wrong.shape[1], np.int64)) + wrong.sum(axis=(0, 2))
        self.columns[part] = self.columns.get(part, np.zeros(wrong.shape[2], np.int64)) + wrong.sum(axis=(0, 1))

    def add_equal(self, compared: dict[str, int], tokens: int) -> None:
        """Count a chunk of so many tokens in which nothing differs: by part, what was compared."""
        self.tokens += tokens
        for part, count in compared.items():
            self.compared[part] = self.compared.get(part, 0) + count
            for counts in (self.wrong, self.wrong_token_count):
                counts.setdefault(part, 0)
            self.wrong_tokens.setdefault(part, [])
            for lines in (self.heads, self.columns):
                lines.setdefault(part, np.zeros(1, np.int64))

    def where(self, part: str) -> str:
        """In words: which tokens, heads and columns differ."""
        heads, columns = np.flatnonzero(self.heads[part]), np.flatnonzero(self.columns[part])
        name = "dim" if part == "code" else "scale"
        first = self.first_dim if part == "code" else 0
        return ", ".join(
            (
                _tokens(self.wrong_tokens[part], self.wrong_token_count[part], self.tokens),
                _of(heads, len(self.heads[part]), "head"),
                _of(columns, len(self.columns[part]), name, first),
            )
        )

    def to_json(self) -> dict[str, Any]:
        """The counts as plain data; `heads` and `columns` list those with a difference."""
        own: dict[str, Any] = {"recipe": self.recipe} if self.recipe else {}
        if self.beside:
            own["beside_wrong_scales"] = {"looked_at": self.beside, "right_for_the_scale_there": self.consistent}
        if self.reach is not None:
            own["reach"] = self.reach.to_json()
        return own | {
            part: {
                "compared": self.compared[part],
                "wrong": self.wrong[part],
                "tokens": self.wrong_token_count[part],
                "heads": np.flatnonzero(self.heads[part]).tolist(),
                "columns": np.flatnonzero(self.columns[part]).tolist(),
            }
            for part in self.compared
        }


def _tokens(first: list[int], count: int, total: int) -> str:
    if count == total:
        return f"all {total} tokens" if total > 1 else f"token {first[0]}"
    listed = ", ".join(map(str, first)) + (", ..." if count > len(first) else "")
    return f"token {listed}" if count == 1 else f"{count} of {total} tokens ({listed})"


def _of(places: NDArray[np.int64], total: int, name: str, first: int = 0) -> str:
    if len(places) == total:
        return f"all {total} {name}s" if total > 1 else f"the only {name}"
    if len(places) == 1:
        return f"{name} {first + places[0]}"
    for parity, word in ((0, "even"), (1, "odd")):
        if total > 2 and np.array_equal(places, np.arange(parity, total, 2)):
            return f"every second {name} (the {word} ones)"
    listed = ", ".join(map(str, first + places[:6])) + (", ..." if len(places) > 6 else "")
    return f"{len(places)} of {total} {name}s ({listed})"


@dataclass(frozen=True)
class Report:
    """The verdict on a dump. `str(report)` is what `kvformat check` prints."""

    ok: bool
    #: 0: all bytes hold; 1: a difference was found; 2: the bytes hold, but of the attention nothing can be said
    status: int
    recipe: str
    #: the recipe was not declared by the dump but is the one that the layout's engine uses
    recipe_assumed: bool
    layout: Mapping[str, Any]
    scales: Mapping[str, str | None]
    compared: int
    mismatches: int
    tallies: tuple[Tally, ...]
    #: the first difference: side, part, token, head, dim, slot, block, position, byte, and what explains it
    first: Mapping[str, Any] | None
    #: the recipes of the catalogue that do reproduce the bytes; None where all bytes hold
    identity: Identity | None
    #: what was found about the dump's attention output; None where it has none
    attention: Judgement | None = None
    #: tokens of the dump, those that have a slot and were looked at, and the slots of its pages
    tokens: int = 0
    judged: int = 0
    slots: int = 0

    @property
    def allowed(self) -> int:
        """How many codes and scales hold only within the bounds of approximate instructions."""
        return sum(tally.allowed for tally in self.tallies)

    @classmethod
    def make(
        cls,
        dump: Dump,
        how: Recipe,
        scales: Mapping[Any, np.float32 | None],
        tallies: tuple[Tally, ...],
        first: Mapping[str, Any] | None = None,
        identity: Identity | None = None,
        attention: Judgement | None = None,
    ) -> Report:
        """The report of what was counted."""
        compared = sum(sum(tally.compared.values()) for tally in tallies)
        mismatches = sum(sum(tally.wrong.values()) for tally in tallies)
        given = {"k": dump.k_scale, "v": dump.v_scale}
        said = {
            side: None if scale is None else f"{scale!s} ({'given' if given[side] is not None else 'computed'})"
            for side, scale in scales.items()
        }
        differs = bool(mismatches or (attention is not None and (attention.wrong or attention.lse_wrong)))
        undecided = attention is not None and attention.undecided
        ok = not differs and not undecided
        spec = dump.layout.spec
        return cls(
            ok,
            1 if differs else 2 if undecided else 0,
            how.name,
            dump.recipe is None,
            spec,
            said,
            compared,
            mismatches,
            tallies,
            first,
            identity,
            attention,
            dump.tokens,
            int(np.count_nonzero(dump.slot_mapping >= 0)),
            len(dump.pages) * dump.layout.block_size,
        )

    def to_json(self) -> dict[str, Any]:
        """The report as plain data."""
        return {
            "recipe": self.recipe,
            "recipe_assumed": self.recipe_assumed,
            "layout": dict(self.layout),
            "scales": dict(self.scales),
            "tokens": self.tokens,
            "judged": self.judged,
            "slots": self.slots,
            "compared": self.compared,
            "mismatches": self.mismatches,
            "allowed": self.allowed,
            "reproduced_by": None if self.identity is None else self.identity.to_json(),
            "where": {tally.name.lower(): tally.to_json() for tally in self.tallies},
            "first": None if self.first is None else dict(self.first),
            **({} if self.attention is None else {"attention": self.attention.to_json()}),
        }

    def __str__(self) -> str:
        lines = [self._headline()]
        if self.identity is not None and self.identity.names:
            declared = "the layout's own recipe is" if self.recipe_assumed else "the dump declares"
            lines.insert(0, f"{self.identity}; {declared} {self.recipe}")
        if self.allowed:
            lines.append(f"  {self.allowed:,} of them only within the bounds of its approximate instructions")
        if self.recipe_assumed:
            lines.append(f"  the dump declares no recipe; {self.recipe} is the one that {self.layout['name']} uses")
        lines += [f"  {side}_scale {scale}" for side, scale in self.scales.items() if scale is not None]
        lines += [line for tally in self.tallies if tally.reach is not None for line in tally.reach.lines(tally.side)]
        lines.append(f"  looked at: {self._coverage()}")
        for tally in self.tallies:
            for part, wrong in tally.wrong.items():
                if tally.compared[part]:
                    by = f" by {tally.recipe}" if tally.recipe else ""
                    named = f"{part}s" if part in ("scale", "code") else part
                    lines.append(f"  {tally.name} {named}{by}: {_counted(tally, part, wrong)}")
        if self.first is not None:
            lines += _explanation(self.first)
        if self.attention is not None:
            lines.append(f"  {self.attention}")
        return "\n".join(lines)

    def _coverage(self) -> str:
        """How much of the dump was looked at, and how much was not."""
        without = self.tokens - self.judged
        tokens = f"{self.judged:,} of {self.tokens:,} tokens" + (f" ({without:,} without a slot)" if without else "")
        return f"{tokens}, {self.judged:,} of {self.slots:,} slots"

    def _headline(self) -> str:
        what = f"{self.recipe} in {self.layout['name']} {self.layout['order']}"
        if not self.mismatches:
            verdict = ("holds", "BYTES HOLD, ATTENTION DOES NOT", "CANNOT TELL, but the bytes hold")[self.status]
            return f"{verdict}: {what}, {self.compared:,} codes and scales equal"
        return f"DIFFERS: {what}, {self.mismatches:,} of {self.compared:,} codes and scales"


def _counted(tally: Tally, part: str, wrong: int) -> str:
    if not wrong:
        return f"{tally.compared[part]:,} equal"
    fit = _consistent(tally, wrong) if part == "code" else ""
    return f"{wrong:,} of {tally.compared[part]:,} differ{fit}: {tally.where(part)}"


def _consistent(tally: Tally, wrong: int) -> str:
    """Whose fault the wrong codes are, where scales are wrong too."""
    if not tally.consistent:
        return ""
    if tally.consistent == wrong:
        return ", all right for the scales that are there"
    of = "" if tally.beside == wrong else f" of {tally.beside:,} looked at"
    return f" ({tally.consistent:,}{of} right for the scales that are there)"


def _explanation(first: Mapping[str, Any]) -> list[str]:
    place = f"{first['side'].upper()} {first['part']} of token {first['token']}, head {first['head']}"
    dims = (
        f"dim {first['dim']}"
        if first["part"] == "code"
        else f"dims {first['shared_by'][0]}..{first['shared_by'][1] - 1}"
    )
    nibble = f" bit {first['bit']}" if first["bit"] else ""
    slot = f"slot {first['slot']} = block {first['block']}, position {first['position']}"
    lines = [
        f"  first difference: {place}, {dims}",
        f"    lies in     {slot}; page byte {first['byte']}{nibble}",
    ]
    rows = (_code_rows if first["part"] == "code" else _scale_rows)(first)
    return lines + [f"    {name:<11} {text}" for name, text in rows]


def _code_rows(first: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = [("input", _bits(first["input"]))]
    rows += [(f"scale {name}", _code(scale)) for name, scale in first.get("scale", {}).items()]
    quotient = first.get("quotient")
    if quotient is not None:
        rows.append(("quotient", f"{quotient['exact']}{_rounding(quotient)}"))
    rows += [(name, _code(first[name])) for name in ("expected", "found")]
    if len(first.get("allowed", ())) > 1:
        rows.insert(-1, ("allowed", ", ".join(first["allowed"])))
    return rows


def _scale_rows(first: Mapping[str, Any]) -> list[tuple[str, str]]:
    amax = first["amax"]
    rows = [("amax", "no finite element" if amax is None else f"{_bits(amax)} at dim {amax['dim']}")]
    if first["not_finite"]:
        rows.append(("not finite", f"{first['not_finite']} of the elements that share it"))
    if first["quotient"] is not None:
        rows.append(("exact scale", f"{first['quotient']['exact']}{_rounding(first['quotient'])}"))
    return rows + [(name, _code(first[name])) for name in ("expected", "found")]


def _rounding(quotient: Mapping[str, Any]) -> str:
    tie = quotient["tie_between"]
    if tie is None:
        return f"; float32 makes it {quotient['computed']}, across a border" if quotient["codes_differ"] else ""
    if quotient["exact_is_tie"]:
        return f", a tie between {tie[0]} and {tie[1]}"
    return f"; float32 rounds it to {quotient['computed']}, a tie between {tie[0]} and {tie[1]}"


def _bits(entry: Mapping[str, str]) -> str:
    return f"{entry['value']} ({entry['dtype']} {entry['bits']})"


def _code(entry: Mapping[str, str]) -> str:
    if "dtype" in entry:
        return _bits(entry)
    if "element" in entry:
        return f"code {entry['code']} = {entry['element']}, decodes to {entry['value']}"
    return f"code {entry['code']} = {entry['value']}"

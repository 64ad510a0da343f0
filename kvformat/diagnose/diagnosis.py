"""What a diagnosis says: the hypotheses that explain a dump's bytes, in order, as data and as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kvformat.diagnose.catalogue import FAULTS


@dataclass(frozen=True)
class Hypothesis:
    """A recipe, a layout and the faults with which a writer would have left these bytes."""

    #: ids of the fault catalogue, the one of arithmetic or scales first; none: a right writer
    faults: tuple[str, ...]
    #: which variant of each fault
    variants: tuple[str, ...]
    #: the sides that have each fault: "k", "v" or "kv"
    sides: tuple[str, ...]
    recipe: str
    layout: str

    def __str__(self) -> str:
        if not self.faults:
            return f"{self.recipe} in {self.layout}"
        named = " and ".join(
            f"{fault} ({variant}{_only(sides)})"
            for fault, variant, sides in zip(self.faults, self.variants, self.sides, strict=True)
        )
        return f"{self.recipe} in {self.layout} with {named}"


def _only(sides: str) -> str:
    return "" if sides == "kv" else f", {sides.upper()} only"


@dataclass(frozen=True)
class Inseparable:
    """Hypotheses that the K and V of a dump cannot tell apart, and why."""

    #: "fault: variant", or "right" for a writer without one
    names: tuple[str, ...]
    why: str

    def __str__(self) -> str:
        more = len(self.names) - 6
        return f"{' = '.join(self.names[:6])}{f' and {more} more' if more > 0 else ''}; {self.why}"


@dataclass(frozen=True)
class Explanation:
    """One or more hypotheses that leave the same bytes."""

    #: the plainest one first
    members: tuple[Hypothesis, ...]
    #: bytes of the dump's tokens that it explains, of `total`
    explained: int
    total: int
    #: bytes that it explains and no other explanation of the diagnosis does
    only: int
    #: bytes that it contradicts, and bytes of which it says nothing (they lie outside the pages, or may be anything)
    wrong: int
    open: int
    #: explained bytes that are not the IEEE ones, but within the bounds of approximate instructions
    allowance: int

    @property
    def first(self) -> Hypothesis:
        """The plainest of the hypotheses."""
        return self.members[0]

    @property
    def faults(self) -> tuple[str, ...]:
        """The fault ids of the plainest hypothesis."""
        return self.first.faults

    @property
    def recipe(self) -> str:
        """The recipe of the plainest hypothesis."""
        return self.first.recipe

    @property
    def layout(self) -> str:
        """The layout of the plainest hypothesis."""
        return self.first.layout

    @property
    def complete(self) -> bool:
        """No byte contradicts it, and it speaks of more than an eighth of them."""
        return self.wrong == 0 and self.explained > self.total // 8

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {
            **asdict(self.first),
            "explained": self.explained,
            "only": self.only,
            "total": self.total,
            "wrong": self.wrong,
            "open": self.open,
            "allowance": self.allowance,
            "members": [asdict(member) for member in self.members],
        }


@dataclass(frozen=True)
class Diagnosis:
    """The verdict on a dump. `str(diagnosis)` is what `kvformat diagnose` prints."""

    #: the best ones, in the order of the evidence; the declared one is always among them
    explanations: tuple[Explanation, ...]
    #: what the dump declares, or what its layout's engine uses
    declared: Hypothesis
    recipe_assumed: bool
    layout: Mapping[str, Any]
    #: what the declared recipe and layout explain
    own: Explanation
    #: tokens that every hypothesis was tried on; the explanations listed were counted on all `tokens` that have a slot
    sampled: int
    tokens: int
    #: hypotheses that were compared with the bytes
    tried: int
    #: of a probe: what it could not tell apart
    inseparable: tuple[Inseparable, ...] = ()

    @property
    def status(self) -> int:
        """0: what the dump declares explains all bytes; 1: something else does, or nothing."""
        return int(not self.own.complete or self.own.open > 0)

    @property
    def ok(self) -> bool:
        """What the dump declares explains all bytes."""
        return self.status == 0

    @property
    def explained(self) -> bool:
        """Some hypothesis explains every byte."""
        return self.explanations[0].complete

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "recipe": self.declared.recipe,
            "recipe_assumed": self.recipe_assumed,
            "layout": dict(self.layout),
            "explained": self.explained,
            "explanations": [each.to_json() for each in self.explanations],
            "sampled": self.sampled,
            "tokens": self.tokens,
            "tried": self.tried,
            "inseparable": [asdict(each) for each in self.inseparable],
        }

    def __str__(self) -> str:
        best = self.explanations[0]
        lines = [self._headline(best)]
        if not self.ok and best.complete:
            lines += _reasons(best.first)
        if self.recipe_assumed:
            lines.append(f"  the dump declares no recipe; {self.declared.recipe} is the one that its layout uses")
        for place, each in enumerate(self.explanations, 1):
            lines += _lines(place, each)
        judged = f"{self.sampled:,} tokens" if self.sampled == self.tokens else (
            f"{self.sampled:,} of {self.tokens:,} tokens, those above then on all"
        )  # fmt: skip
        lines.append(f"  {self.tried:,} hypotheses tried on {judged}")
        return "\n".join([*lines, *(f"  not told apart: {each}" for each in self.inseparable)])

    def _headline(self, best: Explanation) -> str:
        if self.ok:
            needed = f", {self.own.allowance:,} bytes within its bounds" if self.own.allowance else ""
            return f"as declared: {self.declared} explains all {self.own.total:,} bytes{needed}"
        if not best.complete:
            share = f"{best.total - best.explained:,} of {best.total:,} bytes"
            return f"UNEXPLAINED: nothing gives all bytes; {best.first} is nearest, {share} differ"
        first = best.first
        if not first.faults:
            return f"these are the bytes of {first}; declared is {self.declared}"
        named = "; ".join(
            f"{fault}: {FAULTS[fault].meaning} ({variant}{_only(sides)})"
            for fault, variant, sides in zip(first.faults, first.variants, first.sides, strict=True)
        )
        base = f"{first.recipe} in {first.layout}"
        meant = "" if base == str(self.declared) else f"; declared is {self.declared}"
        return f"these are the bytes of {base}, but {named}{meant}"


def _reasons(first: Hypothesis) -> list[str]:
    return [f"  {fault}: {FAULTS[fault].reason}; seen in {FAULTS[fault].source}" for fault in first.faults]


def _lines(place: int, each: Explanation) -> list[str]:
    counts = [f"explains {each.explained:,} of {each.total:,} bytes", f"{each.only:,} of them alone"]
    if each.allowance:
        counts.append(f"{each.allowance:,} within the bounds of approximate instructions")
    if each.open:
        counts.append(f"{each.open:,} it says nothing of")
    lines = [f"  {place}. {each.first}: {', '.join(counts)}"]
    return lines + _also(each.members[1:])


def _also(members: Sequence[Hypothesis]) -> list[str]:
    shown = [f"       the same bytes: {member}" for member in members[:4]]
    if len(members) > 4:
        shown.append(f"       and {len(members) - 4} more")
    return shown

"""What a diagnosis says: the hypotheses that explain a dump's bytes, in order, as data and as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kvformat.diagnose.catalogue import FAULTS


@dataclass(frozen=True)
class Name:
    """A hypothesis by name: the recipe, the layout and the faults with which a writer would have left these bytes."""

    #: ids of the fault catalogue, the one of arithmetic or scales first; none: a right writer
    faults: tuple[str, ...]
    #: which variant of each fault
    variants: tuple[str, ...]
    #: the sides that have each fault: "k", "v" or "kv"
    sides: tuple[str, ...]
    #: on which part of the sides all this holds, "" for all of them; the rest is as declared
    scope: str
    recipe: str
    layout: str
    #: how many sides the pages have
    of_sides: int = 2

    def __str__(self) -> str:
        plain = f"{self.recipe} in {self.layout}"
        if not self.faults:
            return f"{plain} ({self.scope})" if self.scope else plain
        named = (f"{fault} ({how})" for fault, how in zip(self.faults, self.hows, strict=True))
        return f"{plain} with {' and '.join(named)}"

    @property
    def hows(self) -> tuple[str, ...]:
        """Of each fault the variant, the sides and the part of them."""
        pairs = zip(self.variants, self.sides, strict=True)
        scope = f", {self.scope}" if self.scope else ""
        return tuple(f"{variant}{_only(sides, self.of_sides)}{scope}" for variant, sides in pairs)

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {name: value for name, value in asdict(self).items() if name != "of_sides"}


def _only(sides: str, of_sides: int) -> str:
    return "" if len(sides) == of_sides else f", {sides.upper()} only"


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
    members: tuple[Name, ...]
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
    #: the length of the whole description: to name it, and to say what it leaves over
    bits: float
    #: where the bytes lie that it has wrong
    exceptions: str

    @property
    def first(self) -> Name:
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
            **self.first.to_json(),
            "explained": self.explained,
            "only": self.only,
            "total": self.total,
            "wrong": self.wrong,
            "open": self.open,
            "allowance": self.allowance,
            "bits": self.bits,
            "exceptions": self.exceptions,
            "members": [member.to_json() for member in self.members],
        }


@dataclass(frozen=True)
class Diagnosis:
    """The verdict on a dump. `str(diagnosis)` is what `kvformat diagnose` prints."""

    #: the best ones, in the order of the evidence; the declared one is always among them
    explanations: tuple[Explanation, ...]
    #: what the dump declares, or what its layout's engine uses
    declared: Name
    recipe_assumed: bool
    layout: Mapping[str, Any]
    #: what the declared recipe and layout explain
    own: Explanation
    #: tokens that every hypothesis was tried on; the explanations listed were counted on all `tokens` that have a slot
    sampled: int
    tokens: int
    #: hypotheses that were compared with the bytes
    tried: int
    #: what the bytes of the tokens take without any hypothesis
    raw_bits: float
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
        """Some hypothesis explains every byte, and takes fewer bits than they do."""
        return self.explanations[0].complete and self.shorter

    @property
    def shorter(self) -> bool:
        """The first explanation takes fewer bits than the bytes themselves."""
        return self.ok or self.explanations[0].bits < self.raw_bits

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
        if not self.ok and self.shorter:
            lines += _reasons(best.first)
        if self.recipe_assumed:
            lines.append(f"  the dump declares no recipe; {self.declared.recipe} is the one that its layout uses")
        for place, each in enumerate(self.explanations, 1):
            lines += _lines(place, each, best)
        judged = f"{self.sampled:,} tokens" if self.sampled == self.tokens else (
            f"{self.sampled:,} of {self.tokens:,} tokens, those above then on all"
        )  # fmt: skip
        lines.append(f"  {self.tried:,} hypotheses tried on {judged}; the bytes alone take {self.raw_bits:,.0f} bits")
        return "\n".join([*lines, *(f"  not told apart: {each}" for each in self.inseparable)])

    def _headline(self, best: Explanation) -> str:
        if self.ok:
            needed = f", {self.own.allowance:,} bytes within its bounds" if self.own.allowance else ""
            return f"as declared: {self.declared} explains all {self.own.total:,} bytes{needed}"
        if not self.shorter:
            return (
                f"UNEXPLAINED: nothing explains these bytes, no hypothesis is shorter than all {best.total:,} of them"
            )
        but = _except(best)
        if best is self.own:
            return f"as declared{but or ', but not all of it lies in the pages'}: {self.declared}"
        first = best.first
        meant = f"; declared is {self.declared}"
        if not first.faults:
            part = f" ({first.scope})" if first.scope else ""
            return f"these are the bytes of {first.recipe} in {first.layout}{part}{but}{meant}"
        named = "; ".join(
            f"{fault}: {FAULTS[fault].meaning} ({how})" for fault, how in zip(first.faults, first.hows, strict=True)
        )
        base = f"{first.recipe} in {first.layout}"
        return f"these are the bytes of {base}, but {named}{but}{'' if base == str(self.declared) else meant}"


def _except(each: Explanation) -> str:
    if not each.wrong:
        return ""
    count = f"{each.wrong:,} byte{'s hold' if each.wrong > 1 else ' holds'} something else"
    return f", except {each.exceptions} ({count})" if each.exceptions else f", except {count}"


def _reasons(first: Name) -> list[str]:
    return [f"  {fault}: {FAULTS[fault].reason}; seen in {FAULTS[fault].source}" for fault in first.faults]


def _lines(place: int, each: Explanation, best: Explanation) -> list[str]:
    counts = [f"explains {each.explained:,} of {each.total:,} bytes", f"{each.only:,} of them alone"]
    if each.allowance:
        counts.append(f"{each.allowance:,} within the bounds of approximate instructions")
    if each.open:
        counts.append(f"{each.open:,} it says nothing of")
    gap = each.bits - best.bits
    counts.append(
        f"{each.bits:,.0f} bits" if each is best else f"{abs(gap):,.0f} bits {'more' if gap >= 0 else 'less'}"
    )
    possible = "possible: " if each is not best and not each.wrong else ""
    lines = [f"  {place}. {possible}{each.first}: {', '.join(counts)}"]
    return lines + _also(each.members[1:])


def _also(members: Sequence[Name]) -> list[str]:
    shown = [f"       the same bytes: {member}" for member in members[:4]]
    if len(members) > 4:
        shown.append(f"       and {len(members) - 4} more")
    return shown

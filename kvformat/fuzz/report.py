"""The report of a search: what was tried, the smallest failure, and how to see it again."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from kvformat.dump.dump import Dump
from kvformat.errors import InputError
from kvformat.fuzz.judge import Finding
from kvformat.fuzz.plan import Plan

if TYPE_CHECKING:
    from kvformat.verify.report import Report

_INTERPRETER = (
    "Triton kernels ran in its interpreter (TRITON_INTERPRET), whose casts are not the GPU's: to fp8 it makes 500 and "
    "1e9 0x78, and to integers it makes NaN and Inf the smallest one; judge such an input on the GPU"
)


@dataclass(frozen=True)
class FuzzReport:
    """What a search found. `str(report)` is what `kvformat fuzz` prints."""

    plan: Plan
    #: the smallest failure, None where every example holds
    finding: Finding | None
    #: calls of the candidate until the first failure, and those that made it smaller
    examples: int
    shrinks: int
    seconds: float
    #: examples until the first failure, seconds after the first example
    seconds_to_first: float
    seed: int
    #: differences that the exact twin did not confirm: a fault of kvformat, not of the candidate
    unconfirmed: int = 0

    @property
    def ok(self) -> bool:
        """No example failed."""
        return self.finding is None

    @property
    def status(self) -> int:
        """0: every example holds; 1: one failed; 2: none was tried, or the two engines disagree."""
        if self.finding is not None:
            return 1
        return 0 if self.examples and not self.unconfirmed else 2

    @property
    def size(self) -> str:
        """How large the counterexample is: "1 token, 1 head, 2 of 16 elements"."""
        if self.finding is None:
            return ""
        case = self.finding.case
        tokens, heads, dims = case.key.shape
        elements = case.key.size + (0 if self.plan.candidate.kind == "quantizer" else case.value.size)
        counted = f"{_plural(tokens, 'token')}, {_plural(heads, 'head')} of {dims}"
        return f"{counted}, {case.nonzero} of {elements} elements not zero"

    def dump(self) -> Dump | None:
        """The counterexample as `kvformat check` takes it; None where a dump of pages does not show it."""
        finding = self.finding
        if finding is None or finding.pages is None:
            return None
        case = finding.case
        return Dump.from_arrays(
            case.key,
            case.value,
            finding.pages,
            case.slots,
            layout=case.layout,
            recipe=self.plan.recipe,
            k_scale=case.k_scale,
            v_scale=case.v_scale,
            producer=f"kvformat fuzz {self.plan.candidate.name}",
        )

    def check(self) -> Report | None:
        """The verdict of `kvformat.check` on the counterexample, where it is one about bytes that a dump shows."""
        return self._checked

    @cached_property
    def _checked(self) -> Report | None:
        if self.finding is None or self.finding.fault != "bytes differ":
            return None
        from kvformat.verify import check

        dump = self.dump()
        report = None if dump is None else check(dump)
        return report if report is not None and not report.ok else None

    def diagnosis(self) -> str | None:
        """What `kvformat.diagnose` makes of the counterexample; None where it has nothing to say."""
        return self._diagnosed

    @cached_property
    def _diagnosed(self) -> str | None:
        dump = None if self.check() is None else self.dump()
        if dump is None:
            return None
        from kvformat.diagnose.search import diagnose

        try:
            return str(diagnose(dump))
        except InputError:  # a layout or a recipe that it does not take
            return None

    def to_json(self) -> dict[str, Any]:
        """The report as plain data."""
        found = self.finding
        checked = self.check()
        return {
            "candidate": self.plan.candidate.name,
            "kind": self.plan.candidate.kind,
            "mode": self.plan.mode,
            "recipe": self.plan.recipe.name,
            "layout": None if self.plan.candidate.kind == "quantizer" else self.plan.layout,
            "seed": self.seed,
            "examples": self.examples,
            "seconds": round(self.seconds, 3),
            "unconfirmed": self.unconfirmed,
            "fault": None if found is None else found.fault,
            "message": None if found is None else found.message,
            "counterexample": None if found is None else self._counterexample(found),
            "check": None if checked is None else checked.to_json(),
            "diagnosis": self.diagnosis(),
            "note": _INTERPRETER if interpreted() else None,
        }

    def _counterexample(self, found: Finding) -> dict[str, Any]:
        case = found.case
        elements = [
            {"side": side, "token": token, "head": head, "dim": dim, "value": str(array[token, head, dim])}
            for side, array in (("k", case.key), ("v", case.value))
            for token, head, dim in np.argwhere(array != 0)[:64].tolist()
        ]
        return {
            "shape": list(case.key.shape),
            "dtype": case.key.dtype.name,
            "nonzero": case.nonzero,
            "elements": elements,
            "slots": case.slots.tolist(),
            "layout": None if self.plan.candidate.kind == "quantizer" else case.layout.spec,
            "k_scale": None if case.k_scale is None else float(case.k_scale),
            "v_scale": None if case.v_scale is None else float(case.v_scale),
        }

    def __str__(self) -> str:
        candidate, recipe = self.plan.candidate, self.plan.recipe
        where = "" if candidate.kind == "quantizer" else f" in {self.plan.layout}"
        tried = f"{self.examples:,} examples in {self.seconds:.1f} s, seed {self.seed}"
        if self.finding is None:
            verdict = "holds" if self.examples else "NOTHING TRIED"
            lines = [f"{verdict}: {candidate.name}, {candidate.kind}, by {recipe.name}{where}, {tried}"]
        else:
            lines = [f"FAILS: {candidate.name}, {candidate.kind}, by {recipe.name}{where}; {tried}"]
            lines += self._failure(self.finding)
        if interpreted():
            lines.append(f"  note: {_INTERPRETER}")
        if self.unconfirmed:
            lines.append(f"  {self.unconfirmed} differences that the exact twin denies: please report this to kvformat")
        return "\n".join(lines)

    def _failure(self, finding: Finding) -> list[str]:
        lines = [f"  {finding.fault}: {finding.message}", f"  counterexample: {self.size}"]
        lines += [f"    {line}" for line in _described(self, finding)]
        checked = self.check()
        if checked is not None:
            lines += [f"  {line}" for line in str(checked).splitlines()]
        said = self.diagnosis()
        if said:  # its sentence and the reason; the ranked list is in the JSON
            lines += [f"  {line}" for line in said.splitlines()[:2]]
        return lines


def interpreted() -> bool:
    """Whether Triton kernels of this process run in Triton's interpreter."""
    return "triton" in sys.modules and os.environ.get("TRITON_INTERPRET", "0").lower() in (
        "1",
        "true",
        "on",
        "yes",
        "y",
    )


def _described(report: FuzzReport, finding: Finding) -> list[str]:
    """The elements that are not zero, and for pages where the tokens go."""
    case = finding.case
    lines = []
    names = (
        (("x", case.key),) if report.plan.candidate.kind == "quantizer" else (("key", case.key), ("value", case.value))
    )
    for name, array in names:
        places = np.argwhere(array.view(f"u{array.itemsize}") != 0)
        text = ", ".join(f"{name}[{t}, {h}, {d}] = {array[t, h, d]!s}" for t, h, d in places[:4].tolist())
        more = f", and {len(places) - 4} more" if len(places) > 4 else ""
        lines.append(f"{case.key.dtype.name} {name} {array.shape}: {text or 'all zeros'}{more}")
    if case.k_scale is not None:
        lines.append(f"k_scale {case.k_scale}" + (f", v_scale {case.v_scale}" if len(names) > 1 else ""))
    if len(names) > 1:
        spec = case.layout.spec
        kept = {name: spec[name] for name in ("order", "block_size", "v_scales", "dtype") if name in spec}
        padding = case.layout.page_bytes - case.layout.natural_bytes
        size = ", ".join(f"{name} {value}" for name, value in kept.items())
        lines.append(f"{size}{f', {padding} bytes of padding' if padding else ''}; {_plural(case.num_blocks, 'block')}")
        table = f"block_table {case.blocks.tolist()}" if case.blocks is not None else f"slots {case.slots.tolist()}"
        lines.append(table)
    return lines


def _plural(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"

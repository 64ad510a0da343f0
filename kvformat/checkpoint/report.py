"""What `kvformat scales` says of a checkpoint: what is wrong, what each engine uses, and what that does to K and V."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvformat.checkpoint.judge import Loaded, Problem, Shares, loaded, problems, spans, unread
from kvformat.checkpoint.reading import Checkpoint
from kvformat.checkpoint.spellings import ENGINES, SIDES, Side
from kvformat.checkpoint.states import States, amax
from kvformat.elements.formats import element
from kvformat.errors import unknown_name


@dataclass(frozen=True)
class ScalesReport:
    """The report. `str(report)` is for people; status 1 where something is wrong.

    shares: by engine, what the scales that it uses do to the K and V at hand, stored as e4m3fn.
    """

    checkpoint: Checkpoint
    problems: tuple[Problem, ...]
    engines: Mapping[str, tuple[Loaded, ...]]
    shares: Mapping[str, Mapping[tuple[int, Side], Shares]]

    @classmethod
    def of(cls, checkpoint: Checkpoint, states: States | None = None, engine: str | None = None) -> ScalesReport:
        """Judge a checkpoint, for one engine or all; with K and V at hand, its scales by what they must cover as well.

        Raises InputError for an engine that is not known.
        """
        if engine is not None and engine not in ENGINES:
            raise unknown_name("engine", engine, ENGINES)
        sides = {} if states is None else _by_side(states)
        found = problems(checkpoint, {place: amax(x) for place, x in sides.items()} or None)
        engines = {name: tuple(loaded(checkpoint, name)) for name in ENGINES if engine in (None, name)}
        shares = {name: _shares(uses, sides) for name, uses in engines.items()}
        return cls(checkpoint, (*found, *unread(checkpoint, engines)), engines, shares)

    @property
    def status(self) -> int:
        """0: nothing is wrong; 1: something is."""
        return int(bool(self.problems))

    def __str__(self) -> str:
        held = self.checkpoint
        number = f"{len(held.scales)} scales in {held.layers} layers"
        lines = [f"{held.path}: {number}, quantization method {held.method or 'none'}"]
        lines += [f"  {problem.kind}: {problem}" for problem in self.problems]
        for engine, uses in self.engines.items():
            lines += [f"  {engine}: {line}" for line in _together(uses)]
            for (layer, side), share in self.shares[engine].items():
                if share.clipped or share.underflowed:
                    lost = f"{share.clipped:.2%} clipped, {share.underflowed:.2%} stored as 0"
                    lines.append(f"  {engine}: layer {layer}: of {side.upper()} {lost}")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values; floats as text, so that no bit of them is lost."""
        held = self.checkpoint
        scales = [
            {
                "layer": each.layer,
                "side": each.side,
                "name": each.name,
                "spelling": each.spelling,
                "values": [repr(float(value)) for value in each.values],
            }
            for each in held.scales
        ]
        return {
            "checkpoint": held.path,
            "layers": held.layers,
            "method": held.method,
            "scales": scales,
            "problems": [{"kind": each.kind, "layers": list(each.layers), "says": each.says} for each in self.problems],
            "engines": {engine: self._engine(engine) for engine in self.engines},
        }

    def _engine(self, engine: str) -> list[dict[str, Any]]:
        rows = []
        for each in self.engines[engine]:
            value = None if each.value is None else repr(each.value)
            row: dict[str, Any] = {"layer": each.layer, "side": each.side, "value": value, "why": each.why}
            share = self.shares[engine].get((each.layer, each.side))
            if share is not None:
                row |= {"clipped": share.clipped, "underflowed": share.underflowed}
            rows.append(row)
        return rows


def _by_side(states: States) -> dict[tuple[int, Side], Any]:
    return {(layer, side): x for layer, pair in states.items() for side, x in zip(SIDES, pair, strict=True)}


def _shares(uses: tuple[Loaded, ...], sides: Mapping[tuple[int, Side], Any]) -> dict[tuple[int, Side], Shares]:
    """Elements that a scale clips, and that it turns into 0: those of at most half the smallest subnormal."""
    fmt = element("e4m3fn")
    made = {}
    for each in uses:
        x = sides.get((each.layer, each.side))
        if x is not None and each.value is not None and 0 < each.value < float("inf"):
            made[each.layer, each.side] = Shares.of(x, each.value, float(fmt.max), float(fmt.min_subnormal) / 2)
    return made


def _together(uses: tuple[Loaded, ...]) -> list[str]:
    """What an engine uses, layers with one reason in one line."""
    groups: dict[tuple[str, str], list[int]] = {}
    for each in uses:
        value = "an error" if each.value is None else "the checkpoint's" if not each.why else f"{each.value:g}"
        reason = each.why.replace(f".{each.layer}.", ".N.")
        groups.setdefault((f"{each.side.upper()} {value}", reason), []).append(each.layer)
    return [f"{spans(tuple(at))}: {what}{f' ({why})' if why else ''}" for (what, why), at in groups.items()]

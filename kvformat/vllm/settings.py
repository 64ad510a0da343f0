"""What the environment asks of the plugin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kvformat.errors import InputError, unknown_name

Action = Literal["log", "save", "raise"]
ACTIONS = ("log", "save", "raise")


@dataclass(frozen=True)
class Numbers:
    """Layers or steps: those of some ranges, or all."""

    ranges: tuple[range, ...] | None = None

    def __contains__(self, number: int) -> bool:
        return self.ranges is None or any(number in each for each in self.ranges)


@dataclass(frozen=True)
class Settings:
    """The plugin's settings.

    Attributes
    ----------
    dump : the folder that captured writes go to; None: none are captured
    watch : what a wrong write does; None: nothing is judged
    layers : the layers that are hooked, by their place in the model
    steps : the steps that are dumped: a file per layer and step is much; all are judged
    layout, recipe : what the pages should be, in place of what the catalogue names for the engine
    differences : the folder for dumps of wrong writes, with `save` and without `dump`

    """

    dump: Path | None = None
    watch: Action | None = None
    layers: Numbers = Numbers()
    steps: Numbers = Numbers((range(4),))
    layout: str | None = None
    recipe: str | None = None
    differences: Path = Path("kvformat-differences")

    @property
    def saves(self) -> Path | None:
        """The folder that this run saves dumps in, if it may save any."""
        return self.dump or (self.differences if self.watch == "save" else None)

    def dumps(self, step: int) -> bool:
        """Whether that step is dumped."""
        return self.dump is not None and step in self.steps


def from_environment(environment: Mapping[str, str]) -> Settings:
    """The settings of KVFORMAT_DUMP, _WATCH, _LAYERS, _STEPS, _LAYOUT, _RECIPE. Raises InputError for a wrong one."""
    given = {name: environment.get(f"KVFORMAT_{name}", "").strip() for name in _NAMES}
    watch = given["WATCH"]
    if watch and watch not in ACTIONS:
        raise unknown_name("KVFORMAT_WATCH", watch, ACTIONS)
    dump = Path(given["DUMP"]) if given["DUMP"] else None
    return Settings(
        dump=dump,
        watch=watch or None,  # type: ignore[arg-type]
        layers=numbers("KVFORMAT_LAYERS", given["LAYERS"]) or Numbers(),
        steps=numbers("KVFORMAT_STEPS", given["STEPS"]) or Settings.steps,
        layout=given["LAYOUT"] or None,
        recipe=given["RECIPE"] or None,
    )


_NAMES = ("DUMP", "WATCH", "LAYERS", "STEPS", "LAYOUT", "RECIPE")


def numbers(name: str, text: str) -> Numbers | None:
    """`0,3-5` as numbers; None for an empty text. Raises InputError, naming the variable, for anything else."""
    if not text:
        return None
    ranges = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise InputError(f"{name} is numbers and ranges such as 0,3-5; got {text!r}")
        ranges.append(range(int(first), int(last if dash else first) + 1))
        if not ranges[-1]:
            raise InputError(f"{name}: {part.strip()} is empty; the smaller number comes first")
    return Numbers(tuple(ranges))

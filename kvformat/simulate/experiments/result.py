"""What an experiment gives: rows of numbers, what they say, and its plots as data. One reporter prints all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvformat.errors import InputError

Progress = Callable[[int, int], None]
Row = Mapping[str, str | float | int | bool | None]


@dataclass(frozen=True)
class Plot:
    """One set of axes. series: points (x, y) by name; kind: lines, points, or steps over positions."""

    title: str
    x: str
    y: str
    series: Mapping[str, Sequence[tuple[float, float]]]
    log_x: bool = False
    log_y: bool = False
    kind: str = "lines"


@dataclass(frozen=True)
class Result:
    """The outcome of one experiment; all rows have the same keys."""

    name: str
    title: str
    rows: Sequence[Row]
    says: Sequence[str]
    plots: Sequence[Plot] = ()

    def to_json(self) -> dict[str, Any]:
        """The result as plain data, plots left out: they draw the rows."""
        return {"name": self.name, "title": self.title, "rows": [dict(row) for row in self.rows], "says": [*self.says]}


@dataclass(frozen=True)
class Settings:
    """What a user may choose. seed: of synthetic K and V; tokens: their number; budget: tokens kept by eviction."""

    seed: int = 0
    tokens: int = 256
    budget: int = 64
    model: Path | None = None
    layers: int | None = None
    chunks: int = 1
    #: K and V of the user's own
    kv: Path | None = None

    def __post_init__(self) -> None:
        for name, least in (("seed", 0), ("tokens", 16), ("budget", 1), ("chunks", 1)):
            if getattr(self, name) < least:
                raise InputError(f"{name} must be at least {least}; got {getattr(self, name)}")
        if self.layers is not None and self.layers < 1:
            raise InputError(f"layers must be at least 1; got {self.layers}")


@dataclass(frozen=True)
class Experiment:
    """An experiment by name: the question it answers, and the pure function that answers it."""

    name: str
    question: str
    run: Callable[[Settings, Progress], Result]
    #: needs more than the package brings: the fetched model
    needs_model: bool = field(default=False)


def mode_name(recipe: str) -> str:
    """The recipe's last part, which names its mode."""
    return recipe.rpartition("/")[2]

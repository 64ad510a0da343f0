"""How far a recipe has been proved: by the library's own code, executed; by reading it; or by definition.

What was executed is data, `executed.json`, which a run of the engines' code writes (`.ci/engines`) and nobody edits. It
names the program that was judged by a hash: a recipe that has changed since then counts as read until it is run again.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Literal

from kvformat.recipes.program import Level, Program, Recipe

Evidence = Literal["executed", "read", "defined"]


@dataclass(frozen=True)
class Execution:
    """The code of one engine, executed one way; every byte it left was the recipe's.

    Attributes
    ----------
    engine, version : the distribution and its version, "vllm" "0.33.0"
    how : what executed it: "PTX, sm_90", "CPU", "Triton, sm_100", ...
    functions : the engine's functions or kernels
    inputs : what they were given
    dtypes : of the inputs
    compared : codes, scales and bytes of pages that were compared
    date : of the run, ISO 8601
    log : the file under spec/evidence/engines that has each comparison

    """

    engine: str
    version: str
    how: str
    functions: tuple[str, ...]
    inputs: tuple[str, ...]
    dtypes: tuple[str, ...]
    compared: int
    date: str
    log: str

    def __str__(self) -> str:
        what = f"{self.engine} {self.version}, {self.how}: {'; '.join(self.functions)}"
        return f"{what}; {', '.join(self.dtypes)}; {self.compared:,} bytes equal ({self.date}, {self.log})"


def executions(recipe: Recipe) -> tuple[Execution, ...]:
    """What executed the recipe as it is now; empty where nothing did."""
    entry = _executed().get(recipe.name)
    if entry is None or entry["program"] != program_hash(recipe):
        return ()
    return tuple(map(_execution, entry["runs"]))


def evidence(recipe: Recipe) -> Evidence:
    """`executed`, `defined` (golden, exact, a standard) or `read`."""
    if recipe.status in ("golden", "exact"):
        return "defined"
    return "executed" if executions(recipe) else "read"


def _execution(run: dict[str, Any]) -> Execution:
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in run.items()}
    return Execution(**fields)


def program_hash(recipe: Recipe) -> str:
    """A hash of all that decides a recipe's bytes: not of its name, source and notes. What is at its default is out."""
    described = {
        "element": recipe.element,
        "levels": [_level(level) for level in recipe.levels],
        "code": _program(recipe.code),
        "value": _program(recipe.value),
        "prepare": [str(step) for step in recipe.prepare],
        "undefined": recipe.undefined,
    }
    text = json.dumps({name: value for name, value in described.items() if value}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _level(level: Level) -> dict[str, Any]:
    described = {
        "name": level.name,
        "granularity": level.granularity.name,
        "program": _program(level.program),
        "store": level.store,
        "may_be_given": level.may_be_given,
        "multiplier": "" if level.multiplier == "decode" else level.multiplier,
        "trials": level.trials,
        "error": _program(level.error),
        "after": level.after,
        "sums": _program(level.sums),
    }
    return {name: value for name, value in described.items() if value}


def _program(program: Program) -> list[str]:
    return [program.precision, *map(str, program.operations)] if program.operations else []


@cache
def _executed() -> dict[str, Any]:
    text = resources.files("kvformat.recipes").joinpath("executed.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found

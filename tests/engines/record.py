"""The logs of the engines' runs, what the package says of them, and the vectors that the fast tests judge."""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from kvformat.layouts import catalogue as layouts
from kvformat.recipes.catalogue import recipe as find
from kvformat.recipes.evidence import program_hash
from tests.engines.judging import Codes, Outcome

ROOT = Path(__file__).resolve().parents[2]
LOGS = ROOT / "spec" / "evidence" / "engines"
EXECUTED = ROOT / "kvformat" / "recipes" / "executed.json"
#: what decides no bytes: where sources come from, how logs are written
_ASIDE = {"sources", "record"}
#: elements that a recipe's vectors hold of each dtype
_ELEMENTS = 1536
#: and how many given scales of each
_CASES = 2


def file_hash(path: Path) -> str:
    """Of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def layout_hash(name: str) -> str:
    """Of a layout's entry in the catalogue, as it is written there."""
    families = (getattr(layouts, part) for part in vars(layouts) if hasattr(getattr(layouts, part), "ENTRIES"))
    entry = next(each for family in families for each in family.ENTRIES if each["name"] == name)
    return hashlib.sha256(json.dumps(entry, sort_keys=True).encode()).hexdigest()[:16]


def adapter_files(adapter: str) -> list[str]:
    """The files whose change makes an adapter's log stale: itself, the judge, and what it imports of this room."""
    text = (ROOT / "tests" / "engines" / f"{adapter}.py").read_text(encoding="utf-8")
    imported = set(re.findall(r"^from tests\.engines\.(\w+) import", text, re.MULTILINE))
    for names in re.findall(r"^from tests\.engines import (.+)$", text, re.MULTILINE):
        imported |= {name.strip() for name in names.split(",")}
    return [f"tests/engines/{name}.py" for name in sorted({adapter, "judging"} | (imported - _ASIDE))]


def write(adapter: str, head: dict[str, Any], outcomes: list[Outcome]) -> Path:
    """The log of one adapter's run, and its vectors."""
    used = sorted({each.layout.split()[0] for each in outcomes if each.layout})
    log = {
        **head,
        "recipes": {name: program_hash(find(name)) for name in sorted({each.recipe for each in outcomes})},
        "layouts": {name: layout_hash(name) for name in used},
        "adapters": {name: file_hash(ROOT / name) for name in adapter_files(adapter)},
        "runs": [_run(each) for each in outcomes],
    }
    LOGS.mkdir(parents=True, exist_ok=True)
    path = LOGS / f"{adapter}.json"
    path.write_text(json.dumps(log, indent=1) + "\n", encoding="utf-8")
    _write_vectors(adapter, outcomes)
    return path


def _run(each: Outcome) -> dict[str, Any]:
    kept = ("recipe", "how", "function", "inputs", "dtype", "layout", "compared", "differ", "first")
    return {name: getattr(each, name) for name in kept if getattr(each, name) != ""}


def collect() -> None:
    """Write `executed.json`."""
    EXECUTED.write_text(json.dumps(collected(), indent=1) + "\n", encoding="utf-8")


def collected() -> dict[str, Any]:
    """Of all logs, the recipes that agree in every run, and what ran."""
    found: dict[str, dict[str, Any]] = {}
    wrong: set[str] = set()
    for path in sorted(LOGS.glob("*.json")):
        log = json.loads(path.read_text(encoding="utf-8"))
        groups: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        for run in log["runs"]:
            groups[run["recipe"], run["how"]].append(run)
            if run["differ"]:
                wrong.add(run["recipe"])
        for (name, how), runs in groups.items():
            entry = found.setdefault(name, {"program": log["recipes"][name], "runs": []})
            if entry["program"] != log["recipes"][name]:
                wrong.add(name)
            entry["runs"].append(
                {
                    "engine": log["engine"],
                    "version": log["version"],
                    "how": how,
                    "functions": _unique(run["function"] for run in runs),
                    "inputs": _unique(run["inputs"] for run in runs),
                    "dtypes": _unique(run["dtype"] for run in runs),
                    "compared": sum(run["compared"] for run in runs),
                    "date": log["date"],
                    "log": path.relative_to(ROOT).as_posix(),
                }
            )
    return {name: found[name] for name in sorted(found) if name not in wrong}


def _unique(words: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(words))


# --- vectors -------------------------------------------------------------------------------------------------------


def _write_vectors(adapter: str, outcomes: list[Outcome]) -> None:
    """A few rows of each recipe and dtype: what went in and what the engine left."""
    tensors: dict[str, np.ndarray] = {}
    cases: list[dict[str, Any]] = []
    held: dict[tuple[str, str], int] = defaultdict(int)
    scales: set[tuple[str, str, str]] = set()
    for codes in (each for outcome in outcomes if not outcome.differ for each in outcome.vectors):
        recipe, dtype = find(codes.recipe), codes.x.dtype.name
        given = "" if codes.scale is None else float(codes.scale).hex()
        alone = not recipe.outer or codes.scale is not None  # a part of the rows has the scales of all
        if not alone or held[recipe.name, dtype] == _CASES or (recipe.name, dtype, given) in scales:
            continue
        scales.add((recipe.name, dtype, given))
        held[recipe.name, dtype] += 1
        x, stored, groups = _part(codes)
        number = len(cases)
        tensors |= {f"{number}.x": plain(x), f"{number}.codes": plain(stored)}
        if groups is not None:
            tensors[f"{number}.scales"] = plain(groups)
        cases.append({
            "recipe": recipe.name, "dtype": dtype, "scale": given, "how": codes.how, "function": codes.function,
            "nan": "class" if codes.nan_as_class else "bits",
        })  # fmt: skip
    save_file(tensors, LOGS / f"{adapter}.safetensors", metadata={"cases": json.dumps(cases)})


def _part(codes: Codes) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Some of it as (tokens, 1, dims): the first rows; where elements share nothing, elements from everywhere."""
    dims = codes.x.shape[2]
    if find(codes.recipe).inner is None:
        step = max(1, codes.x.size // _ELEMENTS) | 1
        some = slice(None, step * _ELEMENTS, step)
        x, stored = (a.reshape(-1)[some].reshape(1, 1, -1) for a in (codes.x, codes.codes))
        return x, stored, None
    rows = max(1, _ELEMENTS // dims)
    x, stored = (a.reshape(-1, 1, dims)[:rows] for a in (codes.x, codes.codes))
    assert codes.scales is not None
    return x, stored, codes.scales.reshape(codes.x.size // dims, -1)[:rows]


def plain(array: np.ndarray) -> np.ndarray:
    """The bits of an array, of a dtype that every reader knows."""
    kinds = {1: np.uint8, 2: np.uint16, 4: np.uint32}
    return np.ascontiguousarray(array).view(kinds[array.dtype.itemsize])

"""`check_files`: the verdict on each of many dumps, one task each, in constant memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from kvformat.dump.dump import Dump
from kvformat.dump.file import metadata_in
from kvformat.errors import InputError
from kvformat.many.files import expand, layer_in, tasks
from kvformat.many.setting import Setting
from kvformat.recipes.program import Recipe
from kvformat.tasks import Journal, run
from kvformat.tasks.runner import Watch

#: the status of a file that cannot be judged
CANNOT_JUDGE = 2


@dataclass(frozen=True)
class Verdict:
    """What was found of one dump. document: the report as plain data; text: as people read it."""

    document: dict[str, Any]
    text: str

    @property
    def path(self) -> str:
        """The file."""
        return str(self.document["dump"])

    @property
    def status(self) -> int:
        """0: it holds, 1: it differs, 2: it cannot be judged."""
        return int(self.document["status"])


def check_files(
    paths: str | Path | Iterable[str | Path],
    *,
    recipe: Recipe | None = None,
    setting: Setting | None = None,
    journal: Journal | None = None,
    watch: Watch | None = None,
) -> Iterator[Verdict]:
    """Judge dumps one by one; those inside `with kvformat.parallel():` by several processes.

    Parameters
    ----------
    paths : str, Path or iterable of them
        Files, folders (every .safetensors file in them and below) and patterns (`caches/*/layer*.safetensors`).
    recipe : Recipe, optional
        Judge by this one, whatever the dumps declare.
    setting : Setting, optional
        What workers have to know beside: files of definitions.
    journal, watch
        Of `kvformat.tasks.runner`.

    Yields
    ------
    Verdict
        In the order of the files; a file that cannot be judged has status 2 and stops no other.

    """
    names = [paths] if isinstance(paths, str | Path) else list(paths)
    files = expand(map(str, names))
    found = run(
        partial(judge, recipe=recipe, setting=setting or Setting()),
        tasks(files, "check"),
        journal,
        watch=watch,
        lost=_lost,
    )
    for each in found:
        yield Verdict(**each)


def judge(path: str, recipe: Recipe | None, setting: Setting) -> dict[str, Any]:
    """One dump: what `Verdict` holds."""
    setting.apply()
    layer = layer_in(path)
    try:
        if Path(path).is_dir():
            raise InputError(f"{path}: is a directory, and no .safetensors file is in it")
        dump = Dump.load(path)
        layer = metadata_in(Path(path)).get("layer", layer)
        from kvformat.verify import check  # compiled code: a file that is no dump does not wait for it

        report = check(dump, recipe=recipe)
    except InputError as error:
        return _refused(path, str(error), layer)
    except MemoryError:
        return _refused(path, f"{path}: there is not enough memory for it", layer)
    there = {} if layer is None else {"layer": layer}
    head = {"dump": path, "ok": report.ok, "status": report.status, **there}
    return {"document": {**head, **report.to_json()}, "text": str(report)}


def _refused(path: str, why: str, layer: str | None = None) -> dict[str, Any]:
    there = {} if layer is None else {"layer": layer}
    return {"document": {"dump": path, "ok": False, "status": CANNOT_JUDGE, **there, "error": why}, "text": why}


def _lost(path: str) -> dict[str, Any]:
    return _refused(path, f"{path}: its worker was killed each time, as it is where memory runs out", layer_in(path))


def diagnose_files(
    paths: Iterable[str],
    *,
    recipe: Recipe | None = None,
    setting: Setting | None = None,
    journal: Journal | None = None,
    watch: Watch | None = None,
) -> Iterator[str]:
    """The name of the fault of each dump, "" where nothing explains its bytes. As `check_files` otherwise."""
    work = partial(_name_fault, recipe=recipe, setting=setting or Setting())
    return run(work, tasks(paths, "diagnose"), journal, watch=watch, lost=lambda _path: "")


def _name_fault(path: str, recipe: Recipe | None, setting: Setting) -> str:
    setting.apply()
    from kvformat.diagnose.search import diagnose

    try:
        found = diagnose(Dump.load(path), recipe=recipe)
    except (InputError, MemoryError):  # a layout or a recipe that it does not take
        return ""
    if found.ok or not found.explained:
        return ""
    return str(found.explanations[0].first)

"""`lint_files`: what right pages never show, looked for in each of many files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from kvformat.errors import InputError
from kvformat.many.check import CANNOT_JUDGE, Verdict
from kvformat.many.files import tasks
from kvformat.many.setting import Setting
from kvformat.recipes.program import Recipe
from kvformat.tasks import Journal, run
from kvformat.tasks.runner import Watch


def lint_files(
    paths: Iterable[str],
    *,
    recipe: Recipe | None = None,
    setting: Setting | None = None,
    journal: Journal | None = None,
    watch: Watch | None = None,
) -> Iterator[Verdict]:
    """Look at files of pages one by one; parameters and results are those of `check_files`."""
    work = partial(_lint, recipe=recipe, setting=setting or Setting())
    for each in run(work, tasks(paths, "lint"), journal, watch=watch):
        yield Verdict(**each)


def _lint(path: str, recipe: Recipe | None, setting: Setting) -> dict[str, Any]:
    setting.apply()
    from kvformat.lint.linter import lint_file

    try:
        report = lint_file(path, recipe)
    except InputError as error:
        return {
            "document": {"dump": path, "ok": False, "status": CANNOT_JUDGE, "error": str(error)},
            "text": str(error),
        }
    head = {"dump": path, "ok": report.ok, "status": report.status}
    return {"document": {**head, **report.to_json()}, "text": str(report)}

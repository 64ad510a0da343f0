"""The verdicts on many files: one row each as they come, then the groups of files with the same fault."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from kvformat.cli.outcome import DIFFERENCE, HOLDS, complain, print_json, printable, say, worst
from kvformat.cli.work import Crew

if TYPE_CHECKING:
    from kvformat.many.check import Verdict
    from kvformat.many.groups import Group
    from kvformat.recipes import Recipe


def check(
    files: list[str],
    recipe: Recipe | None,
    layout_file: str | None,
    crew: Crew,
    *,
    as_json: bool,
    listed: bool,
    diagnosed: bool,
) -> int:
    """Judge files. listed: a row each and groups, in place of whole reports; diagnosed: groups by the fault's name."""
    from kvformat.many.check import check_files, diagnose_files
    from kvformat.many.groups import Groups
    from kvformat.many.setting import Setting, named

    setting = Setting.here((layout_file,) if layout_file else ())
    name = f"check by {'what each file declares' if recipe is None else named(recipe)}{setting.digest}"
    with crew.at_work(name) as (journal, watch):

        def verdicts() -> Iterator[Verdict]:
            return check_files(files, recipe=recipe, setting=setting, journal=journal, watch=watch)

        groups, counts, status = Groups(), {"compared": 0, "mismatches": 0}, []
        width = max(len(printable(path)) for path in files)
        if listed and not as_json:
            say(_row(width, "file", "layer", "verdict", "wrong", "compared", "recipe and first difference"))
        for verdict in verdicts():
            groups.add(verdict)
            for count in counts:
                counts[count] += verdict.document.get(count, 0)
            status.append(verdict.status)
            if not as_json:
                (_print_row if listed else _print_whole)(verdict, width)
        if diagnosed:
            wrong = [verdict.path for verdict in verdicts() if verdict.status == DIFFERENCE]
            options: Any = {"recipe": recipe, "setting": setting, "journal": journal, "watch": watch}
            names = dict(zip(wrong, diagnose_files(wrong, **options), strict=True))
            groups = Groups()
            for verdict in verdicts():
                groups.add(verdict, names.get(verdict.path, ""))
        found = groups.found()
        if as_json:
            return _print_json(verdicts(), found, counts, worst(status), len(files))
    if listed:
        _print_groups(found, status)
    return worst(status)


def lint(files: list[str], recipe: Recipe | None, layout_file: str | None, crew: Crew, *, as_json: bool) -> int:
    """Look at the pages of files: each report as it comes, or one document."""
    from kvformat.many.lint import lint_files
    from kvformat.many.setting import Setting, named

    setting = Setting.here((layout_file,) if layout_file else ())
    name = f"lint by {'what each file declares' if recipe is None else named(recipe)}{setting.digest}"
    with crew.at_work(name) as (journal, watch):
        status, documents = [], []
        for verdict in lint_files(files, recipe=recipe, setting=setting, journal=journal, watch=watch):
            status.append(verdict.status)
            if as_json:
                documents.append(verdict.document)
            else:
                _print_whole(verdict, 0)
    if as_json:
        return print_json({"files": len(files), "reports": documents}, worst(status))
    say(f"{sum(each == HOLDS for each in status):,} of {len(files):,} files show nothing")
    return worst(status)


def _print_whole(verdict: Verdict, _width: int) -> None:
    if "error" in verdict.document:
        complain(verdict.text)
    else:
        say(f"{printable(verdict.path)}: {verdict.text}")


_VERDICTS = ("holds", "DIFFERS", "CANNOT TELL")


def _print_row(verdict: Verdict, width: int) -> None:
    document = verdict.document
    layer = printable(document.get("layer", ""))
    if "error" in document:
        said = printable(document["error"]).removeprefix(f"{printable(verdict.path)}: ")
        say(_row(width, printable(verdict.path), layer, _VERDICTS[verdict.status], "", "", said))
        return
    wrong, compared = (f"{document[name]:,}" for name in ("mismatches", "compared"))
    first = document["first"]
    said = document["recipe"] + (f": {_first(first)}" if first else "")
    say(_row(width, printable(verdict.path), layer, _VERDICTS[verdict.status], wrong, compared, said))


def _row(width: int, path: str, layer: str, verdict: str, wrong: str, compared: str, said: str) -> str:
    return f"{path:<{width}}  {layer:>5}  {verdict:<11}  {wrong:>9}  {compared:>13}  {said}".rstrip()


def _first(first: Mapping[str, Any]) -> str:
    place = (
        f"{first['side'].upper()} {first['part']} of token {first['token']}, head {first['head']}, dim {first['dim']}"
    )
    return f"{place}: {_short(first['expected'])}, found {_short(first['found'])}"


def _short(entry: Mapping[str, Any]) -> str:
    return str(entry.get("code") or entry.get("value"))


def _print_groups(groups: list[Group], status: list[int]) -> None:
    from kvformat.cli import console

    holding = sum(each == HOLDS for each in status)
    say("")
    if groups:
        table = console.grid("group", "files", "fault", "first of them", right=("group", "files"))
        for number, group in enumerate(groups, 1):
            table.add_row(str(number), f"{len(group.files):,}", group.says, printable(group.files[0]))
        console.stdout().print(table)
    rest = (
        f", {len(status) - holding:,} do not, in {len(groups):,} group{'s' if len(groups) > 1 else ''}"
        if groups
        else ""
    )
    say(f"{holding:,} of {len(status):,} files hold{rest}")


def _print_json(
    verdicts: Iterable[Verdict], groups: list[Group], counts: Mapping[str, int], status: int, number: int
) -> int:
    """One document, written piece by piece: however many reports there are, one is in memory at a time."""
    first = next(({"dump": each.files[0], **each.first} for each in groups if each.first), None)
    head: dict[str, Any] = {
        "ok": status == HOLDS,
        "status": status,
        "recipe": None,
        "layout": None,
        **counts,
        "files": number,
    }
    head |= {"first": first, "groups": [each.to_json() for each in groups]}
    out = sys.stdout
    out.write(json.dumps(head, allow_nan=False)[:-1] + ', "reports": [')
    for place, verdict in enumerate(verdicts):
        out.write((", " if place else "") + json.dumps(verdict.document, allow_nan=False))
    out.write("]}\n")
    return status

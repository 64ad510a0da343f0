"""kvformat vectors: the conformance vectors: list them, check that they are whole, run a function on them."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvformat.cli import work
from kvformat.cli.outcome import DIFFERENCE, HOLDS, print_json, say
from kvformat.errors import InputError, unknown_name

if TYPE_CHECKING:
    from kvformat.vectors.runs import Outcome

app = typer.Typer(
    help="Conformance vectors: list, verify, run FILE --against MODULE:FUNCTION.",
    no_args_is_help=False,
    invoke_without_command=True,
)

_AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
_Folder = Annotated[Path | None, typer.Option(help="Another folder of vectors than the one that came with kvformat.")]


@app.callback()
def without_a_verb(context: typer.Context) -> int:
    """Conformance vectors: list, verify, run FILE --against MODULE:FUNCTION."""
    if context.invoked_subcommand is None:
        raise InputError("say what to do with the vectors: list, verify or run FILE --against MODULE:FUNCTION")
    return HOLDS


@app.command("list")
def listing(folder: _Folder = None, as_json: _AsJson = False) -> int:
    """Every file of vectors and how many tests it holds."""
    from kvformat.cli import console
    from kvformat.vectors.vectors import VectorSet

    vectors = VectorSet.load(folder)
    rows = [{"file": e.path, "tests": e.tests, "bytes": e.bytes} for e in vectors.entries]
    if as_json:
        return print_json({"folder": str(vectors.folder), "files": rows})
    table = console.grid("file", "tests", "bytes", right=("tests", "bytes"))
    for row in rows:
        table.add_row(str(row["file"]), f"{row['tests']:,}", f"{row['bytes']:,}")
    console.stdout().print(table)
    total = sum(e.tests for e in vectors.entries), sum(e.bytes for e in vectors.entries)
    say(f"{len(rows)} files, {total[0]:,} tests, {total[1]:,} bytes in {vectors.folder}")
    return HOLDS


@app.command("verify", short_help="Checksums, counts, ids, flags and sources of every file.")
def verify(folder: _Folder = None, as_json: _AsJson = False) -> int:
    """Check every file against its checksum, and that its counts, ids, flags and sources are consistent."""
    from kvformat.vectors.vectors import VectorSet

    vectors = VectorSet.load(folder)
    problems = vectors.verify()
    status = DIFFERENCE if problems else HOLDS
    tests = sum(e.tests for e in vectors.entries)
    if as_json:
        return print_json({"files": len(vectors.entries), "tests": tests, "problems": problems}, status)
    say(
        "\n".join(problems or [f"holds: {len(vectors.entries)} files, {tests:,} tests, every checksum as it should be"])
    )
    return status


@app.command("run")
def run(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Vector files, such as elements/e4m3fn_encode.")
    ],
    against: Annotated[
        str, typer.Option(metavar="MODULE:FUNCTION", help="The function to judge; FILE.py:FUNCTION too.")
    ],
    group: Annotated[str, typer.Option(help="Only groups whose id matches: 'binary32/*/saturate'.")] = "*",
    skip: Annotated[list[str] | None, typer.Option(metavar="FLAG", help="Leave out tests with this flag.")] = None,
    folder: _Folder = None,
    workers: work.Workers = 1,
    scheduler: work.Scheduler = None,
    resume: work.Resume = None,
    as_json: _AsJson = False,
) -> int:
    """Run a function on vectors and compare every answer bit for bit. NaN compares as a class.

    The function gets NumPy arrays: encode(x) -> codes; decode(codes) -> values; quantize(x) -> (codes, scales) or
    (codes, scales, global scale); write(key, value, pages, slot_mapping) changes `pages`. What it takes as a keyword it
    gets: overflow, rounding, dtype, format, scale, k_scale, v_scale, layout (its name), mode, order, block_size, ...
    """
    from kvformat.fuzz.candidate import load
    from kvformat.many.vectors import run_files
    from kvformat.vectors import runs as vector_runs
    from kvformat.vectors.vectors import VectorSet

    vectors = VectorSet.load(folder)
    entries = [vectors.find(name) for name in files]
    function = load(against)
    if not callable(function):
        raise InputError(f"{against} is no function: {type(function).__name__}")
    choice = vector_runs.Choice(group, frozenset(skip or ()))
    if choice.skip:
        known = set().union(*(vector_runs.flags(vectors, entry) for entry in entries))
        for flag in sorted(choice.skip - known):
            raise unknown_name("flag", flag, known)
    crew = work.Crew(None if scheduler else workers, scheduler, resume)
    with crew.at_work(f"vectors by {against}{_state(against)}, {group} without {sorted(choice.skip)}") as (
        journal,
        watch,
    ):
        outcomes = list(run_files(vectors, files, against, choice, journal, watch))
    judged, wrong = sum(o.judged for o in outcomes), sum(o.mismatches for o in outcomes)
    if not judged:
        raise InputError("no test is left to run: every one is skipped")
    status = DIFFERENCE if wrong else HOLDS
    if as_json:
        counts = {"judged": judged, "mismatches": wrong}
        return print_json({**counts, "groups": [each.to_json() for each in outcomes]}, status)
    for each in outcomes:
        say(_line(each))
    say(f"{'DIFFERS' if wrong else 'holds'}: {against}, {judged:,} tests, {wrong:,} wrong")
    return status


def _state(against: str) -> str:
    """A digest of the file that a function is in, where it is named by one."""
    path = Path(against.rpartition(":")[0])
    return f" {sha256(path.read_bytes()).hexdigest()[:12]}" if path.is_file() else ""


def _line(outcome: Outcome) -> str:
    skipped = f", {outcome.skipped:,} skipped" if outcome.skipped else ""
    first: dict[str, Any] = outcome.first or {}
    wrong = f"; first: {first['what']} ({first['id']})" if first else ""
    return f"{outcome.file} {outcome.group}: {outcome.judged:,} tests{skipped}, {outcome.mismatches:,} wrong{wrong}"

"""The conformance vectors under spec/vectors: which files there are, that they are whole, and the tests in them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvformat.errors import InputError, unknown_name

_MANIFEST = "MANIFEST.json"
_PACKAGE = Path(__file__).resolve().parents[1]
#: a wheel carries the vectors inside the package, a checkout beside it
_HOMES = (_PACKAGE / "data" / "vectors", _PACKAGE.parent / "spec" / "vectors")
#: what lies beside the vectors and is none
_BESIDE = ("README.md", _MANIFEST)


@dataclass(frozen=True)
class Entry:
    """One line of the manifest."""

    path: str
    tests: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class VectorSet:
    """The vectors of one folder, as its manifest lists them."""

    folder: Path
    entries: tuple[Entry, ...]

    @classmethod
    def load(cls, folder: Path | None = None) -> VectorSet:
        """The set in a folder; None: the one that comes with kvformat. Raises InputError where there is none."""
        home = folder or next((each for each in _HOMES if (each / _MANIFEST).is_file()), _HOMES[-1])
        try:
            listed = json.loads((home / _MANIFEST).read_text(encoding="utf-8"))
            rows = [(row["path"], row["numberOfTests"], row["bytes"], row["sha256"]) for row in listed["files"]]
            entries = tuple(Entry(str(path), int(tests), int(size), str(sha)) for path, tests, size, sha in rows)
        except OSError as error:
            raise InputError(f"no vectors in {home}: {error.strerror}; name their folder with --folder") from None
        except (ValueError, KeyError, TypeError):
            raise InputError(f"{home / _MANIFEST} is no manifest of vectors") from None
        return cls(home, entries)

    def find(self, name: str) -> Entry:
        """The file of that name; the suffix may be left out. Raises InputError, naming close names."""
        for entry in self.entries:
            if name in (entry.path, entry.path.rpartition(".")[0]):
                return entry
        raise unknown_name("vector file", name, [entry.path for entry in self.entries])

    def data(self, entry: Entry) -> bytes:
        """The bytes of a file. Raises InputError where they are not those that the manifest promises."""
        try:
            data = (self.folder / entry.path).read_bytes()
        except OSError as error:
            raise InputError(f"{entry.path}: cannot be read: {error.strerror}") from None
        if len(data) != entry.bytes or hashlib.sha256(data).hexdigest() != entry.sha256:
            raise InputError(f"{entry.path}: its checksum is not the manifest's; it has been changed")
        return data

    def document(self, entry: Entry) -> dict[str, Any]:
        """A JSON file, whole and checked. Raises InputError."""
        document = json.loads(self.data(entry))
        problem = next(problems(document, entry.tests), None)
        if problem is not None:
            raise InputError(f"{entry.path}: {problem}")
        checked: dict[str, Any] = document
        return checked

    def verify(self) -> list[str]:
        """One line for each thing that is not as the manifest says; an empty set is one."""
        found = [] if self.entries else ["the manifest lists no file"]
        for entry in self.entries:
            try:
                if entry.path.endswith(".json"):
                    self.document(entry)
                else:
                    self.data(entry)
            except InputError as error:
                found.append(str(error))
        known = {entry.path for entry in self.entries}
        there = {path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*") if path.is_file()}
        unlisted = {name for name in there - known if name not in _BESIDE and not name.startswith("schema/")}
        return found + [f"{name}: the manifest does not know it" for name in sorted(unlisted)]


def problems(document: Mapping[str, Any], tests: int) -> Iterator[str]:
    """What is wrong with a JSON file of vectors: counts, ids, flags and sources must be consistent."""
    try:
        groups, notes, sources = document["testGroups"], document["notes"], document["sources"]
        counted = sum(len(group["tests"]) for group in groups)
        if not counted == document["numberOfTests"] == tests:
            yield f"it says {document['numberOfTests']} tests, holds {counted}, and the manifest says {tests}"
        for group in groups:
            ids = [test["id"] for test in group["tests"]]
            if len(set(ids)) < len(ids):
                yield f"group {group['id']} has an id twice"
            if len(group["confirmedBy"]) < 2 or not set(group["confirmedBy"]) <= set(sources):
                yield f"group {group['id']} does not name two sources that the file explains"
            unexplained = {flag for test in group["tests"] for flag in test.get("flags", ())} - set(notes)
            if unexplained:
                yield f"group {group['id']} has flags without a note: {', '.join(sorted(unexplained))}"
        if len({group["id"] for group in groups}) < len(groups):
            yield "two groups have one id"
    except (KeyError, TypeError):
        yield "it is no file of vectors"

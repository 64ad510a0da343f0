"""The results of tasks on disk, one JSON line each: what is finished stays finished, whatever ends the program."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import gettempdir, mkdtemp
from time import monotonic
from typing import Any

from kvformat.errors import InputError

#: seconds of work between two writes: an fsync takes 1 to 10 ms, so it costs 2 % at most
_EVERY = 0.5
_FILE = "results.jsonl"
_VERSION = "1"


@cache
def code_digest() -> str:
    """A digest of all of kvformat's code: results of other code are results of another run."""
    package = Path(__file__).parents[1]
    digest = sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


class Journal:
    """Results by key, JSON documents. They are appended to a file and synced at most every half second.

    A line that was cut off, by kill -9 or by a full disk, is a task that is not finished. What is read back is what was
    written, bit for bit: floats that must not change are the caller's to write as text.

    folder: where the file is; None: results are held in memory alone. name: what all results depend on beside their
    tasks; a file of another name, or of other code, is refused. own: the folder goes when the run is over.
    """

    def __init__(self, folder: Path | None, name: str, *, own: bool = False) -> None:
        self.folder = folder
        self.name = f"{name}, code {code_digest()}"
        self._own = own
        #: lines that are not written yet, and where in the file the others begin
        self._waiting: dict[str, bytes] = {}
        self._places: dict[str, int] = {}
        self._file: Any = None
        self._end = 0
        self._written_at = monotonic()
        if folder is not None and not own:
            self._open()

    @classmethod
    @contextmanager
    def opened(cls, folder: Path | None, name: str) -> Iterator[Journal]:
        """A journal in a folder of the user's; without one, in one that is there only until the run is over.

        That one stays where the run is stopped: its message says how to go on.
        """
        journal = cls(folder, name) if folder is not None else cls(_own_folder(), name, own=True)
        try:
            yield journal
        except BaseException:
            with suppress(InputError):
                journal.write()
            journal.close()
            raise
        journal.finish()

    @property
    def resumable(self) -> Path | None:
        """The folder to go on from, if something is in it."""
        return self.folder if self._end else None

    def __contains__(self, key: str) -> bool:
        return key in self._places or key in self._waiting

    def __len__(self) -> int:
        return len(self._places) + len(self._waiting)

    def get(self, key: str) -> Any:
        """The result of a finished task."""
        if key in self._waiting:
            return json.loads(self._waiting[key])["result"]
        self._file.seek(self._places[key])
        return json.loads(self._file.readline())["result"]

    def put(self, key: str, result: Any, seconds: float = 0.0) -> None:
        """Keep a result; it is on the disk half a second later, or after `write`."""
        entry = {"key": key, "seconds": round(seconds, 3), "result": result}
        self._waiting[key] = json.dumps(entry, allow_nan=False).encode() + b"\n"
        if monotonic() - self._written_at >= _EVERY:
            self.write()

    def write(self) -> None:
        """Write and sync what is not written yet. Raises InputError where the disk is full; nothing is lost then."""
        if self.folder is None or not self._waiting:
            return
        if self._file is None:
            self._open()
        places, end = {}, self._end
        for key, line in self._waiting.items():
            places[key] = end
            end += len(line)
        self._append(b"".join(self._waiting.values()))
        self._places.update(places)
        self._waiting.clear()

    def finish(self) -> None:
        """The run is over: all is written, or the journal's own folder goes."""
        if self._own and self.folder is not None:
            self.close()
            with suppress(OSError):
                (self.folder / _FILE).unlink(missing_ok=True)
                self.folder.rmdir()
        else:
            self.write()
            self.close()

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    # --- the file ------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        assert self.folder is not None
        path = self.folder / _FILE
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b", buffering=0)
            self._lock()
            self._read()
            if not self._end:
                head = {"kvformat_journal": _VERSION, "run": self.name}
                self._append(json.dumps(head).encode() + b"\n")
        except OSError as error:
            self.close()
            raise InputError(f"{self.folder}: cannot hold results: {error.strerror or error}") from error
        except InputError:
            self.close()
            raise

    def _lock(self) -> None:
        try:
            import fcntl
        except ImportError:  # Windows: there two runs in one folder are not kept apart
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{self.folder}: another run writes its results there; name another folder") from None
        except OSError:  # a file system without locks
            return

    def _read(self) -> None:
        """Find the lines that are whole. A cut last one is taken away, so that it swallows none to come."""
        self._file.seek(0)
        place = 0
        with os.fdopen(os.dup(self._file.fileno()), "rb") as lines:
            for line in lines:
                if place == 0:
                    self._check_head(line)
                elif line.endswith(b"\n"):
                    with suppress(ValueError, KeyError, TypeError):
                        self._places[json.loads(line)["key"]] = place
                if not line.endswith(b"\n"):
                    os.ftruncate(self._file.fileno(), place)
                    break
                place += len(line)
        self._end = place

    def _check_head(self, line: bytes) -> None:
        if not line.endswith(b"\n"):
            return  # stopped while it wrote this line: a new file
        try:
            head = json.loads(line)
        except ValueError:
            head = None
        if not isinstance(head, dict) or head.get("kvformat_journal") != _VERSION:
            raise InputError(f"{self.folder}: its {_FILE} is no journal of kvformat; name another folder")
        if head.get("run") != self.name:
            raise InputError(
                f"{self.folder}: holds another run ({head.get('run')}); this one is {self.name}; name another folder"
            )

    def _append(self, data: bytes) -> None:
        """Write at the end and sync; a write that fails leaves the file as it was."""
        try:
            view = memoryview(data)
            while view:
                view = view[self._file.write(view) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._file.fileno(), self._end)
            raise InputError(f"{self.folder}: cannot hold results: {error.strerror or error}") from error
        self._end += len(data)
        self._written_at = monotonic()


def _own_folder() -> Path | None:
    """A new folder in the user's cache, or where temporary files are; None where nothing can be written."""
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # nobody's home, as in a container with a made-up user
        home = Path(gettempdir())
    for parent in (home / "kvformat" / "runs", Path(gettempdir())):
        with suppress(OSError):
            parent.mkdir(parents=True, exist_ok=True)
            return Path(mkdtemp(dir=parent, prefix="kvformat-"))
    return None

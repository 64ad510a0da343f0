"""Which files are meant: paths, folders with all that they hold, and patterns."""

from __future__ import annotations

import re
from collections.abc import Iterable
from glob import glob, has_magic
from pathlib import Path

from kvformat.tasks.runner import Task

_SUFFIX = ".safetensors"
_LAYER = re.compile(r"(?<![a-z])layers?[._-]?(\d+)", re.IGNORECASE)


def is_collection(name: str) -> bool:
    """Whether it stands for any number of files: a folder, or a pattern that is no file's name."""
    return Path(name).is_dir() or (has_magic(name) and not Path(name).exists())


def expand(names: Iterable[str]) -> list[str]:
    """The files that are meant: those named, those of folders and their folders, and those of patterns, in order.

    A pattern takes `**` for any folders. What a folder or a pattern adds is there once. One that has no file stands for
    itself: whoever opens it says what is wrong, and the others are judged.
    """
    found: list[str] = []
    for name in names:
        if not is_collection(name):
            found.append(name)
            continue
        pattern = str(Path(name) / "**" / f"*{_SUFFIX}") if Path(name).is_dir() else name
        matching = glob(pattern, recursive=True)  # noqa: PTH207 a pattern may be absolute
        files = sorted(path for path in matching if Path(path).is_file()) or [name]
        known = set(found)
        found += [path for path in files if path not in known]
    return found


def tasks(paths: Iterable[str], what: str) -> list[Task[str]]:
    """A task for each file. A file that has changed since is another task."""
    return [Task(f"{what} {path} {_state(path)}", path, path) for path in paths]


def _state(path: str) -> str:
    try:
        state = Path(path).stat()
    except OSError:  # whoever opens it says why
        return "absent"
    return f"{state.st_size} {state.st_mtime_ns}"


def layer_in(path: str) -> str | None:
    """The layer that a file's name tells: `layer12.safetensors`, `layers.12/rank0.safetensors`."""
    named = _LAYER.findall(path)
    return named[-1] if named else None

"""Files: what may be read, and what is written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from kvformat.errors import InputError


def regular(path: str | os.PathLike[str]) -> Path:
    """The path, which may be read: no pipe and no device, where reading waits for ever or never ends.

    One that does not exist is left to whoever opens it. Raises InputError.
    """
    found = Path(path)
    if found.exists() and not found.is_file() and not found.is_dir():
        raise InputError(f"{path}: is a pipe or a device; name a regular file")
    return found


def write_whole(path: str | os.PathLike[str], make: Callable[[Path], object]) -> None:
    """Let `make` write a new file, and put it where `path` leads: symbolic links stay, and permissions are the umask's.

    What is at `path` stays as it was until all is written. Raises InputError where that is no regular file (a device, a
    directory), or where it cannot be written.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise InputError(f"{path}: is no regular file, which writing would replace; name another one")
    if not target.parent.is_dir():
        raise InputError(f"{path}: cannot be written: there is no directory {target.parent}")
    try:
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".kvformat.") as folder:
            finished = Path(folder) / "finished"
            finished.touch()
            permissions = finished.stat().st_mode
            make(finished)
            finished.chmod(permissions)  # a library may have made the file anew, for its owner alone
            finished.replace(target)
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror or ' '.join(str(error).split())}") from error

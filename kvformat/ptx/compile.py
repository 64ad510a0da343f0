"""CUDA C++ to PTX, by NVIDIA's compiler out of its wheels."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from kvformat.errors import InputError
from kvformat.ptx import toolchain
from kvformat.ptx.module import Module

_ARCH = re.compile(r"sm_\d{2,3}[af]?")
_NAME = re.compile(r"[A-Za-z_]\w*")
#: "kernel.cu(12): error: ...", "nvcc fatal : ...", "kernel.cu:1:10: fatal error: ..."
_ERROR = re.compile(r"error\b|\bfatal\b", re.IGNORECASE)


def compile_cuda(
    source: str | Path,
    *,
    arch: str = "sm_90",
    include: Sequence[str | Path] = (),
    define: Mapping[str, str | int | bool | None] | None = None,
    options: Sequence[str] = (),
    limit: float = 900.0,
) -> Module:
    """Compile a CUDA source file to PTX; no GPU, driver or toolkit is needed.

    Parameters
    ----------
    source : a `.cu` file
    arch : "sm_90", "sm_100a", ...: what the code is compiled for
    include : folders of headers
    define : macros and their values; None or True: defined without one
    options : further options of nvcc, as `-std=c++20` or `-use_fast_math`
    limit : seconds after which the compiler is stopped

    Returns
    -------
    A module as `kvformat.ptx.load` gives it. Names of kernels are mangled as C++ does; a part of the name finds them.

    Raises
    ------
    InputError : a wheel is missing (the line names it), or the compiler's first error.

    """
    path = Path(source)
    if not _ARCH.fullmatch(arch):
        raise InputError(f"arch is sm_90, sm_100a or the like; got {arch!r}")
    if not path.is_file():
        raise InputError(f"cannot read {path}: no such file")
    command: list[str | Path] = [toolchain.nvcc(), "-ptx", f"-arch={arch}"]
    command += [word for folder in include for word in ("-I", folder)]
    for name, value in (define or {}).items():
        if not _NAME.fullmatch(name):
            raise InputError(f"define takes names of macros; got {name!r}")
        command.append(f"-D{name}" if value is None or value is True else f"-D{name}={value}")
    with tempfile.TemporaryDirectory(prefix="kvformat-cuda-") as folder:
        made = Path(folder) / "kernel.ptx"
        done = toolchain.run([*command, *options, path, "-o", made], limit=limit)
        if done.returncode or not made.exists():
            raise InputError(f"nvcc: {_first_error(done.stderr or done.stdout)}")
        return Module(made.read_text(encoding="utf-8"), path.name)


def _first_error(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return next((line for line in lines if _ERROR.search(line)), lines[0] if lines else "failed and said nothing")

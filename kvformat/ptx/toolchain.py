"""NVIDIA's compiler, assemblers and disassembler, where wheels have put them; none needs a GPU or a driver."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from kvformat.errors import InputError

#: wheel -> a file of it, below nvidia/cu*/
_COMPILER = {
    "nvidia-cuda-nvcc": "bin/nvcc",
    "nvidia-nvvm": "nvvm/bin/cicc",
    "nvidia-cuda-crt": "include/crt/host_config.h",
    "nvidia-cuda-runtime": "include/cuda_runtime.h",
    "nvidia-cuda-cccl": "include/cccl/nv/target",
}


class Assembler(NamedTuple):
    """A ptxas and its version."""

    path: Path
    version: str


def run(command: Sequence[str | Path], *, limit: float = 900.0) -> subprocess.CompletedProcess[str]:
    """Run a tool; its output is text. Raises InputError after `limit` seconds."""
    try:
        return subprocess.run(  # noqa: S603 a compiler out of its own wheel
            [str(word) for word in command],
            capture_output=True,
            text=True,
            check=False,
            timeout=limit,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        raise InputError(f"{Path(command[0]).name} ran for more than {limit:g} s") from None
    except OSError as error:
        raise InputError(f"cannot run {command[0]}: {error.strerror}") from None


def _roots() -> list[Path]:
    spec = find_spec("nvidia")
    places = list((spec and spec.submodule_search_locations) or ())
    return sorted((root for place in places for root in Path(place).glob("cu*")), reverse=True)


def nvcc() -> Path:
    """The compiler, with all that it needs. Raises InputError that names the first wheel that is missing."""
    missing = next(iter(_COMPILER))
    for root in _roots():
        absent = [wheel for wheel, file in _COMPILER.items() if not _has(root, file)]
        if not absent:
            return root / "bin" / "nvcc"
        missing = absent[0]
    raise InputError(f"compiling CUDA needs {missing}: pip install 'kvformat[cuda]'")


def _has(root: Path, file: str) -> bool:
    # cccl lay in include/ itself until 13.0
    return (root / file).exists() or (root / file.replace("include/cccl/", "include/")).exists()


def _triton() -> Path | None:
    spec = find_spec("triton")
    return Path(spec.origin).parent / "backends" / "nvidia" / "bin" if spec and spec.origin else None


def assemblers() -> list[Assembler]:
    """Every ptxas that is installed, the compiler wheel's own first."""
    folder = _triton()
    paths = [root / "bin" / "ptxas" for root in _roots()]
    paths += [folder / "ptxas", folder / "ptxas-blackwell"] if folder else []
    return [Assembler(path, version_of(path)) for path in paths if path.exists()]


def version_of(tool: Path) -> str:
    """The release that a tool of NVIDIA's says it is: "V13.5.12"."""
    words = run([tool, "--version"]).stdout.split()
    return next((word for word in reversed(words) if word.startswith("V") and word[1:2].isdigit()), "unknown")


def nvdisasm() -> Path:
    """The disassembler, which comes with Triton. Raises InputError where it is not installed."""
    folder = _triton()
    path = folder / "nvdisasm" if folder else None
    if path is None or not path.exists():
        raise InputError("reading SASS needs nvdisasm, which comes with triton: pip install 'kvformat[torch]'")
    return path

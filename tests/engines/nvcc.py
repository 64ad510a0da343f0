"""CUDA files of an engine, compiled to PTX once and kept beside the archives."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from kvformat import ptx
from kvformat.ptx import toolchain
from tests.engines.sources import CACHE

#: headers that torch's own name, of libraries that a cache kernel does not call
_ABSENT = {
    "cublasLt.h": "",
    "cusparse.h": "",
    "cusolverDn.h": "",
    "cublas_v2.h": "typedef void* cublasHandle_t;\n",
}


def stubs() -> Path:
    """A folder of empty headers."""
    folder = CACHE / "stubs"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in _ABSENT.items():
        (folder / name).write_text(text)
    return folder


def torch_headers() -> list[Path]:
    """Where torch keeps its headers."""
    import torch

    root = Path(torch.__file__).parent / "include"
    return [root, root / "torch" / "csrc" / "api" / "include"]


def compiled(
    source: Path, arch: str, *, include: Sequence[Path], define: dict[str, str | int | None], options: Sequence[str]
) -> ptx.Module:
    """The module of a CUDA file; its text is kept under a name that depends on all that is given."""
    said = "\n".join(map(str, (source, source.stat().st_size, arch, *include, sorted(define.items()), *options)))
    said += toolchain.run([toolchain.nvcc(), "--version"], limit=60).stdout
    kept = CACHE / "ptx" / f"{source.stem}-{arch}-{hashlib.sha256(said.encode()).hexdigest()[:16]}.ptx"
    if not kept.exists():
        made = ptx.compile_cuda(source, arch=arch, include=include, define=define, options=options)
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(made.source.text, encoding="utf-8")
    return ptx.load(kept)

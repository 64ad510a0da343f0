"""Write the conformance vectors under spec/vectors/. Nothing else writes there, and nobody edits them.

    python tools/make_vectors.py                  write what differs
    python tools/make_vectors.py --check          write nothing; name the files that differ, status 1 if there are any
    python tools/make_vectors.py --only PREFIX    files whose path begins so: elements, recipes/golden, pages/vllm
    python tools/make_vectors.py --output DIR     write to another directory

An expectation is written only where two independent sources gave it; see tools/vector_files/sources.py. It needs the
extras `test` (NVIDIA's headers, g++) and `oracles`, and torch.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save
from vector_files import authorities, elements, pages, recipes
from vector_files.files import VectorFile
from vector_files.sources import versions

from kvformat.elements.formats import ELEMENTS

TARGET = ROOT / "spec" / "vectors"
MANIFEST = "MANIFEST.json"

Tensors = tuple[dict[str, NDArray[Any]], dict[str, str]]
Maker = Callable[[], VectorFile | Tensors]


def makers() -> dict[str, Maker]:
    """What makes each file, by its path."""
    found: dict[str, Maker] = {"elements/authorities.json": authorities.file}
    for part in (elements, recipes, pages):
        found |= dict(part.files())
    tables = {f"elements/{fmt.name}_all16.safetensors": partial(elements.tables, fmt) for fmt in ELEMENTS.values()}
    return found | tables


def differs(path: Path, made: VectorFile | Tensors) -> bool:
    """Whether the file at `path` holds something else. The order of a safetensors header says nothing."""
    if not path.is_file():
        return True
    if isinstance(made, VectorFile):
        return path.read_bytes() != made.text().encode()
    tensors, about = made
    with safe_open(path, "numpy") as file:
        if file.metadata() != about or set(file.keys()) != set(tensors):
            return True
        return any(not _same(file.get_tensor(name), tensor) for name, tensor in tensors.items())


def _same(a: NDArray[Any], b: NDArray[Any]) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def contents(made: VectorFile | Tensors) -> bytes:
    """The bytes of a file."""
    if isinstance(made, VectorFile):
        return made.text().encode()
    tensors, about = made
    return save({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, metadata=about)


def entry(name: str, path: Path, made: VectorFile | Tensors) -> dict[str, Any]:
    """The manifest's line for a file."""
    count = made.count if isinstance(made, VectorFile) else json.loads(made[1]["kvformat_vectors"])["numberOfTests"]
    data = path.read_bytes()
    return {"path": name, "numberOfTests": count, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def manifest_text(entries: list[dict[str, Any]], made_with: dict[str, str]) -> str:
    """The manifest: one line per file."""
    lines = ",\n".join(json.dumps(each, separators=(",", ":")) for each in sorted(entries, key=lambda e: e["path"]))
    head = f'"kvformat_vectors":1,\n"madeWith":{json.dumps(made_with)},'
    return f'{{\n{head}\n"files":[\n{lines}\n]}}\n'


def main() -> int:
    """Run one command line and return its exit status."""
    parser = argparse.ArgumentParser(description="Write the conformance vectors.")
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 where a file differs")
    parser.add_argument(
        "--only", action="append", metavar="PREFIX", help="only files whose path begins so; others stay. Repeatable."
    )
    parser.add_argument("--output", type=Path, default=TARGET, metavar="DIR", help="instead of spec/vectors/")
    arguments = parser.parse_args()
    known = arguments.output / MANIFEST
    old = {e["path"]: e for e in json.loads(known.read_text())["files"]} if known.is_file() else {}
    made_by = makers()
    prefixes = tuple(arguments.only or [""])
    chosen = [name for name in made_by if name.startswith(prefixes)]
    if not chosen:
        parser.error(f"no file begins with {' or '.join(prefixes)}")
    wrong, entries = [], [e for name, e in old.items() if not name.startswith(prefixes)]
    for name in chosen:
        made, path = made_by[name](), arguments.output / name
        if differs(path, made):
            wrong.append(f"{name}: differs")
            if not arguments.check:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(contents(made))
        if path.is_file():
            entries.append(entry(name, path, made))
    stale = sorted(set(old) - {e["path"] for e in entries})
    wrong += [f"{name}: no longer made" for name in stale]
    if arguments.check:
        wrong += [f"{e['path']}: the manifest does not know it" for e in entries if old.get(e["path"]) != e]
        print("\n".join(wrong or [f"{len(entries)} vector files are as they should be"]))
        return 1 if wrong else 0
    for name in stale:
        (arguments.output / name).unlink(missing_ok=True)
    known.write_text(manifest_text(entries, versions()), encoding="utf-8")
    print(f"{len(entries)} vector files, {len(wrong)} of them new or changed")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""A Numba type that changes with the machine's sources, so that a cached machine is never an old one."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from kvformat.elements.static import Static, static

#: the files that the parts compiled apart are made of, besides kvformat.elements and kvformat.recipes
_LANES = ("columns", "lanes", "native", "steps")
PARTS = {
    "integers": ("integers", *_LANES),
    "floats": ("floats", *_LANES),
    "conversions": ("conversions", "floats", *_LANES),
    "lanes": _LANES,
    "machine": ("access", "floats", "machine", "transfers", "turns", "undefined", "warps", *_LANES),
}


def _digest(names: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for name in names:
        digest.update((Path(__file__).parent / f"{name}.py").read_bytes())
    return digest.hexdigest()


#: Numba's cache looks at the file of the outermost function only. Read at once: a file may change under a long run
_DIGESTS = {part: _digest(names) for part, names in PARTS.items()}


@cache
def key(part: str, number: int = 0) -> Static:
    """The argument that every compiled function of a part takes; `number` tells its functions apart."""
    return static((part, _DIGESTS[part], number))

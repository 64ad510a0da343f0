"""A Numba type that changes with the machine's sources, so that a cached machine is never an old one."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from numba import typeof, types
from numba.experimental.function_type import _get_wrapper_address

from kvformat.elements.static import Static, static

#: the files that each separately compiled part is made of, besides kvformat.elements and kvformat.recipes
_PARTS = {
    "integers": ("integers", "native", "steps"),
    "floats": ("floats", "native", "steps"),
    "conversions": ("conversions", "floats", "native", "steps"),
    "machine": ("access", "columns", "floats", "machine", "native", "steps", "undefined", "warps"),
}


@cache
def key(part: str) -> Static:
    """The argument that every compiled function of a part takes."""
    # Numba's cache looks at the file of the outermost function only
    digest = hashlib.sha256()
    for name in _PARTS[part]:
        digest.update((Path(__file__).parent / f"{name}.py").read_bytes())
    return static((part, digest.hexdigest()))


def address(part: str, function: Any) -> int:
    """The host address of a compiled function `(key, op, n, d, e, a, b, c, g, x, y, z)`, all but the key integers.

    Functions that the machine reaches through an address are compiled, and cached, apart from it: linked into it they
    would be optimised again with every function that calls them (76 s instead of 20).
    """
    numbers = [types.int64] * 2 + [types.uint64] * 9
    return int(_get_wrapper_address(function, types.void(typeof(key(part)), *numbers)))

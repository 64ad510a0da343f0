"""A frozen Python object as a Numba type: jitted code is specialised on it, and cached on disk under it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache, wraps
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import njit, types
from numba.core.datamodel import models
from numba.core.imputils import lower_constant
from numba.extending import NativeValue, overload, register_jitable, register_model, unbox

from kvformat.elements import disk_cache

F = TypeVar("F", bound=Callable[..., Any])

#: IEEE division (x / 0 is Inf, no exception) and no fast-math: nothing is contracted, reordered or flushed
_OPTIONS: dict[str, Any] = {"error_model": "numpy", "fastmath": False}
#: what a kernel is composed of melts into it: loops then see constants and vectorize (nvfp4: 2.5x)
_MELTED: dict[str, Any] = {**_OPTIONS, "forceinline": True}


def compiled(function: F) -> F:
    """Compile a module-level kernel: cached on disk, runs without the GIL."""
    dispatcher = njit(nogil=True, **_OPTIONS)(function)
    disk_cache.attach(dispatcher)
    return cast("F", dispatcher)


def specialised(function: Callable[..., Any]) -> Callable[[F], F]:
    """Give `function`, as kernels call it, the body that the decorated one returns for the types of its arguments."""

    def decorate(make: F) -> F:
        @wraps(make)
        def bare(*arguments: Any) -> Any:
            body = make(*arguments)
            if body is not None:
                body.__annotations__ = {}
            return body

        # Numba compares the signatures of the two functions, annotations included
        make.__annotations__ = {}
        overload(function, jit_options=_MELTED)(bare)
        return make

    return decorate


def inlined(function: F) -> F:
    """Make a small function usable in kernels; it stays a plain Python function outside of them."""
    return cast("F", register_jitable(**_MELTED)(function))


class StaticType(types.Type):  # type: ignore[misc]  # numba has no type information
    """The Numba type of one frozen object. Two objects have the same type exactly if they are equal."""

    def __init__(self, value: Any) -> None:
        self.value = value
        digest = hashlib.sha256(repr(value).encode()).hexdigest()[:16]
        super().__init__(name=f"Static[{type(value).__name__}, {digest}, {sources()}]")

    @property
    def key(self) -> tuple[str, object, str]:
        """What tells two types apart, in memory and in the cache on disk."""
        return (type(self.value).__name__, self.value, sources())


class Static:
    """Carries a frozen, hashable, picklable object into a kernel, where it exists only at compile time."""

    __slots__ = ("_numba_type_",)

    def __init__(self, value: object) -> None:
        self._numba_type_ = StaticType(value)


@cache
def static(value: object) -> Static:
    """The one Static of an object: making a Numba type costs 20 us, a kernel call 1 us."""
    return Static(value)


@register_model(StaticType)
class _StaticModel(models.OpaqueModel):  # type: ignore[misc]  # numba has no type information
    pass


@unbox(StaticType)
def _unbox_static(typ: object, obj: object, c: Any) -> Any:
    return NativeValue(c.context.get_dummy_value())


@lower_constant(StaticType)
def _constant_static(context: Any, builder: Any, typ: object, value: object) -> Any:
    return context.get_dummy_value()


@cache
def sources() -> str:
    """A digest of all code that kernels are made of."""
    # Numba's cache looks only at the file of the outermost function; a change in any file that
    # contributes code to a kernel must make another key, or yesterday's codec answers today.
    package = Path(__file__).parent.parent
    digest = hashlib.sha256()
    for folder in ("elements", "recipes"):
        for path in sorted((package / folder).glob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]

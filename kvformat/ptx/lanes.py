"""The loop over the lanes of one step, made of what one lane does; compiled when a program first needs it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import typeof, types
from numba.core import cgutils
from numba.experimental.function_type import _get_wrapper_address
from numba.extending import intrinsic
from numpy.typing import NDArray

from kvformat.elements.static import compiled, inlined
from kvformat.ptx import conversions, floats, integers
from kvformat.ptx import steps as s
from kvformat.ptx.columns import OP, A, B, C, D, E, G, X, Y, Z
from kvformat.ptx.key import key as key_of
from kvformat.ptx.native import call

U = np.uint64

#: step -> what one lane does
FUNCTIONS: dict[int, Callable[..., Any]] = {**integers.LANES, **floats.LANES, **conversions.LANES}
_INLINED = {number: inlined(function) for number, function in FUNCTIONS.items()}
#: the operands of a step: rows that are read, and constants
_ROWS, _CONSTANTS = "abcg", "xyz"


@intrinsic  # type: ignore[untyped-decorator]  # numba has no type information
def each_lane(
    context: Any, key: Any, n: Any, d: Any, e: Any, a: Any, b: Any, c: Any, g: Any, x: Any, y: Any, z: Any
) -> Any:
    """Run the step that the key names on n lanes; its rows lie at the host addresses d to g."""
    # the loop is written down here, for LLVM: through Numba 90 loops cost 20 s, most of it in Python
    names = tuple(inspect.signature(FUNCTIONS[key.value[2]]).parameters)
    callee = context.resolve_value_type(_INLINED[key.value[2]])
    kind = callee.get_call_type(context, [types.uint64] * len(names), {})

    def loop(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _, count, *rest = arguments
        given = dict(zip("de" + _ROWS + _CONSTANTS, rest, strict=True))
        function = context.get_function(callee, kind)
        for library in getattr(function, "libs", ()):
            context.active_code_library.add_linking_library(library)
        pointer = ir.IntType(64).as_pointer()
        rows = {name: builder.inttoptr(given[name], pointer) for name in "de" + _ROWS}
        with cgutils.for_range(builder, count) as lanes:
            operands = [
                builder.load(builder.gep(rows[name], [lanes.index])) if name in _ROWS else given[name] for name in names
            ]
            found = function(builder, operands)
            results = [(found, kind.return_type)]
            if isinstance(kind.return_type, types.BaseTuple):
                results = list(zip(cgutils.unpack_tuple(builder, found), kind.return_type, strict=True))
            for (value, have), name in zip(results, "de", strict=False):
                lane = context.cast(builder, value, have, types.uint64)
                builder.store(lane, builder.gep(rows[name], [lanes.index]))
        return context.get_dummy_value()

    return types.none(key, n, d, e, a, b, c, g, x, y, z), loop


@compiled
def run(
    key: Any, n: int, d: Any, e: Any, a: Any, b: Any, c: Any, g: Any, x: Any, y: Any, z: Any
) -> None:  # fmt: skip
    """One step on n lanes."""
    each_lane(key, n, d, e, a, b, c, g, x, y, z)


_ADDRESSES = np.zeros(len(s.STEPS), np.uint64)


def addresses(numbers: Iterable[int]) -> NDArray[np.uint64]:
    """The host addresses of the loops, by step; those of `numbers`, and of what was asked for before, are there."""
    kinds = [types.int64] + [types.uint64] * 9
    for number in set(numbers):
        if number in FUNCTIONS and not _ADDRESSES[number]:
            part = FUNCTIONS[number].__module__.rpartition(".")[2]
            _ADDRESSES[number] = _get_wrapper_address(run, types.void(typeof(key_of(part, number)), *kinds))
    return _ADDRESSES


@inlined
def computed(loop: Any, base: Any, stride: Any, step: Any, n: Any, d: Any, e: Any) -> None:
    """One step of arithmetic on all lanes, active or not; base, stride: where the rows lie."""
    call(
        loop, n, base + U(d) * stride, base + U(e) * stride, base + U(step[A]) * stride,
        base + U(step[B]) * stride, base + U(step[C]) * stride, base + U(step[G]) * stride,
        U(step[X]), U(step[Y]), U(step[Z]),
    )  # fmt: skip


@compiled
def straight(key: Any, loops: Any, code: Any, R: Any, n: int) -> None:
    """Steps of arithmetic one after the other, on all lanes: one instruction by itself."""
    base, stride = U(R.ctypes.data), U(8 * R.shape[1])
    for pc in range(code.shape[0]):
        step = code[pc]
        computed(loops[step[OP]], base, stride, step, n, step[D], step[E])

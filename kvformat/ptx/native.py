"""Instructions of the host that Numba has no name for: the fused multiply-add, and memory by its address."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic


@intrinsic  # type: ignore[untyped-decorator]  # numba has no type information
def fused(context: Any, a: Any, b: Any, c: Any) -> Any:
    """The sum a * b + c, rounded once, of two binary32 or binary64 numbers."""

    def call(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return a(a, a, a), call


def _loader(bits: int) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def load(context: Any, address: Any) -> Any:
        def call(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            found = builder.load(pointer, align=1)
            return found if bits == 64 else builder.zext(found, ir.IntType(64))

        return types.uint64(types.uint64), call

    return load


def _storer(bits: int) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def store(context: Any, address: Any, value: Any) -> Any:
        def call(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            pointer = builder.inttoptr(arguments[0], ir.IntType(bits).as_pointer())
            value = arguments[1] if bits == 64 else builder.trunc(arguments[1], ir.IntType(bits))
            builder.store(value, pointer, align=1)
            return context.get_dummy_value()

        return types.none(types.uint64, types.uint64), call

    return store


@intrinsic  # type: ignore[untyped-decorator]
def call(
    context: Any, address: Any, n: Any, d: Any, e: Any, a: Any, b: Any, c: Any, g: Any, x: Any, y: Any, z: Any
) -> Any:
    """Run a step by the address of its loop: rows by their host addresses, constants as they are."""

    def call(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word, pointer = ir.IntType(64), ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer] + [word] * 10)
        function = builder.inttoptr(arguments[0], kind.as_pointer())
        builder.call(function, [ir.Constant(pointer, None), *arguments[1:]])
        return context.get_dummy_value()

    numbers = [types.int64] + [types.uint64] * 9
    return types.none(types.uint64, *numbers), call


load8, load16, load32, load64 = (_loader(bits) for bits in (8, 16, 32, 64))
store8, store16, store32, store64 = (_storer(bits) for bits in (8, 16, 32, 64))

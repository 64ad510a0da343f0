"""Canonical CBOR (RFC 8949, section 4.2.1) of the few types that block hashes are made of: an encoder, nothing else."""

from __future__ import annotations

from kvformat.errors import InputError

Item = None | bool | int | bytes | str | tuple["Item", ...] | list["Item"]

#: major types, in the top three bits of the head: 0b000_00000
_UNSIGNED, _NEGATIVE, _BYTES, _TEXT, _ARRAY = (major << 5 for major in range(5))
_SIMPLE = {False: b"\xf4", True: b"\xf5", None: b"\xf6"}


def encode(item: Item) -> bytes:
    """The shortest encoding. Raises InputError for a type that is not in the table, and integers beyond 64 bits."""
    match item:
        case bool() | None:
            return _SIMPLE[item]
        case int():
            return _head(_UNSIGNED, item) if item >= 0 else _head(_NEGATIVE, -1 - item)
        case bytes():
            return _head(_BYTES, len(item)) + item
        case str():
            data = item.encode()
            return _head(_TEXT, len(data)) + data
        case tuple() | list():
            return _head(_ARRAY, len(item)) + b"".join(map(encode, item))
    raise InputError(f"a block hash is made of None, bool, int, bytes, str and tuples; got {type(item).__name__}")


def _head(major: int, argument: int) -> bytes:
    if argument < 24:
        return bytes([major | argument])
    for size, info in ((1, 24), (2, 25), (4, 26), (8, 27)):
        if argument < 1 << 8 * size:
            return bytes([major | info]) + argument.to_bytes(size, "big")
    raise InputError(f"an integer in a block hash must fit 64 bits; got {argument}")

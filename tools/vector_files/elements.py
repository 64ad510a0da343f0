"""Vectors for element formats: encode at every border and tie, decode of every code, all 16-bit inputs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import cache, partial
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

import kvformat
from kvformat.elements import exact
from kvformat.elements.formats import ELEMENTS, ElementFormat
from tests.oracle.inputs import ML_DTYPES
from vector_files.files import Group, Test, VectorFile, bits_hex, code_hex, expected_code, nan_codes, value_hex
from vector_files.sources import SOURCES, Way, confirmed, cuda, golden, ways

Array = NDArray[Any]

NOTES = {
    "Exact": "the input is a value of the format",
    "Tie": "the input is halfway between two neighbouring values, or halfway to the value that would come next",
    "NearTie": "the input is one step of its own format away from a tie",
    "NearValue": "the input is one step of its own format away from a value of the format",
    "Subnormal": "the result is subnormal",
    "Underflow": "the input is not zero and the result is a zero",
    "Overflow": "the input lies beyond the largest finite value",
    "Infinity": "the input is infinite",
    "NaN": "the input is a NaN. Where the format has none, nothing is standardized: `code` is what PTX says for e2m1fn "
    "(+6), and 0 for integers",
    "Zero": "the input is a zero",
    "DoubleRounding": "rounding through float32 first gives another code: the result must come from one rounding",
}

_ENCODE_HEADER = (
    "x: the bit pattern of the input, big-endian hex, in the binary format that the group names.",
    "code: the one right code, hex; `nan` stands for any code in the group's nanCodes.",
    "Every group is one conversion: overflow says what becomes of numbers beyond the largest value and of Inf.",
)
_DECODE_HEADER = (
    (
        "code: the bit pattern of the code, hex. value: the bit pattern of what it stands for, "
        "in the group's binary format."
    ),
    (
        "`nan` stands for any NaN. Values are exact in binary32; "
        "in narrower formats they are rounded once, to nearest even."
    ),
)


def files() -> Iterator[tuple[str, Callable[[], VectorFile]]]:
    """Path under spec/vectors/ of each JSON file, and what makes it."""
    for fmt in ELEMENTS.values():
        yield f"elements/{fmt.name}_encode.json", partial(encode_file, fmt)
        yield f"elements/{fmt.name}_decode.json", partial(decode_file, fmt)


# --- encode ----------------------------------------------------------------------------------------------------------


def encode_file(fmt: ElementFormat) -> VectorFile:
    """Every value, every tie and what lies one step beside them; zeros, Inf, NaN; traps of rounding twice."""
    x = boundaries(fmt)
    groups = [_encode_group(fmt, way, "binary32", x) for way in ways(fmt)]
    groups += [_encode_group(fmt, way, "binary64", traps(fmt, way)) for way in ways(fmt) if way.overflow == "saturate"]
    return VectorFile(f"{fmt.name} encode", "element_encode", _ENCODE_HEADER, groups, NOTES, SOURCES)


def _encode_group(fmt: ElementFormat, way: Way, source: str, x: Array) -> Group:
    codes, names = confirmed(x, fmt, way)
    about = {
        "id": f"{source}/{way.rounding}/{way.overflow}",
        "type": "ElementEncode",
        "format": fmt.name,
        "source": source,
        "rounding": way.rounding,
        "overflow": way.overflow,
        "nanCodes": nan_codes(fmt),
        "confirmedBy": names,
    }
    narrow = golden(x.astype(np.float32), fmt, way) if source == "binary64" else codes
    tests = [
        {
            "id": bits,
            "x": bits,
            "code": expected_code(code, fmt),
            "flags": _flags(float(value), code, fmt) + (["DoubleRounding"] if code != other else []),
        }
        for bits, value, code, other in zip(bits_hex(x), x, codes.tolist(), narrow.tolist(), strict=True)
    ]
    return Group(about, tests)


def _finite_magnitudes(fmt: ElementFormat) -> list[Fraction]:
    return list(exact.magnitudes(fmt))


def _midpoints(fmt: ElementFormat) -> list[Fraction]:
    steps = _finite_magnitudes(fmt)
    first = [] if steps[0] == 0 else [steps[0] / 2]
    return first + list(exact.midpoints(fmt))


def boundaries(fmt: ElementFormat) -> NDArray[np.float32]:
    """Each value and midpoint that is a float32, its two neighbours, both signs, and the special inputs; all unique."""
    points = {float(p) for p in (*_finite_magnitudes(fmt), *_midpoints(fmt)) if p and _is_float32(p)}
    bits = np.array(sorted(points), np.float32).view(np.uint32)
    near = np.unique(np.concatenate([bits, bits + np.uint32(1), bits - np.uint32(1)]))
    signs = near if fmt.kind == "exponent" else np.concatenate([near, near | np.uint32(1 << 31)])
    return np.unique(np.concatenate([signs, _SPECIALS])).view(np.float32)


#: zeros, the ends of the range, ordinary numbers, Inf, quiet and signalling NaNs; of both signs
_POSITIVE = np.array(
    [
        0x00000000,
        0b0_00000000_00000000000000000000001,
        0b0_00000000_11111111111111111111111,
        0b0_00000001_00000000000000000000000,
        0b0_11111110_11111111111111111111111,
        0x3DCCCCCD,  # 0.1
        0x3E99999A,  # 0.3
        0x40490FDB,  # pi
        0x447A0000,  # 1000
        0x7149F2CA,  # 1e30
        0b0_11111111_00000000000000000000000,
        0b0_11111111_00000000000000000000001,  # the smallest payload: signalling
        0b0_11111111_10000000000000000000000,
        0b0_11111111_11111111111111111111111,
    ],
    np.uint32,
)
_SPECIALS = np.concatenate([_POSITIVE, _POSITIVE | np.uint32(1 << 31)])


def traps(fmt: ElementFormat, way: Way) -> NDArray[np.float64]:
    """A hair beside every point where the code turns: as float32 it is that point, so whoever rounds twice decides it.

    To nearest, codes turn at the midpoints; up and down, at the values.
    """
    points = _midpoints(fmt) if way.rounding.startswith("nearest") else _finite_magnitudes(fmt)
    turns = np.array(sorted({float(p) for p in points if _is_float32(p)}))
    hairs = np.concatenate([turns * (1 + 2.0**-40), turns * (1 - 2.0**-40), turns])
    signs = hairs if fmt.kind == "exponent" else np.concatenate([hairs, -hairs])
    return np.unique(signs)


def _is_float32(x: Fraction) -> bool:
    with np.errstate(over="ignore"):
        return x < 2**128 and Fraction(float(np.float32(float(x)))) == x


def _flags(x: float, code: int, fmt: ElementFormat) -> list[str]:
    number = exact.number(x)
    if number.nan:
        return ["NaN"]
    if number.magnitude is None:
        return ["Infinity"]
    size = number.magnitude
    flags = ["Zero"] if size == 0 else []
    if number.negative and size and fmt.negatives == "lowest":
        return ["Underflow"]
    values, ties = _sets(fmt, number.negative)
    largest = abs(fmt.lowest) if number.negative and fmt.negatives == "kept" else fmt.max
    if size in ties:
        flags.append("Tie")
    elif size in values and size <= largest:
        flags.append("Exact")
    else:
        near = _neighbours(x)
        flags += ["NearTie"] if near & ties else ["NearValue"] if near & values else []
    if size > largest:
        flags.append("Overflow")
    magnitude = code & ~fmt.sign_bit
    if fmt.kind == "float" and 0 < magnitude < 1 << fmt.mantissa_bits and code not in fmt.nan_codes:
        flags.append("Subnormal")
    if size and fmt.kind != "exponent" and exact.decode(code, fmt).magnitude == 0:
        flags.append("Underflow")
    return flags


@cache
def _sets(fmt: ElementFormat, negative: bool) -> tuple[set[Fraction], set[Fraction]]:
    """The magnitudes of that sign and the ties between them."""
    if fmt.kind == "codebook":
        values = [Fraction(value) for value in fmt.table]
        halves = [(a + b) / 2 for a, b in pairwise(values)]
        values, halves = ([abs(x) for x in each if x and (x < 0) == negative] for each in (values, halves))
        return set(values), set(halves)
    return set(_finite_magnitudes(fmt)) - {Fraction(0)}, set(_midpoints(fmt))


def _neighbours(x: float) -> set[Fraction]:
    narrow = np.float32(x)
    if float(narrow) != x:  # a float64 beside a tie of float32
        return {abs(Fraction(float(narrow)))}
    with np.errstate(over="ignore"):
        beside = (np.nextafter(narrow, np.float32(np.inf)), np.nextafter(narrow, np.float32(-np.inf)))
    return {abs(Fraction(float(each))) for each in beside if np.isfinite(each)}


# --- decode ----------------------------------------------------------------------------------------------------------

_BINARIES = {
    "binary32": ("float32", np.dtype(np.float32)),
    "binary16": ("float16", np.dtype(np.float16)),
    "bfloat16": ("bfloat16", np.dtype(ml_dtypes.bfloat16)),
}


def decode_file(fmt: ElementFormat) -> VectorFile:
    """What every code stands for, in three binary formats."""
    groups = [_decode_group(fmt, target) for target in _BINARIES]
    return VectorFile(f"{fmt.name} decode", "element_decode", _DECODE_HEADER, groups, {}, SOURCES)


def _decode_group(fmt: ElementFormat, target: str) -> Group:
    codes = np.arange(fmt.codes, dtype=np.uint8)
    name, dtype = _BINARIES[target]
    values = kvformat.decode(codes, fmt.name, dtype)
    numbers = [exact.round_binary(exact.decode(code, fmt), exact.BINARIES[name]) for code in range(fmt.codes)]
    with np.errstate(over="ignore"):
        expected = np.array([float(number) for number in numbers]).astype(dtype)
    shown = value_hex(values)
    assert shown == value_hex(expected), (fmt.name, target)
    names = ["exact twin", "kvformat"]
    if fmt.name in ML_DTYPES:
        with np.errstate(all="ignore"):
            assert shown == value_hex(codes.view(ML_DTYPES[fmt.name]).astype(np.float32).astype(dtype))
        names.append("ml_dtypes")
    if fmt.name in ("e4m3fn", "e5m2", "e2m1fn", "e8m0fnu"):
        with np.errstate(all="ignore"):
            assert shown == value_hex(cuda().decode(codes, fmt.name).astype(dtype))
        names.append("CUDA headers")
    about = {"id": target, "type": "ElementDecode", "format": fmt.name, "target": target, "confirmedBy": names}
    tests: list[Test] = [
        {"id": code_hex(code, fmt), "code": code_hex(code, fmt), "value": value} for code, value in enumerate(shown)
    ]
    return Group(about, tests)


# --- all 16-bit inputs -----------------------------------------------------------------------------------------------


def tables(fmt: ElementFormat) -> tuple[dict[str, NDArray[np.uint8]], dict[str, str]]:
    """The code of each of the 65,536 inputs of both 16-bit formats under every policy, and the file's metadata.

    Entry p of a tensor is the code of bit pattern p. NaN inputs have the format's canonical code.
    """
    tensors: dict[str, NDArray[np.uint8]] = {}
    sources = {}
    for source in ("binary16", "bfloat16"):
        x = np.arange(1 << 16, dtype=np.uint16).view(_BINARIES[source][1])
        for way in ways(fmt):
            name = f"{source}/{way.rounding}/{way.overflow}"
            with np.errstate(invalid="ignore"):
                tensors[name], sources[name] = confirmed(x, fmt, way)
    about = {
        "title": f"{fmt.name} encode of all 16-bit inputs",
        "format": fmt.name,
        "numberOfTests": sum(tensor.size for tensor in tensors.values()),
        "confirmedBy": sources,
        "sources": {name: SOURCES[name] for name in sorted({each for names in sources.values() for each in names})},
    }
    return tensors, {"kvformat_vectors": json.dumps(about, sort_keys=True)}

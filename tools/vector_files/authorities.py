"""What other converters make of the same float32: every run of equal codes of each of them, found by asking them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvformat.elements.formats import ELEMENTS, ElementFormat
from tests.oracle.inputs import ML_DTYPES
from vector_files.elements import boundaries
from vector_files.files import Group, Test, VectorFile, bits_hex, code_hex
from vector_files.sources import TORCH_OVERFLOW, Way, cuda, golden, torch_codes, ways

Array = NDArray[Any]
Converter = Callable[[Array], NDArray[np.uint8]]

_HEADER = (
    (
        "x: a binary32 bit pattern. expected: its code by each authority of the group, hex: "
        "what was measured by running it."
    ),
    (
        "runs: of each authority, the binary32 pattern at which each run of equal codes begins, and the code; from "
        "pattern 00000000 to FFFFFFFF without a gap."
    ),
    "Only inputs on which two authorities differ are listed as tests.",
)
NOTES = {
    "Overflow": "beyond the largest finite value",
    "Infinity": "an Inf",
    "NaN": "a NaN: nobody standardized its code",
    "Zero": "a zero",
    "Negative": "a negative number, in a format without a sign",
    "Rounding": "the authorities round in different directions, or send a tie elsewhere",
}
#: every authority by its name; the versions stand in MANIFEST.json
ABOUT = {
    "kvformat saturate": "kvformat.encode, the default",
    "kvformat ieee": 'kvformat.encode, overflow="ieee"',
    "kvformat up": 'kvformat.encode, rounding="up"',
    "kvformat down": 'kvformat.encode, rounding="down"',
    "CUDA SATFINITE": "cuda_fp8.h / cuda_fp4.h on the host, __NV_SATFINITE",
    "CUDA NOSAT": "cuda_fp8.h on the host, __NV_NOSAT",
    "CUDA SATFINITE up": "cuda_fp8.h on the host, __NV_SATFINITE, cudaRoundPosInf",
    "CUDA SATFINITE down": "cuda_fp8.h on the host, __NV_SATFINITE, cudaRoundZero",
    "ml_dtypes": "astype of the ml_dtypes type",
    "torch": "Tensor.to of the torch type on the CPU",
}


@dataclass(frozen=True)
class Authority:
    """A converter of float32 to codes."""

    name: str
    convert: Converter

    @property
    def ours(self) -> bool:
        """True for kvformat itself."""
        return self.name.startswith("kvformat")


def authorities(fmt: ElementFormat) -> Iterator[Authority]:
    """Who converts to this format here."""
    for way in ways(fmt):
        if fmt.kind != "exponent":
            yield Authority(f"kvformat {way.overflow}", _golden(fmt, way))
        elif way.overflow == "saturate":
            word = {"nearest_even": "saturate"}.get(way.rounding, way.rounding)
            yield Authority(f"kvformat {word}", _golden(fmt, way))
    if fmt.name in ("e4m3fn", "e5m2", "e2m1fn"):
        yield Authority("CUDA SATFINITE", lambda x: cuda().encode(x, fmt.name))
    if fmt.name in ("e4m3fn", "e5m2"):
        yield Authority("CUDA NOSAT", lambda x: cuda().encode(x, fmt.name, overflow="ieee"))
    if fmt.kind == "exponent":
        for rounding in ("up", "down"):
            yield Authority(f"CUDA SATFINITE {rounding}", _cuda_exponent(fmt, rounding))
    if fmt.name in ML_DTYPES:
        yield Authority("ml_dtypes", lambda x: x.astype(ML_DTYPES[fmt.name]).view(np.uint8))
    if fmt.name in TORCH_OVERFLOW or fmt.kind == "exponent":
        yield Authority("torch", lambda x: torch_codes(x, fmt))


def _golden(fmt: ElementFormat, way: Way) -> Converter:
    return lambda x: golden(x, fmt, way)


def _cuda_exponent(fmt: ElementFormat, rounding: str) -> Converter:
    return lambda x: cuda().encode(x, fmt.name, rounding=rounding)


def file() -> VectorFile:
    """The authorities of every float and exponent format; integers have no third party that rounds to nearest even."""
    groups = [_group(fmt) for fmt in ELEMENTS.values() if any(not each.ours for each in authorities(fmt))]
    named = {name for group in groups for name in group.about["authorities"]}
    return VectorFile(
        "codes by authority",
        "authorities",
        _HEADER,
        groups,
        NOTES,
        {name: text for name, text in ABOUT.items() if name in named},
    )


def _group(fmt: ElementFormat) -> Group:
    listed = list(authorities(fmt))
    found = {each.name: _runs(each, fmt) for each in listed}
    x = boundaries(fmt)
    with np.errstate(all="ignore"):
        codes = {each.name: each.convert(x) for each in listed}
    table = np.stack(list(codes.values()))
    differ = (table != table[0]).any(axis=0)
    tests: list[Test] = [
        {
            "id": bits,
            "x": bits,
            "expected": {name: code_hex(int(row[place]), fmt) for name, row in codes.items()},
            "flags": _flags(x[place], fmt),
        }
        for place, bits in zip(np.flatnonzero(differ), bits_hex(x[differ]), strict=True)
    ]
    about = {
        "id": fmt.name,
        "type": "Authorities",
        "format": fmt.name,
        "source": "binary32",
        "authorities": list(codes),
        "confirmedBy": list(codes),
        "runs": {name: [[f"{start:08X}", code_hex(code, fmt)] for start, code in runs] for name, runs in found.items()},
    }
    return Group(about, tests)


def _inputs(fmt: ElementFormat) -> NDArray[np.float32]:
    bits = boundaries(fmt).view(np.uint32)
    return np.unique(np.concatenate([bits, bits | np.uint32(1 << 31)])).view(np.float32)


def _flags(x: np.float32, fmt: ElementFormat) -> list[str]:
    if np.isnan(x):
        return ["NaN"]
    flags = ["Infinity"] if np.isinf(x) else ["Zero"] if x == 0 else []
    if fmt.kind == "exponent" and np.signbit(x):
        flags.append("Negative")
    if np.isfinite(x) and abs(float(x)) > fmt.max:
        flags.append("Overflow")
    return flags or ["Rounding"]


# --- runs of equal codes ---------------------------------------------------------------------------------------------

_SAMPLE = np.random.default_rng(11).integers(0, 1 << 32, 2_000_000, np.uint32)
_ALL_BFLOAT16 = np.arange(1 << 16, dtype=np.uint32) << np.uint32(16)


def _runs(authority: Authority, fmt: ElementFormat) -> list[tuple[int, int]]:
    """Where the code changes along the patterns, found at the borders of the format; the rest must follow from it.

    Raises AssertionError unless the runs give the authority's code for every bfloat16 and two million random patterns.
    """
    bits = _inputs(fmt).view(np.uint32)
    near = np.unique(np.concatenate([bits, bits + np.uint32(1), bits - np.uint32(1), _ALL_BFLOAT16]))
    codes = _convert(authority, near)
    changes = np.flatnonzero(np.diff(codes.astype(int), prepend=-1))
    starts, kept = near[changes], codes[changes]
    assert starts[0] == 0
    for patterns in (_SAMPLE, _ALL_BFLOAT16, near):
        expected = kept[np.searchsorted(starts, patterns, side="right") - 1]
        wrong = np.flatnonzero(expected != _convert(authority, patterns))
        assert not wrong.size, (authority.name, fmt.name, hex(patterns[wrong[0]]))
    return list(zip(starts.tolist(), kept.tolist(), strict=True))


def _convert(authority: Authority, patterns: Array) -> NDArray[np.uint8]:
    with np.errstate(all="ignore"):
        return authority.convert(patterns.view(np.float32))

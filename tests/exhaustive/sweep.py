"""All 2^32 float32 inputs through `kvformat.encode`, against ml_dtypes and NVIDIA's headers.

The one place where the sweep is written: the exhaustive tests and tools/exhaustive.py both call `sweep`.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.oracle.cuda_headers.build import CudaHeaders, build
from tests.oracle.inputs import ML_DTYPES, NAN_CODES, NAN_INPUT_CODE, largest

ALL = 1 << 32
CHUNK = 1 << 24  # inputs per task
BLOCK = 1 << 18  # inputs per step of a task: what the caches hold

Codes = NDArray[np.uint8]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Case:
    """One conversion and the authority that says what it must give."""

    name: str
    overflow: str
    rounding: str | None
    authority: str

    def __str__(self) -> str:
        how = f"{self.overflow}, {self.rounding}" if self.rounding else self.overflow
        return f"{self.name} ({how}) against {self.authority}"


@dataclass
class Count:
    """What a sweep saw: every input is a number or a NaN, and each was compared unless it counts as not judged."""

    inputs: int = 0
    nans: int = 0
    #: numbers that the authority has another policy for
    not_judged: int = 0
    mismatches: int = 0
    nan_mismatches: int = 0
    #: NaN inputs where the authority gives another of its NaN codes than the canonical one
    nan_codes_differ: int = 0
    #: the first few: input bits, found, expected
    examples: list[tuple[int, int, int]] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, other: Count) -> None:
        """Take up another part of the sweep."""
        for name in ("inputs", "nans", "not_judged", "mismatches", "nan_mismatches", "nan_codes_differ", "seconds"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.examples = (self.examples + other.examples)[:10]


def _cases() -> dict[str, tuple[Case, ...]]:
    table: dict[str, tuple[Case, ...]] = {}
    for name in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e4m3"):
        table[name] = (
            Case(name, "saturate", None, "clip, ml_dtypes"),
            Case(name, "ieee", None, "ml_dtypes"),
        )
    for name in ("e2m1fn", "e2m3fn", "e3m2fn"):
        table[name] = (Case(name, "saturate", None, "clip, ml_dtypes"), Case(name, "ieee", None, "ml_dtypes"))
    table["e8m0fnu"] = (
        *(
            Case("e8m0fnu", overflow, rounding, "CUDA header")
            for rounding in ("up", "down")
            for overflow in ("saturate", "ieee")
        ),
        Case("e8m0fnu", "saturate", "nearest_even", "clip, ml_dtypes"),
    )
    return table


#: what is compared with what, by format
CASES = _cases()


@cache
def _cuda() -> CudaHeaders:
    with tempfile.TemporaryDirectory(prefix="kvformat-oracle-") as folder:
        return build(Path(folder))


def cuda_version() -> str:
    """The toolkit version of the headers that are compared with."""
    return _cuda().version


def _expected(case: Case, x: Floats) -> Codes:
    if case.authority == "CUDA header":
        return _cuda().encode(x, case.name, overflow=case.overflow, rounding=case.rounding)
    if case.name == "e8m0fnu":
        x = np.abs(x)
    if case.authority.startswith("clip"):
        limit = np.float32(largest(case.name))
        x = np.clip(x, -limit, limit)
    with np.errstate(invalid="ignore", over="ignore"):
        return x.astype(ML_DTYPES[case.name]).view(np.uint8)


def _not_judged(case: Case, bits: NDArray[np.uint32]) -> NDArray[np.bool_] | None:
    """Numbers where the authority follows another policy; None: there are none."""
    if case.name != "e8m0fnu" or case.authority == "CUDA header":
        return None
    # ml_dtypes has no code for a zero, takes every float32 subnormal above 2^-127 up to 2^-126 (0x00400001, nearest
    # to 2^-127, among them), and its ties go up or to even by version
    magnitude = bits & np.uint32(0x7FFFFFFF)
    return (magnitude < 0x00800000) | (magnitude & np.uint32(0x007FFFFF) == 0x00400000)


def compare(case: Case, start: int, stop: int, encode: Callable[..., Codes] | None = None) -> Count:
    """Compare the inputs whose bits are start..stop-1. `encode` is `kvformat.encode` unless a test plants another."""
    if encode is None:
        from kvformat import encode
    began = time.perf_counter()
    count = Count()
    policy = {"overflow": case.overflow} | ({"rounding": case.rounding} if case.rounding else {})
    for first in range(start, stop, BLOCK):
        bits = np.arange(first, min(first + BLOCK, stop), dtype=np.uint64).astype(np.uint32)
        x = bits.view(np.float32)
        found, expected = encode(x, case.name, **policy), _expected(case, x)
        nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
        count.inputs += bits.size
        if nan.any():
            _compare_nans(case, bits, found, expected, nan, count)
        wrong = (found != expected) & ~nan
        apart = _not_judged(case, bits)
        if apart is not None:
            apart &= ~nan
            count.not_judged += int(np.count_nonzero(apart))
            wrong &= ~apart
        _note(count, "mismatches", wrong, bits, found, expected)
    count.seconds = time.perf_counter() - began
    return count


def _compare_nans(
    case: Case, bits: NDArray[np.uint32], found: Codes, expected: Codes, nan: NDArray[np.bool_], count: Count
) -> None:
    count.nans += int(np.count_nonzero(nan))
    canonical = np.uint8(NAN_INPUT_CODE[case.name])
    _note(count, "nan_mismatches", nan & (found != canonical), bits, found, np.full_like(found, canonical))
    count.nan_codes_differ += int(np.count_nonzero(nan & (expected != canonical)))
    if "ml_dtypes" in case.authority and case.name in ("e2m1fn", "e2m3fn", "e3m2fn"):
        return  # a zero there: another policy, counted and not judged
    unknown = nan & ~np.isin(expected, NAN_CODES[case.name])
    _note(count, "nan_mismatches", unknown, bits, found, expected)


def _note(
    count: Count, what: str, wrong: NDArray[np.bool_], bits: NDArray[np.uint32], found: Codes, expected: Codes
) -> None:
    if wrong.any():
        setattr(count, what, getattr(count, what) + int(np.count_nonzero(wrong)))
        first = np.flatnonzero(wrong)[:10]
        count.examples += [(int(bits[i]), int(found[i]), int(expected[i])) for i in first]
        del count.examples[10:]


def _chunk(name: str, start: int, stop: int) -> list[Count]:
    return [compare(case, start, stop) for case in CASES[name]]


def _one_thread() -> None:
    # the workers share the cores already
    os.environ["KVFORMAT_NUM_THREADS"] = "1"


def _chunks(start: int, stop: int) -> Iterator[tuple[int, int]]:
    for first in range(start, stop, CHUNK):
        yield first, min(first + CHUNK, stop)


def sweep(
    name: str,
    *,
    start: int = 0,
    stop: int = ALL,
    workers: int | None = None,
    log: Callable[[str], None] = print,
) -> dict[Case, Count]:
    """Every float32 whose bits are start..stop-1, through every case of the format, on all cores."""
    workers = workers or os.cpu_count() or 1
    counts = {case: Count() for case in CASES[name]}
    began = reported = time.perf_counter()
    # spawned: a forked child may inherit a lock that one of the parent's threads holds
    with ProcessPoolExecutor(workers, get_context("spawn"), initializer=_one_thread) as pool:
        parts = [pool.submit(_chunk, name, a, b) for a, b in _chunks(start, stop)]
        for part in parts:
            for case, count in zip(CASES[name], part.result(), strict=True):
                counts[case].add(count)
            if time.perf_counter() - reported > 15 or part is parts[-1]:
                reported = time.perf_counter()
                done = next(iter(counts.values())).inputs
                wrong = sum(count.mismatches + count.nan_mismatches for count in counts.values())
                log(f"{name}: {done:,} of {stop - start:,} inputs, {wrong} mismatches, {reported - began:.0f} s")
    return counts


_ROW = "{:<8} {:<8} {:<12} {:<16} {:>13} {:>13} {:>10} {:>10} {:>10} {:>9} {:>10} {:>6}"

#: the head of the table that `lines` gives
HEADINGS = (
    _ROW.format("", "", "", "", "", "numbers", "", "not", "NaN", "not", "other NaN", "core"),
    _ROW.format(
        *("format", "overflow", "rounding", "authority", "inputs", "compared", "mismatches", "judged", "inputs"),
        *("canonical", "code there", "s"),
    ),
)


def lines(counts: dict[Case, Count]) -> Iterator[str]:
    """A row of the table for each case, and the first mismatches under it."""
    for case, count in counts.items():
        judged = count.inputs - count.nans - count.not_judged
        yield _ROW.format(
            *(case.name, case.overflow, case.rounding or "nearest_even", case.authority),
            *(f"{count.inputs:,}", f"{judged:,}", f"{count.mismatches:,}", f"{count.not_judged:,}"),
            *(f"{count.nans:,}", f"{count.nan_mismatches:,}", f"{count.nan_codes_differ:,}", f"{count.seconds:.0f}"),
        )
        for bits, found, expected in count.examples:
            yield f"  0x{bits:08x}: found {found:#04x}, expected {expected:#04x}"

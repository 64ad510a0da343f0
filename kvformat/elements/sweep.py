"""The exhaustive tier: all 2^32 float32 inputs through a format's codec, against a table from the exact twin."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvformat.elements import exact
from kvformat.elements.codec import encode
from kvformat.elements.formats import ElementFormat, element
from kvformat.elements.static import sources

#: float32 patterns judged at once (16 MiB: small enough for the allocator to hand out the same memory again, which
#: halves the time), and between two notes of how far the sweep came
_CHUNK = 1 << 22
_NOTE = 1 << 26
_PATTERNS = 1 << 32
_SIGN = 1 << 31
_INFINITY = 0b0_11111111_00000000000000000000000


class Policy(NamedTuple):
    """One way to encode; a sweep goes through all that differ."""

    overflow: str
    rounding: str


class Run(NamedTuple):
    """Consecutive float32 patterns from `start` on that all have `code`."""

    start: int
    code: int


@dataclass
class Sweep:
    """What a sweep has judged so far, and its verdict at the end."""

    format: str
    policies: int
    judged: int = 0
    mismatches: int = 0
    first: dict[str, Any] | None = None
    resumed_at: int = 0

    @property
    def status(self) -> int:
        """0 if every code is right, else 1."""
        return int(self.mismatches > 0)

    def to_json(self) -> dict[str, Any]:
        """The verdict as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        resumed = f", resumed at {self.resumed_at:,}" if self.resumed_at else ""
        counted = f"{self.judged:,} conversions ({self.policies} x 2^32 float32 inputs{resumed})"
        if not self.mismatches:
            return f"holds: {self.format}, {counted}, all codes as the exact table says"
        return f"DIFFERS: {self.format}, {self.mismatches:,} of {counted}; first: {self.first}"


def policies(fmt: ElementFormat) -> tuple[Policy, ...]:
    """The policies under which the format's codes differ."""
    overflows = ("saturate",) if fmt.always_saturates else ("saturate", "ieee")
    return tuple(Policy(overflow, rounding) for rounding in fmt.roundings for overflow in overflows)


def run(name: str, *, progress: Callable[[int, int], None] | None = None, state: Path | None = None) -> Sweep:
    """Encode all 2^32 float32 inputs under every policy of the format and compare each code with the exact table.

    state: a file that remembers how far it came; None: one in the user's cache folder. It is written about every second
    and removed at the end, so an interrupted sweep goes on where it stopped, unless the code has changed since.
    """
    fmt = element(name)
    ways = policies(fmt)
    total = len(ways) * _PATTERNS
    memory = _Memory(state or _default_state(fmt), fmt)
    result = memory.recall(Sweep(fmt.name, len(ways)))
    result.resumed_at = result.judged
    while result.judged < total:
        way, start = divmod(result.judged, _PATTERNS)
        for chunk in range(start, start + _NOTE, _CHUNK):
            _judge(fmt, ways[way], chunk, chunk + _CHUNK, result)
        result.judged += _NOTE
        memory.keep(result)
        if progress is not None:
            progress(result.judged, total)
    memory.forget()
    return result


@cache
def runs(fmt: ElementFormat, policy: Policy) -> tuple[Run, ...]:
    """The exact table: where, in the order of the bit patterns, the code changes; each border is searched by bisection.

    Magnitudes are ordered like their patterns, and rounding keeps order, so codes of one sign only grow.
    """
    table: list[Run] = []
    for sign in (0, _SIGN):
        table += _runs_of_sign(fmt, policy, sign)
        table.append(Run(sign + _INFINITY + 1, _code(fmt, policy, sign + _INFINITY + 1)))  # NaN, all payloads
    return tuple(table)


def _runs_of_sign(fmt: ElementFormat, policy: Policy, sign: int) -> Iterator[Run]:
    start, last = 0, _code(fmt, policy, sign + _INFINITY)
    while True:
        code = _code(fmt, policy, sign + start)
        yield Run(sign + start, code)
        if code == last:
            return
        same, other = start, _INFINITY
        while other - same > 1:
            middle = (same + other) // 2
            if _code(fmt, policy, sign + middle) == code:
                same = middle
            else:
                other = middle
        start = other


def _code(fmt: ElementFormat, policy: Policy, pattern: int) -> int:
    value = float(np.uint32(pattern).view(np.float32))
    return exact.encode(value, fmt, overflow=policy.overflow, rounding=policy.rounding)


def _judge(fmt: ElementFormat, policy: Policy, start: int, stop: int, result: Sweep) -> None:
    """Judge the patterns start..stop-1, counting into `result`."""
    patterns = np.arange(start, stop, dtype=np.uint32)
    codes = encode(patterns.view(np.float32), fmt, overflow=policy.overflow, rounding=policy.rounding)
    found = codes.view(np.uint8) & np.uint8(fmt.codes - 1)
    expected = _expected(runs(fmt, policy), start, stop)
    if np.array_equal(found, expected):
        return
    wrong = np.flatnonzero(found != expected)
    result.mismatches += len(wrong)
    at = int(wrong[0])
    result.first = result.first or {
        "pattern": f"0x{start + at:08X}",
        **policy._asdict(),
        "expected": f"0x{expected[at]:0{fmt.digits}X}",
        "found": f"0x{found[at]:0{fmt.digits}X}",
    }


def _expected(table: tuple[Run, ...], start: int, stop: int) -> NDArray[np.uint8]:
    codes = np.empty(stop - start, np.uint8)
    ends = (*(run.start for run in table[1:]), _PATTERNS)
    for run, end in zip(table, ends, strict=True):
        codes[max(run.start - start, 0) : max(end - start, 0)] = run.code
    return codes


class _Memory:
    """The state file of a sweep. What it says counts only for the format and the code that wrote it."""

    def __init__(self, path: Path, fmt: ElementFormat) -> None:
        self.path = path
        own = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]
        self.key = {"format": fmt.name, "sources": sources(), "sweep": own}

    def recall(self, fresh: Sweep) -> Sweep:
        """The sweep as far as it came, `fresh` where nothing usable is remembered."""
        try:
            kept = json.loads(self.path.read_text())
            if {name: kept.pop(name) for name in ("key",)} != {"key": self.key}:
                return fresh
            found = Sweep(**kept)
            counts = found.judged, found.mismatches
            whole = (found.format, found.policies) == (fresh.format, fresh.policies) and found.judged % _NOTE == 0
            whole &= all(type(count) is int for count in counts) and (found.first is None) == (found.mismatches == 0)
            return found if whole and 0 < found.judged < fresh.policies * _PATTERNS else fresh
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return fresh

    def keep(self, result: Sweep) -> None:
        """Remember; the file is replaced whole. A folder that cannot be written costs the memory, not the sweep."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fresh = self.path.with_suffix(f".{os.getpid()}")
            fresh.write_text(json.dumps({"key": self.key, **asdict(result)}))
            fresh.replace(self.path)
        except OSError:
            return

    def forget(self) -> None:
        """Remove the file: the sweep is done. A folder that cannot be written holds none, or a stale one stays."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)


def _default_state(fmt: ElementFormat) -> Path:
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # nobody's home, as in a container with a made-up user: nothing is remembered
        cache = Path(os.devnull)
    return cache / "kvformat" / f"sweep-{fmt.name}.json"

"""Runs somebody's function on conformance vectors: their inputs in, every answer compared bit for bit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from kvformat.elements.formats import element
from kvformat.errors import InputError
from kvformat.verify.candidate import call, keywords
from kvformat.verify.vectors import Entry, VectorSet

Function = Callable[..., Any]
Array = NDArray[Any]

#: the binary formats by the names that files use
BINARIES: Mapping[str, np.dtype[Any]] = {
    "binary32": np.dtype(np.float32),
    "binary64": np.dtype(np.float64),
    "binary16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}


@dataclass
class Outcome:
    """What a function made of one group."""

    file: str
    group: str
    judged: int = 0
    mismatches: int = 0
    skipped: int = 0
    first: dict[str, str] | None = None

    def add(self, test_id: str, wrong: str) -> None:
        """One test: what is wrong with its answer, "" for nothing."""
        self.judged += 1
        if wrong:
            self.mismatches += 1
            self.first = self.first or {"id": test_id, "what": wrong}

    def to_json(self) -> dict[str, Any]:
        """The outcome as plain data."""
        return {
            "file": self.file,
            "group": self.group,
            "judged": self.judged,
            "skipped": self.skipped,
            "mismatches": self.mismatches,
            "first": self.first,
        }


@dataclass(frozen=True)
class Choice:
    """Which tests are run: groups by a pattern on their id, and the flags that exclude a test."""

    group: str = "*"
    skip: frozenset[str] = field(default_factory=frozenset)

    def takes(self, group: Mapping[str, Any]) -> bool:
        """Whether the group is run."""
        return fnmatchcase(str(group["id"]), self.group)

    def tests(self, group: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """The tests of a group that are run."""
        return [test for test in group["tests"] if not self.skip & set(test.get("flags", ()))]


def run(vectors: VectorSet, entry: Entry, function: Function, choice: Choice) -> list[Outcome]:
    """The outcome of each chosen group of a file.

    What `function` is called with depends on the kind of the file; `kvformat vectors run --help` and the README beside
    the vectors say it. Raises InputError for a choice that leaves nothing, a function that cannot tell the chosen
    groups apart, and one that raises or answers with something that cannot be compared.
    """
    groups = list(_groups(vectors, entry))
    chosen = [group for group in groups if choice.takes(group)]
    if not chosen:
        raise InputError(f"{entry.path} has no group {choice.group!r}; it has {', '.join(g['id'] for g in groups)}")
    _check_told_apart(entry, function, chosen)
    outcomes = []
    for group in chosen:
        tests = choice.tests(group)
        outcome = Outcome(entry.path, group["id"], skipped=len(group["tests"]) - len(tests))
        if tests:
            _KINDS[group["type"]].judge(group, tests, function, outcome)
        outcomes.append(outcome)
    return outcomes


def _groups(vectors: VectorSet, entry: Entry) -> Iterator[Mapping[str, Any]]:
    if entry.path.endswith(".json"):
        yield from vectors.document(entry)["testGroups"]
        return
    yield from _table_groups(vectors.data(entry))


def _table_groups(data: bytes) -> Iterator[Mapping[str, Any]]:
    """The tables of all 16-bit inputs as groups of single tests."""
    from safetensors.numpy import load

    about = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    fmt = element(json.loads(about["kvformat_vectors"])["format"])
    digits = fmt.bits // 4
    nan = [f"{code:0{digits}X}" for code in fmt.nan_codes]
    for name, codes in sorted(load(data).items()):
        source, rounding, overflow = name.split("/")
        tests = [
            {"id": f"{x:04X}", "x": f"{x:04X}", "code": "nan" if code in fmt.nan_codes else f"{code:0{digits}X}"}
            for x, code in enumerate(codes.tolist())
        ]
        yield {
            "id": name,
            "type": "ElementEncode",
            "format": fmt.name,
            "source": source,
            "rounding": rounding,
            "overflow": overflow,
            "nanCodes": nan,
            "tests": tests,
        }


def _check_told_apart(entry: Entry, function: Function, groups: Sequence[Mapping[str, Any]]) -> None:
    """A function that takes no `overflow` cannot be right in two groups that differ in it alone."""
    taken = keywords(function)
    for name in _KINDS[groups[0]["type"]].varying:
        values = sorted({str(group[name]) for group in groups})
        if len(values) > 1 and taken is not None and name not in taken:
            ids = ", ".join(group["id"] for group in groups)
            raise InputError(
                f"{entry.path} has groups for {name} {' and '.join(values)}, and the function takes no {name}: "
                f"choose with --group from {ids}"
            )


# --- comparing -------------------------------------------------------------------------------------------------------


def bits_of(texts: Sequence[str], dtype: np.dtype[Any]) -> Array:
    """Numbers from their bit patterns in hex."""
    return np.array([int(text, 16) for text in texts], f"u{dtype.itemsize}").view(dtype)


def answer(found: Any, shape: tuple[int, ...], what: str) -> Array:
    """An answer as an array of that shape. Raises InputError for anything else."""
    array: Array = np.asarray(found)
    if array.shape != shape or array.dtype.kind == "O":
        raise InputError(f"the function must answer with {what} of shape {shape}; got {array.dtype} {array.shape}")
    return array


def code_patterns(found: Any, shape: tuple[int, ...], what: str, bits: int = 8) -> NDArray[np.uint8]:
    """Codes as unsigned patterns."""
    array = answer(found, shape, what)
    if array.dtype.itemsize != 1:
        raise InputError(f"{what} must be uint8, int8 or an 8-bit float type; got {array.dtype}")
    patterns: NDArray[np.uint8] = np.ascontiguousarray(array).view(np.uint8) & np.uint8((1 << bits) - 1)
    return patterns


def texts_of(found: Array) -> list[str]:
    """Bit patterns in hex, a NaN as the class."""
    with np.errstate(invalid="ignore"):
        nan = np.isnan(found.astype(np.float64))
    width = 2 * found.dtype.itemsize
    bits = np.ascontiguousarray(found).view(f"u{found.dtype.itemsize}")
    return ["nan" if is_nan else f"{int(each):0{width}X}" for is_nan, each in zip(nan, bits, strict=True)]


# --- the kinds of vectors --------------------------------------------------------------------------------------------


def _judge_encode(
    group: Mapping[str, Any], tests: Sequence[Mapping[str, Any]], function: Function, outcome: Outcome
) -> None:
    fmt = element(group["format"])
    x = bits_of([test["x"] for test in tests], BINARIES[group["source"]])
    offered = {"overflow": group["overflow"], "rounding": group["rounding"], "format": fmt.name}
    codes = code_patterns(call(function, x, offered=offered), x.shape, "codes", fmt.bits)
    for test, code in zip(tests, codes.tolist(), strict=True):
        found = f"{code:0{fmt.bits // 4}X}"
        right = group["nanCodes"] if test["code"] == "nan" else [test["code"]]
        outcome.add(test["id"], "" if found in right else f"x {test['x']}: code {found}, right: {test['code']}")


def _judge_decode(
    group: Mapping[str, Any], tests: Sequence[Mapping[str, Any]], function: Function, outcome: Outcome
) -> None:
    fmt = element(group["format"])
    codes = np.array([int(test["code"], 16) for test in tests], np.uint8)
    dtype = BINARIES[group["target"]]
    found = answer(call(function, codes, offered={"dtype": dtype, "format": fmt.name}), codes.shape, "values")
    if found.dtype != dtype:
        raise InputError(f"values in {group['target']} must be {dtype}; got {found.dtype}")
    for test, value in zip(tests, texts_of(found), strict=True):
        wrong = f"code {test['code']}: value {value}, right: {test['value']}"
        outcome.add(test["id"], "" if value == test["value"] else wrong)


@dataclass(frozen=True)
class _Kind:
    """How one type of group is judged, and the keywords in which its groups may differ."""

    judge: Callable[[Mapping[str, Any], Sequence[Mapping[str, Any]], Function, Outcome], None]
    varying: tuple[str, ...] = ()


_KINDS: dict[str, _Kind] = {
    "ElementEncode": _Kind(_judge_encode, ("overflow", "rounding")),
    "ElementDecode": _Kind(_judge_decode),
}

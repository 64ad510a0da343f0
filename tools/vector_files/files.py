"""How a vector file is written: JSON with one group or test per line, in a fixed key order, so that C can scan it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvformat import __version__
from kvformat.elements.formats import ElementFormat

Test = dict[str, Any]


@dataclass(frozen=True)
class Group:
    """Tests that one function must pass with one set of arguments. `about` comes before the tests, in its order."""

    about: Mapping[str, Any]
    tests: Sequence[Test]


@dataclass(frozen=True)
class VectorFile:
    """One JSON file of vectors. `notes` explains every flag that a test has, `sources` every source that is named."""

    title: str
    schema: str
    header: Sequence[str]
    groups: Sequence[Group]
    notes: Mapping[str, str] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many tests it holds."""
        return sum(len(group.tests) for group in self.groups)

    def text(self) -> str:
        """The file. Raises AssertionError for a flag without a note, a note without a flag, or an id that is twice."""
        used = {flag for group in self.groups for test in group.tests for flag in test.get("flags", ())}
        assert used <= set(self.notes), used - set(self.notes)
        named = {source for group in self.groups for source in group.about["confirmedBy"]}
        assert named <= set(self.sources), named - set(self.sources)
        _unique(group.about["id"] for group in self.groups)
        for group in self.groups:
            _unique(test["id"] for test in group.tests)
        head = {
            "title": self.title,
            "schema": f"{self.schema}.schema.json",
            "generator": f"kvformat {__version__}, tools/make_vectors.py",
            "numberOfTests": self.count,
            "header": list(self.header),
            "notes": {flag: text for flag, text in self.notes.items() if flag in used},
            "sources": {name: text for name, text in self.sources.items() if name in named},
        }
        lines = [f'"{name}":{_json(value)},' for name, value in head.items()]
        groups = ",\n".join(map(_group, self.groups))
        return "{\n" + "\n".join(lines) + f'\n"testGroups":[\n{groups}\n]}}\n'


def _group(group: Group) -> str:
    about = _json(dict(group.about))[:-1]
    tests = ",\n".join(map(_json, group.tests))
    return f'{about},"tests":[\n{tests}\n]}}'


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def _unique(ids: Iterable[str]) -> None:
    listed = list(ids)
    assert len(set(listed)) == len(listed), [each for each in listed if listed.count(each) > 1][:3]


def bits_hex(x: NDArray[Any]) -> list[str]:
    """The bit pattern of each number, in as many hex digits as its type has nibbles."""
    unsigned = x.view(f"u{x.dtype.itemsize}").reshape(-1)
    return [f"{int(bits):0{2 * x.dtype.itemsize}X}" for bits in unsigned]


def code_hex(code: int, fmt: ElementFormat) -> str:
    """A code in as many hex digits as the format has nibbles."""
    return f"{code & (fmt.codes - 1):0{fmt.digits}X}"


def nan_codes(fmt: ElementFormat) -> list[str]:
    """What the code `nan` of a test stands for."""
    return [code_hex(code, fmt) for code in fmt.nan_codes]


def expected_code(code: int, fmt: ElementFormat) -> str:
    """A code as a test expects it: a NaN as the class, since nobody standardized its payload."""
    return "nan" if code in fmt.nan_codes else code_hex(code, fmt)


def value_hex(x: NDArray[Any]) -> list[str]:
    """Bit patterns of values as a test expects them: a NaN as the class."""
    with np.errstate(invalid="ignore"):
        nan = np.isnan(x.astype(np.float64)).reshape(-1)
    return ["nan" if is_nan else text for is_nan, text in zip(nan, bits_hex(x), strict=True)]

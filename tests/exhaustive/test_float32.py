"""All 2^32 float32 inputs of every float element format (pytest -m exhaustive); slices of it, and a planted error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import kvformat as kvf
from tests.exhaustive.sweep import ALL, CASES, HEADINGS, Case, compare, lines, sweep

if TYPE_CHECKING:
    from numpy.typing import NDArray

EVERY_CASE = [case for cases in CASES.values() for case in cases]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CASES)
def test_every_float32_has_the_authoritys_code(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    def log(line: str) -> None:
        with capsys.disabled():
            print(line, flush=True)  # noqa: T201 the log of a run of minutes

    counts = sweep(name, log=log)
    for line in (*HEADINGS, *lines(counts)):
        log(line)
    for case, count in counts.items():
        assert count.inputs == ALL, case
        assert count.mismatches == count.nan_mismatches == 0, case


@pytest.mark.parametrize("case", EVERY_CASE, ids=str)
def test_a_slice_of_the_sweep_agrees(case: Case) -> None:
    # from the last numbers that are finite, over Inf, into the NaNs; and around 1
    for start in (0x7F80_0000 - 0x8000, 0xFF80_0000 - 0x8000, 0x3F80_0000, 0):
        count = compare(case, start, start + 0x10000)
        assert count.inputs == 0x10000
        assert count.mismatches == count.nan_mismatches == 0, list(lines({case: count}))


@pytest.mark.parametrize("case", EVERY_CASE, ids=str)
def test_the_sweep_sees_one_wrong_code(case: Case) -> None:
    wrong = 0x3F80_0000 + 12345

    def encode(x: NDArray[np.float32], name: str, **policy: Any) -> NDArray[np.uint8]:
        codes = kvf.encode(x, name, **policy)
        codes[x.view(np.uint32) == wrong] ^= 1
        return codes

    count = compare(case, 0x3F80_0000, 0x3F80_0000 + 0x10000, encode)
    assert count.mismatches == 1
    assert count.examples[0][0] == wrong

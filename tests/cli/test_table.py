"""kvformat table: every code once, with the value that ml_dtypes gives it."""

from __future__ import annotations

import csv
import io
import json

import ml_dtypes
import numpy as np
import pytest

from kvformat.cli import main

TYPES = {
    "e4m3fn": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "e2m1fn": ml_dtypes.float4_e2m1fn,
    "e8m0fnu": ml_dtypes.float8_e8m0fnu,
    "int8": np.int8,
}


def same_values(found, expected):
    """Equal as bits, all NaN being one."""
    found, expected = np.array(found, np.float32), np.array(expected, np.float32)
    nan = np.isnan(expected)
    return np.array_equal(np.isnan(found), nan) and found[~nan].tobytes() == expected[~nan].tobytes()


@pytest.mark.parametrize("name", TYPES)
def test_the_csv_lists_every_code_in_order_with_its_exact_value(capsys, name):
    assert main(["table", name, "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    codes = np.arange(16 if name == "e2m1fn" else 256, dtype=np.uint8)
    assert [int(row["code"], 16) for row in rows] == codes.tolist()
    assert same_values([float.fromhex(row["value"]) for row in rows], codes.view(TYPES[name]).astype(np.float32))


def test_int4_is_two_s_complement(capsys):
    assert main(["table", "int4", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["codes"]
    assert [row["value"] for row in rows] == [str(n) for n in (*range(8), *range(-8, 0))]


def test_the_bits_of_a_row_are_its_code_split_at_the_fields(capsys):
    for name, borders in {"e4m3fn": [1, 6], "e5m2": [1, 7], "e2m1fn": [1, 4], "e8m0fnu": [], "int8": [1]}.items():
        assert main(["table", name, "--json"]) == 0
        for row in json.loads(capsys.readouterr().out)["codes"]:
            assert int(row["bits"].replace("_", ""), 2) == int(row["code"], 16)
            assert [i for i, letter in enumerate(row["bits"]) if letter == "_"] == borders


def test_the_text_has_a_line_per_code(capsys):
    assert main(["table", "e2m1fn"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert next(line.split() for line in lines if "0x5" in line) == ["0x5", "0_10_1", "3", "0x1.8p+1"]
    assert sum(line.split()[:1] == [f"0x{code:X}"] for code in range(16) for line in lines) == 16


def test_an_unknown_format_names_the_close_ones(capsys):
    assert main(["table", "fp8_e4m3fn"]) == 2
    assert "did you mean e4m3fn" in capsys.readouterr().err

"""An element format written down as a table of numbers and names, as in a TOML file; checked when read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from kvformat.elements.element import ElementFormat, Rounding
from kvformat.elements.formats import codebook, floating, integer
from kvformat.errors import InputError, unknown_name

_TIES = ("nearest_even", "nearest_up", "nearest_down", "nearest_away", "nearest_toward_zero")

#: the keys of each kind: type, and what stands where the key is missing (None: it must be there)
KEYS: Mapping[str, Mapping[str, tuple[type | tuple[type, ...], Any]]] = {
    "integer": {"bits": (int, None), "signed": (bool, None)},
    "codebook": {
        "values": (list, None),
        "ties": (str, "nearest_even"),
        "bits": (int, 0),
        "nan_input_code": (int, 0),
    },
    "float": {
        "exponent_bits": (int, None),
        "mantissa_bits": (int, None),
        "bias": (int, None),
        "signed": (bool, True),
        "max_code": (int, None),
        "inf_code": (int, -1),
        "nan_codes": (list, ()),
        "nan_input_code": (int, -1),
        "has_negative_zero": (bool, True),
    },
}
_COMMON: Mapping[str, tuple[type | tuple[type, ...], Any]] = {
    "name": (str, None),
    "kind": (str, None),
    "source": (str, ""),
    "purpose": (str, ""),
}


def parse_format(described: Mapping[str, Any]) -> ElementFormat:
    """The format that a plain mapping describes. Raises InputError, one line that names the key, for another."""
    where = f"format {described.get('name')!r}"
    kind = str(described.get("kind"))
    if kind not in KEYS:
        raise unknown_name(f"kind of {where}:", kind, KEYS)
    entry = _complete(described, {**_COMMON, **KEYS[kind]}, where)
    return _MAKERS[kind](entry, where)


def _complete(described: Mapping[str, Any], known: Mapping[str, Any], where: str) -> dict[str, Any]:
    for key, value in described.items():
        if key not in known:
            raise unknown_name(f"key in {where}:", key, known)
        wanted = known[key][0]
        right = type(value) is wanted if wanted in (int, bool) else isinstance(value, wanted)
        if not right:
            words = {int: "an integer", bool: "true or false", str: "text", list: "a list"}
            raise InputError(f"{where}: {key} must be {words[wanted]}; got {value!r}")
    for key, (_, default) in known.items():
        if default is None and key not in described:
            raise InputError(f"{where} has no {key}")
    return {**{key: default for key, (_, default) in known.items()}, **described}


def _integer(entry: Mapping[str, Any], where: str) -> ElementFormat:
    _width(entry["bits"], "bits", where)
    about = {key: entry[key] for key in ("name", "source", "purpose")}
    return integer(entry["bits"], signed=entry["signed"], **about)


def _codebook(entry: Mapping[str, Any], where: str) -> ElementFormat:
    if entry["ties"] not in _TIES:
        raise unknown_name(f"ties of {where}:", entry["ties"], _TIES)
    for value in entry["values"]:
        if type(value) not in (int, float):
            raise InputError(f"{where}: values must be numbers; got {value!r}")
    if entry["bits"]:
        _width(entry["bits"], "bits", where)
    try:
        return codebook(
            entry["name"],
            entry["values"],
            ties=cast("Rounding", entry["ties"]),
            bits=entry["bits"] or None,
            nan_input_code=entry["nan_input_code"],
            source=entry["source"],
            purpose=entry["purpose"],
        )
    except InputError as error:
        raise InputError(f"{where}: values: {error}") from None


def _float(entry: Mapping[str, Any], where: str) -> ElementFormat:
    for key in ("exponent_bits", "mantissa_bits"):
        if not 1 <= entry[key] <= 7:
            raise InputError(f"{where}: {key} must be 1 to 7; got {entry[key]}")
    width = entry["signed"] + entry["exponent_bits"] + entry["mantissa_bits"]
    _width(width, "exponent_bits", where)
    sign = 1 << (width - 1) if entry["signed"] else 0
    last = (1 << width) - 1
    if not -200 <= entry["bias"] <= 126:
        raise InputError(f"{where}: bias must be -200 to 126, so that every value is a float32; got {entry['bias']}")
    for code in (*entry["nan_codes"], entry["max_code"]):
        if type(code) is not int or not 0 <= code <= last:
            raise InputError(f"{where}: codes in nan_codes and max_code are integers 0..{last}; got {code!r}")
    top = last & ~sign
    inf = entry["inf_code"]
    if not 0 < entry["max_code"] <= top or not -1 <= inf <= top:
        raise InputError(f"{where}: max_code and inf_code are codes without sign, 1..{top}")
    given = entry["nan_codes"]
    nan = tuple(sorted({*given, *(code | sign for code in given if code > entry["max_code"])}))
    taken = entry["nan_input_code"] if entry["nan_input_code"] >= 0 else (nan[0] if nan else entry["max_code"])
    if not 0 <= taken <= last:
        raise InputError(f"{where}: nan_input_code must be 0..{last}; got {taken}")
    infinities = () if inf < 0 else (inf, inf | sign) if sign else (inf,)
    finite = set(range(entry["max_code"] + 1))
    if finite & {*nan, *infinities}:
        raise InputError(f"{where}: codes up to max_code are numbers; nan_codes and inf_code lie above it")
    unnamed = set(range(entry["max_code"] + 1, top + 1)) - {*nan, *infinities}
    if unnamed:
        raise InputError(f"{where}: codes {min(unnamed)}..{max(unnamed)} above max_code are no numbers; name nan_codes")
    made = floating(
        entry["name"],
        entry["exponent_bits"],
        entry["mantissa_bits"],
        bias=entry["bias"],
        max_code=entry["max_code"],
        nan_codes=nan,
        nan_input_code=taken,
        inf_codes=infinities,
        overflow_code=inf if inf >= 0 else (taken if nan else None),
        negatives="kept" if entry["signed"] else "lowest",
        has_negative_zero=entry["signed"] and entry["has_negative_zero"] and sign not in nan,
        source=entry["source"],
        purpose=entry["purpose"],
    )
    # the encoder adds a power of two to |x| in binary32: values must leave it room at both ends
    if not (made.max < 2.0**100 and made.min_subnormal >= 2.0**-126):
        ends = f"{made.min_subnormal:g} to {made.max:g}"
        raise InputError(f"{where}: bias must leave the values between 2^-126 and 2^100; they are {ends}")
    return made


def _width(bits: int, key: str, where: str) -> None:
    if not 1 <= bits <= 8:
        raise InputError(f"{where}: {key}: a code has 1 to 8 bits; got {bits}")


_MAKERS = {"integer": _integer, "codebook": _codebook, "float": _float}

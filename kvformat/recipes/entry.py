"""The form in which recipes are written down: a table of strings, as Python data or TOML, checked when read.

    name = "vllm-0.33/csrc/fp8_per_tensor"
    mode = "fp8_per_tensor"
    element = "e4m3fn"
    source = "csrc/cache_kernels.cu L335-421"
    status = "read, not run"
    code = "c = encode(div(x, s), e4m3fn)"
    value = "v = mul(c, s)"

    [[scales]]
    name = "s"
    granularity = "per_tensor"
    store = "float32"
    program = "s = div(amax_finite(x), 448)"
    may_be_given = true

Each table has `precision` too ("float32" unless it says otherwise): in a scale for its program, at the top for `code`.
A scale may have `trials`, numbers that `trial` stands for in turn, and an `error` program that chooses between them.
One with `after = true` is made from the codes: `sums` goes through the elements of a group. Several scales may share a
granularity, and `program` of the first one may make all of them. At the top, `prepare` says what is done to each row
first, `value_precision` is that of `value`, `undefined` names a flag: where it holds, the library writes no codes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from kvformat.errors import InputError, unknown_name
from kvformat.recipes.program import Level, Multiplier, Program, Recipe, Status, granularity
from kvformat.recipes.rows import parse_rows

_REQUIRED = ("name", "mode", "element", "code", "value", "source")
_OPTIONAL = {
    "scales": (),
    "status": "read, not run",
    "precision": "float32",
    "value_precision": "float32",
    "notes": "",
    "prepare": "",
    "undefined": "",
}
_SCALE_REQUIRED = ("name", "granularity", "program")
_SCALE_OPTIONAL = {
    "store": "float32",
    "precision": "float32",
    "may_be_given": False,
    "multiplier": "decode",
    "trials": (),
    "error": "",
    "after": False,
    "sums": "",
}


_TYPES = {"may_be_given": bool, "after": bool, "scales": list | tuple, "trials": list | tuple}


def parse_recipe(described: Mapping[str, Any]) -> Recipe:
    """The recipe that a plain mapping describes. Raises InputError, one line that says where, for a malformed one."""
    where = f"recipe {described.get('name')!r}"
    entry = _complete(described, _REQUIRED, _OPTIONAL, where)
    if entry["status"] not in get_args(Status):
        raise unknown_name(f"status in {where}:", entry["status"], get_args(Status))
    return Recipe(
        name=entry["name"],
        mode=entry["mode"],
        element=entry["element"],
        levels=tuple(_parse_level(scale, where) for scale in entry["scales"]),
        code=Program.parse(entry["code"], entry["precision"]),
        value=Program.parse(entry["value"], entry["value_precision"]),
        source=entry["source"],
        status=entry["status"],
        notes=entry["notes"],
        prepare=parse_rows(entry["prepare"], where),
        undefined=entry["undefined"],
    )


def _parse_level(described: Any, where: str) -> Level:
    if not isinstance(described, Mapping):
        raise InputError(f"{where}: scales must be tables; got {described!r}")
    inside = f"{where}, scale {described.get('name')!r}"
    entry = _complete(described, _SCALE_REQUIRED, _SCALE_OPTIONAL, inside)
    if entry["multiplier"] not in get_args(Multiplier):
        raise unknown_name(f"multiplier in {inside}:", entry["multiplier"], get_args(Multiplier))
    return Level(
        name=entry["name"],
        granularity=granularity(entry["granularity"]),
        program=Program.parse(entry["program"], entry["precision"]),
        store=entry["store"],
        may_be_given=entry["may_be_given"],
        multiplier=entry["multiplier"],
        trials=tuple(map(str, entry["trials"])),
        error=Program.parse(entry["error"]),
        after=entry["after"],
        sums=Program.parse(entry["sums"], entry["precision"]),
    )


def _complete(
    described: Mapping[str, Any], required: tuple[str, ...], optional: Mapping[str, Any], where: str
) -> dict[str, Any]:
    known = (*required, *optional)
    for name in described:
        if name not in known:
            raise unknown_name(f"key in {where}:", name, known)
    for name in required:
        if name not in described:
            raise InputError(f"{where} has no {name!r}; it needs {', '.join(required)}")
    entry = {**optional, **described}
    for name, value in entry.items():
        wanted: Any = (
            bool if name in ("may_be_given", "after") else list | tuple if name in ("scales", "trials") else str
        )
        if not isinstance(value, wanted):
            raise InputError(f"{where}: {name} must be {'true or false' if wanted is bool else 'text'}; got {value!r}")
    return entry

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

from kvformat.candidate import as_array, call, keywords
from kvformat.elements.formats import ElementFormat, element
from kvformat.errors import InputError
from kvformat.layouts import Layout, layout
from kvformat.recipes.admissible import outer_scales, within
from kvformat.recipes.catalogue import recipe as find_recipe
from kvformat.recipes.intervals import Interval, inside
from kvformat.recipes.store import store_format
from kvformat.vectors.vectors import Entry, VectorSet

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


def flags(vectors: VectorSet, entry: Entry) -> set[str]:
    """The flags that tests of a file have."""
    return {flag for group in _groups(vectors, entry) for test in group["tests"] for flag in test.get("flags", ())}


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
    digits = fmt.digits
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
    array = as_array(found)
    if array is None or array.shape != shape:
        got = f"{type(found).__name__}, which is no array" if array is None else f"{array.dtype} {array.shape}"
        raise InputError(f"the function must answer with {what} of shape {shape}; got {got}")
    return array


def _flat(found: Any, what: str) -> Array:
    """An answer as an array of one axis. Raises InputError for what is none."""
    array = as_array(found)
    if array is None or not array.size:
        raise InputError(f"the function must answer with {what}; got {type(found).__name__}")
    return np.ascontiguousarray(array).reshape(-1)


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
        found = f"{code:0{fmt.digits}X}"
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


def _judge_quantize(
    group: Mapping[str, Any], tests: Sequence[Mapping[str, Any]], function: Function, outcome: Outcome
) -> None:
    fmt = element(group["element"])
    taken = keywords(function)
    given = [test["id"] for test in tests if test["scale"]]
    if given and taken is not None and not taken & {"scale", "global_scale"}:
        raise InputError(
            f"{len(given)} tests give a scale, and the function takes none; leave them out with --skip GivenScale"
        )
    for test in tests:
        x = _numbers(test["x"], BINARIES[group["source"]]).reshape(test["shape"])
        scale = _numbers(test["scale"], np.dtype(np.float32))[0] if test["scale"] else None
        made = _quantized(
            "parameters" in group,
            call(function, x, offered={"scale": scale, "global_scale": scale, "recipe": group["recipe"]}),
        )
        wrong = _wrong_quantized(group, test, fmt, x, scale, made)
        outcome.add(test["id"], wrong or _wrong_parameters(group, test, made[2]))


def _quantized(several: bool, made: Any) -> tuple[Any, Any, Any]:
    """Codes, scales and global scale, or (several) further parameters by name, from a tuple or an object of those."""
    if isinstance(made, tuple | list):
        if len(made) not in (2, 3):
            raise InputError(f"the function must answer with (codes, scales) or (codes, scales, global scale); got "
                             f"{len(made)} things")  # fmt: skip
        return (*made, None) if len(made) == 2 else (made[0], made[1], made[2])
    if hasattr(made, "codes") and hasattr(made, "scales"):
        return made.codes, made.scales, getattr(made, "more" if several else "global_scale", None)
    raise InputError(f"the function must answer with (codes, scales); got {type(made).__name__}")


def _wrong_parameters(group: Mapping[str, Any], test: Mapping[str, Any], made: Any) -> str:
    """What differs first in the parameters of a group beside the scale."""
    for name, store in group.get("parameters", {}).items():
        if not isinstance(made, Mapping) or name not in made:
            raise InputError(f"{group['recipe']} stores {name} too; answer with (codes, scales, {{{name!r}: ...}})")
        kind = store_format(store)
        found, right = _flat(made[name], name), _numbers(test["parameters"][name], kind.dtype)
        if found.size != right.size or found.dtype.itemsize != kind.dtype.itemsize:
            raise InputError(f"{name} must be {right.size} of {kind.dtype}; got {found.size} of {found.dtype}")
        wrong = np.flatnonzero(kind.differs(right, found.view(kind.dtype)))
        if wrong.size:
            place = int(wrong[0])
            return f"{name} {place}: {found[place]}, right: {right[place]}"
    return ""


def _wrong_quantized(
    group: Mapping[str, Any],
    test: Mapping[str, Any],
    fmt: ElementFormat,
    x: Array,
    scale: np.float32 | None,
    made: tuple[Any, Any, Any],
) -> str:
    """What differs first: the global scale, the scales, or the codes."""
    codes = code_patterns(made[0], tuple(test["shape"]), "codes", fmt.bits).reshape(-1)
    store = store_format(group["scaleStore"] or "float32")
    stored = store.dtype if store.is_float else np.dtype(np.uint8)
    right = _numbers(test["scales"], stored)
    scales = _flat(made[1], "scales") if right.size else right
    if scales.size != right.size or scales.dtype.itemsize != stored.itemsize:
        raise InputError(f"scales must be {right.size} of {stored}; got {scales.size} of {scales.dtype}")
    scales = scales.view(stored)
    if test["result"] == "acceptable" and _is_admissible(group, x, scale, codes, scales, made[2]):
        return ""
    if test["globalScale"] and made[2] is not None and not isinstance(made[2], Mapping):
        found = texts_of(_flat(made[2], "a global scale").astype(np.float32)[:1])
        wrong = _first("global scale", found, texts_of(_numbers(test["globalScale"], np.dtype(np.float32))))
        if wrong:
            return wrong
    texts = (
        texts_of(each) if store.is_float else _code_texts(each, element(group["scaleStore"]))
        for each in (scales, right)
    )
    return _first("scale", *texts) or _first(
        "code", _code_texts(codes, fmt), _code_texts(_patterns(test["codes"], fmt), fmt)
    )


def _first(what: str, found: Sequence[str], right: Sequence[str]) -> str:
    for place, (a, b) in enumerate(zip(found, right, strict=True)):
        if a != b:
            return f"{what} {place}: {a}, right: {b}"
    return ""


def _code_texts(patterns: Array, fmt: ElementFormat) -> list[str]:
    return ["nan" if code in fmt.nan_codes else f"{code:0{fmt.digits}X}" for code in patterns.tolist()]


def _patterns(text: str, fmt: ElementFormat) -> NDArray[np.uint8]:
    """Codes written one after the other."""
    digits = fmt.digits
    return np.array([int(text[i : i + digits], 16) for i in range(0, len(text), digits)], np.uint8)


def _numbers(text: str, dtype: np.dtype[Any]) -> Array:
    """Numbers whose bit patterns are written one after the other."""
    return np.frombuffer(bytes.fromhex(text), f">u{dtype.itemsize}").astype(f"u{dtype.itemsize}").view(dtype)


def _is_admissible(
    group: Mapping[str, Any], x: Array, scale: np.float32 | None, codes: Array, scales: Array, shared: Any
) -> bool:
    """Whether the bounds of approximate instructions allow these bytes. shared: the global scale, None if not told."""
    recipe = find_recipe(group["recipe"]).for_input(x.dtype.name)
    rows = x.astype(np.float32).reshape(-1, x.shape[-1])
    columns = scales.reshape(len(rows), -1) if recipe.inner else np.zeros((len(rows), 0), np.float32)
    with np.errstate(all="ignore"):
        outer = outer_scales(recipe, rows.reshape(-1), scale)
        told = scales if recipe.inner is None else shared
        if recipe.outer and told is not None:
            allowed = outer[recipe.outer[-1].name]
            assert isinstance(allowed, Interval)
            if not inside(np.asarray(told, np.float32), allowed).all():
                return False
        return all(mask.all() for mask in within(rows, recipe, outer, codes.reshape(rows.shape), columns))


def _judge_pages(
    group: Mapping[str, Any], tests: Sequence[Mapping[str, Any]], function: Function, outcome: Outcome
) -> None:
    for test in tests:
        page = layout(**test["arguments"])
        right = np.stack([np.frombuffer(bytes.fromhex(each), np.uint8) for each in test["pages"]])
        pages = np.full(right.shape, int(test["fill"], 16), np.uint8)
        slots = np.array(test["slotMapping"], np.int64)
        shape = (len(slots), page.num_kv_heads)
        sides = {
            side: _numbers(test[side], BINARIES[group["source"]]).reshape(*shape, -1)
            for side in ("key", "value")
            if test[side]
        }
        offered = {"v_scales": None, "dtype": None, **test["arguments"], "num_blocks": len(pages)}
        offered["layout"] = offered.pop("name")
        for name, key in _SCALES:
            offered[name] = _numbers(test[key], np.dtype(np.float32))[0] if test[key] else None
        call(function, sides["key"], sides.get("value"), pages, slots, offered=offered)
        wrong = _wrong_byte(page, pages, right)
        if wrong and test["result"] == "acceptable":
            wrong = _wrong_byte(page, pages, right, spared=slots) or _wrong_dump(
                group, page, pages, sides, slots, offered
            )
        outcome.add(test["id"], wrong)


_SCALES = (("k_scale", "kScale"), ("v_scale", "vScale"))


def _wrong_byte(page: Layout, pages: Array, right: Array, spared: Array | tuple[()] = ()) -> str:
    """The first byte that differs, is no padding and lies in none of the spared slots, and what it is."""
    slots = set(np.asarray(spared).tolist())
    for block, byte in np.argwhere(pages != right).tolist():
        held = page.explain(byte=byte)
        if held.slot is not None and block * page.block_size + held.slot not in slots:
            where = f"slot {held.slot} head {held.head} dims {held.dims.start}..{held.dims.stop - 1}"
            value = f"{pages[block, byte]:02X}, right: {right[block, byte]:02X}"
            return f"page {block} byte {byte} ({held.region}, {where}): {value}"
    return ""


def _wrong_dump(
    group: Mapping[str, Any], page: Layout, pages: Array, sides: Mapping[str, Array], slots: Array, offered: Any
) -> str:
    """The verdict of `check` on pages that differ from the given ones where the recipe may."""
    from kvformat.dump.dump import Dump
    from kvformat.verify.compare import check

    value = sides.get("value", np.zeros((*sides["key"].shape[:2], 0), sides["key"].dtype))
    scales = {name: offered[name] for name, _ in _SCALES}
    dump = Dump.from_arrays(sides["key"], value, pages, slots, layout=page, recipe=group["recipe"], **scales)
    report = check(dump)
    return "" if report.ok else str(report).splitlines()[0]


@dataclass(frozen=True)
class _Kind:
    """How one type of group is judged, and the keywords in which its groups may differ."""

    judge: Callable[[Mapping[str, Any], Sequence[Mapping[str, Any]], Function, Outcome], None]
    varying: tuple[str, ...] = ()


_KINDS: dict[str, _Kind] = {
    "ElementEncode": _Kind(_judge_encode, ("overflow", "rounding")),
    "ElementDecode": _Kind(_judge_decode),
    "Quantize": _Kind(_judge_quantize),
    "PageWrite": _Kind(_judge_pages),
}

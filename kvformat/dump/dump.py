"""Dumps: the K and V that a writer was given and the pages it wrote, in one safetensors file or in arrays."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from kvformat.dump.attention import check_attention
from kvformat.dump.file import (
    ATTENTION_SETTINGS,
    ATTENTION_TENSORS,
    INPUT_DTYPES,
    NEWER,
    NEWER_SETTINGS,
    NEWER_TENSORS,
    OPTIONAL_TENSORS,
    TENSORS,
    layout_of,
    metadata_of,
    one_line,
    read,
    write,
)
from kvformat.errors import InputError, unknown_name
from kvformat.modes import Mode
from kvformat.modes import mode as find_mode
from kvformat.slots import check_slots

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from kvformat.layouts import Layout
    from kvformat.recipes import Recipe

#: elements of a side of one token: 4,096 heads of 1,024 dims. Work is cut into tokens, so that this bounds the memory
LARGEST_TOKEN = 1 << 22


@dataclass(frozen=True, eq=False)
class Dump:
    """What `kvformat.check` judges. After `load` the arrays lie in the mapped file: what is not sliced is not read."""

    #: float32, float16 or bfloat16: (tokens, num_kv_heads, head_size), and head_size_v for value, which may be 0
    key: NDArray[Any]
    value: NDArray[Any]
    #: uint8 (num_blocks, page_bytes)
    pages: NDArray[np.uint8]
    #: int64 (tokens); checked: none past the end, no two alike, negative ones are padding
    slot_mapping: NDArray[np.int64]
    layout: Layout
    #: a name of the catalogue, or a recipe of the user's own; None: the recipe of the layout's engine is meant
    recipe: str | Recipe | None
    #: the per-tensor scale as the recipe takes it: the decode multiplier, unless the recipe says otherwise
    k_scale: np.float32 | None
    v_scale: np.float32 | None
    producer: str
    #: (queries, q_heads, head_size) after RoPE, of the last tokens, and (queries, q_heads, head_size_v)
    query: NDArray[Any] | None = None
    output: NDArray[Any] | None = None
    #: (queries, q_heads): the log of each row's sum of exponentials, sink included; (q_heads): a sink logit each
    lse: NDArray[Any] | None = None
    sinks: NDArray[Any] | None = None
    #: what of ATTENTION_SETTINGS is known
    attention: Mapping[str, str] = field(default_factory=dict)
    #: uint8, of the shape of `pages`: what they held before the write
    pages_before: NDArray[np.uint8] | None = None

    @property
    def mode(self) -> str:
        """The mode's name."""
        return self.layout.mode

    @property
    def tokens(self) -> int:
        """How many rows key and value have, padding included."""
        return int(self.key.shape[0])

    def declaring(self, recipe: str | Recipe) -> Dump:
        """The same dump, declaring that recipe. Raises InputError for a recipe of another mode."""
        return replace(self, recipe=_declared(recipe, find_mode(self.layout.mode)))

    def rows(self, side: Literal["k", "v"], start: int, stop: int) -> NDArray[Any]:
        """Rows start..stop-1 of key or value, contiguous and aligned; nothing else is read."""
        return np.require((self.key if side == "k" else self.value)[start:stop], requirements=("C", "A"))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Dump:
        """Open a dump. Its header is checked here; key, value and pages are read later, where they are sliced.

        Raises InputError, naming the file, for everything that is not a well-formed dump.
        """
        try:
            metadata, tensors = read(Path(path))
            _check_shapes(tensors)
            dump = _assemble(tensors, layout_of(metadata, tensors), _by_name(metadata), metadata["producer"])
            there = [name for name in ATTENTION_TENSORS if name in tensors]
            extra = {name: tensors[name] for name in NEWER_TENSORS if name in tensors}
            if not there and extra:
                raise InputError(f"holds {next(iter(extra))} without query and output; it belongs to them")
            if not there:
                return dump
            if len(there) == 1:
                both = " and ".join(ATTENTION_TENSORS)
                raise InputError(f"holds {there[0]} alone; attention is judged by {both}: save both or neither")
            settings = {name: metadata[name] for name in ATTENTION_SETTINGS if name in metadata}
            return dump._attending(tensors["query"], tensors["output"], settings, **extra)  # noqa: SLF001 its own class
        except InputError as error:
            raise InputError(f"{one_line(path)}: {error}") from error

    @classmethod
    def from_arrays(
        cls,
        key: ArrayLike,
        value: ArrayLike | None,
        pages: ArrayLike,
        slot_mapping: ArrayLike,
        *,
        layout: Layout,
        recipe: str | Recipe | None = None,
        k_scale: ArrayLike | None = None,
        v_scale: ArrayLike | None = None,
        pages_before: ArrayLike | None = None,
        producer: str = "kvformat",
    ) -> Dump:
        """A dump of arrays at hand, which it shares where it can. value: None for a layout without V.

        pages_before: uint8 (num_blocks, page_bytes), what the pages held before the write, by which `diagnose` knows
        what was not written. Raises InputError where they do not fit together.
        """
        if value is None and "v" not in layout.sides:
            keys = _native("key", key)
            value = np.zeros((*keys.shape[:2], 0), keys.dtype)
        arrays = (key, value, slot_mapping, pages, k_scale, v_scale, pages_before)
        given = dict(zip(TENSORS, arrays, strict=True))
        tensors = {name: _native(name, array) for name, array in given.items() if array is not None}
        _check_shapes(tensors)
        return _assemble(tensors, layout, recipe, producer)

    def attending(
        self,
        query: ArrayLike,
        output: ArrayLike,
        *,
        lse: ArrayLike | None = None,
        sinks: ArrayLike | None = None,
        **settings: object,
    ) -> Dump:
        """The same dump with a kernel's attention: `check` then judges `output` as well, by what the pages hold.

        query: (queries, q_heads, head_size) after RoPE, of the last tokens, float32, float16 or bfloat16; output:
        (queries, q_heads, head_size_v), or in an FP8 format. lse: (queries, q_heads), the log of each row's sum of
        exponentials, sink included. sinks: (q_heads,), a logit that takes probability and gives no value. settings:
        softmax_scale (default 1 / sqrt(head_size)), window (sliding), the kernel's accumulate (default float32),
        operands (default the query's dtype) and probabilities (default operands), output_scale (what FP8 codes are
        multiplied by, default 1), lse_base (e or 2, default e), probe ("exact": of an exact probe). Raises InputError.
        """
        for name in settings:
            if name not in ATTENTION_SETTINGS:
                raise unknown_name("attention setting", name, ATTENTION_SETTINGS)
        arrays = (_native("query", query), _native("output", output))
        given = {"lse": lse, "sinks": sinks}
        extra = {name: _native(name, array) for name, array in given.items() if array is not None}
        return self._attending(*arrays, {name: str(value) for name, value in settings.items()}, **extra)

    def _attending(
        self,
        query: NDArray[Any],
        output: NDArray[Any],
        settings: Mapping[str, str],
        lse: NDArray[Any] | None = None,
        sinks: NDArray[Any] | None = None,
    ) -> Dump:
        check_attention(self.layout, query, output, settings, lse, sinks)
        return replace(self, query=query, output=output, lse=lse, sinks=sinks, attention=dict(settings))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the dump as one safetensors file. The path holds the whole dump or stays as it was."""
        names = (*TENSORS, *ATTENTION_TENSORS, *NEWER_TENSORS)
        tensors = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        write(Path(path), tensors, self._metadata())

    def _metadata(self) -> dict[str, str]:
        named = self.recipe if self.recipe is None or isinstance(self.recipe, str) else self.recipe.name
        fp8 = self.output is not None and self.output.dtype.itemsize == 1
        tensors = (self.pages_before, self.lse, self.sinks)
        newer = fp8 or any(each is not None for each in tensors) or any(map(self.attention.get, NEWER_SETTINGS))
        version = {"kvformat_dump": NEWER} if newer else {}
        return metadata_of(self.layout, named, self.producer) | version | dict(self.attention)


@dataclass(frozen=True, eq=False)
class Pages:
    """Pages without the K and V they came from: the file of a dump with fewer tensors, `pages` alone at least."""

    #: uint8 (num_blocks, page_bytes)
    pages: NDArray[np.uint8]
    layout: Layout
    #: the recipe's name; None: that of the layout's engine is meant
    recipe: str | None
    k_scale: np.float32 | None = None
    v_scale: np.float32 | None = None
    #: int64, the slots that hold tokens, where the file says so
    slot_mapping: NDArray[np.int64] | None = None
    producer: str = ""

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Pages:
        """Open a file of pages, or a dump without its K and V. Raises InputError, naming the file, for any other."""
        try:
            metadata, tensors = read(Path(path), ("pages",))
            pages, slots = tensors["pages"], tensors.get("slot_mapping")
            if pages.dtype != np.uint8 or pages.ndim != 2 or not pages.size:
                found = f"{pages.dtype.name} of shape {_shape(pages.shape)}"
                raise InputError(f"pages is {found}; it must be uint8 of shape (num_blocks, page_bytes), not empty")
            layout = layout_of({"producer": "", **metadata}, tensors)
            check_token(layout)
            if slots is not None:
                slots = check_slots(slots, len(pages) * layout.block_size)
            mode = find_mode(layout.mode)
            scales = {name: _scale(name, tensors.get(name), mode) for name in OPTIONAL_TENSORS}
            recipe = _by_name(metadata)
            _declared(recipe, mode)
            return cls(pages, layout, recipe, **scales, slot_mapping=slots, producer=metadata.get("producer", ""))
        except InputError as error:
            raise InputError(f"{one_line(path)}: {error}") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write them as one safetensors file. The path holds the whole of it or stays as it was."""
        names = ("pages", "slot_mapping", *OPTIONAL_TENSORS)
        tensors = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        write(Path(path), tensors, metadata_of(self.layout, self.recipe, self.producer))


# --- the parts, checked against each other -------------------------------------------------------------------------


def _assemble(tensors: Mapping[str, NDArray[Any]], layout: Layout, recipe: str | Recipe | None, producer: str) -> Dump:
    if not isinstance(producer, str):
        raise InputError(f"producer must be a string; got {type(producer).__name__}")
    key, value, pages = tensors["key"], tensors["value"], tensors["pages"]
    check_token(layout)
    for name, array, size in (("key", key, layout.head_size), ("value", value, layout.head_size_v)):
        if array.shape[1:] != (layout.num_kv_heads, size):
            expected = _shape((key.shape[0], layout.num_kv_heads, size))
            raise InputError(f"{name} has shape {_shape(array.shape)}, but the layout says {expected}")
    if pages.shape[1] != layout.page_bytes:
        raise InputError(f"pages are {pages.shape[1]} bytes long, but the layout says {layout.page_bytes}")
    mode = find_mode(layout.mode)
    return Dump(
        key=key,
        value=value,
        pages=pages,
        slot_mapping=check_slots(tensors["slot_mapping"], pages.shape[0] * layout.block_size),
        layout=layout,
        recipe=_declared(recipe, mode),
        k_scale=_scale("k_scale", tensors.get("k_scale"), mode),
        v_scale=_scale("v_scale", tensors.get("v_scale"), mode),
        producer=producer,
        pages_before=tensors.get("pages_before"),
    )


def check_token(layout: Layout) -> None:
    """Raises InputError for a layout whose one token is more than can be judged at once, whatever a header says."""
    elements = layout.num_kv_heads * max(layout.head_size, layout.head_size_v)
    if elements > LARGEST_TOKEN:
        what = f"{layout.num_kv_heads} heads of {max(layout.head_size, layout.head_size_v)} dims"
        raise InputError(f"a token has {what}, {elements} elements a side; at most {LARGEST_TOKEN} can be judged")


def _check_shapes(tensors: Mapping[str, NDArray[Any]]) -> None:
    """What holds without a layout: dtypes, dimensions, and as many values and slots as keys."""
    key, value, slots, pages = (tensors[name] for name in TENSORS[:4])
    for name, array in (("key", key), ("value", value)):
        if array.dtype not in INPUT_DTYPES.values():
            raise InputError(f"{name} is {array.dtype.name}; it must be one of {', '.join(INPUT_DTYPES)}")
        if array.ndim != 3:
            raise InputError(f"{name} has shape {_shape(array.shape)}; it must be (tokens, heads, head_dim)")
    if not key.shape[0]:
        raise InputError("key holds no token, so there is nothing to judge")
    if key.dtype != value.dtype:
        raise InputError(f"key is {key.dtype.name} and value is {value.dtype.name}; both must have the same dtype")
    if value.shape[0] != key.shape[0]:
        raise InputError(f"key holds {key.shape[0]} tokens and value {value.shape[0]}; they must hold the same tokens")
    if slots.shape != key.shape[:1]:
        raise InputError(f"slot_mapping has shape {_shape(slots.shape)}; it must be ({key.shape[0]}), one per token")
    if pages.dtype != np.uint8 or pages.ndim != 2 or not pages.size:
        found = f"{pages.dtype.name} of shape {_shape(pages.shape)}"
        raise InputError(f"pages is {found}; it must be uint8 of shape (num_blocks, page_bytes), not empty")
    before = tensors.get("pages_before")
    if before is not None and (before.dtype, before.shape) != (pages.dtype, pages.shape):
        found = f"{before.dtype.name} of shape {_shape(before.shape)}"
        raise InputError(f"pages_before is {found}; it must be as pages, uint8 of shape {_shape(pages.shape)}")


def _scale(name: str, array: NDArray[Any] | None, mode: Mode) -> np.float32 | None:
    """A given scale, rounded once to float32."""
    if array is None:
        return None
    if array.shape not in ((), (1,)) or not np.can_cast(array.dtype, np.float64) or array.dtype == np.bool_:
        found = f"{array.dtype.name} of shape {_shape(array.shape)}"
        raise InputError(f"{name} is {found}; it must be one number: float32 of shape () or (1)")
    with np.errstate(over="ignore"):
        scale = np.float32(array.reshape(())[()])
    if not (np.isfinite(scale) and scale > 0):
        raise InputError(f"{name} is {array.reshape(())[()]}, as float32 {scale}; it must be finite and > 0")
    if not mode.tensor_scale:
        raise InputError(f"mode {mode.name} has no {name}: its scales, if any, lie in the pages; leave it out")
    return scale


def _by_name(metadata: Mapping[str, str]) -> str | None:
    """The recipe that a file declares: a name. What a file says opens no other file."""
    name = metadata.get("recipe")
    if name is not None and name.endswith(".toml"):
        from kvformat.recipes.catalogue import names

        raise unknown_name("recipe", name, names())
    return name


def _declared(recipe: str | Recipe | None, mode: Mode) -> str | Recipe | None:
    if recipe is None:
        return None
    from kvformat.recipes import recipe as find_recipe
    from kvformat.recipes.catalogue import named_apart, names

    found = named_apart(find_recipe(recipe))
    if found.mode != mode.name:
        raise InputError(f"recipe {found.name} is for mode {found.mode}, but the layout is for mode {mode.name}")
    return found.name if found.name in names() and find_recipe(found.name) == found else found


def _native(name: str, values: ArrayLike) -> NDArray[Any]:
    """The same numbers in this machine's byte order."""
    try:
        array = np.asarray(values)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} is not an array: {one_line(error)}") from error
    if array.dtype.isnative:
        return array
    # by the bits: a NaN keeps its payload, and ml_dtypes are swapped as well
    return array.byteswap().view(array.dtype.newbyteorder("="))


def _shape(shape: tuple[int, ...]) -> str:
    return f"({', '.join(map(str, shape))})"


def load_any(path: str | os.PathLike[str]) -> Dump | Pages:
    """A dump, or pages alone, whichever the file holds. Raises InputError as they do."""
    try:
        _, tensors = read(Path(path), ("pages",))
    except InputError:
        return Dump.load(path)  # which says what is wrong
    return Dump.load(path) if "key" in tensors or "value" in tensors else Pages.load(path)

"""The file of a dump: one safetensors file, mapped when it is read, whole or absent when it is written."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from kvformat.errors import InputError
from kvformat.files import write_whole
from kvformat.modes import mode as find_mode

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from kvformat.layouts import Layout

VERSION = "1"
#: that of a dump with what version 1 cannot say: `pages_before`, `lse`, `sinks`, an output in FP8, NEWER_SETTINGS
NEWER = "2"
#: dtypes of key and value, by the names that messages use
INPUT_DTYPES = {np.dtype(t).name: np.dtype(t) for t in (np.float32, np.float16, ml_dtypes.bfloat16)}
OPTIONAL_TENSORS = ("k_scale", "v_scale")
#: `pages_before`: what the pages held before the write, of the shape of `pages`
TENSORS = ("key", "value", "slot_mapping", "pages", "k_scale", "v_scale", "pages_before")
#: a kernel's attention: `check` judges `output` by what the pages hold; one without the other is refused
ATTENTION_TENSORS = ("query", "output")
#: beside them: the log of the sum of exponentials (queries, q_heads), and a sink logit per query head (q_heads)
NEWER_TENSORS = ("lse", "sinks")
NEWER_SETTINGS = ("probabilities", "output_scale", "lse_base", "probe")
#: how that attention was computed, in the metadata: strings
ATTENTION_SETTINGS = ("softmax_scale", "window", "accumulate", "operands", *NEWER_SETTINGS)
_FILE_DTYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "U8": np.uint8,
                "I64": np.int64, "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2}  # fmt: skip
_KINDS = {"pages": ("U8",), "pages_before": ("U8",), "slot_mapping": ("I64",), "k_scale": ("F32",),
          "v_scale": ("F32",)}  # fmt: skip
#: of any tensor here; NumPy ends at 64
_MOST_DIMS = 8
_SIZES = ("block_size", "num_kv_heads", "head_size", "head_size_v")
#: what only some layouts leave open
_CHOICES = ("dtype", "v_scales", "nibbles")


def _import_safetensors() -> None:
    try:
        import safetensors.numpy  # noqa: F401
    except ModuleNotFoundError as error:
        raise InputError("dump files need safetensors: pip install 'kvformat[cli]'") from error


def write(target: Path, tensors: Mapping[str, ArrayLike], metadata: dict[str, str]) -> None:
    """Write one safetensors file, whole or not at all."""
    _import_safetensors()
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    whole = {name: np.require(np.asarray(array), requirements=("C", "A")) for name, array in tensors.items()}

    def make(finished: Path) -> None:
        save_file(whole, finished, metadata=metadata)
        _order_metadata(finished)

    try:
        write_whole(target, make)
    except SafetensorError as error:
        raise InputError(f"{one_line(target)}: cannot be written: {one_line(error)}") from error


def _order_metadata(path: Path) -> None:
    """Put the metadata of a safetensors file in alphabetical order: the library's order changes from run to run."""
    with path.open("r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        if len(text) <= length:  # the same characters in another order, padded with blanks as the format asks
            file.seek(8)
            file.write(text.ljust(length))


def read(path: Path, needed: tuple[str, ...] = TENSORS[:4]) -> tuple[dict[str, str], dict[str, NDArray[Any]]]:
    """Metadata and tensors of a dump file. The tensors are views of the mapped file."""
    _import_safetensors()
    from safetensors import SafetensorError, safe_open

    if path.is_dir():
        raise InputError("is a directory; a dump is one safetensors file")
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # whose errors say more than the library's
            raise InputError("is a pipe or a device; a dump is one safetensors file")
        with safe_open(path, framework="np") as file:  # checks that the header is well-formed and covers the file
            metadata = dict(file.metadata() or {})
            _check_version(metadata)
            names = [name for name in file.keys() if name in (*TENSORS, *ATTENTION_TENSORS, *NEWER_TENSORS)]  # noqa: SIM118
            views = {name: file.get_slice(name) for name in names}
            kinds = {name: (view.get_dtype(), tuple(view.get_shape())) for name, view in views.items()}
            for name, (_, shape) in kinds.items():
                if len(shape) > _MOST_DIMS:
                    raise InputError(f"{name} has {len(shape)} dimensions; no tensor of a dump has more than 3")
        missing = [name for name in needed if name not in kinds]
        if missing:
            raise InputError(f"the dump has no tensor {missing[0]!r}; it needs {', '.join(needed)}")
        tensors = _map(path, kinds)
    except SafetensorError as error:
        raise InputError(f"is not a whole safetensors file: {one_line(error)}") from error
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or one_line(error)}") from error
    return metadata, tensors


def metadata_in(path: Path) -> dict[str, str]:
    """All metadata of a file that `read` took, what a dump does not define included."""
    from safetensors import safe_open

    with safe_open(path, framework="np") as file:
        return dict(file.metadata() or {})


def _map(path: Path, kinds: Mapping[str, tuple[str, tuple[int, ...]]]) -> dict[str, NDArray[Any]]:
    """The tensors as read-only views of the mapped file: the library's numpy side cannot slice bfloat16."""
    mapped = np.memmap(path, np.uint8, mode="r").view(np.ndarray)
    start = 8 + int(mapped[:8].view("<u8")[0])
    header = json.loads(mapped[8:start].tobytes())
    tensors = {}
    for name, (kind, shape) in kinds.items():
        expected = _KINDS.get(name)
        if kind not in (expected or _FILE_DTYPES):
            right = ", ".join(np.dtype(_FILE_DTYPES[k]).name for k in expected) if expected else ", ".join(INPUT_DTYPES)
            raise InputError(f"{name} is stored as {kind}; it must be {right}")
        first, last = header[name]["data_offsets"]
        try:
            tensors[name] = mapped[start + first : start + last].view(_FILE_DTYPES[kind]).reshape(shape)
        except ValueError as error:  # no byte, and more elements than can be counted
            raise InputError(f"{name} cannot have the shape {list(shape)}: {one_line(error)}") from error
    return tensors


def _check_version(metadata: Mapping[str, str]) -> None:
    version = metadata.get("kvformat_dump")
    if version is None:
        raise InputError(f"is a safetensors file but no dump: its metadata has no kvformat_dump={VERSION!r}")
    if version not in (VERSION, NEWER):
        raise InputError(f"is a dump of version {version!r}; this kvformat reads versions {VERSION!r} and {NEWER!r}")


def layout_of(metadata: Mapping[str, str], tensors: Mapping[str, NDArray[Any]]) -> Layout:
    """The layout that the metadata names; the pages themselves say how long a page is."""
    from kvformat.layouts import layout

    mode = find_mode(_entry(metadata, "mode"))
    name, page_bytes = _entry(metadata, "layout"), int(tensors["pages"].shape[1])
    options: dict[str, Any] = {size: _integer(metadata, size) for size in _SIZES}
    options |= {"mode": mode.name, "order": _entry(metadata, "order")}
    options |= {choice: metadata[choice] for choice in _CHOICES if choice in metadata}
    smallest = layout(name, **options)
    for entry in ("producer", *(choice for choice in _CHOICES if getattr(smallest, choice) is not None)):
        _entry(metadata, entry)  # what the layout would otherwise guess
    if page_bytes < smallest.page_bytes:
        needed = f"{name} in mode {mode.name} needs at least {smallest.page_bytes}"
        raise InputError(f"pages are {page_bytes} bytes long; {needed}")
    return layout(name, **options, page_bytes=page_bytes)


def metadata_of(layout: Layout, recipe: str | None, producer: str) -> dict[str, str]:
    """The metadata of pages with this layout: strings, those that do not apply left out."""
    entries = {
        "kvformat_dump": VERSION,
        "mode": layout.mode,
        "recipe": recipe,
        "layout": layout.name,
        "order": layout.order,
        **{name: str(getattr(layout, name)) for name in _SIZES},
        "producer": producer,
        **{name: getattr(layout, name) for name in _CHOICES},
    }
    return {name: entry for name, entry in entries.items() if entry is not None}


def _entry(metadata: Mapping[str, str], name: str) -> str:
    if name not in metadata:
        raise InputError(f"the dump's metadata has no {name!r}")
    return metadata[name]


def _integer(metadata: Mapping[str, str], name: str) -> int:
    text = _entry(metadata, name)
    if name == "head_size_v" and text == "0":  # a page without V
        return 0
    if not re.fullmatch(r"[1-9][0-9]{0,8}", text):
        raise InputError(f"the dump's metadata has {name}={text[:40]!r}; it must be a positive integer in decimal")
    return int(text)


def one_line(text: object) -> str:
    """A text with its line breaks and runs of blanks as single blanks: an error is one line."""
    return " ".join(str(text).split())

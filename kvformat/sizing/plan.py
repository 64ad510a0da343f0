"""The arithmetic: what each layer of a model keeps of a sequence, in pages of the layout that stores it.

A layer keeps one or more streams: K and V of every token, or the latent row of every token, or one compressed row for
every few of them, of all tokens or of the last ones only. Each stream is paged by itself. Everything here is integers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import NamedTuple

from kvformat.errors import InputError, unknown_name
from kvformat.layouts import Layout, layout
from kvformat.layouts.catalogue import find_entry
from kvformat.layouts.page import as_integer

#: bytes of a stored value in mode none: bfloat16
_VALUE_BYTES = 2


@dataclass(frozen=True)
class Stream:
    """What one kind of layer keeps: rows of `heads` x (`head_size` + `head_size_v`) dims."""

    #: by mode, the layout and its mode; "" for rows of bfloat16 that no layout of an engine describes
    forms: Mapping[str, tuple[str, str]]
    block_size: int
    heads: int = 0
    head_size: int = 0
    #: only the last so many tokens are kept; 0: all
    window: int = 0
    #: one row stands for so many tokens, and is written when the last one of them is there
    tokens_per_row: int = 1
    name: str = "K and V"


@dataclass(frozen=True)
class Layers:
    """Layers that are alike."""

    count: int
    #: a kind of ATTENTION, which says what such a layer keeps
    attention: str = "kv"
    heads: int = 0
    head_size: int = 0
    head_size_v: int = 0
    window: int = 0

    def streams(self) -> tuple[Stream, ...]:
        """What one of them keeps. Raises InputError for an unknown kind of attention."""
        if self.attention not in ATTENTION:
            raise unknown_name("attention", self.attention, ATTENTION)
        return ATTENTION[self.attention]

    def __str__(self) -> str:
        rows = f"{_counted(self.heads, 'head')} of {self.head_size}" if self.heads else self.attention
        values = f" (V {self.head_size_v})" if self.head_size_v not in (0, self.head_size) else ""
        last = f", the last {_counted(self.window, 'token')}" if self.window else ""
        return f"{_counted(self.count, 'layer')}: {rows}{values}{last}"


@dataclass(frozen=True)
class Model:
    """A model by its layers, and where its numbers were read."""

    name: str
    layers: tuple[Layers, ...]
    source: str
    #: what the sizes leave out
    notes: str = ""

    @property
    def num_layers(self) -> int:
        """All its layers."""
        return sum(group.count for group in self.layers)


class Part(NamedTuple):
    """What one stream of one layer takes for a sequence."""

    layers: Layers
    stream: Stream
    #: the layout that stores it; None: plain rows of bfloat16
    page: Layout | None
    block_size: int
    page_bytes: int
    #: rows that are written, and whole pages that hold them
    rows: int
    pages: int
    #: bytes of one row's codes and of its scales, and how many scales that are
    code_bytes: int
    scale_bytes: int
    scales: int

    @property
    def bytes(self) -> int:
        """Bytes that are set aside: whole pages."""
        return self.pages * self.page_bytes

    @property
    def per_token(self) -> Fraction:
        """Bytes that a further token takes, pages being full; 0 where only the last tokens are kept."""
        if _window(self.layers, self.stream):
            return Fraction(0)
        return Fraction(self.page_bytes, self.block_size * self.stream.tokens_per_row)


@dataclass(frozen=True)
class Size:
    """What a model's cache takes for one sequence in one mode."""

    model: Model
    mode: str
    context: int
    parts: tuple[Part, ...]

    @property
    def bytes(self) -> int:
        """All of it: whole pages, in all layers."""
        return sum(part.bytes * part.layers.count for part in self.parts)

    @property
    def code_bytes(self) -> int:
        """Codes, or values, of the rows that are written."""
        return sum(part.rows * part.code_bytes * part.layers.count for part in self.parts)

    @property
    def scale_bytes(self) -> int:
        """Scales of the rows that are written."""
        return sum(part.rows * part.scale_bytes * part.layers.count for part in self.parts)

    @property
    def padding_bytes(self) -> int:
        """What is set aside and holds neither: padding of pages and records, and slots of the last page not written."""
        return self.bytes - self.code_bytes - self.scale_bytes

    @property
    def scales(self) -> int:
        """How many scales are stored, in all layers."""
        return sum(part.rows * part.scales * part.layers.count for part in self.parts)

    @property
    def per_token(self) -> Fraction:
        """Bytes that a further token takes in all layers, pages being full and windows too."""
        return sum((part.per_token * part.layers.count for part in self.parts), Fraction(0))


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _forms(name: str, *modes: str) -> Mapping[str, tuple[str, str]]:
    return {mode: (name, mode) for mode in modes}


_PLAIN = ("", "")
_KV_MODES = ("none", "fp8_per_tensor", "fp8_per_token_head", "int8_per_token_head", "int4_per_token_head", "nvfp4")
_KV = _forms("vllm-0.33", *_KV_MODES)
_LATENT = _forms("vllm-0.33-mla", "none", "fp8_per_tensor")
#: the records are those of sparse attention
_SPARSE = _forms("vllm-0.33-mla", "none", "fp8_ds_mla", "nvfp4_ds_mla")
_V4 = {
    "none": _PLAIN,
    "fp8_ds_mla": ("vllm-0.33-deepseek-v4", "fp8_ds_mla"),
    **_forms("vllm-0.33-deepseek-v41", "mxfp8", "nvfp4_ds_mla"),
}
_FP8_INDEXER = ("vllm-0.33-indexer", "indexer_k")
_INDEXER = {"none": _PLAIN, **dict.fromkeys(("fp8_ds_mla", "nvfp4_ds_mla", "mxfp8"), _FP8_INDEXER)}

_LATENT_ROWS = Stream(_LATENT, 64, 1, 576, name="latent rows")
_SPARSE_ROWS = Stream(_SPARSE, 64, 1, 576, name="latent rows")
_V4_ROWS = Stream(_V4, 64, 1, 512, name="latent rows")
_INDEX_ROWS = Stream(_INDEXER, 64, 1, 128, name="indexer keys")
_V4_WINDOW = Stream(_V4, 64, 1, 512, window=128, name="latent rows of the last 128 tokens")


def _every(tokens: int, stream: Stream) -> Stream:
    """The stream with one row for so many tokens."""
    name = f"{stream.name}, one for {tokens} tokens"
    return Stream(stream.forms, stream.block_size, stream.heads, stream.head_size, tokens_per_row=tokens, name=name)


#: what a layer keeps, by its kind of attention. The rows of "kv" have the sizes that the layer says.
ATTENTION: Mapping[str, tuple[Stream, ...]] = MappingProxyType(
    {
        "kv": (Stream(_KV, 16),),
        "mla": (_LATENT_ROWS,),
        "mla with indexer": (_SPARSE_ROWS, _INDEX_ROWS),
        # DeepSeek V4: compressed sparse, heavily compressed, sliding window; the first two have a window too
        "csa": (_every(4, _V4_ROWS), _every(4, _INDEX_ROWS), _V4_WINDOW),
        "hca": (_every(128, _V4_ROWS), _V4_WINDOW),
        "v4 window": (_V4_WINDOW,),
        # state of a fixed size, which is no cache of tokens
        "linear": (),
        # no attention, or that of another layer, which keeps it
        "none": (),
    }
)


def modes_of(model: Model) -> tuple[str, ...]:
    """The modes in which everything that a model keeps can be stored, none first."""
    streams = [stream for group in model.layers for stream in group.streams()]
    return tuple(mode for mode in streams[0].forms if all(mode in stream.forms for stream in streams))


def size(model: Model, mode: str, context: int, *, block_size: int | None = None) -> Size:
    """What a model's cache takes for one sequence of `context` tokens.

    mode: one of `modes_of`; none stores bfloat16. block_size: rows in a page, instead of what is usual for each stream.
    Raises InputError for a mode that the model's cache does not have, or whose layout cannot have its sizes.
    """
    known = modes_of(model)
    if mode not in known:
        raise unknown_name(f"mode of {model.name}:", mode, known)
    for what, value in (("context", context), ("block_size", 1 if block_size is None else block_size)):
        number = as_integer(value)
        if number is None or number < 1:
            raise InputError(f"{what} must be an integer of at least 1; got {value!r}")
    parts = tuple(
        _part(group, stream, mode, context, block_size or stream.block_size)
        for group in model.layers
        for stream in group.streams()
    )
    return Size(model, mode, context, parts)


def _part(layers: Layers, stream: Stream, mode: str, context: int, block_size: int) -> Part:
    heads, head_size = stream.heads or layers.heads, stream.head_size or layers.head_size
    window = _window(layers, stream)
    rows = min(context, window) if window else context // stream.tokens_per_row
    pages = -(-rows // block_size)
    if window and context > window:  # a window that begins anywhere touches one page more than a whole one needs
        pages = min(-(-(window - 1) // block_size) + 1, -(-context // block_size))
    name, kind = stream.forms[mode]
    if not name:
        row = heads * head_size * _VALUE_BYTES
        return Part(layers, stream, None, block_size, row * block_size, rows, pages, row, 0, 0)
    page = _page(name, kind, block_size, heads, head_size, layers.head_size_v)
    held = {part: [region for region in page.regions if region.part == part] for part in ("code", "scale")}
    code_bytes, scale_bytes = (sum(each.heads * each.row_bytes for each in held[part]) for part in ("code", "scale"))
    scales = sum(each.heads * each.columns for each in held["scale"])
    return Part(layers, stream, page, block_size, page.page_bytes, rows, pages, code_bytes, scale_bytes, scales)


def _window(layers: Layers, stream: Stream) -> int:
    """How many tokens are kept, 0 for all."""
    return stream.window or layers.window


def _page(name: str, mode: str, block_size: int, heads: int, head_size: int, head_size_v: int) -> Layout:
    """A page of the stream; of two places for the V scales the one that every head size has."""
    form = find_entry(name).form(mode)
    linear = [choice for choice, swizzle in form.v_scales if swizzle == "linear"]
    return layout(
        name,
        mode=mode,
        block_size=block_size,
        num_kv_heads=heads,
        head_size=head_size,
        head_size_v=head_size_v or None,
        v_scales=linear[0] if linear else None,
    )

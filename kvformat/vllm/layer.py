"""One layer under watch: K, V and slots are copied as its writer is called, and looked at after the step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from kvformat import arrays
from kvformat.dump import Dump
from kvformat.errors import InputError
from kvformat.layouts import Layout
from kvformat.torch.adapters import layout_of, to_pages
from kvformat.vllm.expected import Expected


@dataclass
class Captured:
    """The buffers of a layer, allocated beforehand: a CUDA graph that is replayed copies into the same memory."""

    key: torch.Tensor
    value: torch.Tensor
    #: int64; negative: nothing was written
    slots: torch.Tensor
    query: torch.Tensor | None = None
    output: torch.Tensor | None = None

    @classmethod
    def allocated(cls, tokens: int, shapes: Shapes, *, attention: bool) -> Captured:
        """Empty buffers for so many tokens; with query and output where they are wanted."""

        def rows(heads: int, size: int) -> torch.Tensor:
            return torch.zeros((tokens, heads, size), dtype=shapes.dtype, device=shapes.device)

        return cls(
            rows(shapes.kv_heads, shapes.head_size),
            rows(shapes.kv_heads, shapes.head_size_v),
            torch.full((tokens,), -1, dtype=torch.int64, device=shapes.device),
            rows(shapes.heads, shapes.head_size) if attention else None,
            rows(shapes.heads, shapes.head_size_v) if attention else None,
        )

    @property
    def size(self) -> int:
        """Bytes of all buffers."""
        held = (self.key, self.value, self.slots, self.query, self.output)
        return sum(each.numel() * each.element_size() for each in held if each is not None)


@dataclass(frozen=True)
class Shapes:
    """What a layer's tensors are."""

    heads: int
    kv_heads: int
    head_size: int
    head_size_v: int
    dtype: torch.dtype
    device: torch.device


class Layer:
    """A watched layer."""

    def __init__(self, number: int, name: str, layer: Any, expected: Expected, captured: Captured) -> None:
        self.number, self.name, self.layer, self.expected, self.captured = number, name, layer, expected, captured
        self.cache: torch.Tensor | None = None
        self.calls = 0
        #: writes that were not seen, for they had more tokens than a step is planned to have
        self.missed = 0
        self._layout: Layout | None = None
        impl = layer.impl
        self._write, self._forward = impl.do_kv_cache_update, impl.forward
        impl.do_kv_cache_update = self._writing
        if captured.query is not None:
            impl.forward = self._attending

    def _writing(
        self, layer: Any, key: Any, value: Any, kv_cache: Any, slot_mapping: Any, *more: Any, **named: Any
    ) -> Any:
        """The engine's writer; its arguments are copied before it runs, on the device and without a wait."""
        tokens, held = slot_mapping.shape[0], self.captured
        self.cache = kv_cache
        self.calls += 1
        if tokens > len(held.slots):
            self.missed += 1
        else:
            held.key[:tokens].copy_(key[:tokens])
            held.value[:tokens].copy_(value[:tokens])
            held.slots[:tokens].copy_(slot_mapping)
        return self._write(layer, key, value, kv_cache, slot_mapping, *more, **named)

    def _attending(self, layer: Any, query: Any, *more: Any, **named: Any) -> Any:
        """The engine's attention; its query and output are copied after it ran."""
        result = self._forward(layer, query, *more, **named)
        held = self.captured
        output = named.get("output", more[4] if len(more) > 4 else None)
        if held.query is not None and held.output is not None and isinstance(output, torch.Tensor):
            tokens = min(query.shape[0], len(held.query))
            held.query[:tokens].copy_(query[:tokens].view(tokens, *held.query.shape[1:]))
            held.output[:tokens].copy_(output[:tokens].view(tokens, *held.output.shape[1:]))
        return result

    def begin(self) -> None:
        """A step begins: what earlier ones wrote is forgotten."""
        self.captured.slots.fill_(-1)

    def written(self) -> int:
        """Tokens that the step wrote."""
        return 0 if self.cache is None else int((self.captured.slots >= 0).sum())

    def dump(self, *, sequence: bool = False) -> Dump | None:
        """What the step wrote, with the pages it lies in; None where it wrote nothing.

        sequence: the step's tokens are the whole of one sequence, so that its query and output go into the dump.
        """
        held, cache = self.captured, self.cache
        slots = arrays.copied(held.slots)
        used = np.flatnonzero(slots >= 0)
        if cache is None or not len(used):
            return None
        layout = self._laid_out(cache)
        blocks, place = np.unique(slots[used] // layout.block_size, return_inverse=True)
        pages = to_pages(cache, layout)
        if blocks[-1] >= len(pages):
            raise InputError(f"slot {slots[used].max()} lies behind the {len(pages)} blocks of {self.name}")
        touched = pages[torch.from_numpy(blocks).to(pages.device)]
        rows = torch.from_numpy(used).to(held.key.device)
        scales = {f"{side}_scale": self._scale(side) for side in "kv"} if layout.mode != "none" else {}
        dump = Dump.from_arrays(
            arrays.copied(held.key[rows]),
            arrays.copied(held.value[rows]),
            np.ascontiguousarray(arrays.copied(touched)),
            place.reshape(-1) * layout.block_size + slots[used] % layout.block_size,
            layout=layout,
            recipe=self.expected.declared,
            producer=f"vllm, {self.name}",
            **scales,
        )
        if sequence and held.query is not None and held.output is not None:
            scale = getattr(self.layer.impl, "scale", None)
            settings = {} if scale is None else {"softmax_scale": repr(float(scale))}
            query, output = (arrays.copied(each[rows]) for each in (held.query, held.output))
            dump = dump.attending(query, output, **settings)
        if isinstance(dump.recipe, str) or dump.recipe is None:
            return dump
        return replace(dump, recipe=dump.recipe.name)

    def _laid_out(self, cache: torch.Tensor) -> Layout:
        if self._layout is None:
            held, mode = self.captured, self.expected.mode
            sizes = (held.key.shape[2], held.value.shape[2])
            options: dict[str, Any] = {"dtype": str(held.key.dtype).removeprefix("torch.")} if mode == "none" else {}
            self._layout = layout_of(cache, self.expected.layout, mode, held.key.shape[1], sizes, **options)
        return self._layout

    def _scale(self, side: str) -> np.float32 | None:
        """The scale that the engine hands to its writer."""
        for name in (f"_{side}_scale_float", f"_{side}_scale"):
            if (found := getattr(self.layer, name, None)) is not None:
                return np.float32(float(found))
        return None

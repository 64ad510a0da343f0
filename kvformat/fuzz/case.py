"""One input of a candidate: K and V and where they go, as plain data that can be made smaller, stored and read back."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from kvformat.layouts import Layout, layout

Array = NDArray[Any]
_ARRAYS = ("key", "value", "slots", "blocks")


@dataclass(frozen=True, eq=False)
class Case:
    """What a candidate is called with. A quantizer gets `key` alone, a reader the golden pages of key and value."""

    #: (tokens, heads, head_size) and, with head_size_v, the same tokens' values
    key: Array
    value: Array
    #: int64 (tokens); for a reader they follow from the block table
    slots: NDArray[np.int64]
    layout: Layout
    num_blocks: int
    #: per-tensor scales as the recipe takes them; None: the mode has none, or the quantizer computes its own
    k_scale: np.float32 | None = None
    v_scale: np.float32 | None = None
    #: the byte that memory holds before anything is written
    fill: int = 0xA5
    #: a reader's block table, int64 (blocks)
    blocks: NDArray[np.int64] | None = None

    @property
    def tokens(self) -> int:
        """How many tokens it has."""
        return len(self.key)

    @property
    def nonzero(self) -> int:
        """How many elements of K and V are not +0."""
        return sum(int(np.count_nonzero(side.view(f"u{side.itemsize}"))) for side in (self.key, self.value))

    def with_tokens(self, kept: Sequence[int]) -> Case:
        """The same with these tokens only. A reader's move up: its tokens are a sequence."""
        index = np.asarray(kept, np.int64)
        slots = self.slots[: len(index)] if self.blocks is not None else self.slots[index]
        return replace(self, key=self.key[index], value=self.value[index], slots=slots)

    def with_heads(self, kept: Sequence[int]) -> Case:
        """The same with these heads only."""
        index = np.asarray(kept, np.int64)
        return replace(
            self, key=self.key[:, index], value=self.value[:, index], layout=resized(self, num_kv_heads=len(index))
        )

    def with_dims(self, kept: Sequence[int]) -> Case:
        """The same with these dims only, of K and V alike."""
        index = np.asarray(kept, np.int64)
        smaller = resized(self, head_size=len(index), head_size_v=len(index))
        return replace(self, key=self.key[..., index], value=self.value[..., index], layout=smaller)

    def dumps(self) -> bytes:
        """The case as bytes: arrays and JSON in one npz file."""
        arrays = {name: getattr(self, name) for name in _ARRAYS if getattr(self, name) is not None}
        plain = {name: array.view(f"u{array.itemsize}") for name, array in arrays.items()}
        scales = [None if scale is None else float(scale) for scale in (self.k_scale, self.v_scale)]
        facts = {
            "dtype": self.key.dtype.name,
            "layout": self.layout.spec,
            "num_blocks": self.num_blocks,
            "scales": scales,
            "fill": self.fill,
        }
        stream = io.BytesIO()
        np.savez_compressed(stream, facts=np.frombuffer(json.dumps(facts).encode(), np.uint8), **plain)
        return stream.getvalue()

    @classmethod
    def loads(cls, data: bytes) -> Case:
        """The case that `dumps` wrote. Raises ValueError for anything else."""
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            facts = json.loads(arrays.pop("facts").tobytes())
            dtype = np.dtype(getattr(ml_dtypes, facts["dtype"], facts["dtype"]))
            k_scale, v_scale = (None if scale is None else np.float32(scale) for scale in facts["scales"])
            return cls(
                key=arrays["key"].view(dtype),
                value=arrays["value"].view(dtype),
                slots=arrays["slots"].view(np.int64),
                layout=layout(**facts["layout"]),
                num_blocks=int(facts["num_blocks"]),
                k_scale=k_scale,
                v_scale=v_scale,
                fill=int(facts["fill"]),
                blocks=arrays["blocks"].view(np.int64) if "blocks" in arrays else None,
            )
        except (KeyError, TypeError, AttributeError, OSError, EOFError) as error:
            raise ValueError(f"no stored case: {error}") from error


def resized(case: Case, **sizes: int) -> Layout:
    """The case's layout with other sizes and the same padding. Raises InputError for sizes that it cannot have."""
    spec: dict[str, Any] = {**case.layout.spec, **sizes}
    spec.pop("page_bytes")
    padding = case.layout.page_bytes - case.layout.natural_bytes
    smallest = layout(**spec)
    return layout(**spec, page_bytes=smallest.page_bytes + padding) if padding else smallest


def sequence_slots(blocks: NDArray[np.int64], tokens: int, block_size: int) -> NDArray[np.int64]:
    """The slots of a sequence's tokens, int64 (tokens)."""
    position = np.arange(tokens)
    slots: NDArray[np.int64] = blocks[position // block_size] * block_size + position % block_size
    return slots

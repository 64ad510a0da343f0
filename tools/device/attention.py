"""(b) `paged_attention` against float64 attention over the same codes, within the kernel's own rounding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

import kvformat as kvf
from kvformat.torch import attention
from kvformat.torch import ops as operators
from tools.device.pages import DTYPES, HEADS, configurations, named
from tools.device.run import Run, compiled

#: half a unit in the last place of each dtype of a query: the last rounding of attention
UNIT = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24}
#: the spacing of the dtype's subnormals, halved
SMALLEST = {"bfloat16": 2.0**-134, "float16": 2.0**-25, "float32": 2.0**-150}
#: tokens of the sequences that attention reads: one, none, a part of a block, several splits
LENGTHS = (1, 0, 23, 700)
SPLITS = 5


class Attending(NamedTuple):
    """Pages, the dtype of the query, and the query heads to a KV head."""

    made: kvf.Layout
    dtype: str
    group: int

    def __str__(self) -> str:
        return f"{named(self.made, self.dtype)}, {self.group} query heads to a KV head"


def check_attention(run: Run) -> None:
    """Every mode, layout, order, head size and block size; the dtypes and the groups of query heads take turns."""
    wanted = list(attentions())
    if not run.dry:
        run.compare("attention", [str(each) for each in wanted], _attended)
        return
    for each in wanted:
        if (each.made.head_size, each.made.block_size) == (64, 16):
            run.add("attention", str(each), compiled=compiled(_kernels, each))


def attentions() -> Iterator[Attending]:
    """The pages that `tools.device.pages` writes, each once."""
    pages = dict.fromkeys(made for made, _ in configurations())
    for number, made in enumerate(pages):
        yield Attending(made, DTYPES[number % 3], (1, 4, 8, 3)[number % 4])


class Sequences:
    """K and V of a few sequences in shuffled blocks, written by the CPU engine, and a query for each sequence."""

    def __init__(self, how: Attending) -> None:
        made, rng = how.made, np.random.default_rng(2)
        per_sequence = max(LENGTHS) // made.block_size + 1
        self.tables = torch.from_numpy(rng.permutation(len(LENGTHS) * per_sequence).reshape(len(LENGTHS), per_sequence))
        self.lengths = torch.tensor(LENGTHS)
        self.pages = torch.zeros((self.tables.numel(), made.page_bytes), dtype=torch.uint8)
        self.scale = torch.tensor([0.25]) if kvf.recipe(made.mode).outer else None
        self.names = (made.name, made.mode, made.order, made.block_size)
        self.last = (made.v_scales or "", made.dtype or "")
        for table, length in zip(self.tables, LENGTHS, strict=True):
            shape = (length, HEADS, made.head_size)
            key, value = (torch.from_numpy(rng.standard_normal(shape, np.float32)) for _ in "kv")
            key[:1] *= 20  # a sink token
            slots = (table[:, None] * made.block_size + torch.arange(made.block_size)).reshape(-1)[:length]
            operators.write_pages(
                key, value, self.pages, slots, self.scale, self.scale, *self.names, made.head_size, made.mode,
                *self.last,
            )  # fmt: skip
        query = rng.standard_normal((len(LENGTHS), HEADS * how.group, made.head_size), np.float32)
        self.query, self.tau = torch.from_numpy(query).to(getattr(torch, how.dtype)), made.head_size**-0.5

    def read(self, sequence: int, made: kvf.Layout) -> list[np.ndarray]:
        """K and V as the CPU engine reads them: float64 (tokens, heads, dims)."""
        both = operators.gather_pages(
            self.pages, self.tables[sequence], LENGTHS[sequence], self.scale, self.scale, *self.names, HEADS,
            made.head_size, made.mode, 0, *self.last,
        )  # fmt: skip
        return [side.double().numpy() for side in both]


def _attended(number: int, device: str) -> dict[str, int]:
    how = list(attentions())[number]
    held = Sequences(how)
    scale = None if held.scale is None else held.scale.to(device)
    out, lse = operators.paged_attention(
        held.query.to(device), held.pages.to(device), held.tables.to(device), held.lengths.to(device), scale, scale,
        *held.names, HEADS, how.made.mode, held.tau, 0, *held.last, SPLITS,
    )  # fmt: skip
    operators.check_errors()
    wrong = 0
    for sequence, length in enumerate(LENGTHS):
        found = out[sequence].double().cpu().numpy()
        if not length:
            wrong += int((found != 0).sum()) + int((lse[sequence] != -torch.inf).sum())
            continue
        key, value = held.read(sequence, how.made)
        for head, query in enumerate(held.query[sequence].double().numpy()):
            k, v = key[:, head // how.group], value[:, head // how.group]
            off = np.abs(found[head] - _float64(query, k, v, held.tau))
            wrong += int((~(off <= _allowed(query, k, v, held.tau, how.dtype))).sum())  # NaN is wrong, too
    return {"compared": out.numel(), "wrong": wrong}


def _float64(query: np.ndarray, key: np.ndarray, value: np.ndarray, tau: float) -> np.ndarray:
    logits = tau * (key @ query)
    weights = np.exp(logits - logits.max())
    return weights @ value / weights.sum()


def _allowed(query: np.ndarray, key: np.ndarray, value: np.ndarray, tau: float, dtype: str) -> np.ndarray:
    """The kernel's own rounding, as `kvformat.torch.attention` derives it, and one to the query's dtype."""
    bound = attention.rounding_bound(query, key, value, tau, SPLITS)
    size = np.abs(_float64(query, key, value, tau)) + bound
    return bound + np.maximum(UNIT[dtype] * size, SMALLEST[dtype])


def _kernels(how: Attending) -> None:
    held = Sequences(how)
    scales = held.scale, held.scale
    errors = torch.zeros(1, dtype=torch.int64)
    recipe = kvf.recipe(how.made.mode)
    attention.attend(
        how.made, held.query, held.pages, held.tables, held.lengths, recipe, scales, errors, held.tau, SPLITS
    )

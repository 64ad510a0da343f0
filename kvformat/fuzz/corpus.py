"""The cases that are aimed: special rows, then tensors at the recipe's borders in pages of every shape, without end."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvformat.errors import InputError
from kvformat.fuzz.boundary import Borders, special_rows
from kvformat.fuzz.case import Case
from kvformat.fuzz.plan import Plan
from kvformat.fuzz.strategies import cast
from kvformat.layouts import Layout

Array = NDArray[Any]

_FILLS = (0xA5, 0xFF, 0x00, 0x7F)
#: (block_size, heads, padding) of pages, small ones first; a swizzle takes whole groups of 4 slots
_PAGES = (
    (4, 2, 0),
    (4, 1, 12),
    (8, 3, 0),
    (1, 2, 0),
    (16, 2, 4),
    (2, 2, 8),
    (4, 3, 0),
    (4, 8, 0),
    (4, 5, 8),
    (8, 4, 0),
)
_TOKENS = (1, 3, 2, 5, 4, 8, 12)


def simplest(plan: Plan) -> Iterator[Case]:
    """One small case per dtype: what a candidate compiles for."""
    generator = np.random.default_rng(0)
    for dtype in plan.dtypes:
        if plan.candidate.kind == "quantizer":
            x = cast(np.ones((1, 1, plan.head_sizes[0])), dtype)
            yield plan.quantizer_case(x, 1.0 if plan.scale_given[0] else None)
        else:
            yield _paged(plan, Borders(plan.recipe, generator), next(_layouts(plan)), 1, dtype, number=0)


def cases(plan: Plan, seed: int) -> Iterator[Case]:
    """Cases without end, the same for the same seed."""
    generator = np.random.default_rng(seed)
    if plan.candidate.kind == "quantizer":
        yield from _quantizer(plan, generator)
    yield from _pages(plan, generator)


def _quantizer(plan: Plan, generator: np.random.Generator) -> Iterator[Case]:
    borders = Borders(plan.recipe, generator)
    small = tuple(size for size in plan.head_sizes if size <= 64) or plan.head_sizes[:1]
    shapes = borders.shapes(small)
    specials = _interleaved([special_rows(dtype) for dtype in plan.dtypes])
    for number, shape in enumerate(shapes):
        # one special case, then one at the borders
        x = next(specials, None)
        if x is not None and x.shape[2] in plan.head_sizes:
            given = 1.0 if not number % 2 else 0.3
            yield plan.quantizer_case(x, given if plan.scale_given[number % len(plan.scale_given)] else None)
        scale = borders.given_scale() if plan.scale_given[number % len(plan.scale_given)] else None
        dtype = plan.dtypes[(number + number // 3) % len(plan.dtypes)]
        yield plan.quantizer_case(borders.tensor(shape, dtype, scale), scale)


def _pages(plan: Plan, generator: np.random.Generator) -> Iterator[Case]:
    borders = Borders(plan.recipe, generator)
    for number, where in enumerate(_layouts(plan)):
        dtype = plan.dtypes[(number + number // 3) % len(plan.dtypes)]
        yield _paged(plan, borders, where, _TOKENS[number % len(_TOKENS)], dtype, number)


def _layouts(plan: Plan) -> Iterator[Layout]:
    """Layouts of the plan without end: every choice with every size, small ones first."""
    names = tuple(plan.choices)
    sizes = sorted(plan.head_sizes, key=lambda size: (size not in (16, 64, 128), size))
    found = []
    for (block, heads, padding), size, chosen in product(_PAGES, sizes, product(*plan.choices.values())):
        options = {
            "block_size": block,
            "num_kv_heads": heads,
            "head_size": size,
            **dict(zip(names, chosen, strict=True)),
        }
        try:
            smallest = plan.layout_of(**options)
            found.append(plan.layout_of(**options, page_bytes=smallest.page_bytes + padding) if padding else smallest)
        except InputError:
            continue
    if not found:
        raise InputError(f"layout {plan.layout} has no page of mode {plan.mode} with these choices")
    while True:
        # a stride that shares no factor with the choices' counts: neighbours differ in every respect
        order = np.argsort((np.arange(len(found)) * 0.6180339887) % 1.0, kind="stable")
        yield from (found[0], *(found[i] for i in order))


def _paged(plan: Plan, borders: Borders, where: Layout, tokens: int, dtype: np.dtype[Any], number: int) -> Case:
    generator = borders.generator
    scales = [np.float32(borders.given_scale()) if plan.scale_given[0] else None for _ in "kv"]
    sides = []
    for size, scale in zip((where.head_size, where.head_size_v), scales, strict=True):
        shape = (tokens, where.num_kv_heads, size)
        made = borders.tensor(shape, dtype, None if scale is None else float(scale))
        sides.append(_with_specials(generator, made, number))
    blocks = -(-tokens // where.block_size) + 1 + number % 2
    more: dict[str, Any] = {
        "num_blocks": blocks,
        "k_scale": scales[0],
        "v_scale": scales[1],
        "fill": _FILLS[number % 4],
    }
    if plan.candidate.kind == "reader":
        return plan.reader_case(sides[0], sides[1], where, generator.permutation(blocks), **more)
    slots = generator.permutation(blocks * where.block_size)[:tokens].astype(np.int64)
    if number % 3 == 1 and tokens > 1:
        slots[generator.integers(tokens)] = -1 - number % 2
    return Case(sides[0], sides[1], slots, where, **more)


def _with_specials(generator: np.random.Generator, x: Array, number: int) -> Array:
    """Every third tensor has a row of zeros, infinities or NaN."""
    if number % 3 != 2:
        return x
    rows = [row for row in special_rows(x.dtype) if row.shape == (1, 1, 16)]
    row = rows[int(generator.integers(len(rows)))][0, 0]
    token, head = generator.integers(x.shape[0]), generator.integers(x.shape[1])
    x[token, head] = 0
    x[token, head, : min(16, x.shape[2])] = row[: x.shape[2]]
    return x


def _interleaved(sources: list[Iterator[Array]]) -> Iterator[Array]:
    while sources:
        for source in list(sources):
            found = next(source, None)
            if found is None:
                sources.remove(source)
            else:
                yield found

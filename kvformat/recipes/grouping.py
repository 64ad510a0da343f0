"""How K or V falls into the groups that share a parameter: rows of one group each, and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvformat.recipes.vocabulary import AXES, Granularity

Array = NDArray[Any]
Shape = tuple[int, ...]


class _Part(NamedTuple):
    """Groups of one size: their elements, and the places of their parameters."""

    elements: tuple[slice, ...]
    block: Shape
    places: tuple[slice, ...]


def grid(share: Granularity, shape: Shape) -> Shape:
    """The block shape of the parameters of x of that shape: how many along (tokens, heads, dims); runs: (n,)."""
    if share.order:
        return (-(-prod(shape) // share.run),)
    return tuple(-(-count // (wide or count)) for count, wide in zip(shape, share.block, strict=True))


def gather(share: Granularity, x: Array) -> list[Array]:
    """The groups of x (tokens, heads, dims): arrays (groups, elements of one), partial groups apart.

    Groups go in C order of their places; the elements of a block in C order, those of a run in its order.
    """
    if share.order:
        flat = x.transpose([AXES.index(axis) for axis in share.order]).reshape(-1)
        whole = flat.size // share.run * share.run
        found = [flat[:whole].reshape(-1, share.run), flat[whole:].reshape(1, -1)]
        return [rows for rows in found if rows.size]
    return [_rows(x[part.elements], part.block) for part in _parts(share, x.shape)]


def scatter(share: Granularity, groups: Sequence[Array], shape: Shape) -> Array:
    """The array of that shape whose groups, as `gather` gives them, these are."""
    if share.order:
        order = [AXES.index(axis) for axis in share.order]
        flat = np.concatenate([rows.reshape(-1) for rows in groups])
        return np.ascontiguousarray(flat.reshape([shape[axis] for axis in order]).transpose(np.argsort(order)))
    out = np.empty(shape, groups[0].dtype)
    for part, rows in zip(_parts(share, shape), groups, strict=True):
        into = out[part.elements]
        counts = [count // wide for count, wide in zip(into.shape, part.block, strict=True)]
        blocks = rows.reshape(*counts, *part.block).transpose(0, 3, 1, 4, 2, 5)
        into[...] = blocks.reshape(into.shape)
    return out


def place(share: Granularity, values: Sequence[Array], shape: Shape) -> Array:
    """The parameters of groups, one array (groups,) for each array that `gather` gives, in their block shape."""
    if share.order:
        return np.concatenate(list(values))
    out = np.empty(grid(share, shape), values[0].dtype)
    for part, each in zip(_parts(share, shape), values, strict=True):
        into = out[part.places]
        into[...] = each.reshape(into.shape)
    return out


def take(share: Granularity, values: Array, shape: Shape) -> list[Array]:
    """The parameters in their block shape, one array (groups,) for each array that `gather` gives."""
    if share.order:
        whole = prod(shape) // share.run
        return [each for each in (values[:whole], values[whole:]) if each.size]
    return [values[part.places].reshape(-1) for part in _parts(share, shape)]


def take_outer(share: Granularity, outer: Granularity, values: Array, shape: Shape) -> list[Array]:
    """The parameters of an outer granularity, one for each group of the inner one, as `take` gives them."""
    if share == outer:
        return take(share, values, shape)
    if share.order:
        return take(share, np.full(grid(share, shape), values.reshape(-1)[0]), shape)
    first = np.indices(grid(share, shape), sparse=True)
    index = tuple(
        at * (own or count) // (wide or count)
        for at, own, wide, count in zip(first, share.block, outer.block, shape, strict=True)
    )
    return take(share, values[index], shape)


def _parts(share: Granularity, shape: Shape) -> Iterator[_Part]:
    pieces = []
    for count, wide in zip(shape, (wide or count for wide, count in zip(share.block, shape, strict=True)), strict=True):
        number, rest = divmod(count, wide)
        whole = [(slice(0, number * wide), wide, slice(0, number))] if number else []
        pieces.append(whole + ([(slice(number * wide, count), rest, slice(number, number + 1))] if rest else []))
    for axes in product(*pieces):
        elements, block, places = zip(*axes, strict=True)
        yield _Part(elements, block, places)


def _rows(x: Array, block: Shape) -> Array:
    """Groups of a region that the blocks divide: (groups, elements of one)."""
    shape = [length for count, wide in zip(x.shape, block, strict=True) for length in (count // wide, wide)]
    return np.ascontiguousarray(x.reshape(shape).transpose(0, 2, 4, 1, 3, 5)).reshape(-1, prod(block))

"""Exact probes of attention: K, V, pages and queries whose right output, rounded to bfloat16, is known bit for bit.

K is a full code (448, 127, 6) times a power of two, signed by the rows of a Hadamard matrix and their negatives, so two
keys agree in half of the dims or in none, and every scale is a power of two. V has any codes of few enough bits that a
mean of two is a number of bfloat16. Queries are sums of such keys. `kvformat.attention.exact` says what follows.

What each kind sees: *one-hot* every key, every element of V and every scale of V; *equal pair* one code of K one step
off, one scale of K 1 % off: a key is paired with b and with -b, which between them agree with it in every dim; *known
distance* the softmax scale, a common scale of K, a merge to another base and a dim that is left out for all keys: the
distance of two keys comes in equal parts from a few dims, and from every dim in some row; *sink* a sink that is not
counted once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

from kvformat.attention.exact import DISTANCE, MARGIN
from kvformat.cache import PagedCache
from kvformat.dump.dump import Dump
from kvformat.dump.file import INPUT_DTYPES
from kvformat.elements.formats import element
from kvformat.errors import InputError
from kvformat.layouts import Layout, layout
from kvformat.modes import mode as find_mode

Array = NDArray[Any]

#: what the producer of a probe says
PRODUCER = "kvformat attention probe"
#: margins are aimed at with some room for the rounding of logits
_AIM = 1.25 * MARGIN
_UNWRITTEN = 0xA5
#: dims that a known distance comes from in equal parts: without one of them the output is 1.05 times as large or more
_PARTS = 4
#: the second scale of modes with two levels; V's blocks have scales of 3 bits times it
_OUTER = 2.0**-6


def attention_probe(
    mode: str,
    *,
    name: str = "vllm-0.33",
    order: str = "NHD",
    block_size: int = 16,
    num_kv_heads: int = 4,
    head_size: int = 64,
    group: int = 4,
    v_scales: str | None = None,
    dtype: DTypeLike = "bfloat16",
    accumulate: str = "float32",
    sinks: bool = False,
    seed: int = 0,
) -> Dump:
    """A dump of written pages and a query for each token; its output is NaN: put a kernel's in its place.

    group: query heads to a kv head. accumulate: "float16" has one-hot rows alone. sinks: with a sink logit
    for each query head. Raises InputError for what `kvformat.layout` refuses, a head_size below 16, and modes whose
    golden recipe does not store such K and V exactly.
    """
    kind = find_mode(mode)
    made = layout(
        name, mode=kind, order=order, block_size=block_size, num_kv_heads=num_kv_heads, head_size=head_size,
        v_scales=v_scales,
    )  # fmt: skip
    wanted = str(dtype if isinstance(dtype, str) else np.dtype(dtype).name)
    if wanted not in INPUT_DTYPES:
        raise InputError(f"K and V are {', '.join(INPUT_DTYPES)}; got {wanted!r}")
    if group < 1 or head_size < 16:
        raise InputError(
            f"an exact probe needs a query head and a head_size of 16 or more; got {group} and {head_size}"
        )
    generator = np.random.default_rng(seed)
    heads = [
        _Head(generator, made, group, with_sink=sinks, one_hot=accumulate == "float16") for _ in range(num_kv_heads)
    ]
    placed = [head.placed() for head in heads]
    further = max(-(-len(asked) // max(group - 1, 1)) for _, asked in placed)
    more = [head.extended(further, asked) for head, (_, asked) in zip(heads, placed, strict=True)]
    query = np.concatenate(
        [np.concatenate([rows, each[0]]) for (rows, _), each in zip(placed, more, strict=True)], axis=1
    )  # fmt: skip
    key = np.stack([np.concatenate([head.key, each[1]]) for head, each in zip(heads, more, strict=True)], axis=1)
    value = np.stack([np.concatenate([head.value, each[2]]) for head, each in zip(heads, more, strict=True)], axis=1)
    tokens = len(key)
    blocks = -(-tokens // block_size) + 2
    slots = (generator.permutation((blocks - 2) * block_size)[:tokens] + block_size).astype(np.int64)
    scales = _tensor_scales(made)
    cache = PagedCache(made, blocks, *scales)
    cache.pages[:] = _UNWRITTEN
    cast = [x.astype(np.float32).astype(INPUT_DTYPES[wanted]) for x in (key, value, query)]
    cache.write(cast[0], cast[1], slots)
    stored = cache.gather(np.arange(blocks), blocks * block_size, np.float64)
    if not all(np.array_equal(x[slots], y) for x, y in zip(stored, (key, value), strict=True)):
        raise InputError(f"there is no exact probe for mode {mode}: its recipe does not store such K and V exactly")
    dump = Dump.from_arrays(
        cast[0], cast[1], cache.pages, slots, layout=made, recipe=cache.recipe, producer=PRODUCER,
        k_scale=scales[0], v_scale=scales[1],
    )  # fmt: skip
    extra: dict[str, Any] = {"probe": "exact"} | ({"accumulate": accumulate} if accumulate != "float32" else {})
    if sinks:
        extra["sinks"] = np.repeat(np.array([head.sink for head in heads], np.float32), group)
    return dump.attending(cast[2], np.full_like(cast[2], np.nan), **extra)


def _tensor_scales(made: Layout) -> tuple[float | None, float | None]:
    kind = find_mode(made.mode)
    if not kind.tensor_scale:
        return None, None
    scale = _OUTER if kind.page_scale else _unit(made)
    return scale, scale


def _full(made: Layout) -> float:
    """The magnitude of the largest code."""
    name = find_mode(made.mode).element
    return 1.0 if name is None else float(element(name).max)


def _unit(made: Layout) -> float:
    """The power of two that brings the largest code into [1, 2)."""
    return float(2.0 ** -math.floor(math.log2(_full(made))))


def patterns(dims: int) -> Array:
    """Signs (2 n, dims): the rows of a Hadamard matrix of order n, then their negatives in the same order.

    n is the largest power of two in dims; where dims has more, a row goes on with its own beginning.
    """
    rows = np.ones((1, 1))
    while 2 * len(rows) <= dims:
        rows = np.block([[rows, rows], [rows, -rows]])
    rows = np.concatenate([rows, rows], axis=1)[:, :dims]
    return np.concatenate([rows, -rows])


class _Head:
    """One kv head: its keys in a random order, and what its query heads are asked."""

    def __init__(self, generator: Any, made: Layout, group: int, *, with_sink: bool, one_hot: bool) -> None:
        self.generator, self.group, self.one_hot = generator, group, one_hot
        signs = patterns(made.head_size)
        count = len(signs) // 2
        self.scale, self.dims = made.head_size**-0.5, made.head_size
        # four keys, a row, the next one and their negatives, share a class: the same scale of K and of V
        of_four = np.arange(2 * count) % count // 2
        factor = np.where(of_four % 2, 0.5, 1.0)[:, None]
        apart = [self.apart(i % count) for i in range(2 * count)]
        value = np.stack([_values(generator, made, apart[i], i % count % 2) for i in range(2 * count)])
        if find_mode(made.mode).dims_per_scale:
            width = find_mode(made.mode).dims_per_scale
            value = value * np.repeat(generator.choice([1, 1.25, 1.5, 1.75], made.head_size_v // width), width)
        place = generator.permutation(2 * count)  # of each row, its token
        self.key: Array = np.empty(signs.shape)
        self.value: Array = np.empty(value.shape)
        size = _full(made) * _unit(made)
        self.key[place], self.value[place] = signs * factor * size, value * factor * _unit(made)
        self.place, self.count = place, count
        #: tokens of keys that are in no known distance
        self.plain = [int(place[i]) for i in range(2 * count) if not apart[i]]
        self.sink: float | None = None
        if with_sink:
            # the query of the sink rows: signs times a power of two over the size of the key
            whole = self.scale * made.head_size * size
            self.sink_query = 2.0 ** math.ceil(math.log2(2 * _AIM / whole))
            self.sink = float(np.float32(whole * self.sink_query))
        self.size = size

    def placed(self) -> tuple[Array, list[tuple[list[int], Array]]]:
        """Queries (tokens, group, head_dim), and those that find no place: causal, a row asks for what it sees.

        The first query head asks each token for its own key; a row that none of the rest fits asks for any other key.
        """
        tokens = len(self.key)
        query: Array = np.empty((tokens, self.group, self.dims))
        asked = [] if self.one_hot else sorted(self.asked(), key=lambda each: max(each[0]))
        for row in range(tokens):
            query[row, 0] = self.one(row)
            for head in range(1, self.group):
                fits = bool(asked) and max(asked[0][0]) <= row
                query[row, head] = asked.pop(0)[1] if fits else self.one(int(self.generator.integers(row + 1)))
        return query, asked

    def extended(self, rows: int, asked: list[tuple[list[int], Array]]) -> tuple[Array, Array, Array]:
        """Query, K and V of that many further tokens, for what found no place.

        Each is a second one of a key that nothing asks for any more, with the V of a third: its first query head asks
        for both, an equal pair. Where there is no such key, or one query head alone, it is K = 0, which wins in no row.
        """
        query, key = np.empty((rows, self.group, self.dims)), np.zeros((rows, self.dims))
        value = np.resize(self.value, (rows, self.value.shape[1])).copy()
        left, doubled = list(asked), set[int]()
        for row in range(rows):
            head = 0
            needed = {token for tokens, _ in left for token in tokens}
            free = [token for token in self.plain if token not in needed | doubled] if self.group > 1 else []
            if free:
                first = free[0]
                doubled.add(first)
                size = self.size_of(first)
                alike = [token for token in self.plain if token != first and self.size_of(token) == size]
                key[row], value[row] = self.key[first], self.value[alike[row % len(alike)]]
                query[row, head] = self.one(first)
                head = 1
            for place in range(head, self.group):
                query[row, place] = left.pop(0)[1] if left else self.one(int(self.generator.integers(len(self.key))))
        return query, key, value

    def size_of(self, token: int) -> float:
        """The magnitude of a key's elements."""
        return float(np.abs(self.key[token]).max())

    def one(self, token: int) -> Array:
        """A query that sees one key alone."""
        return self.raised(self.key[token], [token])

    def asked(self) -> Iterator[tuple[list[int], Array]]:
        """What needs two keys or the sink, with the tokens that it needs."""
        apart = [row for row in range(self.count) if self.apart(row)]
        for row in range(self.count):
            for other in (row ^ 1, (row ^ 1) + self.count):
                pair = [int(self.place[row]), int(self.place[other])]
                if row < row ^ 1:
                    negatives = [int(self.place[(each + self.count) % (2 * self.count)]) for each in (row, other)]
                    yield pair, self.pair(*pair)
                    yield negatives, self.pair(*negatives)
                if row in apart:
                    yield pair, self.distance(pair[0], pair[1], apart.index(row))
        if self.sink is not None:
            for token, key in enumerate(self.key):
                yield [token], np.sign(key) * self.sink_query * self.size / np.abs(key).max()

    @staticmethod
    def apart(row: int) -> bool:
        """Whether a row of signs and the next one have V 0 and the largest in turn, for a known distance."""
        return row // 2 % 4 == 0

    def pair(self, a: int, b: int) -> Array:
        return self.raised(self.key[a] + self.key[b], [a, b])

    def distance(self, a: int, b: int, turn: int) -> Array:
        """The pair, and a's logit 4 ln 2 above b's: by some dims in which they differ, each turn others.

        Each of the first dims gives an equal part; two more, what numbers of bfloat16 leave over.
        """
        query = self.pair(a, b)
        left = DISTANCE
        differ = np.roll(np.flatnonzero(self.key[a] != self.key[b]), -_PARTS * turn)
        for place, dim in enumerate(differ[: _PARTS + 2]):
            step = 2 * self.scale * self.key[a, dim]
            part = left / (_PARTS - place) if place < _PARTS else left
            query[dim] = np.float64(np.float32(part / step).astype(ml_dtypes.bfloat16))
            left -= query[dim] * step
        return query

    def raised(self, query: Array, above: list[int]) -> Array:
        """The query times the power of two that puts its keys the margin above all others and the sink."""
        logits = self.key @ query * self.scale
        others = np.delete(logits, above)
        ahead = float(logits[above].min() - max(others.max(), 0.0))
        if ahead <= 0:
            raise InputError(
                f"there is no exact probe of head_size {len(query)}: two of its keys are too near each other"
            )
        needed = _AIM + (self.sink or 0.0)
        raised: Array = query * 2.0 ** math.ceil(math.log2(needed / ahead))
        return raised


def _values(generator: Any, made: Layout, apart: bool, odd: int) -> Array:
    """One row of V in units of the code's step: any codes, or where two keys are held apart, 0 and the largest."""
    dims, full = made.head_size_v, _full(made)
    if apart:
        return np.where(np.arange(dims) % 2 == odd, full, 0.0)
    name = find_mode(made.mode).element
    if name is not None and element(name).kind == "integer":
        row = generator.integers(-int(full), int(full) + 1, dims).astype(np.float64)
    elif name == "e2m1fn":
        row = generator.choice(np.unique(np.abs(element(name).values().astype(np.float64))), dims)
        row = row * generator.choice([-1.0, 1.0], dims)
    else:  # four bits in four octaves: the sum of two has at most eight
        octaves = generator.integers(-6, -2, dims) + math.floor(math.log2(full))
        row = generator.integers(8, 16, dims) * 2.0**octaves
        row = np.where(row > full, full, row) * generator.choice([-1.0, 1.0], dims)
    width = find_mode(made.mode).dims_per_scale or dims
    values: Array = np.asarray(row)
    values[::width] = full  # every group that shares a scale has the largest code, so the scale is a power of two
    return values

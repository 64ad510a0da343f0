"""Probes: K and V on which as many hypotheses as possible leave different bytes, for a user's kernel to write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from kvformat.diagnose.bench import Bench
from kvformat.diagnose.catalogue import rivals, variants
from kvformat.diagnose.rows import Rows
from kvformat.dump.dump import Dump
from kvformat.dump.file import INPUT_DTYPES
from kvformat.elements.formats import element
from kvformat.errors import InputError
from kvformat.layouts import Layout, layout
from kvformat.modes import mode as find_mode
from kvformat.recipes.catalogue import recipe as find_recipe
from kvformat.recipes.difference import borders
from kvformat.recipes.program import Recipe
from kvformat.verify.identify import SIDES, Side

#: what the producer of a probe says, and of a dump that was made of one
PRODUCER = "kvformat probe"
#: tokens of a probe, and those that the ones that separate hypotheses are chosen from
_TOKENS, _POOL = 64, 768
#: a byte that stands for "never written" in the pages of a probe
_UNWRITTEN = 0xA5
#: elements of a token that every hypothesis is tried on: 128 heads of 128
_MOST = 1 << 14
#: per-tensor scales of K and V that tell most orders of operations and roundings apart, found by search. No powers of
#: two: with those 1 / g is exact. fp8: K's is short, so that quotients of bfloat16 numbers can be ties; V's is not, so
#: that a scale rounded to 16 bits is another one.
_SCALES: Mapping[str, tuple[float, float]] = {
    "fp8_per_tensor": (0.119140625, 0.05718899145722389),
    "nvfp4": (0.3095238208770752, 0.0020616319961845875),
}

Array = NDArray[Any]


def probe(
    mode: str,
    *,
    name: str = "vllm-0.33",
    order: str = "NHD",
    block_size: int = 16,
    num_kv_heads: int = 4,
    head_size: int = 64,
    v_scales: str | None = None,
    dtype: DTypeLike = "bfloat16",
    stored: str | None = None,
    seed: int = 0,
) -> Dump:
    """A dump whose pages are still to be written: give its K, V, slots and scales to a kernel, and save what it wrote.

    The first and the last block stay unwritten, so rows that lie one slot or block away are seen. dtype: of K and V;
    stored: of the values in mode none. Raises InputError for what `kvformat.layout` refuses, and for tokens of more
    than 16,384 elements a side.
    """
    kind = find_mode(mode)
    made = layout(
        name, mode=kind, order=order, block_size=block_size, num_kv_heads=num_kv_heads, head_size=head_size,
        v_scales=v_scales, dtype=stored,
    )  # fmt: skip
    if num_kv_heads * head_size > _MOST:
        raise InputError(
            f"a probe has at most {_MOST:,} elements a token, heads * head_size; got {num_kv_heads} * {head_size}"
        )
    wanted = _dtype(dtype)
    generator = np.random.default_rng(seed)
    scales = dict(zip(SIDES, _SCALES.get(kind.name, (None, None)), strict=True))
    pool = {side: _pool(generator, made, wanted, scales[side], finite=side == "v") for side in SIDES}
    chosen = _separating(made, pool, scales)
    blocks = -(-_TOKENS // block_size) + 2
    slots = generator.permutation((blocks - 2) * block_size)[:_TOKENS] + block_size
    pages = np.full((blocks, made.page_bytes), _UNWRITTEN, np.uint8)
    return Dump.from_arrays(
        pool["k"][chosen], pool["v"][chosen], pages, slots.astype(np.int64), layout=made,
        k_scale=scales["k"], v_scale=scales["v"], producer=PRODUCER,
    )  # fmt: skip


def _dtype(dtype: DTypeLike) -> np.dtype[Any]:
    name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
    if name not in INPUT_DTYPES:
        raise InputError(f"K and V are {', '.join(INPUT_DTYPES)}; got {name!r}")
    return INPUT_DTYPES[name]


# --- the tokens to choose from --------------------------------------------------------------------------------------


def _pool(generator: Any, made: Layout, dtype: np.dtype[Any], scale: float | None, *, finite: bool) -> Array:
    """K or V (tokens, heads, dims): special rows, rows on the borders between codes, ordinary rows.

    finite: no NaN and no Inf, which in some recipes spoil a scale of the whole tensor, and what it would have shown.
    """
    heads, dims = made.num_kv_heads, made.head_size
    special = np.stack([np.stack([row] * heads) for row in _special(generator, dims, scale)])
    special[:, 1::2] *= np.float32(0.75)  # no two heads alike
    spared = special if finite else special[:, :-1]  # one head is enough: a NaN may spoil more than its own row
    spared[~np.isfinite(spared)] = 1
    ordinary = generator.normal(size=(_POOL // 8, heads, dims)) * 2.0 ** generator.integers(
        -6, 7, (_POOL // 8, heads, 1)
    )
    bordering = _bordering(generator, made, dtype, scale)
    with np.errstate(over="ignore", invalid="ignore"):
        parts = [np.asarray(part, np.float32).astype(dtype) for part in (special, ordinary, bordering)]
    return np.concatenate(parts)


def _special(generator: Any, dims: int, scale: float | None) -> Iterator[Array]:
    """Zeros of both signs, NaN, Inf, subnormals, rows below every floor, overflow of a given scale."""
    ordinary = generator.normal(size=dims).astype(np.float32)
    yield ordinary
    for first in (np.nan, np.inf, -np.inf):
        yield np.where(np.arange(dims) == 3, np.float32(first), ordinary)
    for zero in (np.float32(0), np.float32(-0.0)):
        yield np.full(dims, zero)
        yield np.where(np.arange(dims) % 3 == 1, zero, ordinary)
    yield np.where(np.arange(dims) < 16, np.float32(0), ordinary)
    yield ordinary * 2.0 ** -(np.arange(dims) % 24).astype(np.float32)  # down to codes that are subnormal, and zeros
    for size in (1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-10, 1e-12, 1e-38, 3e-40, 1e-44):
        yield ordinary * np.float32(size)
    if scale is not None:
        # above the largest code, where rounding decides, and far beyond; for block scales 6 times that
        for reach in (448, 448 * 6):
            for low, high in ((1.0, 1.03), (1.04, 9.0)):
                yield (generator.uniform(low, high, dims) * reach * scale * generator.choice([-1, 1], dims)).astype(
                    np.float32
                )


def _bordering(generator: Any, made: Layout, dtype: np.dtype[Any], scale: float | None) -> Array:
    heads, dims = made.num_kv_heads, made.head_size
    golden = find_recipe(made.mode)
    rows = _POOL * heads
    if golden.element is None:
        return _between_values(generator, (_POOL, heads, dims), made.dtype or "bfloat16")
    width = dims if golden.inner is None or not golden.inner.granularity.dims else golden.inner.granularity.dims
    groups = rows * dims // width
    top = 448.0 if scale is None else 448 * scale * (6 if golden.inner else 1)
    x = np.zeros((groups, 1, width), np.float32)
    x[:, 0, 0] = generator.uniform(0.001, 1, groups) * top * 2.0 ** generator.integers(-8, 1, groups)
    if scale is not None and golden.inner is not None:
        x[::2, 0, 0] = _between_block_scales(generator, len(x[::2]), scale, dtype)
    x = x.astype(dtype).astype(np.float32)
    x[:, 0, 1:] = borders(generator, golden, x.astype(dtype), scale, width - 1)
    signs = generator.choice(np.array([-1, 1], np.float32), x.shape)
    rows_of_x: Array = (x * signs).reshape(_POOL, heads, dims)
    return rows_of_x


def _between_block_scales(generator: Any, count: int, scale: float, dtype: np.dtype[Any]) -> Array:
    """The amax of blocks whose scale lies on or beside the middle between two e4m3fn values."""
    values = np.unique(np.abs(element("e4m3fn").values()[np.isfinite(element("e4m3fn").values())])).astype(np.float64)
    place = generator.integers(1, len(values) - 1, count)
    middle = ((values[place] + values[place + 1]) / 2 * 6 * np.float32(scale)).astype(dtype)
    bits = middle.view(f"u{dtype.itemsize}").astype(np.int64) + generator.integers(-1, 2, count)
    amax: Array = bits.astype(f"u{dtype.itemsize}").view(dtype).astype(np.float32)
    return amax


def _between_values(generator: Any, shape: tuple[int, ...], name: str) -> Array:
    """float32 numbers on and beside the middle between two values of a 16-bit format."""
    low = 16 if name == "bfloat16" else 13
    bits = generator.normal(size=shape).astype(np.float32).view(np.uint32) >> np.uint32(low) << np.uint32(low)
    offset = generator.integers(-1, 2, shape).astype(np.int64) + (1 << (low - 1))
    between: Array = (bits.astype(np.int64) + offset).astype(np.uint32).view(np.float32)
    return between


# --- the tokens that separate ---------------------------------------------------------------------------------------


def _separating(made: Layout, pool: Mapping[Side, Array], scales: Mapping[Side, float | None]) -> NDArray[np.int64]:
    """As few tokens of a pool as leave no two hypotheses alike that any of its tokens tells apart, and some more."""
    tokens = len(pool["k"])
    slots = np.arange(tokens)
    pages = np.zeros((-(-tokens // made.block_size), made.page_bytes), np.uint8)
    dump = Dump.from_arrays(
        pool["k"], pool["v"], pages, slots, layout=made, k_scale=scales["k"], v_scale=scales["v"],
        recipe=f"golden/{made.mode}",
    )  # fmt: skip
    how = find_recipe(f"golden/{made.mode}").for_input(dump.key.dtype.name)
    bench = Bench(dump, how, slots)
    marks = np.array(list(_marks(bench, how)), np.uint64)
    special = tokens - _POOL - _POOL // 8
    kept = _refined(marks, list(range(special)), _TOKENS)
    others = np.setdiff1d(np.arange(special, special + _POOL // 8), kept)
    return np.sort(np.array([*kept, *others][:_TOKENS], np.int64))


def _marks(bench: Bench, how: Recipe) -> Iterator[NDArray[np.uint64]]:
    """For each hypothesis a number for each token: alike where K and V get the same bytes."""
    yield _mark([bench.rows(side, how) for side in SIDES])
    for _, variant in variants(how.mode, "arithmetic", "scale"):
        fitted = np.float32(1) if variant.tensor == "?" else None
        rows = [bench.rows(side, how, variant, fitted) for side in SIDES]
        if rows[0] is not None:
            yield _mark(rows)
    for other in rivals(how, bench.dump.key.dtype.name):
        yield _mark([bench.rows(side, other) for side in SIDES])


def _mark(sides: list[Rows | None]) -> NDArray[np.uint64]:
    widths = [part[0].size for rows in sides if rows is not None for part in (rows.codes, rows.scales)]
    weights = np.random.default_rng(1).integers(1, 1 << 63, max(widths), np.int64).astype(np.uint64)
    total: Any = np.uint64(0)
    for place, rows in enumerate(sides):
        assert rows is not None
        for part in (rows.codes, rows.scales):
            flat = part.reshape(len(part), -1).astype(np.uint64)
            total = total * np.uint64(3 + place) + flat @ weights[: flat.shape[1]]
    marks: NDArray[np.uint64] = total
    return marks


def _refined(marks: NDArray[np.uint64], first: list[int], most: int) -> list[int]:
    """Tokens that split the hypotheses into as many classes as all tokens do, taken one by one: the best one first."""
    kept: list[int] = []
    classes = np.zeros(len(marks), np.int64)
    for token in first:
        classes = _split(classes, marks[:, token])
        kept.append(token)
    count = len(np.unique(classes))
    while len(kept) < most:
        best, least = -1, count
        for token in range(marks.shape[1]):
            found = len(np.unique(_split(classes, marks[:, token])))
            if found > least:
                best, least = token, found
        if best < 0:
            break
        classes, count = _split(classes, marks[:, best]), least
        kept.append(best)
    return kept


def _split(classes: NDArray[np.int64], marks: NDArray[np.uint64]) -> NDArray[np.int64]:
    _, inside = np.unique(marks, return_inverse=True)
    _, finer = np.unique(classes * np.int64(len(marks) + 1) + inside.reshape(-1), return_inverse=True)
    places: NDArray[np.int64] = finer.reshape(-1).astype(np.int64)
    return places

"""Hypothesis strategies for K and V, codes, scales, slots and layouts: inputs at which implementations break.

They aim at the borders between codes, at what underflows, overflows and is not finite, at zeros of both signs, at what
a scale is shared by, and at the sizes where a swizzle is not its own inverse. The first choice of each is the simplest,
so that a failing example shrinks to zeros and the few numbers that matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray

from kvformat.elements.formats import ElementFormat, element
from kvformat.errors import InputError, unknown_name
from kvformat.fuzz import profiles
from kvformat.layouts import Layout, layout
from kvformat.modes import mode as find_mode

Array = NDArray[Any]
#: a number, or the smallest and the largest one
Size = int | tuple[int, int]

FLOAT32 = np.dtype(np.float32)
#: what K and V come in
DTYPES = (FLOAT32, np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
DTYPE_IDS = tuple(dtype.name for dtype in DTYPES)

#: the models whose K and V `kv_tensors` can make
PROFILE_NAMES = tuple(profiles.PROFILES)

dtypes = st.sampled_from(DTYPES)
seeds = st.integers(0, 2**32 - 1)

_FLOAT32 = np.finfo(np.float32)
#: divided by these, an amax becomes a scale: 448, 127, 2688, and in nvfp4 6 * g
_LARGEST = (448.0, 127.0, 2688.0, 6.0, 6.0 * 2.0**-10)
#: head sizes with 1 to 16 scales of 16 dims; the four-token swizzle is its own inverse at 64 only. 24, 40 and 72 end in
#: half a vector of 16 lanes, 112 and 80 in part of 32
_HEAD_DIMS = (16, 32, 64, 128, 256, 24, 40, 48, 72, 80, 112)


def cast(values: ArrayLike, dtype: Any) -> Array:
    """Numbers in another dtype, without NumPy's warnings: overflow is Inf."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(values, np.float32).astype(dtype)


# --- numbers -------------------------------------------------------------------------------------------------------


@st.composite
def _near(draw: st.DrawFn, base: st.SearchStrategy[float]) -> float:
    """A float32 and its neighbours, 1 ulp apart, of either sign."""
    value = np.float32(draw(base))
    steps = draw(st.sampled_from((0, 1, -1)))
    with np.errstate(over="ignore"):
        value = np.nextafter(value, np.float32(np.inf * steps)) if steps else value
    return float(value) * float(draw(st.sampled_from((1, -1))))


_powers = st.integers(-149, 127).map(lambda exponent: 2.0**exponent)
_halves = st.integers(-9, 260).map(lambda n: n / 2)  # midpoints of int8 and e2m1fn where the scale is a power of two
_sixteenths = st.integers(1, 511).map(lambda n: n / 16)  # midpoints of e4m3fn likewise
_underflowing = st.tuples(st.sampled_from(_LARGEST), st.integers(-151, -145)).map(lambda pair: pair[0] * 2.0 ** pair[1])
_huge = st.floats(2.0**120, float(_FLOAT32.max), width=32)
_ordinary = st.floats(-16, 16, width=32)
_any_bits = st.integers(0, 2**32 - 1).map(lambda bits: float(np.array(bits, np.uint32).view(np.float32)))

#: finite float32 numbers and zeros of both signs
finite_numbers = st.one_of(
    st.sampled_from((0.0, -0.0, 1.0, -1.0, 448.0, 464.0, 127.0, 6.0, 5.0)),
    _ordinary,
    _near(_powers),
    _near(_halves),
    _near(_sixteenths),
    _near(_underflowing),
    _huge,
).map(lambda value: float(np.float32(value)))

#: the same with Inf, NaN, and all other patterns
numbers = st.one_of(finite_numbers, st.sampled_from((np.inf, -np.inf, np.nan)), _any_bits)


@cache
def _borders(fmt: ElementFormat) -> tuple[float, ...]:
    """The finite magnitudes of a format and the midpoints between them, in order, and what is beyond the largest."""
    found = np.abs(fmt.values())
    sizes = np.unique(found[np.isfinite(found)]).astype(np.float64)
    step = sizes[-1] - sizes[-2]
    middles = (sizes[1:] + sizes[:-1]) / 2
    beyond = [sizes[-1] + step / 2, sizes[-1] + step, 2 * sizes[-1]]
    return tuple(float(each) for each in np.sort(np.concatenate([sizes, middles, beyond])))


def element_values(fmt: str | ElementFormat, *, finite: bool = True) -> st.SearchStrategy[float]:
    """float32 numbers around a format's borders: its values, the midpoints between them, and their neighbours.

    A code is decided there. finite: without it, Inf, NaN and every other float32 come too.
    """
    near = _near(st.sampled_from(_borders(element(fmt))))
    return near if finite else near | numbers


def codes(fmt: str | ElementFormat) -> st.SearchStrategy[int]:
    """Codes of a format, as `kvformat.encode` gives them: unsigned patterns, signed for int8 and int4."""
    target = element(fmt)
    if target.signed_integer:
        return st.integers(-target.sign_bit, target.sign_bit - 1)
    return st.integers(0, target.codes - 1)


def scales() -> st.SearchStrategy[float]:
    """Per-tensor scales as a caller gives them, finite and > 0 in float32.

    Powers of two and ordinary numbers, subnormal ones, and those so large that nvfp4's 6 * g is Inf.
    """
    return st.one_of(
        st.integers(-149, 127).map(lambda exponent: 2.0**exponent),
        st.floats(2.0**-12, 16, width=32),
        st.integers(1, 3000).map(lambda steps: steps * 2.0**-149),
        st.floats(2.0**125, float(_FLOAT32.max), width=32),
        st.sampled_from(
            (5.671372782015641e37, float(_FLOAT32.max), float(_FLOAT32.tiny), float(_FLOAT32.smallest_subnormal))
        ),
    ).map(lambda value: float(np.float32(value)))


# --- K and V -------------------------------------------------------------------------------------------------------


@st.composite
def kv_tensors(
    draw: st.DrawFn,
    mode: str = "none",
    *,
    tokens: Size = (1, 3),
    heads: Size = (1, 2),
    head_dim: int | Sequence[int] | None = None,
    dtype: Any = None,
    profile: str | Sequence[str] | None = None,
    finite: bool = False,
) -> Array:
    """K or V (tokens, heads, head_dim) for a mode: each row of a kind of its own, with a few numbers chosen to hurt.

    Rows are zeros, numbers at the borders of the mode's codes after scaling, multiples of half a step of an exact scale
    (ties everywhere), random ones of any size, subnormal ones, or those of a model.

    mode: whose codes are aimed at. tokens, heads: a number or (smallest, largest). head_dim: a number or several to
    choose from; 16 or 32 if None. dtype: float32, float16 or bfloat16; any if None. profile: rows as a model makes
    them and nothing else: `llama`, `qwen_mid`, `qwen_edge`, `mla`, or several to choose from. finite: no NaN, no Inf.
    """
    choices = (16, 32) if head_dim is None else (head_dim,) if isinstance(head_dim, int) else tuple(head_dim)
    shape = (draw(_size(tokens)), draw(_size(heads)), draw(st.sampled_from(choices)))
    target = draw(dtypes) if dtype is None else dtype
    if profile is not None:
        return cast(draw(_model_rows(shape, (profile,) if isinstance(profile, str) else profile)), target)
    kinds = ("zeros", "borders", "borders", "few", "ties", "tiny", "random", "model")
    rows = np.empty(shape, np.float32)
    for place in np.ndindex(*shape[:2]):
        rows[place] = draw(_row(draw(st.sampled_from(kinds)), find_mode(mode).element, shape[2], finite=finite))
    return cast(rows, target)


def _size(size: Size) -> st.SearchStrategy[int]:
    return st.just(size) if isinstance(size, int) else st.integers(*size)


@st.composite
def _model_rows(draw: st.DrawFn, shape: tuple[int, int, int], names: Sequence[str]) -> Array:
    name = draw(st.sampled_from(tuple(names)))
    if name not in profiles.PROFILES:
        raise unknown_name("profile", name, profiles.PROFILES)
    make = draw(st.sampled_from((profiles.keys, profiles.values)))
    made: Array = make(profiles.PROFILES[name], np.random.default_rng(draw(seeds)), shape)
    return made


@st.composite
def _row(draw: st.DrawFn, kind: str, fmt: str | None, dims: int, *, finite: bool) -> Array:
    chosen = finite_numbers if finite else numbers
    target = element(fmt or "e4m3fn")
    if kind == "zeros":
        row = np.full(dims, draw(st.sampled_from((0.0, -0.0))), np.float32)
    elif kind == "model":
        row = draw(_model_rows((1, 1, dims), tuple(profiles.PROFILES)))[0, 0]
    elif kind == "borders":
        row = draw(_border_row(target, dims))
    else:
        row = _random_row(kind, np.random.default_rng(draw(seeds)), draw(st.integers(-20, 20)), target.max, dims)
        # a part of it, or most often all: numbers without a choice of their own shrink by becoming fewer
        first, kept = draw(st.integers(0, dims - 1)), draw(st.integers(1, 4 * dims))
        row = np.where((np.arange(dims) - first) % dims < kept, row, np.float32(0))
    if kind in ("few", "zeros"):
        for value in draw(st.lists(chosen, max_size=4)):
            row[draw(st.integers(0, dims - 1))] = value
    return row


@st.composite
def _border_row(draw: st.DrawFn, fmt: ElementFormat, dims: int) -> Array:
    """A row whose scale is chosen first: its largest element is the format's largest times it, others at borders."""
    scale = abs(
        draw(_near(st.integers(-40, 40).map(lambda exponent: 2.0**exponent) | st.floats(2.0**-10, 8, width=32)))
    )
    row = np.zeros(dims, np.float32)
    row[draw(st.integers(0, dims - 1))] = fmt.max * scale
    for value in draw(st.lists(element_values(fmt), min_size=1, max_size=6)):
        row[draw(st.integers(0, dims - 1))] = np.float32(value) * np.float32(scale)
    return row


def _random_row(kind: str, rng: np.random.Generator, exponent: int, largest: float, dims: int) -> Array:
    if kind == "tiny":  # around the smallest subnormal scales
        return (rng.integers(-3000, 3000, dims) * 2.0**-149).astype(np.float32)
    if kind == "ties":  # multiples of half a step of a scale that is exact
        steps = rng.integers(-2 * int(largest), 2 * int(largest), dims) / 2
        steps[rng.integers(dims)] = largest
        return (steps * 2.0**exponent).astype(np.float32)
    return (rng.standard_normal(dims) * 2.0**exponent).astype(np.float32)


@st.composite
def outlier_tokens(draw: st.DrawFn, x: Array) -> tuple[int, Array]:
    """A token and a copy of x in which it is another one: huge, tiny, all zeros or not finite."""
    token = draw(st.integers(0, len(x) - 1))
    changed = x.copy()
    rng = np.random.default_rng(draw(seeds))
    noise = rng.standard_normal(x.shape[1:]) * draw(st.sampled_from((0.0, 1e-30, 1e-3, 1e3, 1e30)))
    changed[token] = cast(noise, x.dtype)
    if draw(st.booleans()):
        changed[token, 0, 0] = draw(st.sampled_from((np.inf, -np.inf, np.nan)))
    return token, changed


# --- the cache -----------------------------------------------------------------------------------------------------


@st.composite
def slot_mappings(draw: st.DrawFn, tokens: int, num_slots: int, *, padding: bool = True) -> NDArray[np.int64]:
    """int64 (tokens,): a slot of its own for each token, in any order; padding: some of them -1 or -2, not written."""
    slots = draw(st.permutations(range(num_slots)).map(lambda order: order[:tokens]))
    if padding:
        slots = [draw(st.sampled_from((slot, slot, slot, -1, -2))) for slot in slots]
    return np.array(slots, np.int64)


@st.composite
def block_tables(draw: st.DrawFn, num_blocks: int, length: int) -> NDArray[np.int64]:
    """int64 (length,): the blocks of one sequence, each another one, in any order."""
    return np.array(draw(st.permutations(range(num_blocks)))[:length], np.int64)


@st.composite
def layouts(draw: st.DrawFn, /, mode: str, name: str = "vllm-0.33", **fixed: Any) -> Layout:
    """Layouts of one or of several blocks' sizes, orders, swizzles and paddings; `fixed` are arguments as `layout` has.

    Head sizes reach beyond 64, where the four-token swizzle is its own inverse and a double one shows nothing.
    """
    options: dict[str, Any] = {
        "block_size": draw(st.sampled_from((4, 8, 1, 16))),
        "num_kv_heads": draw(st.sampled_from((1, 2, 3, 4, 5, 8))),
        "order": draw(st.sampled_from(("NHD", "HND"))),
        **fixed,
    }
    wanted = (options.pop("head_size"),) if "head_size" in fixed else _HEAD_DIMS
    sizes = [size for size in wanted if _possible(mode, name, **options, head_size=size)]
    if not sizes and "block_size" not in fixed:  # a swizzle needs whole groups of slots
        options["block_size"] = 4
        sizes = [size for size in wanted if _possible(mode, name, **options, head_size=size)]
    options["head_size"] = draw(st.sampled_from(sizes or wanted))  # what cannot be is said by `layout`
    smallest = layout(name, mode=mode, **options)
    padding = draw(st.sampled_from((0, 0, 8, 20)))
    return layout(name, mode=mode, **{"page_bytes": smallest.page_bytes + padding, **options})


def allowed_head_sizes(mode: str, name: str, **options: Any) -> tuple[int, ...]:
    """Which of some head sizes from 16 to 256 a layout can have."""
    return tuple(size for size in _HEAD_DIMS if _possible(mode, name, **options, head_size=size))


@cache
def _possible(mode: str, name: str, **options: Any) -> bool:
    try:
        layout(name, mode=mode, **options)
    except InputError:
        return False
    return True

"""Certificates: what codes and scales guarantee about K and V, logits, probabilities and the output. With proofs.

All inequalities hold in real arithmetic for inputs without NaN and Inf; a float64 evaluation adds about 1e-12.
Notation: s_j = q.k_j * scale, delta_j = s~_j - s_j for the stored keys, omega = max delta - min delta over the keys
that the query sees, p = softmax(s), p~ = softmax(s~). A sink logit is a key with delta 0.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvformat.attention.definition import Mask
from kvformat.elements.formats import ElementFormat, element
from kvformat.elements.static import static
from kvformat.errors import InputError
from kvformat.recipes.engine import ScalePlan, scale_groups
from kvformat.recipes.program import Level, Recipe, is_constant
from kvformat.recipes.quantizer import Quantized
from kvformat.recipes.vocabulary import WORDS

Array = NDArray[Any]

#: unit roundoffs: half the distance from 1 to the next number
UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
#: effective scales outside of these come near float32's ends; no claim is made there
_SCALES = (2.0**-100, 2.0**100)
_EXACT_WORDS = frozenset((
    "neg", "abs", "copysign", "max", "min", "max_number", "min_number", "clamp", "round", "select", "encode", "eq",
    "ne", "lt", "le", "isnan", "isinf",
))  # fmt: skip

#: words that end a range, and the signs of the numbers that do
_LIMITS = {"clamp": (-1, 1), "min": (1,), "min_number": (1,), "max": (-1,), "max_number": (-1,)}


def element_bound(stored: Quantized, *, scale_given: bool | None = None) -> Array:
    """|x - x~| for each element, from codes and scales alone: float64 (tokens, heads, head_dim); inf where none holds.

    A code c below the largest one is the one nearest to x / d, where d is the scale, so |x / d - c| is at most h(c),
    half the larger gap beside c. Each float32 operation on the way moves its result by a relative 2^-24, each
    approximate one by its own bound, so |x - c d| <= d h(c) + e (|c| + h(c)) d with e twice their sum.

    The largest code has no neighbour above: all of x / d that saturates is stored as c. There a scale that was computed
    helps. It is a function f of the group's amax that never falls, so amax <= A, the largest number with f(A) <= the
    stored scale, and |x - c d| <= max(d h(c), A - |c| d). For a scale that is rounded up or to nearest, A exceeds
    max * d by rounding, or by the half gap of the scale's own code. The scales of OCP MX may lie further below: by
    `floor` A reaches 2^9 d, where e4m3 ends at 448 = 1.75 * 2^8; the error 64 d is then more than h = 16 d. Where d is
    0, or so small that float32 has no precision left, |x - c d| <= A + |c| d. Of a scale that was given (scale_given;
    None: the recipe allows it) nothing follows: the largest code has no bound, unless the scale of another level was
    computed from the same x.

    Raises InputError for a recipe whose codes are not the nearest to x / scale: a transform, a zero point, truncation.
    """
    how = stored.recipe
    if how.element is None:
        return _binary_bound(stored.codes)
    reason = _refusal(how)
    if reason:
        raise InputError(f"there is no certificate for {how.name}: {reason}")
    given = any(level.may_be_given for level in how.levels) if scale_given is None else scale_given
    fmt = element(how.element)
    codes = stored.codes.view(np.uint8) & np.uint8(fmt.codes - 1)
    value = np.abs(fmt.values().astype(np.float64))[codes]
    gap = half_gaps(fmt)[codes]
    scale, most = _scale_and_amax(stored, given)
    slack = _slack(how)
    most = most * (1 + slack)
    with np.errstate(invalid="ignore"):
        error = scale * gap
        error = np.where(value >= _saturation(how, fmt), np.maximum(error, most - scale * value), error)
        error = error + slack * (value + gap) * scale
        error = np.where(scale < _SCALES[0], most + scale * value * (1 + slack), error)
        bound = error + 2.0**-140
    known = (scale >= 0) & (scale <= _SCALES[1]) & np.isfinite(value)
    return np.where(known & np.isfinite(bound), bound, np.inf)


def _refusal(how: Recipe) -> str | None:
    """Why the codes of a recipe are not the nearest to x / (the product of its stored scales), if they are not."""
    if how.prepare or len(how.outer) > 1 or any(level.multiplier != "decode" for level in how.levels):
        return "its codes are not the nearest to x / scale"
    if any(operation.word != "mul" for operation in how.value.steps):
        return "its values are not the codes times the scales"
    if how.inner and any(level.granularity.name != "per_tensor" for level in how.outer):
        return f"beside a scale within the row its outer scale must be per_tensor, not {how.outer[0].granularity.name}"
    if _scale_is_not_stored(how):
        return "its codes are those of a scale before it was stored"
    return "its codes are cut off, not rounded to nearest" if _cuts_off(how) else None


def _scale_is_not_stored(how: Recipe) -> bool:
    """Whether the code reads what a scale was before it was rounded to 16 bits (ggml divides by it)."""
    if how.inner is None or how.inner.format.element is not None or how.inner.format.bits == 32:
        return False
    known = {"x", *(level.name for level in how.levels)}
    for operation in how.code.steps:
        if any(not is_constant(name) and name not in known for name in operation.operands):
            return True
        known.add(operation.target)
    return False


def _cuts_off(how: Recipe) -> bool:
    """Whether the code is rounded toward one side. Toward zero of a + copysign(0.5, a) is to nearest, ties away."""
    halves: set[str] = set()
    raised: set[str] = set()
    for operation in how.code.steps:
        half = operation.word == "copysign" and operation.operands[0] == "0.5"
        lifted = operation.word in ("add", "fma") and operation.operands[-1] in halves
        kept = operation.word in _LIMITS and operation.operands[0] in raised
        if operation.word == "round" and operation.attributes[0] in ("toward_zero", "up", "down"):
            if operation.attributes[0] != "toward_zero" or operation.operands[0] not in raised:
                return True
        elif operation.word == "splice" or (operation.word == "encode" and {"up", "down"} & set(operation.attributes)):
            return True  # splice puts other bits below: what was there is dropped
        for names, is_one in ((halves, half), (raised, lifted or kept)):
            (names.add if is_one else names.discard)(operation.target)
    return False


def _saturation(how: Recipe, fmt: ElementFormat) -> float:
    """The magnitude from which on a code may stand for anything larger: the format's largest value, or a clamp's."""
    limits = []
    for operation in how.code.steps:
        if operation.word not in _LIMITS:
            continue
        numbers = [float(operand) for operand in operation.operands if is_constant(operand)]
        # a maximum with a positive number holds a scale above 0; it ends no code
        limits += [abs(number) for number in numbers if np.sign(number) in _LIMITS[operation.word]]
    return min([fmt.max, *limits])


@cache
def half_gaps(fmt: ElementFormat) -> Array:
    """The h of each code: half the larger distance to a neighbouring value; at the ends the only one. NaN, Inf: inf."""
    values = fmt.values().astype(np.float64)
    inside = np.isfinite(values)
    # symmetric formats have the gaps of their magnitudes, so that the end of int8 at -128 is no end
    sizes = values if fmt.kind == "codebook" else np.abs(values)
    finite = np.unique(sizes[inside])
    gaps = np.diff(finite) / 2
    larger = np.maximum(np.concatenate([gaps[:1], gaps]), np.concatenate([gaps, gaps[-1:]]))
    table = np.full(len(values), np.inf)
    table[inside] = larger[np.searchsorted(finite, sizes[inside])]
    return table


def _scale_and_amax(stored: Quantized, given: bool) -> tuple[Array, Array]:
    """What a code is multiplied by, and the largest amax that the scales allow: both of the shape of the codes."""
    how, codes = stored.recipe, stored.codes
    scale, most = np.ones(codes.shape), np.full(codes.shape, np.inf)
    outer = np.zeros(0, np.float32)
    for level in how.levels:
        shared = level.granularity
        if level is not how.inner:
            values = _values(level, np.reshape(stored.global_scale, 1) if how.inner else stored.scales)
            grid = (1 if shared.shares_tokens else len(codes), 1 if shared.shares_heads else codes.shape[1], 1)
        else:
            values = _values(level, stored.scales)
            grid = (*codes.shape[:2], shared.columns(codes.shape[2]))
        limit = (
            np.full(values.shape, np.inf) if given and level.may_be_given else _largest_amax(how, level, outer, values)
        )
        width = codes.shape[2] // grid[2]
        known, limit = (np.repeat(each.reshape(grid), width, axis=2) for each in (_positive(level, values), limit))
        scale, most = scale * known, np.minimum(most, limit)
        outer = values.reshape(-1)
    return scale, most


def _values(level: Level, scales: Array) -> Array:
    """The stored scales of a level, float32."""
    return level.format.values(scales)


def _positive(level: Level, scale: ArrayLike) -> Array:
    """The scale in float64; NaN where there is none. A code of the scale may be 0, a float32 scale may not."""
    values = np.asarray(scale, np.float64)
    return np.where((values > 0) | ((values == 0) & (not level.format.is_float)), values, np.nan)


_MIN_NORMAL, _INF = 0x00800000, 0x7F800000


def _largest_amax(how: Recipe, level: Level, outer: Array, scales: Array) -> Array:
    """The largest amax from which a level computes at most these scales; of several trials, the largest. float64.

    Bisection over the patterns of float32 from 2^-126 up: below, amax / max may underflow and give another scale.
    inf: the scale has saturated, or it is not made of one magnitude.
    """
    magnitudes = [each.word in ("amax", "amax_finite", "amax_number") for each in level.program.reductions]
    others = [each.word not in ("any_nan", "all_nan") for each in level.program.reductions]
    if sum(others) != 1 or sum(magnitudes) != 1:
        return np.full(scales.shape, np.inf)
    names = tuple(each.name for each in how.outer) if level is how.inner else ()
    wanted, back = np.unique(scales, return_inverse=True)
    found = np.zeros(len(wanted))
    for trial in [each.inner for each in how.tried()] if level is how.inner else [level]:
        assert trial is not None
        plan = static(ScalePlan(names, trial))
        around = np.tile(outer[: len(names)], (len(wanted), 1))
        low, high = np.full(len(wanted), _MIN_NORMAL, np.uint32), np.full(len(wanted), _INF, np.uint32)
        while (high - low > 1).any():
            middle = low + (high - low) // 2
            statistics = np.outer(middle.view(np.float32), magnitudes).astype(np.float32)
            raw, made = trial.format.empty((len(wanted),))
            scale_groups(plan, around, statistics, raw)
            inside = _values(trial, made) <= wanted
            low, high = np.where(inside, middle, low), np.where(inside, high, middle)
        amax = low.view(np.float32).astype(np.float64)
        found = np.maximum(found, np.where(low == _INF - 1, np.inf, amax))
    return np.where(np.isnan(scales), np.inf, found[back.reshape(scales.shape)])


@cache
def _slack(how: Recipe) -> float:
    """Twice the sum of the relative roundings between x and its value, those of the scales' programs included."""
    operations = (*how.code.steps, *how.value.steps, *(op for level in how.levels for op in level.program.steps))
    total = 0.0
    for operation in operations:
        if operation.word == "to":
            total += UNIT.get(operation.attributes[0], UNIT["bfloat16"])
        elif operation.word not in _EXACT_WORDS:
            total += (2 * WORDS[operation.word].ulps + 1) * UNIT["float32"]
    return 2 * total


def _binary_bound(values: Array) -> Array:
    """Of numbers rounded to their dtype: half a unit in the last place; float32 is what the input was."""
    if values.dtype.name == "float32":
        return np.zeros(values.shape)
    size = np.abs(values.astype(np.float64))
    smallest = {"float16": 2.0**-25, "bfloat16": 2.0**-134}[values.dtype.name]
    return np.where(np.isfinite(size), np.maximum(size * UNIT[values.dtype.name], smallest), np.inf)


def logit_bound(query: ArrayLike, bound: ArrayLike, scale: float) -> Array:
    """|delta_j| <= sum_c |q_c| h_jc * |scale|: (q_heads, queries, keys) from query and the keys' element bounds.

    delta_j = sum_c q_c (k~_jc - k_jc) * scale; the triangle inequality. (Cauchy-Schwarz gives |q| |h_j| * scale, never
    less.) A negative scale counts by its magnitude.
    """
    q, h = np.abs(np.asarray(query, np.float64)), np.asarray(bound, np.float64)
    heads, group = h.shape[1], q.shape[1] // h.shape[1]
    grouped = q.transpose(1, 0, 2).reshape(heads, group * len(q), q.shape[2])
    with np.errstate(invalid="ignore"):
        product = grouped @ h.transpose(1, 2, 0)
    return np.where(np.isnan(product), np.inf, product).reshape(q.shape[1], len(q), len(h)) * abs(scale)


def spread_bound(logit: ArrayLike, seen: ArrayLike, *, sink: bool = False) -> Array:
    """The sum of the two largest |delta| bounds among the keys that are seen bounds omega; (q_heads, queries).

    omega = delta_i - delta_j for two keys i, j; with one key it is 0. A sink logit is one more key, of bound 0.
    """
    bounds = np.where(seen, np.asarray(logit, np.float64), -np.inf)
    if sink:
        bounds = np.concatenate([bounds, np.zeros((*bounds.shape[:2], 1))], axis=2)
    if bounds.shape[2] == 1:
        return np.zeros(bounds.shape[:2])
    largest = np.partition(bounds, -2, axis=2)[..., -2:]
    return np.where(np.isneginf(largest[..., 0]), 0, np.maximum(largest, 0).sum(axis=2))


def tv_bound(omega: ArrayLike) -> Array:
    """TV(p, p~) <= tanh(omega / 4), reached by two groups of keys with mass ratio exp(-omega / 2).

    Let S be the keys where p~ > p. The odds of S change by at most the factor exp(omega), so with a = logit p(S)
    TV = p~(S) - p(S) <= sigma(a + omega) - sigma(a), largest at a = -omega / 2: 2 sigma(omega / 2) - 1.
    """
    bound: Array = np.tanh(np.asarray(omega, np.float64) / 4)
    return bound


def kl_bound(omega: ArrayLike) -> Array:
    """KL(p || p~) and KL(p~ || p) <= omega^2 / 8.

    KL(p || p~) = log E_p exp(delta - E_p delta), and Hoeffding's lemma bounds that for a variable of range omega.
    """
    bound: Array = np.square(np.asarray(omega, np.float64)) / 8
    return bound


def lse_bounds(delta: ArrayLike, seen: ArrayLike) -> tuple[Array, Array]:
    """Bounds of lse(s~) - lse(s), min delta and max delta: what split-KV and cascade attention merge by.

    sum exp(s_j + delta_j) lies between exp(min delta) and exp(max delta) times sum exp(s_j).
    """
    values, mask = np.asarray(delta, np.float64), np.asarray(seen)
    return np.where(mask, values, np.inf).min(axis=-1), np.where(mask, values, -np.inf).max(axis=-1)


def output_bound(stored_p: ArrayLike, value_bound: ArrayLike, omega: ArrayLike, value_range: ArrayLike) -> Array:
    """|o~_c - o_c| <= sum_j p~_j h_jc + tanh(omega / 4) (max_j v_jc - min_j v_jc): (q_heads, queries, head_size_v).

    o~ - o = sum_j p~_j (v~_j - v_j) + sum_j (p~_j - p_j) (v_j - m) for any constant m, since both p sum to 1; with m
    the middle of the range the second sum is at most 2 TV * range / 2. A sink, which gives no value, is a v of 0: the
    range must contain 0. stored_p: (q_heads, queries, keys). value_range: (q_heads, queries, head_size_v).
    """
    p, h = np.asarray(stored_p, np.float64), np.asarray(value_bound, np.float64)
    heads, group = h.shape[1], p.shape[0] // h.shape[1]
    finite = np.where(np.isfinite(h), h, 0)
    grouped = p.reshape(heads, group * p.shape[1], p.shape[2])
    values = (grouped @ finite.transpose(1, 0, 2)).reshape(p.shape[0], p.shape[1], h.shape[2])
    unknown = (grouped @ (~np.isfinite(h)).astype(np.float64).transpose(1, 0, 2)).reshape(values.shape) > 0
    tv = tv_bound(omega)[..., None]
    moved = np.multiply(tv, value_range, out=np.zeros(values.shape), where=tv > 0)
    bound: Array = np.where(unknown, np.inf, values) + moved
    return bound


def value_ranges(value: ArrayLike, bound: ArrayLike, seen: Array, group: int, *, sink: bool = False) -> Array:
    """The range over the seen keys of the true v, from the stored ones: (q_heads, queries, head_size_v).

    v lies in v~ - h .. v~ + h, anywhere if either is not finite. seen: (queries, keys). sink: the range contains 0.
    """
    v, h = np.asarray(value, np.float64), np.asarray(bound, np.float64)
    known = np.isfinite(v) & np.isfinite(h)
    v, h = np.where(known, v, 0), np.where(known, h, np.inf)
    high, low = v + h, v - h
    rows = []
    for keys in seen:
        top, bottom = high[keys].max(axis=0), low[keys].min(axis=0)
        rows.append(np.maximum(top, 0) - np.minimum(bottom, 0) if sink else top - bottom)
    return np.repeat(np.stack(rows, axis=1), group, axis=0)


def eviction(p: ArrayLike, evicted: ArrayLike) -> tuple[Array, Array, Array]:
    """Mass m, TV and KL of dropping keys and renormalising: equalities, not bounds. All (...) for p (..., keys).

    p' = p / (1 - m) on the kept keys and 0 on the others, so TV(p, p') = m and KL(p' || p) = -log(1 - m); the output
    moves by o - o' = m (mean over the evicted of v - o'), at most m times the range of v.
    """
    mass = np.where(evicted, np.asarray(p, np.float64), 0).sum(axis=-1)
    return mass, mass, -np.log1p(-mass)


def evicted_and_stored_bound(mass: ArrayLike, omega_kept: ArrayLike) -> Array:
    """TV(p, evicted and quantized) <= m + tanh(omega / 4), omega over the kept keys: the triangle inequality."""
    bound: Array = np.asarray(mass, np.float64) + tv_bound(omega_kept)
    return bound


def row_bound(element_format: str, head_dim: int) -> float:
    """The norm of a row's error over that of the row, one scale per row, no subnormals: sqrt(D) / 254, or 1 / 17.

    int8: each element is off by at most amax / 254 <= norm / 254. e4m3: by at most half an ulp, and within a binade
    [2^e, 2^(e+1)) half an ulp over the value is largest just at the first tie, 1 + 1/16: (1/16) / (17/16).
    """
    if element_format == "int8":
        return float(np.sqrt(head_dim) / 254)
    fmt = element(element_format)
    if fmt.kind != "float":
        raise InputError(f"{element_format} has no relative bound")
    half_ulp = 2.0 ** -(fmt.mantissa_bits + 1)
    return half_ulp / (1 + half_ulp)


def attention_bounds(
    query: ArrayLike, key: Quantized, value: Quantized, stored_p: Array, mask: Mask, *, scale: float, sink: bool = False
) -> tuple[Array, Array, Array]:
    """Bounds on TV, KL (q_heads, queries) and the output (q_heads, queries, head_size_v), from what is stored.

    stored_p: the attention probabilities over the stored K. It needs neither the original K nor V.
    """
    h_key, h_value = element_bound(key), element_bound(value)
    seen = mask.visible(stored_p.shape[1], stored_p.shape[2])
    omega = spread_bound(logit_bound(query, h_key, scale), seen[None], sink=sink)
    group = stored_p.shape[0] // key.codes.shape[1]
    ranges = value_ranges(value.dequantize(np.float64), h_value, seen, group, sink=sink)
    return tv_bound(omega), kl_bound(omega), output_bound(stored_p, h_value, omega, ranges)

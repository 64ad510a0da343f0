"""A kernel's attention output judged by what its own bytes allow: float64 attention over the pages, and a bound.

The bound is that of `kvformat.attention.rounding`. A judgement says what it is worth: wrong kernels are run on the very
dump, and where zeros would pass the answer is "cannot tell".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvformat.attention.definition import Mask
from kvformat.attention.exact import judge_exactly
from kvformat.attention.rounding import Allowed, Kernel, allowed
from kvformat.attention.wrong import CAUGHT, LOGITS, MAY_PASS, ROWS, SAME, Sight, Work, sights
from kvformat.cache import PagedCache
from kvformat.dump.attention import LSE_BASES
from kvformat.dump.dump import Dump
from kvformat.errors import InputError
from kvformat.recipes.program import Recipe

Array = NDArray[Any]

#: query rows judged at once times keys: the arrays of (q_heads, rows, keys) then stay below some 100 MiB
_AT_ONCE = 1 << 18
#: logits this far below the largest may have a weight of 0 in float32; float16 has none left 18 below
_NO_WEIGHT = 15.0


@dataclass(frozen=True)
class Judgement:
    """What was found about the attention output of a dump."""

    compared: int
    wrong: int
    #: outputs that no attention over these bytes says anything about: a key whose logit is -Inf
    left_out: int
    #: the largest |error| / bound
    worst: float
    #: where: query row, q_head, dim, the output found, the right one and the bound
    first: dict[str, Any] | None
    #: the root mean square of error / standard error of a right kernel; NaN where nothing was compared
    typical: float
    #: how the kernel computes: "bfloat16 operands, float32 accumulator"
    how: str
    #: whether `lse` was judged, how many of it are wrong, and the first: query row, q_head, found, right and bound
    lse: bool
    lse_wrong: int
    lse_first: dict[str, Any] | None
    #: what would be seen of each wrong kernel, and on how many query rows they were run; none for an exact probe
    seen: tuple[Sight, ...]
    rows: int
    #: of an exact probe: how many rows of each kind were judged bit for bit; None for another dump
    exact: dict[str, int] | None = None

    @property
    def undecided(self) -> bool:
        """Nothing is wrong, but an output of zeros would have passed as well."""
        blind = any(sight.wrong.id == "zeros" and sight.answer == MAY_PASS for sight in self.seen)
        return not self.wrong and not self.lse_wrong and (blind or not self.compared)

    def to_json(self) -> dict[str, Any]:
        """The judgement as plain data."""
        return {
            "compared": self.compared,
            "wrong": self.wrong,
            "left_out": self.left_out,
            "worst_error_over_bound": self.worst if np.isfinite(self.worst) else None,
            "rms_error_over_standard_error": self.typical if np.isfinite(self.typical) else None,
            "first": _plain(self.first),
            "how": self.how,
            "lse_judged": self.lse,
            "lse_wrong": self.lse_wrong,
            "lse_first": _plain(self.lse_first),
            "undecided": self.undecided,
            "exact": self.exact,
            "seen_on_rows": self.rows,
            "would_be": {sight.wrong.id: sight.answer for sight in self.seen},
        }

    def lines(self) -> list[str]:
        """What is printed of it."""
        first = self.first or {}
        place = "" if not first else f"query {first['query']}, head {first['head']}, dim {first['dim']}"
        if self.exact is not None:
            kinds = ", ".join(f"{count:,} {kind}" for kind, count in self.exact.items() if count)
            said = f"exact probe: {self.compared:,} outputs of {kinds} rows"
            if not self.wrong:
                return [f"attention output: {said} are right bit for bit as bfloat16"]
            numbers = f"{first['found']:.6g}, right is {first['right']:.6g}"
            return [f"attention output: {said}, {self.wrong:,} wrong; first at {place}, {first['kind']}: {numbers}"]
        if self.wrong:
            numbers = f"{first['found']:.6g}, from the bytes {first['right']:.6g} +- {first['bound']:.2g}"
            count = f"{self.wrong:,} of {self.compared:,} beyond the bound of {self.how}"
            lines = [f"attention output: {count}; first at {place}: {numbers}"]
        else:
            count = f"{self.compared:,} within the bound of {self.how}"
            lines = [f"attention output: {count}; largest error {self.worst:.3f} of it"]
        if math.isfinite(self.typical):
            lines.append(f"root mean square error {self.typical:.3g} times the standard error of a right kernel")
        if self.left_out:
            lines.append(f"{self.left_out:,} outputs left out: a key of theirs has a logit of -Inf")
        if self.lse_wrong:
            at = self.lse_first or {}
            where = f"query {at['query']}, head {at['head']}"
            numbers = f"{at['found']:.6g}, from the bytes {at['right']:.6g} +- {at['bound']:.2g}"
            lines.append(f"log-sum-exp: {self.lse_wrong:,} beyond the bound; first at {where}: {numbers}")
        elif self.lse:
            lines.append("log-sum-exp: all within the bound")
        if self.undecided:
            lines.append("CANNOT TELL: zeros would pass as well; the exact probes (kvformat diagnose --probe) can")
        for answer, words in ((CAUGHT, "would be caught"), (MAY_PASS, "MAY PASS"), (SAME, "leaves this output as is")):
            named = "; ".join(sight.wrong.sentence for sight in self.seen if sight.answer == answer)
            if named:
                lines.append(f"{words}: {named}")
        return lines

    def __str__(self) -> str:
        return "\n    ".join(self.lines())


def _plain(entry: dict[str, Any] | None) -> dict[str, Any] | None:
    """JSON has no NaN and no Inf."""
    if entry is None:
        return None
    return {k: str(x) if isinstance(x, float) and not math.isfinite(x) else x for k, x in entry.items()}


class _Count:
    """What is counted chunk by chunk."""

    def __init__(self) -> None:
        self.compared = self.wrong = self.left_out = self.lse_wrong = 0
        self.worst = self.squares = 0.0
        self.measured = 0
        self.first: dict[str, Any] | None = None
        self.lse_first: dict[str, Any] | None = None


def judge(dump: Dump, how: Recipe, scales: dict[Any, np.float32 | None]) -> Judgement:
    """Judge `output`, and `lse` where there is one, against attention of `query` over what the pages hold.

    Keys are the tokens that have a slot, in their order; the queries are those of the last tokens, causal. Raises
    InputError where no output is right: more queries than keys, a query that is not finite, logits beyond float32.
    """
    assert dump.query is not None
    assert dump.output is not None
    settings = dict(dump.attention)
    mask = Mask(window=int(settings["window"]) if "window" in settings else None)
    scale = float(settings.get("softmax_scale", dump.layout.head_size**-0.5))
    kernel = Kernel.of(settings, dump.query.dtype.name, dump.output.dtype.name)
    slots = dump.slot_mapping[dump.slot_mapping >= 0]
    key, value = _read(dump, how, scales, slots)
    sinks = None if dump.sinks is None else dump.sinks.astype(np.float64)
    total = len(dump.query)
    if total > len(slots):
        raise InputError(f"query holds {total} tokens; only {len(slots)} have a slot")
    _check_reach(dump.query, key, scale)
    said = _said(settings, dump.query.dtype.name)
    if "probe" in settings:
        exact = judge_exactly(dump.query, dump.output, key, value, scale, sinks, kernel.output_scale)
        return Judgement(
            exact.compared, exact.wrong, 0, math.nan, exact.first, math.nan, said, lse=False, lse_wrong=0,
            lse_first=None, seen=(), rows=0, exact=exact.kinds,
        )  # fmt: skip
    count = _Count()
    with_lse = dump.lse is not None and bool(np.isfinite(key).all())
    finite_key, finite_value = (np.where(np.isfinite(x), x, 0) for x in (key, value))
    step = max(1, _AT_ONCE // len(slots))
    for start in range(0, total, step):
        stop = min(start + step, total)
        keys = len(slots) - total + stop
        query = dump.query[start:stop].astype(np.float64)
        right = allowed(query, finite_key[:keys], finite_value[:keys], mask, scale, kernel, sinks)
        _judge_output(dump, (start, stop), right, query, key[:keys], value[:keys], kernel, count)
        if with_lse:
            _judge_lse(dump, (start, stop), right, LSE_BASES[settings.get("lse_base", "e")], count)
    rows = min(total, ROWS, max(1, LOGITS // (len(slots) * dump.query.shape[1])))
    last = dump.query[total - rows :].astype(np.float64)
    right = allowed(last, finite_key, finite_value, mask, scale, kernel, sinks)
    work = Work(last, finite_key, finite_value, scale, dump.layout.block_size, sinks, right)
    typical = math.sqrt(count.squares / count.measured) if count.measured else math.nan
    return Judgement(
        count.compared, count.wrong, count.left_out, count.worst, count.first, typical, said, with_lse,
        count.lse_wrong, count.lse_first, sights(work, lse=with_lse), rows,
    )  # fmt: skip


def _said(settings: dict[str, str], query: str) -> str:
    operands = settings.get("operands", query)
    p = settings.get("probabilities", operands)
    apart = "" if p == operands else f", {p} probabilities"
    return f"{operands} operands{apart}, {settings.get('accumulate', 'float32')} accumulator"


def _judge_output(
    dump: Dump, rows: tuple[int, int], right: Allowed, query: Array, key: Array, value: Array, kernel: Kernel,
    count: _Count,
) -> None:  # fmt: skip
    assert dump.output is not None
    # (q_heads, queries, head_size_v), as all of `right`
    found = dump.output[slice(*rows)].astype(np.float64).transpose(1, 0, 2) * kernel.output_scale
    exact, bound = right.exact.output, right.bound
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.abs(found - exact)
        ratio = np.where(error == 0, 0.0, error / bound)
    ratio = np.where(np.isnan(ratio), np.inf, ratio)
    # where the right output may be beyond the format, both saturating and overflowing are right
    end = kernel.output.largest * kernel.output_scale
    reached = (np.abs(exact) + bound >= end) & (np.signbit(found) == np.signbit(exact))
    ended = reached & (np.abs(found) >= end)
    ended |= (np.abs(exact) + bound >= end) & np.isnan(found)
    ratio = np.where(ended, 0.0, ratio)
    judged = np.ones(found.shape, bool)
    special = np.zeros(found.shape, bool)
    if not (np.isfinite(key).all() and np.isfinite(value).all()):
        holds, special, judged = _special(found, right, query, key, value, end)
        ratio = np.where(special, np.where(holds, 0.0, np.inf), ratio)
    beyond = (ratio > 1) & judged
    measured = judged & ~special & ~ended & np.isfinite(found) & (right.sigma > 0)
    count.squares += float(np.square(np.where(measured, error, 0) / np.where(measured, right.sigma, 1)).sum())
    count.measured += int(measured.sum())
    if count.first is None and beyond.any():
        by_row = beyond.transpose(1, 0, 2)
        row, head, dim = (int(i) for i in np.unravel_index(int(np.argmax(by_row)), by_row.shape))
        numbers = (found[head, row, dim], exact[head, row, dim], bound[head, row, dim])
        if special[head, row, dim]:
            numbers = (found[head, row, dim], _ieee(value, right, head, row, dim), 0.0)
        count.first = {"query": row + rows[0], "head": head, "dim": dim}
        count.first |= dict(zip(("found", "right", "bound"), map(float, numbers), strict=True))
    count.compared += int(judged.sum())
    count.left_out += int((~judged).sum())
    count.wrong += int(beyond.sum())
    count.worst = max(count.worst, float(np.where(judged, ratio, 0.0).max()))


def _ieee(value: Array, right: Allowed, head: int, row: int, dim: int) -> float:
    """What the sum over the seen keys is, where V holds numbers that are not finite."""
    seen = np.isfinite(right.exact.logits[head, row])
    column = value[seen, head // (len(right.exact.logits) // value.shape[1]), dim]
    ends = column[~np.isfinite(column)]
    return float(ends[0]) if len(ends) and (ends == ends[0]).all() else math.nan


def _special(
    found: Array, right: Allowed, query: Array, key: Array, value: Array, end: float
) -> tuple[Array, Array, Array]:
    """Where K or V is not finite: whether the output is what IEEE arithmetic gives, where that decides, what is judged.

    A weight that is surely above 0 makes the sum Inf; one that may have become 0 makes it Inf or NaN (0 * Inf). A logit
    that is NaN or +Inf makes the whole row NaN.
    """
    group = found.shape[0] // value.shape[1]
    exact = right.exact
    seen = np.isfinite(exact.logits)
    sure = seen & (exact.logits > exact.logits.max(axis=2, keepdims=True) - _NO_WEIGHT)

    def any_of(keys: Array, which: Array) -> NDArray[np.bool_]:
        grouped = keys.reshape(value.shape[1], -1, keys.shape[2]).astype(np.float64) @ which.transpose(1, 0, 2)
        there: NDArray[np.bool_] = grouped.reshape(found.shape) > 0
        return there

    plus, minus, nothing = value == np.inf, value == -np.inf, np.isnan(value)
    there = [any_of(seen, each) for each in (plus, minus, nothing)]
    unsure = any_of(seen & ~sure, plus | minus)
    is_nan = there[2] | (there[0] & there[1])
    ends = np.isnan(found) if not math.isfinite(end) else np.abs(found) >= end
    as_plus, as_minus = ((found == sign * np.inf) | (ends & ~np.isnan(found) & (sign * found > 0)) for sign in (1, -1))
    holds = np.isnan(found) & (is_nan | unsure | (math.isfinite(end) & (there[0] | there[1])))
    holds |= ~there[2] & ((as_plus & there[0] & ~any_of(sure, minus)) | (as_minus & there[1] & ~any_of(sure, plus)))
    special = there[0] | there[1] | there[2]
    judged = np.ones(found.shape, bool)
    if not np.isfinite(key).all():
        with np.errstate(invalid="ignore"):
            logits = np.stack([query[:, h] @ key[:, h // group].T for h in range(found.shape[0])])
        lost = (seen & (np.isnan(logits) | (logits == np.inf))).any(axis=2)[..., None]
        judged = ~(seen & (logits == -np.inf)).any(axis=2)[..., None] | lost | np.zeros(found.shape, bool)
        holds = np.where(lost, np.isnan(found), holds)
        special = special | lost
    return holds, special, judged


def _judge_lse(dump: Dump, rows: tuple[int, int], right: Allowed, base: float, count: _Count) -> None:
    assert dump.lse is not None
    found = dump.lse[slice(*rows)].astype(np.float64).T * base
    exact = right.exact.lse
    unit = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}[dump.lse.dtype.name]
    bound = right.lse_bound + 2 * unit * np.abs(exact)
    with np.errstate(invalid="ignore"):
        beyond = ~(np.abs(found - exact) <= bound)
    if count.lse_first is None and beyond.any():
        row, head = (int(i) for i in np.unravel_index(int(np.argmax(beyond.T)), beyond.T.shape))
        numbers = (found[head, row], exact[head, row], bound[head, row])
        count.lse_first = {"query": row + rows[0], "head": head}
        count.lse_first |= dict(zip(("found", "right", "bound"), map(float, numbers), strict=True))
    count.lse_wrong += int(beyond.sum())


def _check_reach(query: Array, key: Array, scale: float) -> None:
    """Raises InputError where no output is right: a query that is not finite, or logits that float32 may not hold."""
    q = query.astype(np.float64)
    if not np.isfinite(q).all():
        row, head, dim = (int(i) for i in np.argwhere(~np.isfinite(q))[0])
        raise InputError(f"query {row}, head {head}, dim {dim} is {q[row, head, dim]}; attention needs finite numbers")
    largest = float(np.abs(key, where=np.isfinite(key), out=np.zeros_like(key)).max(initial=0))
    reach = float(np.abs(q).sum(axis=2).max()) * largest * abs(scale)
    if not reach < float(np.finfo(np.float32).max):
        raise InputError(f"logits may reach {reach:.2g}, beyond float32: query and softmax_scale cannot be judged")


def _read(dump: Dump, how: Recipe, scales: dict[Any, np.float32 | None], slots: Array) -> tuple[Array, Array]:
    """K and V of those slots, float64, as a reader of the pages dequantizes them; only blocks in use are read."""
    held = PagedCache(dump.layout, len(dump.pages), k_scale=scales.get("k"), v_scale=scales.get("v"))
    held.pages, held.recipe = dump.pages, how
    size = dump.layout.block_size
    blocks, place = np.unique(slots // size, return_inverse=True)
    rows = place.reshape(-1) * size + slots % size
    key, value = held.gather(blocks, len(blocks) * size, np.float64)
    return key[rows], value[rows]

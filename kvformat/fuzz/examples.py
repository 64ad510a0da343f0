"""Hypothesis's part of the search: cases drawn from the strategies, and its shrinking of one that fails."""

from __future__ import annotations

from contextlib import suppress
from time import monotonic
from typing import Any, Protocol

import numpy as np
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis import strategies as st

from kvformat.fuzz import strategies
from kvformat.fuzz.case import Case
from kvformat.fuzz.judge import Finding, Judge
from kvformat.fuzz.plan import Plan


class Search(Protocol):
    """What this part needs to know of the search that it is a part of."""

    plan: Plan
    judge: Judge
    seed: int

    @property
    def over(self) -> bool:
        """The budget or the examples are used up."""

    def fails(self, case: Case) -> Finding | None:
        """One example: what is wrong with it, as far as the exact twin agrees."""


class _Stop(BaseException):
    """The search is over: nothing that Hypothesis would take for a failure."""


class _Fails(Exception):  # noqa: N818 what Hypothesis shrinks
    """The example fails."""


@st.composite
def cases(draw: st.DrawFn, plan: Plan) -> Case:
    """Cases of a plan: K and V chosen to hurt, in pages of any size."""
    given_scale = draw(st.sampled_from(plan.scale_given))
    if plan.candidate.kind == "quantizer":
        x = draw(_tensor(plan))
        return plan.quantizer_case(x, draw(strategies.scales()) if given_scale else None)
    # what the candidate is not told stays as the layout has it
    fixed = {} if "order" in plan.choices else {"order": plan.default_order}
    fixed |= {name: draw(st.sampled_from(values)) for name, values in plan.choices.items()}
    head_size = {"head_size": draw(st.sampled_from(plan.head_sizes))}
    sized = [each for each in (head_size, {}) if _allowed(plan, {**fixed, **each})]
    where = draw(strategies.layouts(plan.mode, plan.layout, **fixed, **sized[0]))
    tokens = draw(st.integers(1, 6))
    shape = {"tokens": tokens, "heads": where.num_kv_heads}
    key = draw(_tensor(plan, head_dim=where.head_size, **shape))
    value = draw(_tensor(plan, head_dim=where.head_size_v, dtype=key.dtype, **shape))
    scales = [np.float32(draw(strategies.scales())) if given_scale else None for _ in "kv"]
    blocks = draw(st.integers(1, 3)) + -(-tokens // where.block_size)
    more: dict[str, Any] = {
        "num_blocks": blocks,
        "k_scale": scales[0],
        "v_scale": scales[1],
        "fill": draw(st.sampled_from((0xA5, 0xFF, 0x7F, 0x00))),
    }
    if plan.candidate.kind == "reader":
        table = draw(strategies.block_tables(blocks, blocks))
        return plan.reader_case(key, value, where, table, **more)
    slots = draw(strategies.slot_mappings(tokens, blocks * where.block_size))
    return Case(key, value, slots, where, **more)


def _allowed(plan: Plan, options: dict[str, Any]) -> bool:
    size = options.get("head_size")
    rest = {name: value for name, value in options.items() if name != "head_size"}
    found = strategies.allowed_head_sizes(plan.mode, plan.layout, block_size=4, num_kv_heads=1, **rest)
    return size is None or size in found


def _tensor(plan: Plan, **fixed: Any) -> st.SearchStrategy[Any]:
    dtype = fixed.pop("dtype", None)
    head_dim = fixed.pop("head_dim", tuple(size for size in plan.head_sizes if size <= 64) or plan.head_sizes)
    dtypes = st.sampled_from(plan.dtypes) if dtype is None else st.just(dtype)
    return dtypes.flatmap(lambda chosen: strategies.kv_tensors(plan.mode, head_dim=head_dim, dtype=chosen, **fixed))


def search(run: Search, number: int, count: int, shrinking: float) -> Finding | None:
    """One round of `count` examples; the one that Hypothesis shrank to, if any fails. `number` makes rounds differ."""
    found: list[Finding] = []
    deadline: list[float] = []

    def property_(case: Case) -> None:
        if found:
            if monotonic() > deadline[0]:
                raise _Stop
            failing = run.judge.judge(case)
            if failing is None or failing.fault != found[0].fault:
                return
        else:
            if run.over:
                raise _Stop
            failing = run.fails(case)
            if failing is None:
                return
            deadline.append(monotonic() + (0 if "not returned" in failing.message else shrinking / 2))
        found.append(failing)
        raise _Fails

    wrapped = given(cases(run.plan))(property_)
    quiet = settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
        report_multiple_bugs=False,
        print_blob=False,
    )
    with suppress(_Stop, _Fails):
        seed(run.seed + 1_000_003 * number)(quiet(wrapped))()
    return min(reversed(found), key=_size, default=None)


def _size(found: Finding) -> tuple[int, int]:
    return found.case.key.size, found.case.nonzero

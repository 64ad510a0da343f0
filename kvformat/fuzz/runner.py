"""The search: stored counterexamples first, then the recipe's borders and Hypothesis in turn, until one fails."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from time import monotonic
from typing import Any

from kvformat.errors import InputError
from kvformat.fuzz import corpus
from kvformat.fuzz.candidate import load, recognise
from kvformat.fuzz.case import Case
from kvformat.fuzz.judge import Finding, Judge
from kvformat.fuzz.minimise import Minimiser
from kvformat.fuzz.plan import Plan, make
from kvformat.fuzz.report import FuzzReport
from kvformat.recipes.program import Recipe

#: seconds of search where nothing is said
BUDGET = 20.0
#: seconds that one call may take; the first one, which may compile, ten times as many
LIMIT = 10.0
#: seconds that making a counterexample smaller may take, Hypothesis's part and our own
_SHRINKING = 10.0
#: examples of one round of Hypothesis, and of the borders between two of them
_ROUND = 100


def fuzz(
    candidate: Any,
    *,
    mode: str,
    recipe: str | Recipe | None = None,
    layout: str | None = None,
    kind: str | None = None,
    budget: float | None = None,
    examples: int | None = None,
    seed: int | None = None,
    torch: str | bool | None = None,
    order: str | None = None,
    v_scales: str | None = None,
    head_dims: Sequence[int] | None = None,
    dtypes: Sequence[Any] | None = None,
    limit: float = LIMIT,
    database: Any = None,
    key: str | None = None,
    isolated: bool = True,
) -> FuzzReport:
    """Search for the smallest input on which a quantizer, a cache writer or a cache reader leaves its contract.

    candidate: a function, or the text MODULE:FUNCTION. A quantizer is `x -> (codes, scales[, global_scale])`, x
    (tokens, heads, head_dim) and the results shaped as `kvformat.quantize` gives them (4-bit codes one per byte or
    packed); one that has a parameter `scale` is also given per-tensor scales. A writer is
    `(key, value, pages, slot_mapping, **meta) -> None`, pages uint8 (num_blocks, page_bytes). A reader is
    `(pages, block_table, seq_len, **meta) -> (key, value)`, in any float dtype, judged in that one. `meta` is what
    `kvformat.layout` was given, `num_blocks`, `k_scale` and `v_scale`; a candidate gets those that it names, and what
    it does not name stays at the layout's default.

    mode: the mode it is for. recipe: what it must compute, the mode's golden recipe if None. layout: where it must put
    it. kind: "quantizer", "writer" or "reader" where the signature does not say. budget: seconds of search (20 if
    neither it nor `examples` is given), counted from the first example on. examples: calls of the candidate. seed: the
    same examples again; no database is read or written then. torch: give it torch tensors, on this device ("cpu" if
    True). order, v_scales, head_dims, dtypes: what it does not take is not tried. limit: seconds a call may take.
    database: Hypothesis's example database, where counterexamples are kept under `key` and tried first next time.
    isolated: call it in a child process, where a crash, a hang and an exit are found like wrong bytes; False: in this
    one, for a debugger, or a candidate whose state is looked at. A GPU that this process has used is used in it again.

    Raises InputError for a target that cannot be imported, has another signature, or does not fit the mode.
    """
    function, name = (load(candidate), candidate) if isinstance(candidate, str) else (candidate, None)
    device = None if torch is None or torch is False else "cpu" if torch is True else torch
    if budget is not None and not budget > 0:
        raise InputError(f"budget must be a number of seconds > 0; got {budget!r}")
    if examples is not None and examples < 1:
        raise InputError(f"examples must be at least 1; got {examples!r}")
    target = recognise(function, kind=kind, name=name, device=device, isolated=isolated)
    plan = make(
        target,
        mode=mode,
        recipe=recipe,
        layout_name=layout,
        order=order,
        v_scales=v_scales,
        head_sizes=head_dims,
        dtypes=dtypes,
    )
    if budget is None and examples is None:
        budget = BUDGET
    stored = None if seed is not None or database is None else _Stored(database, key or target.name, plan)
    try:
        return Search(plan, budget, examples, seed, limit, stored).run()
    finally:
        target.close()


class Search:
    """One search, from the first example to the smallest failure."""

    def __init__(
        self,
        plan: Plan,
        budget: float | None,
        examples: int | None,
        seed: int | None,
        limit: float,
        stored: _Stored | None = None,
    ) -> None:
        self.plan = plan
        self.budget = budget
        self.most = examples
        self.seed = secrets.randbelow(1 << 32) if seed is None else seed
        self.judge = Judge(plan.candidate, plan.recipe, limit)
        self.stored = stored
        self.examples = 0
        self.unconfirmed = 0
        self._start = 0.0

    def run(self) -> FuzzReport:
        """The report. The clock starts after the first call, in which a candidate may compile."""
        self._warm_up()
        self._start = monotonic()
        smaller, shrinks, until_first = None, 0, None
        for first in self._failures():
            until_first = monotonic() - self._start
            smaller, tried = self._minimised(first)
            shrinks += tried
            if smaller is not None:
                break
            until_first = None  # the twin denies it: the search goes on
        if self.stored is not None:
            self.stored.keep(smaller)
        seconds = monotonic() - self._start
        until = seconds if until_first is None else until_first
        return FuzzReport(self.plan, smaller, self.examples, shrinks, seconds, until, self.seed, self.unconfirmed)

    def _warm_up(self) -> None:
        """Compile what compiles, here and in the candidate; what it does is judged when its turn comes."""
        patient = Judge(self.plan.candidate, self.plan.recipe, 10 * self.judge.limit)
        for case in corpus.simplest(self.plan):
            found = patient.judge(case)
            if found is not None and found.fault == "no answer":
                return  # it would only be waited for once more

    def _failures(self) -> Iterator[Finding]:
        """What fails, one after the other, until the search is over."""
        if self.stored is not None:
            for case in self.stored.cases():
                found = self.fails(case)
                if found is not None:
                    yield found
        aimed = corpus.cases(self.plan, self.seed)
        number = 0
        while not self.over:
            found = self._of(aimed, _ROUND) or self._hypothesis(number)
            number += 1
            if found is not None:
                yield found

    def _of(self, cases: Iterator[Case], count: int) -> Finding | None:
        for _ in range(count):
            if self.over:
                return None
            found = self.fails(next(cases))
            if found is not None:
                return found
        return None

    @property
    def over(self) -> bool:
        """The budget or the examples are used up."""
        if self.most is not None and self.examples >= self.most:
            return True
        return self.budget is not None and monotonic() - self._start >= self.budget

    def fails(self, case: Case) -> Finding | None:
        """One example: what is wrong with it, as far as the exact twin agrees."""
        self.examples += 1
        found = self.judge.judge(case)
        large = case.key.size + case.value.size > _TWIN
        if found is None or (large and not self.unconfirmed):
            return found  # a large one is confirmed when it is small, as long as none was denied
        return self._confirmed(found)

    def _confirmed(self, found: Finding) -> Finding | None:
        if self.judge.confirmed(found):
            return found
        self.unconfirmed += 1
        return None

    def _hypothesis(self, number: int) -> Finding | None:
        from kvformat.fuzz.examples import search

        return search(self, number, _ROUND, _SHRINKING)

    def _minimised(self, found: Finding) -> tuple[Finding | None, int]:
        if found.fault == "no answer" and "not returned" in found.message:
            return found, 0  # each smaller case would take as long
        sizes = self.plan.head_sizes if self.plan.sizes_fixed else None
        smaller = Minimiser(self.judge, found, _SHRINKING, sizes)
        best = smaller.run()
        return self._confirmed(best), smaller.tried


#: elements of a case that the exact twin is asked about at once: 10,000 a second
_TWIN = 512


class _Stored:
    """The counterexamples of one candidate in Hypothesis's database."""

    def __init__(self, database: Any, key: str, plan: Plan) -> None:
        self._database = database
        self._key = f"kvformat.fuzz {key} {plan.recipe.name} {plan.layout}".encode()

    def cases(self) -> Iterator[Case]:
        """What is stored, the smallest first; what cannot be read back is removed."""
        for data in sorted(self._database.fetch(self._key), key=len):
            try:
                yield Case.loads(data)
            except (ValueError, InputError):
                self._database.delete(self._key, data)

    def keep(self, found: Finding | None) -> None:
        """Store a counterexample in the place of all others; without one, nothing is left."""
        for data in list(self._database.fetch(self._key)):
            self._database.delete(self._key, data)
        if found is not None:
            self._database.save(self._key, found.case.dumps())

"""Eviction with quantization: StreamingLLM and H2O at several budgets, in every mode, and with protected slots."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvformat.simulate.attention import attend
from kvformat.simulate.certificates import evicted_and_stored_bound, eviction
from kvformat.simulate.eviction import Budget, h2o, protected, streaming
from kvformat.simulate.experiments.result import Plot, Progress, Result, Settings, mode_name
from kvformat.simulate.profiles import Sample, profile
from kvformat.simulate.storage import Storage

Array = NDArray[Any]

RECIPES = ("golden/none", "golden/int8_per_token_head", "golden/fp8_per_token_head", "golden/nvfp4")
#: tokens left in bf16 beside 4-bit pages: StreamingLLM's sinks
PROTECTED = 4


def run(settings: Settings, progress: Progress) -> Result:
    """Per policy, budget and mode: evicted mass, total variation of the rows, its bound, and the output error."""
    sample = profile("llama").sample(settings.seed, settings.tokens)
    exact = attend(sample.query, sample.key, sample.value)
    budgets = sorted({min(settings.tokens, max(1, settings.budget * step // 4)) for step in (1, 2, 4, 8)})
    rows: list[dict[str, Any]] = []
    series: dict[str, list[tuple[float, float]]] = {}
    total, done = len(budgets) * 2 * (len(RECIPES) + 1), 0
    stored = {mode_name(recipe): Storage.of(recipe).through_pages(sample.key, sample.value) for recipe in RECIPES}
    four = stored["nvfp4"]
    sinks = np.arange(PROTECTED)
    stored["nvfp4, sinks in bf16"] = (
        protected(four[0], stored["none"][0], sinks),
        protected(four[1], stored["none"][1], sinks),
    )
    for budget in budgets:
        policies = {
            "StreamingLLM": streaming(settings.tokens, Budget.streaming(budget)),
            "H2O": h2o(sample.query, sample.key, Budget.heavy(budget)),
        }
        for policy, seen in policies.items():
            for mode, (key, value) in stored.items():
                row = _row(sample, exact, seen, key, value)
                rows.append({"policy": policy, "budget": budget, "mode": mode, **row})
                series.setdefault(f"{policy}, {mode}", []).append((float(budget), row["tv"]))
                done += 1
                progress(done, total)
    return Result(
        "eviction",
        "Eviction and quantization together",
        rows,
        _says(rows, settings.budget),
        [Plot("Total variation by budget", "tokens kept", "mean TV of a row", series, log_x=True, log_y=True)],
    )


def _row(sample: Sample, exact: Any, seen: NDArray[np.bool_], key: Array, value: Array) -> dict[str, float]:
    group = sample.query.shape[1] // sample.key.shape[1]
    by_query_head = np.repeat(np.broadcast_to(seen, (sample.key.shape[1], *seen.shape[1:])), group, axis=0)
    mass, _, _ = eviction(exact.probabilities, ~by_query_head)
    other = attend(sample.query, key, value, visible=seen)
    tv = np.abs(other.probabilities - exact.probabilities).sum(axis=2) / 2
    delta = np.where(
        by_query_head & np.isfinite(exact.logits), other.logits - np.where(by_query_head, exact.logits, 0), np.nan
    )
    omega = np.nanmax(delta, axis=2) - np.nanmin(delta, axis=2)
    error = np.linalg.norm(other.output - exact.output, axis=2) / np.linalg.norm(exact.output, axis=2)
    return {
        "evicted mass": float(mass.mean()),
        "tv": float(tv.mean()),
        "bound on tv": float(evicted_and_stored_bound(mass, omega).mean()),
        "output": float(error.mean()),
    }


def _says(rows: list[dict[str, Any]], budget: int) -> list[str]:
    def at(policy: str, mode: str) -> dict[str, Any]:
        chosen = [row for row in rows if (row["policy"], row["mode"]) == (policy, mode)]
        return min(chosen, key=lambda row: abs(row["budget"] - budget))

    says = []
    for policy in ("StreamingLLM", "H2O"):
        none, int8, four, kept = (
            at(policy, mode)["tv"] for mode in ("none", "int8_per_token_head", "nvfp4", "nvfp4, sinks in bf16")
        )
        says.append(
            f"{policy} at a budget of {at(policy, 'none')['budget']}: TV {none:.4f} alone, {int8:.4f} with INT8"
            f" per token head, {four:.4f} with NVFP4, {kept:.4f} with the {PROTECTED} sinks left in bf16"
        )
    return says

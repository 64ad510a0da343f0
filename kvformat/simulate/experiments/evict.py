"""Eviction with quantization: StreamingLLM and H2O at several budgets, in every mode, and with protected slots."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvformat.attention.certificates import evicted_and_stored_bound, eviction
from kvformat.attention.definition import attend
from kvformat.simulate.eviction import Budget, h2o, orders, protected, same_bytes, streaming
from kvformat.simulate.experiments.result import Plot, Progress, Result, Settings, mode_name
from kvformat.simulate.profiles import Sample, profile
from kvformat.simulate.storage import Storage

Array = NDArray[Any]

RECIPES = ("golden/none", "golden/int8_per_token_head", "golden/fp8_per_token_head", "golden/nvfp4")
#: tokens left in bf16 beside 4-bit pages: StreamingLLM's sinks, or as many that get the most attention
PROTECTED = 4
SINKS, HEAVY = "nvfp4, sinks in bf16", "nvfp4, heavy hitters in bf16"


def run(settings: Settings, progress: Progress) -> Result:
    """Per policy, budget and mode: evicted mass, total variation of the rows, its bound, and the output error."""
    sample = profile("llama").sample(settings.seed, settings.tokens)
    exact = attend(sample.query, sample.key, sample.value)
    budgets = sorted({min(settings.tokens, max(1, settings.budget * step // 4)) for step in (1, 2, 4, 8)})
    rows: list[dict[str, Any]] = []
    series: dict[str, list[tuple[float, float]]] = {}
    total, done = len(budgets) * 2 * (len(RECIPES) + 2), 0
    stored = {mode_name(recipe): Storage.of(recipe).through_pages(sample.key, sample.value) for recipe in RECIPES}
    heavy = np.argsort(exact.probabilities.sum(axis=(0, 1)))[-PROTECTED:]
    for name, tokens in ((SINKS, np.arange(PROTECTED)), (HEAVY, heavy)):
        key, value = (protected(stored["nvfp4"][side], stored["none"][side], tokens) for side in (0, 1))
        stored[name] = (key, value)
    for budget in budgets:
        policies = {
            "StreamingLLM": streaming(settings.tokens, Budget.streaming(budget)),
            "H2O": h2o(sample.query, sample.key, Budget.heavy(budget)),
        }
        for policy, seen in policies.items():
            for mode, (key, value) in stored.items():
                size = _bytes(sample, mode, budget)
                row = _row(sample, exact, seen, key, value)
                rows.append({"policy": policy, "budget": budget, "mode": mode, "bytes": size, **row})
                series.setdefault(f"{policy}, {mode}", []).append((float(budget), row["tv"]))
                done += 1
                progress(done, total)
    return Result(
        "eviction",
        "Eviction and quantization together",
        rows,
        [*_says(rows, settings.budget), _order(outlier_leaves(settings)), _moves(moved_keys(settings))],
        [Plot("Total variation by budget", "tokens kept", "mean TV of a row", series, log_x=True, log_y=True)],
    )


def _bytes(sample: Sample, mode: str, budget: int) -> float:
    """Page bytes of a full cache; a protected token takes a bf16 slot instead of its own."""
    heads, size = sample.key.shape[1:]
    kept = min(PROTECTED, budget) if mode in (SINKS, HEAVY) else 0
    recipe = "golden/nvfp4" if kept else f"golden/{mode}"
    per_token, plain = (Storage.of(name).bytes_per_token(heads, size) for name in (recipe, "golden/none"))
    return (budget - kept) * per_token + kept * plain


def outlier_leaves(settings: Settings) -> dict[str, tuple[bool, float]]:
    """A token 20 times as large as the others is evicted; by mode: whether the order matters, and what it does.

    The second is the survivors' error when they are quantized after the eviction over that when before.
    """
    x = np.random.default_rng(settings.seed).normal(0, 1, (settings.tokens, 2, 64)).astype(np.float32)
    x[1] *= 20
    kept = np.arange(settings.tokens) != 1
    found = {}
    for mode in ("int8_per_token_head", "fp8_per_token_head", "fp8_per_tensor", "nvfp4"):
        after, before = orders(x, kept, mode)
        errors = [float(np.linalg.norm(each.dequantize(np.float64) - x[kept])) for each in (after, before)]
        found[mode] = (not same_bytes(after, before), errors[0] / errors[1])
    return found


def moved_keys(settings: Settings) -> dict[str, float]:
    """By mode: the error of keys that are read, turned to their place in the cache and stored again, over one storing.

    StreamingLLM's positions are those in the cache: after an eviction every later key moves. A cache of keys before
    RoPE, turned when they are read, is rounded once.
    """
    sample = profile("llama").sample(settings.seed, settings.tokens, head_dim=64)
    wanted = sample.rope.shift(sample.key, -1).astype(np.float64)
    found = {}
    for recipe in RECIPES[1:]:
        storage = Storage.of(recipe)
        once, _ = storage.through_pages(sample.key, sample.value)
        again, _ = storage.through_pages(sample.rope.shift(once, -1), sample.value)
        errors = [float(np.linalg.norm(each - wanted)) for each in (again, sample.rope.shift(once, -1))]
        found[mode_name(recipe)] = errors[0] / errors[1]
    return found


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
        none, int8, four, sinks, heavy = (
            at(policy, mode)["tv"] for mode in ("none", "int8_per_token_head", "nvfp4", SINKS, HEAVY)
        )
        more = at(policy, SINKS)["bytes"] / at(policy, "nvfp4")["bytes"] - 1
        says.append(
            f"{policy} at a budget of {at(policy, 'none')['budget']}: TV {none:.4f} alone, {int8:.4f} with INT8"
            f" per token head, {four:.4f} with NVFP4; {sinks:.4f} with {PROTECTED} sinks left in bf16, {heavy:.4f} with"
            f" {PROTECTED} heavy hitters, for {more:.0%} more bytes"
        )
    return says


def _moves(found: dict[str, float]) -> str:
    listed = ", ".join(f"{ratio:.2f}-fold for {mode}" for mode, ratio in found.items())
    return (
        "keys that are turned to their new place in the cache and stored again after each eviction are rounded twice:"
        f" the error of one such move is {listed}; keys stored before RoPE are rounded once"
    )


def _order(found: dict[str, tuple[bool, float]]) -> str:
    same = [mode for mode, (matters, _) in found.items() if not matters]
    others = [f"{mode} {1 - ratio:.1%}" for mode, (matters, ratio) in found.items() if matters]
    return (
        f"evicting an outlier token before or after quantizing gives the same bytes in {', '.join(same)}; with a scale"
        f" computed over the tensor, evicting it first lowers the survivors' error by {', '.join(others)}"
    )

"""Is longer worse? The error of an attention row by context length, to 128K tokens, and by the position of a token."""

from __future__ import annotations

from typing import Any

from kvformat.attention.definition import attend, compare
from kvformat.simulate.experiments.result import Plot, Progress, Result, Settings, mode_name
from kvformat.simulate.profiles import profile
from kvformat.simulate.storage import Storage

LENGTHS = (128, 512, 2048, 8192, 32768, 131072)
RECIPES = (
    "golden/int8_per_token_head",
    "golden/fp8_per_token_head",
    "golden/fp8_per_tensor",
    "golden/nvfp4",
)
QUERIES = 8


def run(settings: Settings, progress: Progress) -> Result:
    """KL of the last 8 queries of a `llama` layer (1 kv head, head_dim 64) at each length, with a sink and without."""
    rows: list[dict[str, Any]] = []
    series: dict[str, list[tuple[float, float]]] = {}
    total, done = len(LENGTHS) * 2 * len(RECIPES), 0
    for sink in (0.5, 0.0):
        for length in LENGTHS:
            sample = profile("llama").sample(
                settings.seed, length, queries=QUERIES, q_heads=2, kv_heads=1, head_dim=64, sink=sink
            )
            exact = attend(sample.query, sample.key, sample.value)
            for recipe in RECIPES:
                stored = Storage.of(recipe).through_pages(sample.key, sample.value)
                means = compare(exact, attend(sample.query, *stored)).means()
                mode = mode_name(recipe)
                row = {"sink": sink, "tokens": length, "mode": mode}
                rows.append(row | {name: means[name] for name in ("kl", "tv", "output", "top1")})
                series.setdefault(f"{mode}, sink {sink}", []).append((float(length), means["kl"]))
                done += 1
                progress(done, total)

    def growth(sink: float) -> str:
        factors = []
        for mode in map(mode_name, RECIPES):
            short, long = (
                next(r["kl"] for r in rows if (r["sink"], r["tokens"], r["mode"]) == (sink, length, mode))
                for length in (LENGTHS[0], LENGTHS[-1])
            )
            factors.append(long / short)
        return f"{min(factors):.1f} to {max(factors):.1f}"

    return Result(
        "length",
        "Error of an attention row by context length",
        rows,
        [
            (
                f"from 128 to 131,072 tokens, 1,024 times as many, the KL of a row grows {growth(0.0)} times"
                f" without a sink, and {growth(0.5)} times where a sink keeps half of the mass: its query must"
                " lift one logit ever further"
            ),
        ],
        [Plot("KL by context length", "tokens", "KL of a row", series, log_x=True, log_y=True)],
    )

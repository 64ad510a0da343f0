"""What key de-biasing buys in each mode, on keys with the constant of Qwen2.5's edge layers, and what it costs."""

from __future__ import annotations

from typing import Any

from kvformat.attention.definition import attend, compare
from kvformat.simulate.debias import Debias
from kvformat.simulate.experiments.result import Plot, Progress, Result, Settings, mode_name
from kvformat.simulate.profiles import PROFILES
from kvformat.simulate.storage import Storage

RECIPES = (
    "golden/none",
    "golden/int8_per_token_head",
    "golden/fp8_per_token_head",
    "golden/fp8_per_tensor",
    "golden/nvfp4",
)


def run(settings: Settings, progress: Progress) -> Result:
    """KL of the attention rows: plain, with the model's bias taken away, with a mean calibrated on other keys."""
    rows: list[dict[str, Any]] = []
    total, done = len(PROFILES) * len(RECIPES), 0
    for profile in PROFILES.values():
        sample = profile.sample(settings.seed, settings.tokens)
        exact = attend(sample.query, sample.key, sample.value)
        known = Debias(sample.bias, sample.rope)
        # the first half calibrates; what it says about all of the keys is what is measured
        calibrated = Debias.calibrated(sample.key[: settings.tokens // 2], sample.rope)
        for recipe in RECIPES:
            row: dict[str, Any] = {"profile": profile.name, "mode": mode_name(recipe)}
            for name, debias in (("plain", None), ("debias", known), ("calibrated mean", calibrated)):
                stored = Storage.of(recipe).through_pages(sample.key, sample.value, debias)
                row[f"KL {name}"] = compare(exact, attend(sample.query, *stored)).means()["kl"]
            rows.append(row | {"KL ratio": row["KL plain"] / row["KL debias"], "bytes per layer": sample.bias.size * 4})
            done += 1
            progress(done, total)
    edge = {row["mode"]: row for row in rows if row["profile"] == "qwen_edge"}
    series = {
        f"{profile}, {how}": [(float(i), row[f"KL {how}"]) for i, row in enumerate(chosen)]
        for profile in PROFILES
        for chosen in [[row for row in rows if row["profile"] == profile]]
        for how in ("plain", "debias")
    }
    return Result(
        "debias",
        "Key de-biasing",
        rows,
        [
            (f"on qwen_edge keys the KL falls {edge['int8_per_token_head']['KL ratio']:.0f}-fold for INT8 per"
            f" token head, {edge['fp8_per_token_head']['KL ratio']:.0f}-fold for FP8 per token head and"
            f" {edge['nvfp4']['KL ratio']:.0f}-fold for NVFP4"),
            (f"it costs {edge['nvfp4']['bytes per layer']} bytes per layer, none per token, and one addition"
            " per element written and read"),
        ],
        [Plot("KL with and without", f"mode: {', '.join(mode_name(each) for each in RECIPES)}", "KL of a row", series,
              log_y=True, kind="points")],
    )  # fmt: skip

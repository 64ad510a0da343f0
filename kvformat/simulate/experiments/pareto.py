"""Bytes per token against KL: every mode and the mixtures of K and V, on each profile; and one attention row."""

from __future__ import annotations

from typing import Any

from kvformat.attention.definition import attend, compare
from kvformat.simulate.experiments.result import Plot, Progress, Result, Settings, mode_name
from kvformat.simulate.profiles import PROFILES
from kvformat.simulate.storage import Side, Storage

SIDES = (
    "golden/none",
    "golden/int8_per_token_head",
    "golden/fp8_per_token_head",
    "golden/fp8_per_tensor",
    "golden/nvfp4",
)
#: K in the first, V in the second: keys need the bits more than values
MIXED = (
    ("golden/int8_per_token_head", "golden/nvfp4"),
    ("golden/fp8_per_token_head", "golden/nvfp4"),
    ("golden/nvfp4", "golden/int8_per_token_head"),
)


def run(settings: Settings, progress: Progress) -> Result:
    """Mean KL, TV and output error over all rows of a layer, and whether no cheaper storage is as good."""
    rows: list[dict[str, Any]] = []
    series: dict[str, list[tuple[float, float]]] = {}
    pairs = (*((side, side) for side in SIDES), *MIXED)
    plots = []
    done, total = 0, len(PROFILES) * len(pairs)
    for profile in PROFILES.values():
        sample = profile.sample(settings.seed, settings.tokens)
        exact = attend(sample.query, sample.key, sample.value)
        shown = {"exact": _points(exact.probabilities[0, -1])}
        found: list[dict[str, Any]] = []
        for key, value in pairs:
            storage = Storage(Side(key), Side(value))
            other = attend(sample.query, *storage.through_pages(sample.key, sample.value))
            means = compare(exact, other).means()
            per_token = storage.bytes_per_token(sample.key.shape[1], sample.key.shape[2])
            name = mode_name(key) if key == value else f"K {mode_name(key)}, V {mode_name(value)}"
            if key == value and key != SIDES[0]:
                shown[name] = _points(other.probabilities[0, -1])
            found.append({"profile": profile.name, "storage": name, "bytes": per_token}
                         | {each: means[each] for each in ("kl", "tv", "top1", "output")})  # fmt: skip
            done += 1
            progress(done, total)
        rows += [row | {"on the front": _on_front(row, found)} for row in found]
        series[profile.name] = sorted((row["bytes"], row["kl"]) for row in found)
        plots.append(Plot(f"The last row's attention, {profile.name}", "key", "probability", shown, log_y=True))
    front = {
        profile: [row["storage"] for row in rows if row["profile"] == profile and row["on the front"]]
        for profile in PROFILES
    }
    says = [f"{profile}: on the front lie {', '.join(names)}" for profile, names in front.items()]
    cost = Plot("Bytes per token and layer against KL", "bytes", "KL of a row", series, log_y=True, kind="points")
    return Result("pareto", "Bytes per token against KL", rows, says, [cost, *plots])


def _on_front(row: dict[str, Any], others: list[dict[str, Any]]) -> bool:
    """No other storage is at least as good in both, and better in one."""
    return not any(
        other["bytes"] <= row["bytes"]
        and other["kl"] <= row["kl"]
        and (other["bytes"], other["kl"]) != (row["bytes"], row["kl"])
        for other in others
    )


def _points(row: Any) -> list[tuple[float, float]]:
    return [(float(key), max(float(p), 1e-9)) for key, p in enumerate(row)]

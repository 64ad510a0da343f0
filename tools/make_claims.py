"""Write spec/claims.md: what is commonly said about these formats, judged by the measurements under spec/accuracy.

    python tools/make_claims.py              write the page
    python tools/make_claims.py --check      status 1 if it is not what is committed
    python tools/make_claims.py --measure    first run `kvformat simulate --json` into spec/accuracy/experiments.json

A verdict is computed where a number decides it; the page changes with the numbers and not without them.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvformat.cache_dtypes import CACHE_DTYPES
from kvformat.layouts import layout
from kvformat.simulate.experiments import EXPERIMENTS
from kvformat.simulate.experiments.scale import INT8_PER_TENSOR, crossover
from kvformat.simulate.storage import Side, Storage

SPEC = Path(__file__).resolve().parents[1] / "spec"
TABLE, EXPERIMENT_FILE, PAGE = (
    SPEC / "accuracy" / "measured.json",
    SPEC / "accuracy" / "experiments.json",
    SPEC / "claims.md",
)
HOLDS, WHEN, NOT, UNDECIDED = "holds", "holds when", "does not hold", "not decided"
#: the perplexity that such ranges are usually quoted at: WikiText2 of a 7B or 8B model
USUAL_PPL = 6.0
#: what "about 0" means here: what rounds to 0.0 at the one decimal that the other claims are quoted with
ABOUT_ZERO = 0.05
MODEL, SIMULATE = "python tools/measure_model.py", "kvformat simulate"


@dataclass(frozen=True)
class Data:
    """Everything that was measured."""

    measured: Mapping[str, Any]
    experiments: Mapping[str, Any]

    @classmethod
    def load(cls) -> Data:
        """Both files."""
        found = json.loads(EXPERIMENT_FILE.read_text())["experiments"]
        return cls(json.loads(TABLE.read_text()), {each["name"]: each for each in found})

    def case(self, name: str) -> Mapping[str, Any]:
        """A row of the real model's table."""
        return next(row for row in self.measured["rows"] if row["case"] == name)

    def rows(self, experiment: str, **where: object) -> list[Mapping[str, Any]]:
        """Rows of an experiment."""
        rows = self.experiments[experiment]["rows"]
        return [row for row in rows if all(row[name] == value for name, value in where.items())]


@dataclass(frozen=True)
class Verdict:
    """holds, holds when, does not hold, or not decided; the condition, the figure and the command that shows it."""

    verdict: str
    figure: str
    command: str


def _perplexity(data: Data, name: str) -> str:
    """A case's dNLL, what it is in perplexity here, and what it would be at the usual one."""
    row = data.case(name)
    here = row["ppl"] - row["base_ppl"]
    usual = USUAL_PPL * math.expm1(row["dnll"])
    return (
        f"dNLL {row['dnll']:+.4f} ± {row['dnll_se']:.4f}, so {here:+.2f} at PPL {row['base_ppl']:.0f} and"
        f" {usual:+.3f} at PPL {USUAL_PPL:.0f}; KL {row['kl']:.5f}"
    )


def _within(data: Data, name: str, low: float, high: float) -> str:
    """Whether the case's perplexity loss, at the usual perplexity, is in the claimed range: HOLDS, NOT or UNDECIDED.

    Decided is what two standard errors to either side decide: all of them inside, or all of them outside. Fewer tokens
    widen them, and decide less.
    """
    row = data.case(name)
    least, most = (USUAL_PPL * math.expm1(row["dnll"] + sign * 2 * row["dnll_se"]) for sign in (-1, 1))
    if low <= least and most <= high:
        return HOLDS
    return NOT if most < low or high < least else UNDECIDED


def _fp8_per_tensor(data: Data) -> Verdict:
    name, biased = "FP8 per tensor, calibrated", data.case("FP8 per token head, biased keys")
    verdict = _within(data, name, -math.inf, 0.1)
    if verdict == HOLDS and data.case(name)["ppl"] - data.case(name)["base_ppl"] > 0.1:
        verdict = WHEN
    return Verdict(
        verdict,
        "the perplexity is small and the keys have no large bias: "
        + _perplexity(data, name)
        + f". Biased keys cost dNLL {biased['dnll']:+.4f} even per token head",
        MODEL,
    )


def _fp8_per_token_head(data: Data) -> Verdict:
    name = "FP8 per token head"
    return Verdict(
        _within(data, name, -ABOUT_ZERO, ABOUT_ZERO),
        f"about 0: within ±{ABOUT_ZERO} at PPL {USUAL_PPL:.0f}. {_perplexity(data, name)}. The KL is not 0",
        MODEL,
    )


def _int8_range(data: Data) -> Verdict:
    plain, biased = "INT8 per token head", "INT8 per token head, biased keys"
    verdict = _within(data, biased, 0.1, 0.3)
    if verdict == HOLDS and _within(data, plain, 0.1, 0.3) != HOLDS:
        verdict = WHEN
    return Verdict(
        verdict,
        f"where the keys have a large bias: {_perplexity(data, biased)}. Without one: {_perplexity(data, plain)}",
        MODEL,
    )


def _nvfp4_range(data: Data) -> Verdict:
    name = "NVFP4, scale 1.0"
    return Verdict(
        _within(data, name, 0.3, 1.0),
        f"{_perplexity(data, name)}. On V alone: {_perplexity(data, 'NVFP4, V only')}",
        MODEL,
    )


def _factors(_data: Data) -> Verdict:
    sizes = {mode: Storage.of(f"golden/{mode}").bytes_per_token(8, 128) for mode in MODES}
    ratios = {mode: sizes["none"] / size for mode, size in sizes.items()}
    exact = ratios["fp8_per_tensor"] == 2 and ratios["nvfp4"] == 4
    return Verdict(
        HOLDS if exact else NOT,
        f"FP8 per tensor {ratios['fp8_per_tensor']:.2f}x, 8 bit per token head {ratios['int8_per_token_head']:.2f}x,"
        f" NVFP4 {ratios['nvfp4']:.2f}x: scales take their share (8 heads of 128)",
        f"{SIMULATE} pareto",
    )


MODES = ("none", "fp8_per_tensor", "fp8_per_token_head", "int8_per_token_head", "nvfp4")


def _scale_bytes(_data: Data) -> Verdict:
    tokens, layers = 32768, 80
    made = layout("vllm-0.33", mode="int8_per_token_head", block_size=16, num_kv_heads=8, head_size=128)
    scales = [region for region in made.regions if region.part == "scale"]
    per_token = sum(region.bits // 8 * region.heads * region.columns for region in scales)
    per_layer = per_token * tokens / 2**20
    return Verdict(
        HOLDS if per_layer * layers < 2 else NOT,
        f"{per_layer:.0f} MiB per layer and {per_layer * layers:.0f} MiB in all {layers} layers: 32,768 tokens,"
        " 8 heads, K and V, float32 scales. 1 MB is one layer with 16-bit scales",
        "kvformat layout vllm-0.33 --mode int8_per_token_head --block-size 16 --num-kv-heads 8 --head-size 128",
    )


def _sink_size(data: Data) -> Verdict:
    row = next(row for row in data.rows("sink", side="K") if row["layer"] != 0)
    value = next(row for row in data.rows("sink", side="V") if row["layer"] != 0)
    ratio = row["norm 0 / median"]
    return Verdict(
        HOLDS if ratio > 2 else NOT,
        f"its key has {ratio:.2f} and its value {value['norm 0 / median']:.2f} of the median norm; it works by its"
        " direction. The massive activation is in the residual stream, not in the cache",
        f"{SIMULATE} sink",
    )


def _one_scale(data: Data) -> Verdict:
    plain, outlier = (data.rows("scale", outlier="token", size=size)[0] for size in (0.0, 128.0))
    falls = plain[INT8_PER_TENSOR] - outlier[INT8_PER_TENSOR] > 10
    stays = plain["fp8_per_tensor"] - outlier["fp8_per_tensor"] < 1
    return Verdict(
        WHEN if falls and stays else NOT,
        f"the codes are integers: beside a token 128 times as large, INT8 per tensor falls from"
        f" {plain[INT8_PER_TENSOR]:.1f} to {outlier[INT8_PER_TENSOR]:.1f} dB, FP8 per tensor stays at"
        f" {outlier['fp8_per_tensor']:.1f} dB, and per token head nothing changes",
        f"{SIMULATE} scale",
    )


def _longer(data: Data) -> Verdict:
    ratios = {}
    for name, bins in data.measured["positions_long"].items():
        kl = {each["start"]: each["kl"] for each in bins}
        ratios[name] = kl[1024] / kl[64]
    low, high = min(ratios.values()), max(ratios.values())
    rows = {(row["sink"], row["tokens"], row["mode"]): row["kl"] for row in data.rows("length")}
    grows = [rows[s, 131072, m] / rows[s, 128, m] for s, n, m in rows if n == 128]
    return Verdict(
        NOT if high < 1.5 else WHEN,
        f"on the model the KL at positions 1,024 to 2,047 is {low:.2f} to {high:.2f} times that at 64 to 127. Synthetic"
        f" rows grow {min(grows):.1f} to {max(grows):.1f} times from 128 to 131,072 tokens, most where a sink"
        " must be kept above ever more keys",
        f"{MODEL}; {SIMULATE} length",
    )


def _best_choice(data: Data) -> Verdict:
    int8, fp8 = data.case("INT8 per token head"), data.case("FP8 per token head")
    cross = crossover([dict(row) for row in data.rows("scale")])
    better = int8["kl"] < fp8["kl"]
    return Verdict(
        WHEN if better else HOLDS,
        f"a channel of the keys stands beyond {cross:.1f} sigma. Below that INT8 per token head is better at the same"
        f" {int8['bytes_per_token_layer']:.0f} bytes: KL {int8['kl']:.5f} against {fp8['kl']:.5f}",
        f"{MODEL}; {SIMULATE} scale",
    )


def _needs_b200(_data: Data) -> Verdict:
    native = CACHE_DTYPES["nvfp4"].native
    return Verdict(
        NOT if set(native) - {"sm_100"} else HOLDS,
        f"vLLM 0.33 writes and reads it on {', '.join(native)}; only the instructions that convert and multiply FP4 are"
        " Blackwell's",
        "python -c 'import kvformat; print(kvformat.mode(\"nvfp4\").native)'",
    )


def _prefix(data: Data) -> Verdict:
    blind = data.rows("sharing", kind="blind store")
    worst = max(row["error"] for row in blind)
    return Verdict(
        HOLDS,
        f"the hash chain is over token ids alone. So a store that keys by it serves another mode's bytes: keys"
        f" off by up to {worst:.0%}, unless the key holds layout, recipe and scales",
        f"{SIMULATE} sharing",
    )


def _weights(data: Data) -> Verdict:
    cache, own = data.case("NVFP4, calibrated"), data.case("NVFP4, weights only")
    return Verdict(
        HOLDS if cache["kl"] > own["kl"] else NOT,
        f"NVFP4 on K and V: KL {cache['kl']:.4f}; on the linear layers' weights, blocks of 16 as well: {own['kl']:.4f}",
        MODEL,
    )


CLAIMS: Mapping[str, Callable[[Data], Verdict]] = {
    "FP8 per tensor costs less than 0.1 PPL": _fp8_per_tensor,
    "FP8 per token head costs about 0": _fp8_per_token_head,
    "INT8 per token head costs 0.1 to 0.3 PPL": _int8_range,
    "NVFP4 costs 0.3 to 1.0 PPL": _nvfp4_range,
    "FP8 halves the cache, FP4 quarters it": _factors,
    "the scales of a 70B model at 32K tokens take about 1 MB": _scale_bytes,
    "a sink token has a far larger K": _sink_size,
    "the tail suffers most under one scale": _one_scale,
    "longer is worse": _longer,
    "FP8 per token head is the best choice today": _best_choice,
    "NVFP4 needs B200": _needs_b200,
    "quantization does not change prefix hits": _prefix,
    "the cache is more sensitive than the weights": _weights,
}


def decisions(data: Data) -> list[tuple[str, str, str, str, str]]:
    """The decision table: what the keys are like, the storage, its bytes, what it costs, and where vLLM writes it."""

    def line(keys: str, name: str, case: str, dtypes: str, key: str, value: str) -> tuple[str, str, str, str, str]:
        row = data.case(case)
        size = Storage(Side(key), Side(value)).bytes_per_token(8, 128)
        hardware = ", ".join(CACHE_DTYPES[dtypes].native) if dtypes else "no engine yet"
        return keys, name, f"{size / 4096:.1%}", f"{row['kl']:.5f}", hardware

    int8, fp8, nvfp4 = "golden/int8_per_token_head", "golden/fp8_per_token_head", "golden/nvfp4"
    cross = crossover([dict(row) for row in data.rows("scale")]) or math.nan
    return [
        line(f"no channel beyond {cross:.0f} sigma (Llama, Mistral, SmolLM2)", "INT8 per token head",
             "INT8 per token head", "int8_per_token_head", int8, int8),
        line(f"channels beyond {cross:.0f} sigma, unknown (measured: qwen_edge)", "FP8 per token head",
             "FP8 per token head, biased keys", "fp8_per_token_head", fp8, fp8),
        line("a constant bias that is known (Qwen2, Qwen2.5)", "INT8 per token head on [de-biased](debias.md) keys",
             "INT8 per token head, biased keys, debias", "", int8, int8),
        line("any; a scale can be calibrated, 3% matter", "FP8 per tensor",
             "FP8 per tensor, calibrated", "fp8", "golden/fp8_per_tensor", "golden/fp8_per_tensor"),
        line("any; values may be coarse", "K FP8 per token head, V NVFP4",
             "K FP8 per token head, V NVFP4", "", fp8, nvfp4),
        line("no outlier channels; bytes decide", "NVFP4",
             "NVFP4, scale 1.0", "nvfp4", nvfp4, nvfp4),
    ]  # fmt: skip


def page(data: Data) -> str:
    """The page."""
    base = data.case("bf16")
    text = data.measured["text"]
    lines = [
        "<!-- Made by tools/make_claims.py from spec/accuracy/*.json: change those, or the tool. -->",
        "# Claims about quantized KV caches, measured",
        "",
        (
            f"Measured on {base['model']}, {text['chunks']} x {text['tokens']} tokens of The Jargon File, teacher"
            f" forced (PPL {base['base_ppl']:.1f}). Its K and V go through real pages, and every row is compared with a"
            " bf16 cache token by token. `biased keys` are its keys with the constant of Qwen2.5's outer layers, in"
            f" four layers. The usual ranges are quoted without a perplexity; they are judged at PPL {USUAL_PPL:.0f},"
            " with the dNLL of this model; a range holds if two standard errors to either side lie in it, does not hold"
            " if they lie outside, and else is not decided. It is a small one with 4-bit weights, one text was read, no"
            " task was run: a larger model may lose less."
        ),
        "",
        "| claim | verdict | figure | shown by |",
        "|---|---|---|---|",
    ]
    for claim, judge in CLAIMS.items():
        found = judge(data)
        lines.append(f"| {claim} | **{found.verdict}** | {found.figure} | `{found.command}` |")
    lines += [
        "",
        "## Which mode",
        "",
        (
            "Bytes are those of a page, in parts of bf16's (8 heads of 128); KL is that of the table below;"
            " hardware is where vLLM 0.33 has a writer."
        ),
        "",
        "| keys | storage | bytes | KL | hardware |",
        "|---|---|---|---|---|",
        *(f"| {' | '.join(row)} |" for row in decisions(data)),
        "",
        "## The table",
        "",
        "| case | recipe | bytes per token and layer | KL | dNLL | top-1 | PPL |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in data.measured["rows"]:
        lines.append(
            f"| {row['case']} | `{row['recipe']}` | {row['bytes_per_token_layer']:.0f} | {row['kl']:.5f} ±"
            f" {row['kl_se']:.5f} | {row['dnll']:+.4f} ± {row['dnll_se']:.4f} | {row['top1']:.1%} | {row['ppl']:.2f} |"
        )
    lines += ["", "± is one standard error over tokens, paired with the bf16 cache.", "", "## The experiments", ""]
    for name in EXPERIMENTS:
        if name in data.experiments:
            lines += [f"- `kvformat simulate {name}`: {'; '.join(data.experiments[name]['says'])}"]
    return "\n".join(lines) + "\n"


def _short(found: Any) -> Any:
    """The document with six digits in its numbers."""
    if isinstance(found, dict):
        return {name: _short(each) for name, each in found.items()}
    if isinstance(found, list):
        return [_short(each) for each in found]
    return float(f"{found:.6g}") if isinstance(found, float) else found


def main() -> int:
    """Run one command line and return its exit status."""
    parser = argparse.ArgumentParser(description="Write spec/claims.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 if the page differs")
    parser.add_argument("--measure", action="store_true", help="run the experiments first")
    arguments = parser.parse_args()
    if arguments.measure:
        command = [sys.executable, "-m", "kvformat.cli", "simulate", "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        EXPERIMENT_FILE.write_text(json.dumps(_short(json.loads(done.stdout)), indent=1) + "\n")
    text = page(Data.load())
    if arguments.check:
        same = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text
        print(f"{PAGE}: {'as it should be' if same else 'differs'}")
        return int(not same)
    PAGE.write_text(text, encoding="utf-8")
    print(f"{PAGE} written")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The real model: every case that uses K and V in pages, or the weights, on text; a short run by choice."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from kvformat.simulate.experiments.result import Plot, Progress, Result, Row, Settings
from kvformat.simulate.model import fetched
from kvformat.simulate.model.cases import BASE, CASES
from kvformat.simulate.model.measure import Bench, Chunk, as_json, table_row
from kvformat.simulate.model.text import chunks, excerpt, tokenize
from kvformat.simulate.model.weights import load

SHOWN = ("case", "kl", "kl_se", "dnll", "dnll_se", "top1", "ppl", "bytes_per_token_layer")


def run(settings: Settings, progress: Progress) -> Result:
    """The table of spec/accuracy on `chunks` chunks of `tokens` tokens; calibrated scales come from the text behind."""
    path = settings.model or fetched.path()
    tokens = tokenize(path, excerpt())
    # one chunk more than is measured: what calibrates is no part of what is judged
    *measured, calibration = chunks(tokens, settings.chunks + 1, settings.tokens)
    model = load(path, settings.layers)
    bench = Bench(model, calibration)
    found: dict[str, list[Chunk]] = {}
    done, total = 0, len(measured) * (len(CASES) + 1)
    for index, piece in enumerate(measured):
        for case, chunk in bench.chunks(piece, CASES, watch=index == 0):
            found.setdefault(case.name, []).append(chunk)
            done += 1
            progress(done, total)
    rows: list[Row] = []
    for case in (BASE, *CASES):
        whole = as_json(table_row(model, case, found[case.name]))
        rows.append({name: whole[name] for name in SHOWN})
    kl: dict[Any, Any] = {row["case"]: row["kl"] for row in rows}
    four, weights = kl["NVFP4, calibrated"], kl["NVFP4, weights only"]
    more = "more" if four > weights else "less"
    cut = ["cut off after some layers the model is no language model: KL compares it with itself, PPL says nothing"]
    return Result(
        "model",
        f"{model.name}, {len(model.blocks)} layers, {settings.chunks} x {settings.tokens} tokens",
        rows,
        [
            (
                f"KL: INT8 per token head {kl['INT8 per token head']:.5f}, FP8 per token head"
                f" {kl['FP8 per token head']:.5f}, FP8 per tensor {kl['FP8 per tensor, calibrated']:.5f}, NVFP4"
                f" {four:.4f}"
            ),
            f"NVFP4 on K only costs {kl['NVFP4, K only'] / kl['NVFP4, V only']:.1f} times what it costs on V only",
            (
                f"the cache is {more} sensitive than the weights: NVFP4 on K and V gives {four:.4f}, on the weights"
                f" {weights:.4f}"
            ),
            *(cut if settings.layers is not None else []),
        ],
        _plots(found),
    )


def _plots(found: dict[str, list[Chunk]]) -> list[Plot]:
    names = ("INT8 per token head", "FP8 per token head", "FP8 per tensor, calibrated", "NVFP4, calibrated")
    layers = {name: [(float(layer), each["tv"]) for layer, each in enumerate(found[name][0].layers)] for name in names}
    positions = {}
    for name in names:
        kl = np.mean([chunk.kl for chunk in found[name]], axis=0)
        edges = [0, *(2**i for i in range(int(np.log2(len(kl))) + 1)), len(kl)]
        pairs = [(a, b) for a, b in itertools.pairwise(edges) if b > a]
        positions[name] = [((a + b) / 2, float(kl[a:b].mean())) for a, b in pairs]
    return [
        Plot("Error by layer, its own K and V alone", "layer", "mean TV of a row", layers, log_y=True),
        Plot("Error by position", "position", "KL of the next token", positions, log_x=True, log_y=True),
    ]

"""2,000 dumps with 7 planted faults are 7 groups; faults that differ alike are told apart by their diagnosis."""

from __future__ import annotations

import json
import os
from collections import Counter

import ml_dtypes
import numpy as np
import pytest

import kvformat as kvf
from kvformat.cli import main

pytestmark = pytest.mark.slow  # thousands of files

TOKENS, HEADS, DIMS = 8, 4, 16
ROW = DIMS + 4  # codes and a float32 scale; K, then V: a cell
LAYOUT = kvf.layout("vllm-0.33", mode="fp8_per_token_head", block_size=4, num_kv_heads=HEADS, head_size=DIMS)


def codes(cells, side):
    return cells[..., ROW * side : ROW * side + DIMS]


def scales(cells, side):
    return cells[..., ROW * side + DIMS : ROW * (side + 1)]


def negated_keys(cells):
    codes(cells, 0)[...] ^= 0x80


def doubled_k_scales(cells):
    scales(cells, 0)[...] = (scales(cells, 0).copy().view(np.float32) * np.float32(2)).view(np.uint8)


def zeroed_values(cells):
    codes(cells, 1)[...] = 0
    scales(cells, 1)[...] = 0


def odd_heads_of_v_not_written(cells):
    cells[:, :, 1::2, ROW:] = 0xCC


def first_dim_of_k_lost(cells):
    codes(cells, 0)[..., 0] ^= 0x80


def one_bit_of_v(cells):
    codes(cells, 1)[1, 2, 3, 4] ^= 1


def everything_lost(cells):
    cells[...] = 0x7E


FAULTS = (
    negated_keys, doubled_k_scales, zeroed_values, odd_heads_of_v_not_written, first_dim_of_k_lost, one_bit_of_v,
    everything_lost,
)  # fmt: skip


def saved(path, seed, fault=None):
    """A dump of its own numbers; no two codes of a row are alike enough for a fault to miss."""
    random = np.random.default_rng(seed)
    shape = (2, TOKENS, HEADS, DIMS)
    key, value = (random.uniform(1, 2, shape) * random.choice([-1, 1], shape)).astype(ml_dtypes.bfloat16)
    cache = kvf.PagedCache(LAYOUT, 2)
    cache.write(key, value, np.arange(TOKENS))
    if fault is not None:
        fault(cache.pages.reshape(2, 4, HEADS, 2 * ROW))
    dump = kvf.Dump.from_arrays(key, value, cache.pages, np.arange(TOKENS), layout=LAYOUT, recipe="fp8_per_token_head")
    dump.save(path)
    return path


def test_two_thousand_dumps_with_seven_faults_are_seven_groups(tmp_path, capsys):
    planted = {}
    for number, fault in enumerate(FAULTS):
        for copy in range(10):
            path = tmp_path / f"rank{copy}" / f"layer{number * 41 + copy}.safetensors"
            path.parent.mkdir(exist_ok=True)
            planted[str(saved(path, 100 * number + copy, fault))] = fault.__name__
    right = [saved(tmp_path / f"right{seed}.safetensors", 5000 + seed) for seed in range(10)]
    for number in range(2000 - len(planted) - len(right)):
        os.link(right[number % len(right)], tmp_path / f"more{number}.safetensors")
    assert main(["check", str(tmp_path), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["files"], len(document["reports"])) == (2000, 2000)
    assert Counter(report["status"] for report in document["reports"]) == {0: 1930, 1: 70}
    grouped = [Counter(planted[path] for path in group["files"]) for group in document["groups"]]
    assert sorted(grouped, key=str) == sorted([Counter({fault.__name__: 10}) for fault in FAULTS], key=str)


def test_faults_that_differ_alike_are_told_apart_by_their_diagnosis(tmp_path, capsys):
    """K and V exchanged, and heads exchanged: everything differs in both."""

    def sides_exchanged(cells):
        cells[...] = np.concatenate([cells[..., ROW:], cells[..., :ROW]], axis=-1)

    def heads_reversed(cells):
        cells[...] = cells[:, :, ::-1].copy()

    for seed in range(4):
        saved(tmp_path / f"{seed}.safetensors", seed, (sides_exchanged, heads_reversed)[seed % 2])
    assert main(["check", str(tmp_path), "--json", "--workers", "1"]) == 1
    assert len(json.loads(capsys.readouterr().out)["groups"]) == 1
    assert main(["check", str(tmp_path), "--json", "--workers", "1", "--diagnose"]) == 1
    groups = json.loads(capsys.readouterr().out)["groups"]
    assert [sorted(path[-13] for path in group["files"]) for group in groups] == [["0", "2"], ["1", "3"]]
    assert groups[0]["fault"] != groups[1]["fault"]

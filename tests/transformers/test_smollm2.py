"""SmolLM2-135M through SimulatedCache costs what the committed table says, which another forward pass measured."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from kvformat.simulate.model.text import excerpt, tokenize
from kvformat.transformers.measure import Journal, measure
from kvformat.transformers.states import load_model

PATH = os.environ.get("KVFORMAT_MODEL", "")
TABLE = json.loads((Path(__file__).parents[2] / "spec" / "accuracy" / "measured.json").read_text("utf-8"))
#: cases of the table whose scales are the same for every text
CASES = (
    "INT8 per token head",
    "FP8 per token head",
    "FP8 per tensor, scale 1.0",
    "NVFP4, scale 1.0",
    "vLLM INT8 per token head",
)

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of transformers
    pytest.mark.skipif(not PATH, reason="needs the model: tools/fetch_model.py, KVFORMAT_MODEL"),
]


@pytest.fixture(scope="module")
def model():
    return load_model(PATH)[0]


@pytest.mark.parametrize("case", CASES)
def test_the_kl_is_that_of_the_table_within_three_standard_errors(model, case):
    """Over the same 2,044 tokens; what differs is the order of sums in two implementations of the model."""
    row = next(row for row in TABLE["rows"] if row["case"] == case)
    text = TABLE["text"]
    start, chunks, tokens = text["start"], text["chunks"], text["tokens"]
    ids = torch.tensor(tokenize(PATH, excerpt())[start : start + chunks * tokens]).reshape(chunks, 1, tokens)
    scales = {"k_scale": 1.0, "v_scale": 1.0} if row["scale"] == "1.0" else {}
    (made,) = measure(model, list(ids), [row["recipe"]], Journal(None, ""), **scales)
    assert abs(made.kl.mean - row["kl"]) <= 3 * (made.kl.se**2 + row["kl_se"] ** 2) ** 0.5
    assert made.base_ppl == pytest.approx(row["base_ppl"], rel=1e-3)  # float32 sums in another order

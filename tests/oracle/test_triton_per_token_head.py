"""vLLM's per-token-head recipes against Triton: a kernel of our own with that arithmetic, run by the interpreter.

The interpreter divides as IEEE says and fuses nothing, which is what `triton-nofusion` is when its approximate words
are the IEEE ones. Its casts to float8 are wrong (Triton 3.9.0), so FP8 is compared before the cast.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from tests.oracle import libraries
from tests.oracle.inputs import is_nan
from tests.oracle.libraries import adversarial, assert_same, assert_told_apart, head, stored

HEAD_DIM, TOKENS = 64, 256
SCRIPT = Path(__file__).with_name("triton_per_token_head.py")
#: ties of the code in rows above, at and below the floor 1e-6 of the scale
UNITS = np.concatenate([np.exp2(np.random.default_rng(5).uniform(-40, 60, 61)), [1e-6, 0.99e-6, 1.0]])
#: 0.13385825 / s is one ulp below a half, and the rounded sum with 0.5 is 1; the fused one is not
BELOW_HALF = [34.0, 0.13385824859142303, -0.13385824859142303]


def _inputs() -> dict[str, NDArray]:
    def rows(element: str, dtype: str, top: float) -> NDArray:
        x = adversarial(element, dtype, width=HEAD_DIM, units=UNITS, tops=(top,))[:TOKENS]
        x[is_nan(x)] = np.inf  # the interpreter's maximum drops a NaN or keeps it, by its place
        return x

    return {
        "int8 float32": rows("int8", "float32", 127),
        "int8 bfloat16": rows("int8", "bfloat16", 127),
        "fp8 float32": rows("e4m3fn", "float32", 448),
        "below half": head(BELOW_HALF, HEAD_DIM),
    }


INPUTS = _inputs()


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, NDArray]:
    """What the kernel stores, by "<input> <mode> <part>"; run in a process of its own, as an import decides how."""
    libraries.load("triton", "3.", "triton")
    folder = tmp_path_factory.mktemp("triton")
    np.savez(folder / "in.npz", **{name: x.astype(np.float32).reshape(-1, HEAD_DIM) for name, x in INPUTS.items()})
    # the interpreter computes on NumPy arrays, which warn of every Inf * 0
    command = [sys.executable, "-W", "ignore", str(SCRIPT), str(folder / "in.npz"), str(folder / "out.npz")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(np.load(folder / "out.npz"))


@pytest.mark.parametrize("name", ["int8 float32", "int8 bfloat16"])
def test_int8_is_the_kernels(interpreted: dict[str, NDArray], name: str) -> None:
    codes, scales = interpreted[f"{name} int8 codes"], interpreted[f"{name} int8 scales"]
    assert_same(INPUTS[name], "vllm-0.33/triton-nofusion/int8_per_token_head", codes=codes, scales=scales)


def test_fp8_before_the_cast_is_the_kernels(interpreted: dict[str, NDArray]) -> None:
    quotients, scales = interpreted["fp8 float32 fp8 quotients"], interpreted["fp8 float32 fp8 scales"]
    codes = quotients.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)  # clamped: no policy is asked for
    # the interpreter clamps by max, then min, as sm_89 does: a NaN is the lower bound, 0xFE
    assert_same(INPUTS["fp8 float32"], "vllm-0.33/triton-sm89/fp8_per_token_head", codes=codes, scales=scales)


def test_one_ulp_below_a_half_is_rounded_up_unless_the_sum_is_fused(interpreted: dict[str, NDArray]) -> None:
    codes, scales = interpreted["below half int8 codes"], interpreted["below half int8 scales"]
    x = INPUTS["below half"]
    assert stored(codes, len(BELOW_HALF)) == "7f 01 ff"
    assert_same(x, "vllm-0.33/triton-nofusion/int8_per_token_head", codes=codes, scales=scales)
    assert_told_apart(x, "vllm-0.33/triton/int8_per_token_head", codes=codes.reshape(x.shape), scales=scales)

"""Write the golden bytes of key de-biasing, spec/debias/golden.json: inputs as bits, stored codes and scales, values.

python tools/make_debias.py            write them
python tools/make_debias.py --check    status 1 if they are not what is committed
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from kvformat.simulate.debias import Debias
from kvformat.simulate.rope import Rope

TARGET = Path(__file__).resolve().parents[1] / "spec" / "debias" / "golden.json"
RECIPES = (
    "golden/fp8_per_tensor",
    "golden/fp8_per_token_head",
    "golden/int8_per_token_head",
    "golden/nvfp4",
)
TOKENS, HEADS, DIMS, START = 6, 2, 32, 1000
THETA = 1e6


def bits(x: np.ndarray) -> list[str]:
    """An array's elements as hex patterns."""
    width = 2 * x.dtype.itemsize
    return [f"{int(pattern):0{width}x}" for pattern in x.reshape(-1).view(f"u{x.dtype.itemsize}")]


def cases() -> dict[str, Any]:
    """The golden file as data."""
    rng = np.random.default_rng(0)
    bias = np.zeros((HEADS, DIMS), np.float32)
    bias[:, [13, 13 + DIMS // 2]] = rng.uniform(-200, 200, (HEADS, 2)).astype(np.float32)
    bias[:, :4] = rng.normal(0, 3, (HEADS, 4)).astype(np.float32)
    how = Debias(bias, Rope(THETA))
    key = rng.normal(0, 1.8, (TOKENS, HEADS, DIMS)).astype(np.float32) + how.constant(TOKENS, START)
    key[0] = how.constant(TOKENS, START)[0]  # nothing but the constant: what is left is zero
    key[1, 0, 5], key[1, 1, 6] = np.nan, -np.inf
    found = []
    for dtype in (np.float32, ml_dtypes.bfloat16):
        x = key.astype(dtype)
        for recipe in RECIPES:
            made = how.quantize(x, recipe, start=START)
            back = how.restore(made.dequantize(), START)
            found.append({
                "recipe": recipe,
                "dtype": x.dtype.name,
                "key": bits(x),
                "codes": bits(made.codes),
                "scales": bits(made.scales),
                "global_scale": bits(np.asarray(made.global_scale))[0],
                "values": bits(back),
            })  # fmt: skip
    return {
        "shape": [TOKENS, HEADS, DIMS],
        "start": START,
        "theta": THETA,
        "bias": bits(bias),
        "cos": bits(how.rope.table(TOKENS, DIMS, START)[0]),
        "sin": bits(how.rope.table(TOKENS, DIMS, START)[1]),
        "constant": bits(how.constant(TOKENS, START)),
        "cases": found,
    }


def main() -> int:
    """Run one command line and return its exit status."""
    parser = argparse.ArgumentParser(description="Write the golden bytes of key de-biasing.")
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 if the file differs")
    arguments = parser.parse_args()
    text = json.dumps(cases(), separators=(",", ":")) + "\n"
    if arguments.check:
        same = TARGET.is_file() and TARGET.read_text() == text
        print(f"{TARGET}: {'as it should be' if same else 'differs'}")
        return int(not same)
    TARGET.parent.mkdir(parents=True, exist_ok=True)
    TARGET.write_text(text)
    print(f"{TARGET} written")
    return 0


if __name__ == "__main__":
    sys.exit(main())

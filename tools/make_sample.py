"""Cut the K/V sample that ships with the package out of a safetensors file with `layer<N>.key` / `layer<N>.value`.

python tools/make_sample.py smollm2-135m-kv.safetensors [TARGET]
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numpy as np
from safetensors import deserialize

from kvformat.data import LAYERS, SAMPLE_FILE

#: the first tokens of the text: token 0, the attention sink, is among them
TOKENS = 128
SIDES = ("key", "value")


def cut(source: bytes) -> np.ndarray:
    """The bfloat16 bits of the sample: uint16 (layer, key or value, token, head, dim)."""
    tensors = dict(deserialize(source))
    return np.stack([[_bits(tensors[f"layer{layer}.{side}"]) for side in SIDES] for layer in LAYERS])


def _bits(tensor: dict) -> np.ndarray:
    if tensor["dtype"] != "BF16":
        raise SystemExit(f"the sample is made from bfloat16 tensors; found {tensor['dtype']}")
    return np.frombuffer(tensor["data"], "<u2").reshape(tensor["shape"])[:TOKENS]


def main() -> None:
    """Write the sample and print what its README quotes: both checksums and the shape."""
    source = Path(sys.argv[1]).read_bytes()
    default = Path(__file__).parents[1] / "kvformat" / "data" / SAMPLE_FILE
    target = Path(sys.argv[2]) if len(sys.argv) > 2 else default
    bits = cut(source)
    np.save(target, bits, allow_pickle=False)
    print(f"source sha256 {hashlib.sha256(source).hexdigest()}")
    print(f"{target.name}   sha256 {hashlib.sha256(target.read_bytes()).hexdigest()}   uint16 {bits.shape}")


if __name__ == "__main__":
    main()

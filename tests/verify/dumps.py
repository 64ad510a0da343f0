"""Small dumps for tests: consistent arrays and metadata, and the bytes of a file written by hand."""

from __future__ import annotations

import json

import numpy as np

from kvformat.dump.dump import Dump
from kvformat.layouts import layout as make_layout

TOKENS, HEADS, DIM, BLOCK, BLOCKS = 5, 2, 16, 4, 3
CELL_BYTES = 2 * DIM + 8  # int8 K, float32 scale, int8 V, float32 scale
PAGE_BYTES = BLOCK * HEADS * CELL_BYTES
KINDS = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "uint8": "U8", "int64": "I64",
         "int32": "I32"}  # fmt: skip


def arrays(dtype=np.float32, seed=1):
    rng = np.random.default_rng(seed)
    return {
        "key": rng.normal(size=(TOKENS, HEADS, DIM)).astype(dtype),
        "value": rng.normal(size=(TOKENS, HEADS, DIM)).astype(dtype),
        "slot_mapping": np.array([3, -1, 0, 11, -1], np.int64),
        "pages": rng.integers(0, 256, (BLOCKS, PAGE_BYTES), np.uint8),
    }


def metadata(**changes):
    entries = {
        "kvformat_dump": "1",
        "mode": "int8_per_token_head",
        "layout": "vllm-0.33",
        "order": "NHD",
        "block_size": str(BLOCK),
        "num_kv_heads": str(HEADS),
        "head_size": str(DIM),
        "head_size_v": str(DIM),
        "producer": "a test",
    }
    return {name: entry for name, entry in (entries | changes).items() if entry is not None}


def file_bytes(entries, tensors):
    """A safetensors file from the format's description: header length, JSON header, data in the order given."""
    header, data = {"__metadata__": entries}, b""
    for name, array in tensors.items():
        raw = array.tobytes()
        kind = KINDS[array.dtype.name]
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def write(path, entries=None, **changes):
    tensors = {name: array for name, array in (arrays() | changes).items() if array is not None}
    path.write_bytes(file_bytes(entries or metadata(), tensors))
    return path


def int8_layout(**changes):
    sizes = {"block_size": BLOCK, "num_kv_heads": HEADS, "head_size": DIM}
    return make_layout("vllm-0.33", **({"mode": "int8_per_token_head"} | sizes | changes))


def tensor_layout(**changes):
    """Per tensor: the mode whose scales a dump may hold."""
    return int8_layout(mode="fp8_per_tensor", page_bytes=PAGE_BYTES, **changes)


def from_arrays(layout=None, **changes):
    given = arrays() | changes
    return Dump.from_arrays(
        given.pop("key"), given.pop("value"), given.pop("pages"), given.pop("slot_mapping"),
        layout=layout or int8_layout(), **given,
    )  # fmt: skip


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def one_line(error):
    return "\n" not in str(error.value)

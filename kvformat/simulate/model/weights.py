"""The weights of a llama-architecture model from a GGUF file, dequantized to float32."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvformat.errors import InputError
from kvformat.simulate.rope import Rope

Array = NDArray[Any]

ARCHITECTURE = "llama"
#: the linear layers of a block: our name, and GGUF's
LINEAR = {
    "query": "attn_q",
    "key": "attn_k",
    "value": "attn_v",
    "attended": "attn_output",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}
_NORMS = {"attention_norm": "attn_norm", "feed_norm": "ffn_norm"}


@dataclass(frozen=True)
class Model:
    """A decoder: RMSNorm, GQA attention with RoPE, SwiGLU; embeddings tied to the output."""

    name: str
    q_heads: int
    kv_heads: int
    head_dim: int
    epsilon: float
    rope: Rope
    #: (vocabulary, width)
    embedding: Array
    output_norm: Array
    #: by layer: LINEAR's names, float32 (out, in), and attention_norm, feed_norm
    blocks: tuple[Mapping[str, Array], ...]

    def first(self, layers: int) -> Model:
        """The model without the layers after the first `layers`."""
        return replace(self, blocks=self.blocks[:layers])


def load(path: str | Path, layers: int | None = None) -> Model:
    """The model in a GGUF file, or its first `layers` alone.

    Raises InputError, one line, for a cut file, another architecture, or more layers than there are.
    """
    reader = open_gguf(path)
    found = _text(reader, "general.architecture")
    if found != ARCHITECTURE:
        raise InputError(f"{path}: its architecture is {found!r}; the simulator runs {ARCHITECTURE!r} models")
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    there, q_heads, kv_heads, width = (
        int(_field(reader, f"{ARCHITECTURE}.{name}"))
        for name in ("block_count", "attention.head_count", "attention.head_count_kv", "embedding_length")
    )
    if layers is not None and not 1 <= layers <= there:
        raise InputError(f"layers must be in 1..{there}, what the model has; got {layers}")
    heads = {"query": q_heads, "key": kv_heads}
    blocks = []
    for layer in range(there if layers is None else layers):
        block = {name: _tensor(path, tensors, f"blk.{layer}.{theirs}") for name, theirs in (LINEAR | _NORMS).items()}
        blocks.append(block | {name: _half_split(block[name], count) for name, count in heads.items()})
    return Model(
        name="-".join(_text(reader, f"general.{part}") for part in ("basename", "size_label")),
        q_heads=q_heads,
        kv_heads=kv_heads,
        head_dim=width // q_heads,
        epsilon=float(_field(reader, f"{ARCHITECTURE}.attention.layer_norm_rms_epsilon")),
        rope=Rope(float(_field(reader, f"{ARCHITECTURE}.rope.freq_base"))),
        embedding=_tensor(path, tensors, "token_embd"),
        output_norm=_tensor(path, tensors, "output_norm"),
        blocks=tuple(blocks),
    )


def open_gguf(path: str | Path) -> Any:
    """A reader of the GGUF file. Raises InputError where the file, or the library that reads it, is not there."""
    try:
        from gguf import GGUFReader
    except ModuleNotFoundError as error:
        raise InputError(f"a real model needs {error.name}: pip install 'kvformat[model]'") from None
    if not Path(path).is_file():
        raise InputError(f"{path}: there is no such model file; tools/fetch_model.py fetches SmolLM2-135M")
    try:
        return GGUFReader(str(path))
    except (ValueError, KeyError, IndexError, OverflowError, OSError) as error:
        raise InputError(f"{path}: no whole GGUF file: {' '.join(str(error).split())}") from None


def _field(reader: Any, name: str) -> Any:
    field = reader.fields.get(name)
    if field is None:
        raise InputError(f"the model file has no {name}")
    return field.parts[field.data[0]][0]


def _text(reader: Any, name: str) -> str:
    field = reader.fields.get(name)
    if field is None:
        raise InputError(f"the model file has no {name}")
    return bytes(field.parts[field.data[0]]).decode()


def _tensor(path: str | Path, tensors: Mapping[str, Any], name: str) -> Array:
    from gguf.quants import dequantize

    tensor = tensors.get(f"{name}.weight")
    if tensor is None:
        raise InputError(f"{path}: the model file has no tensor {name}.weight")
    return np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), np.float32)


def _half_split(weight: Array, heads: int) -> Array:
    """GGUF's llama rows interleave a RoPE pair; here its channels are head_dim / 2 apart, as K is in real caches."""
    return np.ascontiguousarray(weight.reshape(heads, -1, 2, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape))

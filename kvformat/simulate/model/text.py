"""Text to tokens: the excerpt that ships with kvformat, and the tokenizer inside a GGUF file."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvformat.errors import InputError
from kvformat.simulate.model.weights import open_gguf

#: README.md beside it says where it comes from
EXCERPT = "jargon-excerpt.txt"


def excerpt() -> str:
    """Public-domain prose: the beginning of The Jargon File."""
    return files("kvformat.data").joinpath(EXCERPT).read_text("utf-8")


def tokenize(path: str | Path, text: str) -> NDArray[np.int64]:
    """The tokens of a text by the byte-level BPE that the GGUF file holds. Raises InputError for another kind."""
    reader = open_gguf(path)
    kinds = tuple(_strings(reader, f"tokenizer.ggml.{name}")[0] for name in ("model", "pre"))
    if kinds != ("gpt2", "smollm"):
        raise InputError(f"{path}: its tokenizer is {kinds[0]}, pre-tokenized as {kinds[1]}; known: gpt2 with smollm")
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    except ModuleNotFoundError as error:
        raise InputError(f"a real model needs {error.name}: pip install 'kvformat[model]'") from None
    vocabulary = {token: index for index, token in enumerate(_strings(reader, "tokenizer.ggml.tokens"))}
    pairs = (merge.partition(" ") for merge in _strings(reader, "tokenizer.ggml.merges"))
    merges = [(first, second) for first, _, second in pairs]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    return np.array(tokenizer.encode(text, add_special_tokens=False).ids, np.int64)


def chunks(tokens: NDArray[np.int64], count: int, length: int) -> list[NDArray[np.int64]]:
    """The first `count` chunks of `length` tokens. Raises InputError where the text is too short for them."""
    if length < 2 or count < 1:
        raise InputError(f"a context needs at least 2 tokens and a run at least 1 chunk; got {length} and {count}")
    if count * length > len(tokens):
        raise InputError(f"the text has {len(tokens)} tokens; {count} x {length} were asked for")
    return list(tokens[: count * length].reshape(count, length))


def _strings(reader: Any, name: str) -> list[str]:
    field = reader.fields.get(name)
    if field is None:
        raise InputError(f"the model file has no {name}")
    return [bytes(field.parts[index]).decode() for index in field.data]

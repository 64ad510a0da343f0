"""The K and V that a local checkpoint makes of a text, as its cache would be given them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers.cache_utils import DummyLayer, DynamicLayer

from kvformat.arrays import array
from kvformat.checkpoint.states import States
from kvformat.errors import InputError


def load_model(path: str | Path) -> tuple[Any, Any]:
    """A causal language model and its tokenizer from a local folder or GGUF file; nothing is downloaded.

    Raises InputError, one line, for a path without a model that transformers can load or without its tokenizer.
    """
    where = Path(path)
    if not where.exists():
        raise InputError(f"{path}: there is no such checkpoint; a folder or a GGUF file is wanted")
    folder, options = (where.parent, {"gguf_file": where.name}) if where.suffix == ".gguf" else (where, {})
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, **options)
    except Exception as error:
        raise InputError(f"{path}: its tokenizer cannot be loaded: {_first(error)}") from error
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype="auto", **options)
    except Exception as error:
        raise InputError(f"{path}: the model cannot be loaded: {_first(error)}") from error
    return model.eval(), tokenizer


def tokens_of(tokenizer: Any, text: str, count: int) -> torch.Tensor:
    """The first `count` tokens of a text, (1, count). Raises InputError for a text that has fewer."""
    ids: torch.Tensor = tokenizer(text, return_tensors="pt", add_special_tokens=False)["input_ids"]
    if ids.shape[1] < count:
        raise InputError(f"the text has {ids.shape[1]} tokens; {count} were asked for")
    return ids[:, :count]


def run(model: Any, ids: torch.Tensor) -> States:
    """K and V of each layer that keeps them: layer -> key, value (tokens, heads, head size) of the one sequence in ids.

    A layer with a sliding window gives its last tokens only.
    """
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(input_ids=ids.to(model.device), cache=cache, use_cache=True)
    states = {}
    for index, layer in enumerate(cache.layers):
        if isinstance(layer, DynamicLayer) and not isinstance(layer, DummyLayer) and layer.keys is not None:
            key, value = (np.ascontiguousarray(array(x[0].cpu()).swapaxes(0, 1)) for x in (layer.keys, layer.values))
            states[index] = key, value
    return states


def _first(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:160]}" if lines else type(error).__name__

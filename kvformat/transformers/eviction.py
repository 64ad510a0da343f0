"""Eviction inside a running transformers model: keys that StreamingLLM or H2O would have dropped are not seen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from kvformat.errors import InputError
from kvformat.simulate.eviction import Eviction, HeavyHitters, Mask, streaming_rows

NAME = "kvformat_evicting"

#: what a model may hand to its attention that changes the probabilities, and is not known here
_NOT_KNOWN = {"s_aux": "sinks in its softmax", "softcap": "capped logits", "position_bias": "a position bias"}


class Evicted:
    """What is evicted while a model runs: per layer, the tokens so far and, for H2O, the keys that are left.

    A forward pass without earlier keys begins anew.
    """

    def __init__(self, eviction: Eviction) -> None:
        self.eviction = eviction
        self._length: dict[int, int] = {}
        self._hitters: dict[int, HeavyHitters] = {}

    def seen(self, layer: int, logits: NDArray[np.float64]) -> Mask:
        """The keys that the new queries see.

        Parameters
        ----------
        layer : int
            The layer's number.
        logits : float64 array (kv heads of all sequences, query heads of each, queries, keys)
            -inf where the model's own mask hides the key. The keys are the last ones of all that there were.

        Returns
        -------
        bool array (kv heads of all sequences, queries, keys)

        """
        heads, _, queries, keys = logits.shape
        if keys == queries:
            self._length[layer] = 0
            self._hitters[layer] = HeavyHitters(heads, self.eviction.budget)
        before = self._length[layer]
        self._length[layer] = total = before + queries
        first = total - keys
        if self.eviction.policy == "streaming":
            mask = streaming_rows(np.arange(before, total), np.arange(first, total), self.eviction.budget)
            return np.broadcast_to(mask, (heads, queries, keys))
        rows = []
        for query in range(queries):
            known = before + query + 1
            row = np.full((heads, logits.shape[1], known), -np.inf)
            row[:, :, first:] = logits[:, :, query, : known - first]
            rows.append(self._hitters[layer].attend(row, total)[:, first:])
        return np.stack(rows, axis=1)


_active: ContextVar[Evicted] = ContextVar("evicted")


@contextmanager
def evicting(model: Any, eviction: Eviction) -> Iterator[Evicted]:
    """Run a model's attention over what eviction leaves, inside this block. Positions stay those of the text.

    It works with any cache, a `SimulatedCache` too: whether a key is evicted is decided by the values that attention
    reads. Sequences may not be padded.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Its attention implementation is that of transformers' eager one, with a mask, inside the block.
    eviction : kvformat.simulate.eviction.Eviction
        The policy and its budget, for each layer and kv head.

    Raises
    ------
    InputError
        For a model whose attention cannot be replaced; from its forward pass for padding, and for attention with sinks
        in its softmax, capped logits or position biases.

    """
    AttentionInterface.register(NAME, _attend)
    AttentionMaskInterface.register(NAME, eager_mask)
    before = _implementation(model)
    model.set_attn_implementation(NAME)
    if _implementation(model) != NAME:  # transformers only warns
        raise InputError(f"the attention of {type(model).__name__} cannot be replaced")
    evicted = Evicted(eviction)
    token = _active.set(evicted)
    try:
        yield evicted
    finally:
        _active.reset(token)
        model.set_attn_implementation(before)


def _implementation(model: Any) -> str:
    return str(model.config._attn_implementation)  # noqa: SLF001 transformers has no other name for it


def _attend(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **more: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As transformers' eager attention computes, over the keys that are left."""
    for name, what in _NOT_KNOWN.items():
        if more.get(name) is not None:
            raise InputError(f"{type(module).__name__} has {what}; eviction does not know it")
    batch, heads, keys, _ = key.shape
    group, queries = query.shape[1] // heads, query.shape[2]
    wide = key.repeat_interleave(group, dim=1)
    logits = query @ wide.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    hidden = _hidden(attention_mask, queries, keys, logits)
    known = logits.detach().double().masked_fill(hidden, -torch.inf).cpu().numpy()
    mask = _active.get().seen(module.layer_idx, known.reshape(batch * heads, group, queries, keys))
    seen = torch.from_numpy(np.ascontiguousarray(mask)).to(logits.device).reshape(batch, heads, queries, keys)
    hidden = hidden | ~seen.repeat_interleave(group, dim=1)
    weights = logits.masked_fill(hidden, torch.finfo(logits.dtype).min).softmax(dim=-1, dtype=torch.float32)
    weights = torch.nn.functional.dropout(weights.to(query.dtype), dropout, training=module.training)
    return (weights @ value.repeat_interleave(group, dim=1)).transpose(1, 2).contiguous(), weights


def _hidden(mask: torch.Tensor | None, queries: int, keys: int, logits: torch.Tensor) -> torch.Tensor:
    """True where the model itself looks at no key: bool, broadcast to the logits."""
    position = torch.arange(queries, device=logits.device) + keys - queries
    if mask is None:
        return position[:, None] < torch.arange(keys, device=logits.device)
    hidden = mask[..., :keys] < torch.finfo(mask.dtype).min / 2 if mask.is_floating_point() else ~mask[..., :keys]
    if hidden[..., torch.arange(queries, device=mask.device), position].any():
        raise InputError("eviction does not know padded sequences: give it sequences of one length")
    return hidden

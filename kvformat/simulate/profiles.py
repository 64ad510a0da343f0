"""Synthetic queries, keys and values that look like those of real models, as data: one profile per kind of model.

The numbers are those of SmolLM2-135M and Qwen2.5-Coder-0.5B: channels of log-normal spread, token norms that vary by
8 to 10 percent, a constant vector before RoPE in the low-frequency quarter, and a sink token with a small key and
value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvformat.attention.definition import CAUSAL
from kvformat.errors import unknown_name
from kvformat.simulate.rope import Rope

Array = NDArray[Any]


class Sample(NamedTuple):
    """query (tokens, q_heads, head_dim), key after RoPE and value (tokens, kv_heads, head_dim), float32.

    bias: (kv_heads, head_dim), the constant part of the keys before RoPE.
    """

    query: Array
    key: Array
    value: Array
    bias: Array
    rope: Rope


@dataclass(frozen=True)
class Profile:
    """What the keys and values of a kind of model look like."""

    name: str
    #: standard deviation of a key's channels
    spread: float
    #: RoPE pairs that carry a constant, and the range of its size
    biased_pairs: int
    bias_range: tuple[float, float]
    theta: float
    describes: str

    def bias(self, rng: np.random.Generator, kv_heads: int, head_dim: int) -> Array:
        """The constant part of the keys, float64 (kv_heads, head_dim): pairs of the low-frequency quarter."""
        half = head_dim // 2
        bias = np.zeros((kv_heads, head_dim))
        for head in range(kv_heads):
            pairs = rng.choice(np.arange(3 * half // 4, half), self.biased_pairs, replace=False)
            size = rng.uniform(*self.bias_range, self.biased_pairs)
            angle = rng.uniform(0, 2 * np.pi, self.biased_pairs)
            bias[head, pairs], bias[head, pairs + half] = size * np.cos(angle), size * np.sin(angle)
        return bias

    def sample(
        self,
        seed: int,
        tokens: int,
        *,
        queries: int | None = None,
        q_heads: int = 4,
        kv_heads: int = 2,
        head_dim: int = 128,
        sink: float = 0.5,
    ) -> Sample:
        """Keys and values of one layer, and the queries of the last `queries` tokens (all of them if None).

        sink: the attention mass that every query gives token 0, 0 for no sink. A sink works by its direction, in which
        no other key points: queries of norm 14 point anywhere else, and so far along it that the mass is met.
        """
        rng = np.random.default_rng(seed)
        rope = Rope(self.theta)
        channel = np.exp(rng.normal(0, 0.35, (1, kv_heads, head_dim)))
        channel /= np.sqrt((channel**2).mean(axis=2, keepdims=True))
        norms = np.exp(rng.normal(0, 0.09, (tokens, kv_heads, 1)))
        straight = self.spread * channel * rng.normal(0, 1, (tokens, kv_heads, head_dim)) * norms
        bias = self.bias(rng, kv_heads, head_dim)
        straight[0] *= _SINK_KEY if sink else 1
        key = rope.turn(straight) + rope.turn(np.broadcast_to(bias, straight.shape))
        # RoPE leaves position 0 as it is; channels with a bias take no part, or every key would lie along it
        towards = np.where(bias == 0, straight[0], 0)
        towards /= np.linalg.norm(towards, axis=1, keepdims=True)
        if sink:
            key[1:] -= (key[1:] * towards).sum(axis=2, keepdims=True) * towards
        value = 0.7 * np.exp(rng.normal(0, 0.25, (1, kv_heads, head_dim)))
        value = value * np.exp(rng.normal(0, 0.22, (tokens, kv_heads, 1))) * rng.normal(0, 1, straight.shape)
        value[0] *= _SINK_VALUE if sink else 1
        query = rng.normal(0, 1, (tokens if queries is None else queries, q_heads, head_dim))
        query *= _QUERY_NORM / np.linalg.norm(query, axis=2, keepdims=True)
        if sink:
            query = _aimed(query, key, towards, sink)
        return Sample(_float32(query), _float32(key), _float32(value), _float32(bias), rope)


#: the norms of a sink token's key and value over those of other tokens: SmolLM2-135M, once the sink exists
_SINK_KEY, _SINK_VALUE = 0.27, 0.22
_QUERY_NORM = 14.0


def _aimed(query: Array, key: Array, towards: Array, mass: float) -> Array:
    """The queries moved along the unit vectors `towards` (kv_heads, head_dim) until key 0 has that mass."""
    group = query.shape[1] // key.shape[1]
    unit = np.repeat(towards, group, axis=0)
    query = query - (query * unit).sum(axis=2, keepdims=True) * unit
    keys = np.repeat(key, group, axis=1).transpose(1, 2, 0) / np.sqrt(query.shape[2])
    logits = np.where(CAUSAL.visible(len(query), len(key)), query.transpose(1, 0, 2) @ keys, -np.inf)
    with np.errstate(divide="ignore"):  # a row that sees key 0 alone
        others = np.log(np.exp(logits[..., 1:]).sum(axis=2))
    missing = np.log(mass / (1 - mass)) + others - logits[..., 0]
    gain = np.where(np.isfinite(missing), missing, 0) / (unit[:, None] @ keys)[:, :, 0]
    aimed: Array = query + gain.T[..., None] * unit
    return aimed


def _float32(x: Array) -> Array:
    return x.astype(np.float32)


_PROFILES = (
    Profile("llama", 1.5, 3, (6, 13), 1e5, "SmolLM2, Llama, Mistral: largest channel 3 to 6 times the median one"),
    Profile("qwen_mid", 1.8, 3, (5, 12), 1e6, "the middle layers of Qwen2.5"),
    Profile("qwen_edge", 1.8, 1, (150, 220), 1e6, "layers 0 and 8 of Qwen2.5-0.5B: a key bias of 100 sigma"),
)

#: every profile by name
PROFILES: Mapping[str, Profile] = MappingProxyType({each.name: each for each in _PROFILES})


def profile(name: str) -> Profile:
    """The profile of that name. Raises InputError, naming the close names, for an unknown one."""
    if name not in PROFILES:
        raise unknown_name("profile", name, PROFILES)
    return PROFILES[name]

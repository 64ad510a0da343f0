"""K and V as models have them: heads with constant channels under RoPE, an attention sink, tokens of varying size."""

from __future__ import annotations

import ml_dtypes
import numpy as np

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
#: spread of K, how many channel pairs have a constant, and how large that is
_KEYS = {"llama": (1.5, 3, (6, 13)), "qwen_mid": (1.8, 3, (5, 12)), "qwen_edge": (1.8, 1, (150, 220))}
PROFILES = (*_KEYS, "mla")


def key_value(profile, tokens, heads, dims, seed, dtype=BFLOAT16):
    """K and V (tokens, heads, dims)."""
    rng = np.random.default_rng(seed)
    if profile == "mla":  # a latent of 0.03 sigma, and the last quarter, RoPE, of 0.5
        x = rng.normal(size=(2, tokens, heads, dims)) * np.where(np.arange(dims) < dims * 3 // 4, 0.03, 0.5)
        return x[0].astype(dtype), x[1].astype(dtype)
    spread, pairs, reach = _KEYS[profile]
    channel = np.exp(rng.normal(0, 0.35, (heads, dims)))
    channel /= np.sqrt((channel**2).mean(axis=1, keepdims=True))
    key = spread * channel * rng.normal(size=(tokens, heads, dims)) * np.exp(rng.normal(0, 0.09, (tokens, heads, 1)))
    half = dims // 2
    for head in range(heads):
        for pair in rng.choice(np.arange(3 * dims // 8, half), pairs, replace=False):
            size, phase = rng.uniform(*reach), rng.uniform(0, 2 * np.pi)
            key[:, head, pair] += size * np.cos(phase)
            key[:, head, pair + half] += size * np.sin(phase)
    angle = np.arange(tokens)[:, None, None] / 1e4 ** (np.arange(half) / half)
    left, right = key[..., :half].copy(), key[..., half:].copy()
    key[..., :half], key[..., half:] = (
        left * np.cos(angle) - right * np.sin(angle),
        left * np.sin(angle) + right * np.cos(angle),
    )
    sizes = np.exp(rng.normal(0, 0.25, (heads, dims))) * np.exp(rng.normal(0, 0.22, (tokens, heads, 1)))
    value = 0.7 * sizes * rng.normal(size=(tokens, heads, dims))
    key[0] *= 0.27
    value[0] *= 0.22
    return key.astype(dtype), value.astype(dtype)

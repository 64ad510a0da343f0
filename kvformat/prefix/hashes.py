"""Prefix caching: vLLM's block hash chain, and a shared store that is blind to the cache's mode, or is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvformat.errors import InputError
from kvformat.layouts import Layout
from kvformat.prefix import cbor

#: the seed of the chain where PYTHONHASHSEED is not set: vllm/utils/hashing.py L108-158
SEED = "vllm-none-hash"


def block_hashes(
    tokens: Sequence[int], block_size: int, extra_keys: Sequence[cbor.Item] = (), *, seed: str = SEED
) -> list[bytes]:
    """The hash of each full block: sha256 of the canonical CBOR of (parent, token ids, extra keys), as `sha256_cbor`.

    extra_keys: one entry per block, None or a tuple (LoRA name, multimodal identifier and offset, cache salt); blocks
    past its end have None. The first parent is the hash of the seed. The mode of the cache is in none of it
    (vllm/v1/core/kv_cache_utils.py L707-737), so the hashes are the same for every mode, and hits are as well.
    """
    if block_size < 1:
        raise InputError(f"block_size must be at least 1; got {block_size}")
    parent, hashes = sha256(cbor.encode(seed)).digest(), []
    for index in range(len(tokens) // block_size):
        ids = tuple(int(token) for token in tokens[index * block_size : (index + 1) * block_size])
        extra = extra_keys[index] if index < len(extra_keys) else None
        parent = sha256(cbor.encode((parent, ids, extra))).digest()
        hashes.append(parent)
    return hashes


@dataclass(frozen=True)
class Identity:
    """All that decides how a page's bytes are read, beside the tokens: what a shared store must be keyed by.

    k_scale, v_scale: the per-tensor scales, which no page holds; None where the mode has none.
    """

    layout: Layout
    recipe: str
    k_scale: float | None = None
    v_scale: float | None = None

    def key(self, block_hash: bytes) -> bytes:
        """The store's key of that block, for readers of this identity only."""
        spec = tuple((name, value) for name, value in sorted(self.layout.spec.items()))
        scales = tuple(None if s is None else np.float32(s).tobytes() for s in (self.k_scale, self.v_scale))
        return sha256(cbor.encode((block_hash, spec, self.recipe, scales))).digest()


def blind(_identity: Identity, block_hash: bytes) -> bytes:
    """The key of a store that knows tokens alone."""
    return block_hash


def aware(identity: Identity, block_hash: bytes) -> bytes:
    """The key of a store that knows how the bytes are read."""
    return identity.key(block_hash)


@dataclass
class Store:
    """Pages shared by engines, which may run different modes. key: `blind` or `aware`."""

    key: Callable[[Identity, bytes], bytes]
    pages: dict[bytes, NDArray[np.uint8]] = field(default_factory=dict)

    def put(self, identity: Identity, block_hash: bytes, page: NDArray[Any]) -> None:
        """Keep a page; the first one under a key stays, as in a pool that never writes a block it has."""
        self.pages.setdefault(self.key(identity, block_hash), page.copy())

    def get(self, identity: Identity, block_hash: bytes) -> NDArray[np.uint8] | None:
        """The bytes under that reader's key, None for a miss."""
        return self.pages.get(self.key(identity, block_hash))

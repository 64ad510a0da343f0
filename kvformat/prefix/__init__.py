"""Prefix caching: the hashes of blocks of tokens, and stores that must not mix two kinds of bytes."""

from kvformat.prefix.hashes import Identity, block_hashes

__all__ = ["Identity", "block_hashes"]

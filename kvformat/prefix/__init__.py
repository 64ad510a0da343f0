"""Prefix caching: the hashes of blocks of tokens, and stores that must not mix two kinds of bytes."""

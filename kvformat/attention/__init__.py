"""Attention by its definition, and what codes and scales guarantee about it."""

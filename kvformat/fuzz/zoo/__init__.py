"""Kernels with one named fault each, as they were found in public code, and right ones that are written differently.

A broken kernel is a right one with one method replaced. The search must catch every broken one and accuse no right one;
`kvformat fuzz --zoo` tries it.
"""

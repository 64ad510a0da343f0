"""The verdict in a kernel's own tests: `assert_pages` on the tensors at hand, and `dump` to carry them elsewhere."""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from kvformat import arrays
from kvformat.dump import Dump
from kvformat.errors import InputError
from kvformat.layouts import Layout
from kvformat.recipes import Recipe
from kvformat.torch.adapters import Cache, layout_of, to_pages
from kvformat.verify import check
from kvformat.verify.report import Report

Scale = torch.Tensor | float | None


def assert_pages(
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: Cache,
    slot_mapping: torch.Tensor,
    *,
    layout: str | Layout,
    mode: str | None = None,
    recipe: str | Recipe | None = None,
    k_scale: Scale = None,
    v_scale: Scale = None,
    **options: Any,
) -> Report:
    """The report of `kvformat.check`; raises AssertionError, with it, unless the cache holds these tokens bit for bit.

    key, value: (tokens, heads, head size), float32, float16 or bfloat16, as the writer was given them, on any device.
    kv_cache: the engine's tensors in a form of `kvformat.torch.adapters`; it is read, not changed. slot_mapping:
    integers (tokens,); padding is negative. One that ends before the keys do leaves the rest unseen, and a UserWarning
    says how many. layout: a `Layout`, or the name of one and a
    `mode`; then order, block_size, v_scales and dtype may be given in `options`, and are otherwise read off the
    tensors or the layout's defaults. recipe: by default the one that the layout's engine uses. k_scale, v_scale: what
    the writer was given where the mode has a scale per tensor. Raises InputError where the tensors cannot be judged.
    """
    report = judged(
        key, value, kv_cache, slot_mapping,
        layout=layout, mode=mode, recipe=recipe, k_scale=k_scale, v_scale=v_scale, **options,
    )  # fmt: skip
    if not report.ok:
        raise AssertionError(str(report))
    if len(slot_mapping) < len(key):
        seen = f"assert_pages looked at {report.judged} of {len(key)} keys"
        warnings.warn(f"{seen}: slot_mapping ends before them; give padding negative slots", stacklevel=2)
    return report


def judged(
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: Cache,
    slot_mapping: torch.Tensor,
    *,
    layout: str | Layout,
    mode: str | None = None,
    recipe: str | Recipe | None = None,
    k_scale: Scale = None,
    v_scale: Scale = None,
    **options: Any,
) -> Report:
    """The report of `kvformat.check` on tensors, whatever it says; arguments as in `assert_pages`."""
    return check(
        _dump(key, value, kv_cache, slot_mapping, layout, mode, recipe, k_scale, v_scale, "kvformat.torch", options)
    )


def dump(
    path: str | os.PathLike[str],
    key: torch.Tensor,
    value: torch.Tensor,
    kv_cache: Cache,
    slot_mapping: torch.Tensor,
    *,
    layout: str | Layout,
    mode: str | None = None,
    recipe: str | Recipe | None = None,
    k_scale: Scale = None,
    v_scale: Scale = None,
    producer: str = "kvformat.torch",
    kv_cache_before: Cache | None = None,
    **options: Any,
) -> None:
    """Write the tensors as a dump that `kvformat check` judges anywhere; arguments as in `assert_pages`.

    kv_cache_before: a clone of the cache from before the write, by which `diagnose` knows what was not written.
    """
    made = _dump(key, value, kv_cache, slot_mapping, layout, mode, recipe, k_scale, v_scale, producer, options)
    if kv_cache_before is not None:
        before = _pages(kv_cache_before, made.layout)
        if before.shape != made.pages.shape:
            raise InputError(f"kv_cache_before has pages {before.shape}; those of kv_cache are {made.pages.shape}")
        made = replace(made, pages_before=before)
    made.save(path)


def _dump(
    key: torch.Tensor, value: torch.Tensor, kv_cache: Cache, slot_mapping: torch.Tensor, layout: str | Layout,
    mode: str | None, recipe: str | Recipe | None, k_scale: Scale, v_scale: Scale, producer: str,
    options: dict[str, Any],
) -> Dump:  # fmt: skip
    made = layout
    if not isinstance(made, Layout):
        if mode is None:
            raise InputError(f"layout {made} has several modes; give mode, or a Layout")
        made = layout_of(kv_cache, made, mode, key.shape[1], (key.shape[-1], value.shape[-1]), **options)
    slots = arrays.copied(slot_mapping)
    return Dump.from_arrays(
        arrays.copied(key[: len(slots)]),
        arrays.copied(value[: len(slots)]),
        _pages(kv_cache, made),
        slots,
        layout=made,
        recipe=recipe,
        k_scale=_number(k_scale),
        v_scale=_number(v_scale),
        producer=producer,
    )


def _pages(kv_cache: Cache, layout: Layout) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(arrays.copied(to_pages(kv_cache, layout)))


def _number(scale: Scale) -> np.float32 | None:
    return None if scale is None else np.float32(float(scale))

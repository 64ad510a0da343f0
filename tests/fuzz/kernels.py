"""Kernels that tests hand to the search, as a user would write them: one of each kind, right or with a fault."""

from __future__ import annotations

import time

import numpy as np

from kvformat.fuzz.zoo.blocks import Blocks
from kvformat.fuzz.zoo.readers import RightReader
from kvformat.fuzz.zoo.rows import Rows
from kvformat.fuzz.zoo.writers import RightWriter

INT8 = "int8_per_token_head"

right_int8 = Rows(INT8)
right_nvfp4 = Blocks("nvfp4")
right_writer = RightWriter(INT8)
right_reader = RightReader(INT8)


def truncated(x):
    wide = x.astype(np.float32)
    scale = np.abs(wide).max(axis=2) / np.float32(127)
    scale = np.where(scale == 0, np.float32(1), scale)
    return np.clip(wide / scale[..., None], -127, 127).astype(np.int8), scale


def only_zeros_fail(x):
    codes, scales = right_int8(x)
    return (codes + 1 if not x.any() else codes), scales


def raises(x):
    if np.isnan(x.astype(np.float32)).any():
        raise RuntimeError("a NaN\nin the input")
    return right_int8(x)


def hangs(x):
    while np.isnan(x.astype(np.float32)).any():
        time.sleep(0.01)
    return right_int8(x)


def changes_its_input(x):
    answer = right_int8(x)
    x *= 2
    return answer


def writes_before_its_pages(key, value, pages, slot_mapping, **meta):
    right_writer(key, value, pages, slot_mapping, **{name: meta[name] for name in _NAMES})
    pages.base[0, 0] ^= 1  # what lies in front of what it was given


_NAMES = ("block_size", "num_kv_heads", "head_size", "order", "v_scales", "dtype", "k_scale", "v_scale")

#: no function
number = 3


def takes_two(left, right):
    return left, right

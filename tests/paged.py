"""What the cache tests share: every mode, layout and order, K and V with a sink token, which bytes a slot owns."""

from __future__ import annotations

import functools

import ml_dtypes
import numpy as np
import pytest

import kvformat as kvf
from tests.layouts.reference import Config, entries

BLOCK_SIZE, HEADS, HEAD_SIZE, BLOCKS = 4, 2, 64, 3
SLOTS = BLOCK_SIZE * BLOCKS
VLLM, FLASHINFER = "vllm-0.33", "flashinfer"


def case(name, mode, order, v_scales=None, dtype=None, padding=0, head_size_v=HEAD_SIZE):
    return Config(name, mode, order, BLOCK_SIZE, HEADS, HEAD_SIZE, head_size_v, v_scales, dtype, padding)


#: every mode x layout x order x v_scales; some with padding, some with a V of another size
CONFIGS = [
    *(
        case(name, *how, order=order, padding=padding)
        for order, padding in (("NHD", 0), ("HND", 5))
        for name, *how in ((VLLM, "fp8_per_tensor"), (VLLM, "fp8_per_token_head"), (VLLM, "int8_per_token_head"))
    ),
    *(case(VLLM, "nvfp4", order, v_scales) for order in ("NHD", "HND") for v_scales in ("swizzled", "linear")),
    *(
        case(VLLM, "none", order, dtype=dtype)
        for order in ("NHD", "HND")
        for dtype in ("bfloat16", "float16", "float32")
    ),
    *(case(FLASHINFER, mode, order) for order in ("NHD", "HND") for mode in ("fp8_per_tensor", "nvfp4")),
    *(case(FLASHINFER, "none", order, dtype="bfloat16", padding=8) for order in ("NHD", "HND")),
    case(VLLM, "fp8_per_tensor", "HND", head_size_v=96),
    case(VLLM, "nvfp4", "HND", "swizzled", head_size_v=128),
]
ONE_PER_MODE = [
    case(VLLM, mode, "HND", "swizzled" if mode == "nvfp4" else None, "bfloat16" if mode == "none" else None, padding=3)
    for mode in ("none", "fp8_per_tensor", "fp8_per_token_head", "int8_per_token_head", "nvfp4")
]

every_config = pytest.mark.parametrize("config", CONFIGS, ids=str)
each_mode = pytest.mark.parametrize("config", ONE_PER_MODE, ids=lambda config: config.mode)


def new_cache(config, fill=0, **scales):
    cache = kvf.PagedCache(kvf.layout(config.name, **config.arguments), BLOCKS, **scales)
    cache.pages[...] = fill
    return cache


def kv(config, tokens, seed=0):
    rng = np.random.default_rng(seed)
    sizes = (config.head_size, config.head_size_v)
    k, v = (rng.standard_normal((tokens, HEADS, size)).astype(np.float32) for size in sizes)
    k[0] *= 100  # a sink token: large in K, small in V
    v[0] /= 4
    return k, v


def expected(config, x, scale=None):
    """What a cache gives back of x, by `quantize` and `dequantize`."""
    if config.mode == "none":
        with np.errstate(over="ignore", invalid="ignore"):
            return x.astype(stored_dtype(config)).astype(np.float32)
    return kvf.quantize(x, config.mode, scale=scale).dequantize()


def stored_dtype(config):
    return ml_dtypes.bfloat16 if config.dtype == "bfloat16" else np.dtype(config.dtype)


@functools.cache
def bytes_of_slots(config):
    """For each slot of a page, which of its bytes are that slot's: by the formulas of tests.layouts.reference."""
    page_bytes = kvf.layout(config.name, **config.arguments).page_bytes
    owned = np.zeros((config.block_size, page_bytes), bool)
    for _, _, slot, _, _, first_bit, width in entries(config):
        owned[slot, first_bit // 8 : (first_bit + width + 7) // 8] = True
    return owned


def owned(config, slots):
    """Mask of the bytes of all pages that belong to these slots."""
    mask = np.zeros((BLOCKS, bytes_of_slots(config).shape[1]), bool)
    for slot in slots:
        mask[slot // BLOCK_SIZE] |= bytes_of_slots(config)[slot % BLOCK_SIZE]
    return mask


def refused(action, *arguments, **keywords):
    with pytest.raises(kvf.InputError) as error:
        action(*arguments, **keywords)
    assert "\n" not in str(error.value)
    return str(error.value)

"""What a dump may say of a kernel's attention: query, output and the settings that the judgement needs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kvformat.dump.file import INPUT_DTYPES
from kvformat.errors import InputError, unknown_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvformat.layouts import Layout

#: unit roundoffs of accumulators. fp8_tensor_core_sm90: the FP8 products of Hopper's tensor cores are added with 14
#: bits, cut off and not rounded (DeepSeek-V3, arXiv 2412.19437, section 3.5.2)
ACCUMULATORS = {"float32": 2.0**-24, "float16": 2.0**-11, "fp8_tensor_core_sm90": 2.0**-13}
#: dtypes that the tiles of K, P and V may have before they are multiplied; tfloat32: what NVIDIA's tensor cores make
#: of float32 unless they are told not to
OPERANDS = {"float32": 0.0, "tfloat32": 2.0**-11, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def check_attention(layout: Layout, query: NDArray[Any], output: NDArray[Any], settings: Mapping[str, str]) -> None:
    """Raises InputError for a query and output that do not fit the layout or each other, and for unknown settings."""
    if "v" not in layout.sides:
        raise InputError(f"layout {layout.name} in mode {layout.mode} has no V, so there is no attention to judge")
    for name, array, size in (("query", query, layout.head_size), ("output", output, layout.head_size_v)):
        if array.dtype not in INPUT_DTYPES.values() or array.ndim != 3 or array.shape[2] != size or not array.size:
            found = f"{array.dtype.name} of shape ({', '.join(map(str, array.shape))})"
            raise InputError(f"{name} is {found}; it must be a float (queries, q_heads, {size}), not empty")
    if query.shape[:2] != output.shape[:2]:
        raise InputError(f"query and output must have the same rows and heads; got {query.shape} and {output.shape}")
    if query.shape[1] % layout.num_kv_heads:
        kv_heads = layout.num_kv_heads
        raise InputError(f"query has {query.shape[1]} heads; it must be a multiple of num_kv_heads, {kv_heads}")
    for name, known in (("accumulate", ACCUMULATORS), ("operands", OPERANDS)):
        if name in settings and settings[name] not in known:
            raise unknown_name(name, settings[name], known)
    if "window" in settings and not re.fullmatch(r"[1-9][0-9]{0,8}", settings["window"]):
        raise InputError(f"window must be a positive integer in decimal; got {settings['window'][:40]!r}")
    if "softmax_scale" in settings and not 0 < _number(settings["softmax_scale"]) < math.inf:
        raise InputError(f"softmax_scale must be a positive number; got {settings['softmax_scale'][:40]!r}")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan

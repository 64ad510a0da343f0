"""What a dump may say of a kernel's attention: query, output and the settings that the judgement needs."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kvformat.dump.file import INPUT_DTYPES
from kvformat.errors import InputError, unknown_name

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from kvformat.layouts import Layout


class Rounding(NamedTuple):
    """What rounding to a format does: `unit` relatively, half an ulp of 1, and `tiny`, half its smallest subnormal."""

    unit: float
    #: 0 where it is too small to count
    tiny: float = 0.0
    #: of probabilities: rounded before they are divided by their sum, the largest being 1
    unnormalised: bool = False
    #: of outputs: the largest finite number; beyond it a kernel saturates or overflows
    largest: float = math.inf


_FLOAT16, _BFLOAT16 = Rounding(2.0**-11, 2.0**-25), Rounding(2.0**-8)
#: fp8_tensor_core_sm90: the FP8 products of Hopper's tensor cores are added with 14 bits, cut off and not rounded
#: (DeepSeek-V3, arXiv 2412.19437, section 3.5.2)
ACCUMULATORS = {
    "float32": Rounding(2.0**-24),
    "float16": _FLOAT16,
    "bfloat16": _BFLOAT16,
    "fp8_tensor_core_sm90": Rounding(2.0**-13),
}
#: dtypes that the tiles of K and V may have before they are multiplied; tfloat32: what NVIDIA's tensor cores make of
#: float32 unless they are told not to
OPERANDS = {"float32": Rounding(0.0), "tfloat32": Rounding(2.0**-11), "float16": _FLOAT16, "bfloat16": _BFLOAT16}
#: dtypes that the probabilities may have when they are multiplied by V
PROBABILITIES = OPERANDS | {
    "float8_e4m3fn": Rounding(2.0**-4, 2.0**-10, unnormalised=True),
    "float8_e5m2": Rounding(2.0**-3, 2.0**-17, unnormalised=True),
}
#: dtypes of the output
OUTPUTS = {
    "float32": Rounding(2.0**-24, 2.0**-150),
    "float16": Rounding(2.0**-11, 2.0**-25, largest=65504.0),
    "bfloat16": Rounding(2.0**-8, 2.0**-134),
    "float8_e4m3fn": Rounding(2.0**-4, 2.0**-10, largest=448.0),
    "float8_e5m2": Rounding(2.0**-3, 2.0**-17, largest=57344.0),
}
#: what a log-sum-exp may be the logarithm to: FlashInfer gives it to base 2
LSE_BASES = {"e": 1.0, "2": math.log(2)}
_CHOICES: Mapping[str, Mapping[str, object]] = {
    "accumulate": ACCUMULATORS,
    "operands": OPERANDS,
    "probabilities": PROBABILITIES,
    "lse_base": LSE_BASES,
}
#: numbers that must be above 0
_POSITIVE = ("softmax_scale", "output_scale")


def check_attention(
    layout: Layout,
    query: NDArray[Any],
    output: NDArray[Any],
    settings: Mapping[str, str],
    lse: NDArray[Any] | None = None,
    sinks: NDArray[Any] | None = None,
) -> None:
    """Raises InputError for a query and output that do not fit the layout or each other, and for unknown settings."""
    if "v" not in layout.sides:
        raise InputError(f"layout {layout.name} in mode {layout.mode} has no V, so there is no attention to judge")
    both = (("query", query, layout.head_size, INPUT_DTYPES), ("output", output, layout.head_size_v, OUTPUTS))
    for name, array, size, known in both:
        if array.dtype.name not in known or array.ndim != 3 or array.shape[2] != size or not array.size:
            raise InputError(f"{name} is {_found(array)}; it must be a float (queries, q_heads, {size}), not empty")
    if query.shape[:2] != output.shape[:2]:
        raise InputError(f"query and output must have the same rows and heads; got {query.shape} and {output.shape}")
    if query.shape[1] % layout.num_kv_heads:
        kv_heads = layout.num_kv_heads
        raise InputError(f"query has {query.shape[1]} heads; it must be a multiple of num_kv_heads, {kv_heads}")
    for name, extra, shape in (("lse", lse, query.shape[:2]), ("sinks", sinks, query.shape[1:2])):
        if extra is not None and (extra.dtype.name not in INPUT_DTYPES or extra.shape != shape):
            wanted = ", ".join(map(str, shape))
            raise InputError(f"{name} is {_found(extra)}; it must be a float of shape ({wanted})")
    if sinks is not None and not np.isfinite(sinks.astype(np.float64)).all():
        raise InputError("sinks holds a logit that is not finite; leave sinks out where there is none")
    for name, choices in _CHOICES.items():
        if name in settings and settings[name] not in choices:
            raise unknown_name(name, settings[name], choices)
    if "window" in settings and not re.fullmatch(r"[1-9][0-9]{0,8}", settings["window"]):
        raise InputError(f"window must be a positive integer in decimal; got {settings['window'][:40]!r}")
    if settings.get("probe", "exact") != "exact":
        raise InputError(f"probe must be 'exact' or left out; got {settings['probe'][:40]!r}")
    for name in _POSITIVE:
        if name in settings and not 0 < _number(settings[name]) < math.inf:
            raise InputError(f"{name} must be a positive number; got {settings[name][:40]!r}")


def _found(array: NDArray[Any]) -> str:
    return f"{array.dtype.name} of shape ({', '.join(map(str, array.shape))})"


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan

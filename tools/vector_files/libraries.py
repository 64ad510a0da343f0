"""The libraries that recipes describe, where they run on a CPU: they confirm the vectors of their own recipes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvformat.recipes.program import Recipe
from tests.engines import compressed_tensors as compressed
from tests.engines import modelopt, torchao
from tests.oracle.libraries import assert_same
from vector_files.cases import Case

Array = NDArray[Any]
Quantizer = Callable[[Array], tuple[Array, Array]]

_ROUNDINGS = ("floor", "ceil", "even", "rceil")
_MX, _ROWS = ("mxfp4", "mxfp8"), ("fp8_per_token_head", "int8_per_token_head", "fp8_per_tensor")

#: the quantizers of installed libraries by the recipe that describes each; scales are computed, none is given
_QUANTIZERS: Mapping[str, Quantizer] = {
    **{f"torchao-0.18/{r}/{mode}": partial(torchao.mx, rounding=r, mode=mode) for r in _ROUNDINGS for mode in _MX},
    "torchao-0.18/nvfp4_single_level": partial(torchao.nvfp4, scale=None),
    **{
        f"torchao-0.18/{path}/{mode}": partial(quantize, mode=mode)
        for path, quantize in torchao.FLOAT8.items()
        for mode in ("fp8_per_tensor", "fp8_per_token_head")
    },
    **{f"compressed-tensors-0.20/{mode}": partial(compressed.scaled, mode=mode) for mode in _ROWS},
    **{f"compressed-tensors-0.20/{mode}": partial(compressed.mx, mode=mode) for mode in _MX},
    **{f"modelopt-0.47/{mode}": partial(modelopt.scaled, mode=mode) for mode in _ROWS},
    **{f"modelopt-0.47/{mode}": partial(modelopt.mx, mode=mode) for mode in _MX},
}

#: what becomes of a NaN depends on whether torch's amax met it in a vector or in the rest
_NAN_BY_MACHINE = frozenset(f"compressed-tensors-0.20/{mode}" for mode in _MX)


def knows(recipe: Recipe, source: str) -> bool:
    """Whether the library of this recipe is run here. torchao takes no float16 in most of its quantizers."""
    return recipe.name in _QUANTIZERS and source != "binary16"


def confirm(recipe: Recipe, case: Case) -> None:
    """Raises unless the library makes of a case what kvformat makes of it.

    The sign of a NaN that is stored does not count. Left out: cases with a given scale, and those where the library's
    own answer depends on the machine.
    """
    if case.scale is not None or (case.flag in ("NaN", "NotFinite") and recipe.name in _NAN_BY_MACHINE):
        return
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries, about each other's versions
        codes, scales = _QUANTIZERS[recipe.name](case.x)
        assert_same(case.x, recipe.name, codes=codes, scales=scales)

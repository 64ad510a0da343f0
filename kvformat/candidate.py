"""Somebody else's function: called with the keywords that it takes, its failures told in one line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvformat.errors import InputError


def keywords(function: Callable[..., Any]) -> frozenset[str] | None:
    """The names that a function takes as keywords; None where it takes any, or does not say."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # compiled code without a signature
        return frozenset()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return None
    return frozenset(each.name for each in parameters if each.kind in (each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD))


def call(function: Callable[..., Any], *arguments: Any, offered: Mapping[str, Any]) -> Any:
    """What the function answers; of `offered` it gets the keywords it takes. Raises InputError for what it raises."""
    taken = keywords(function)
    given = {name: value for name, value in offered.items() if taken is None or name in taken}
    try:
        return function(*arguments, **given)
    except (Exception, SystemExit) as error:  # whatever it raises
        raise InputError(f"{_name(function)} raised {_told(error)}") from error


def as_array(given: Any) -> NDArray[Any] | None:
    """What a function answered as an array; None for what is none: a ragged list, an object, nothing.

    A torch tensor may want a gradient, be on a device, or be of 8-bit floats, which come as their bytes.
    """
    try:
        array: NDArray[Any] = np.asarray(to_numpy(given))
    except Exception:  # noqa: BLE001 of whatever library it is
        return None
    return None if array.dtype == object else array


def to_numpy(tensor: Any) -> Any:
    """A torch tensor as an array, its 8-bit floats as their bytes; anything else as it is."""
    if not hasattr(tensor, "detach"):
        return tensor
    import ml_dtypes
    import torch

    whole = tensor.detach().cpu().contiguous()
    if whole.dtype == torch.bfloat16:
        return whole.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    if whole.dtype.is_floating_point and whole.dtype.itemsize == 1:
        return whole.view(torch.uint8).numpy()
    return whole.numpy()


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _told(error: BaseException) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__

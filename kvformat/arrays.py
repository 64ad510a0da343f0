"""CPU tensors as NumPy arrays and back, on the same memory."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray

from kvformat.errors import InputError

#: dtypes that NumPy does not have: what carries the bits, and how NumPy reads them
_VIEWS: dict[torch.dtype, tuple[torch.dtype, Any]] = {
    torch.bfloat16: (torch.int16, ml_dtypes.bfloat16),
    torch.float8_e4m3fn: (torch.uint8, np.uint8),
    torch.float8_e5m2: (torch.uint8, np.uint8),
    torch.float8_e4m3fnuz: (torch.uint8, np.uint8),
    torch.float8_e5m2fnuz: (torch.uint8, np.uint8),
}


def array(x: torch.Tensor) -> NDArray[Any]:
    """A CPU tensor's memory, with its strides. Raises InputError for a tensor on another device."""
    if x.device.type != "cpu":
        raise InputError(f"the tensor is on {x.device}; CPU tensors are wanted here")
    x = x.detach()
    if x.dtype in _VIEWS:
        carrier, dtype = _VIEWS[x.dtype]
        return x.view(carrier).numpy().view(dtype)
    return x.numpy()


def tensor(x: NDArray[Any], dtype: torch.dtype | None = None) -> torch.Tensor:
    """An array's memory as a CPU tensor; `dtype` for what NumPy calls by another name."""
    if x.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)
    made = torch.from_numpy(x)
    return made if dtype is None else made.view(dtype)


def copied(x: torch.Tensor) -> NDArray[Any]:
    """A tensor from any device as an array; a CPU tensor is not copied."""
    return array(x.cpu())

"""How a quantization parameter is stored: one object for its bits, its dtype, its values, its NaN and its order."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from kvformat.elements.formats import BINARIES, ELEMENTS, ElementFormat
from kvformat.errors import InputError, unknown_name

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

#: floats that a parameter may be stored as; they round to nearest even, overflow to Inf, and take no policy
FLOATS = ("float32", *BINARIES)
#: stands for the dtype of x until a recipe meets one
INPUT = "input"


@dataclass(frozen=True)
class StoreFormat:
    """The format that a parameter is stored in: a float, or an element format and the policy that `encode` takes.

    Source: IEEE 754-2019 section 3.4 for the floats; `kvformat.elements` for the others.
    """

    #: `float32`, `float16`, `bfloat16`, `input`, or the name of an element format
    name: str
    #: words of `encode`: an overflow, a rounding
    policy: tuple[str, ...] = ()

    @property
    def is_float(self) -> bool:
        """Whether the parameter is stored as an IEEE float, not as the code of an element format."""
        return self.name in FLOATS or self.name == INPUT

    @property
    def element(self) -> ElementFormat | None:
        """The element format of the stored codes; None where they are floats."""
        return None if self.is_float else ELEMENTS[self.name]

    @property
    def bits(self) -> int:
        """Bits of one stored parameter."""
        return {"float32": 32}.get(self.name) or (BINARIES.get(self.name) or ELEMENTS[self.name]).bits

    @property
    def max(self) -> float:
        """The largest finite value of one."""
        if self.name == "float32":
            return float.fromhex("0x1.fffffep+127")
        return float((BINARIES.get(self.name) or ELEMENTS[self.name]).max)

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of an array of stored parameters: the float's own; codes are int8 or uint8, one a byte."""
        import ml_dtypes
        import numpy as np

        if self.name == "bfloat16":
            bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
            return bfloat16
        return np.dtype(self.name if self.is_float else ELEMENTS[self.name].code_dtype)

    def values(self, stored: NDArray[Any]) -> NDArray[np.float32]:
        """What stored parameters stand for: float32 of the same shape, exact."""
        import numpy as np

        array = np.asarray(stored)
        if self.element is None:
            with np.errstate(invalid="ignore"):  # a signalling NaN
                floats: NDArray[np.float32] = array.astype(np.float32, copy=False)
            return floats
        table = self.element.values()
        read: NDArray[np.float32] = table[array.view(np.uint8) & np.uint8(len(table) - 1)]
        return read

    def empty(self, shape: tuple[int, ...]) -> tuple[NDArray[Any], NDArray[Any]]:
        """An array for stored parameters: as kernels write it (float32, or unsigned patterns), and in `dtype`."""
        import numpy as np

        stored = np.empty(shape, self.dtype)
        return (stored if self.name == "float32" else stored.view(f"u{self.dtype.itemsize}")), stored

    def of_bytes(self, raw: NDArray[np.uint8]) -> NDArray[Any]:
        """Stored parameters (..., columns) from their little-endian bytes (..., columns * bytes of one)."""
        import numpy as np

        if self.name == "bfloat16" or self.element is not None:
            return np.ascontiguousarray(raw).view(self.dtype)
        return np.ascontiguousarray(raw).view(self.dtype.newbyteorder("<")).astype(self.dtype)

    def is_nan(self, stored: NDArray[Any]) -> NDArray[np.bool_]:
        """Which stored parameters are NaN."""
        import numpy as np

        found: NDArray[np.bool_] = np.isnan(self.values(stored))
        return found

    def differs(self, expected: NDArray[Any], found: NDArray[Any]) -> NDArray[np.bool_]:
        """Which of two arrays of stored parameters differ in a bit; two NaN are equal, whatever their bits."""
        import numpy as np

        unsigned = f"u{expected.dtype.itemsize}"
        wrong: NDArray[np.bool_] = np.ascontiguousarray(expected).view(unsigned) != np.ascontiguousarray(found).view(
            unsigned
        )
        if wrong.any():
            wrong &= ~(self.is_nan(expected) & self.is_nan(found))
        return wrong

    def for_input(self, dtype: str) -> StoreFormat:
        """The format where x has that dtype."""
        return StoreFormat(dtype) if self.name == INPUT else self

    def __str__(self) -> str:
        return " ".join((self.name, *self.policy))


@cache
def store_format(text: str) -> StoreFormat:
    """The store format that a text such as `float16` or `e8m0fnu up` names.

    Raises InputError for an unknown format, and for a float with a policy. What an element format's policy may be is
    the business of `encode`, which checks it.
    """
    name, *policy = text.split() or [""]
    if name not in FLOATS and name != INPUT and name not in ELEMENTS:
        raise unknown_name("store format:", name, (*FLOATS, INPUT, *ELEMENTS))
    if policy and name not in ELEMENTS:
        raise InputError(f"{name} rounds to nearest even, it takes no policy; got {text!r}")
    return StoreFormat(name, tuple(policy))

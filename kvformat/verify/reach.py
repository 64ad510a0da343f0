"""What a given per-tensor scale does to K or V: the share beyond its reach, and the share that becomes zero.

A writer may store the right codes for a scale that is wrong itself: k_scale twenty times too small leaves 0x7E nearly
everywhere, byte for byte as its recipe says. `check` knows K, V and the scale, so it can say so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvformat.elements.formats import element
from kvformat.recipes.program import Recipe
from kvformat.recipes.quantizer import Quantized

_DTYPES = {2: np.uint16, 4: np.uint32}
#: from this share on a report warns. On real K and V (SmolLM2-135M, layers 0, 12, 20, 29) amax / 448 loses at most
#: 0.00004 of the elements, vLLM's default scale 1.0 up to 0.0016, and 0.03 of V in layer 0, which is warned about
WARN = 0.01


@dataclass
class Reach:
    """Counts of elements, and what the scale reaches."""

    scale: np.float32
    #: the largest value that a code stands for with this scale
    largest: float
    elements: int = 0
    #: finite, and nearer to what would come after the largest value than to that
    saturated: int = 0
    #: not zero, and stored as zero: by their own code, or because the scale of their block is zero
    vanished: int = 0

    @classmethod
    def of(cls, how: Recipe, scale: np.float32) -> Reach:
        """Nothing counted yet. how: with one level of scales beside the pages, which is `scale`."""
        return cls(scale, _largest(how, scale))

    def add(self, x: NDArray[Any], found: Quantized) -> None:
        """Count some tokens. x: (tokens, heads, dims), what the codes `found` were made from."""
        bits: Any = _DTYPES[x.dtype.itemsize]
        magnitude = np.ascontiguousarray(x).view(bits) & bits(np.iinfo(bits).max >> 1)
        infinity = np.array(np.inf, x.dtype).view(bits)[()]
        limit = _bits_below(self.largest * _margin(found.recipe), x.dtype)
        self.elements += x.size
        self.saturated += int(np.count_nonzero((magnitude > limit) & (magnitude < infinity)))
        self.vanished += int(np.count_nonzero(_zeros(found) & (magnitude != 0)))

    def join(self, other: Reach) -> None:
        """Count what another one has counted for the same scale."""
        self.elements += other.elements
        self.saturated += other.saturated
        self.vanished += other.vanished

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {"largest": self.largest, "elements": self.elements, "saturated": self.saturated,
                "vanished": self.vanished}  # fmt: skip

    def lines(self, side: str) -> list[str]:
        """What the report says of `side` ("k")."""
        if not self.elements:
            return []
        beyond, lost = self.saturated / self.elements, self.vanished / self.elements
        said = (
            f"  {side}_scale reaches {self.largest:.6g}: {_share(beyond)} of {side.upper()} lies beyond, {_share(lost)}"
            " is stored as zero and is not"
        )
        warnings = []
        if beyond >= WARN:
            warnings.append(f"  WARNING: {side}_scale is too small for {side.upper()}: {_share(beyond)} saturates")
        if lost >= WARN:
            warnings.append(f"  WARNING: {side}_scale is too large for {side.upper()}: {_share(lost)} becomes zero")
        return [said, *warnings]


def _share(share: float) -> str:
    return "none" if not share else f"{100 * share:.2g} %" if share < 0.995 else f"{100 * share:.4g} %"


def _largest(how: Recipe, scale: np.float32) -> float:
    """What the largest code decodes to, beside the largest scale within a row."""
    assert how.element is not None
    width = (how.inner.granularity.dims or 1) if how.inner else 1
    codes = np.full((1, 1, width), _top_code(how.element), np.uint8)
    if element(how.element).signed_integer:
        codes = codes.view(np.int8)
    if how.inner is None:
        made = Quantized(codes, np.full(1, scale, np.float32), np.float32(1), how)
    else:
        stored = how.inner.store.split()[0]
        top = np.finfo(np.float32).max if stored == "float32" else np.uint8(_top_code(stored))
        shape = (1, 1, 1) if how.inner.granularity.dims else (1, 1)
        made = Quantized(codes, np.full(shape, top), scale, how)
    return float(made.dequantize(np.float64)[0, 0, 0])


def _top_code(name: str) -> int:
    values = element(name).values()
    return int(np.argmax(np.where(np.isfinite(values), values, -1)))


def _margin(how: Recipe) -> float:
    """How far past the largest value a quotient still rounds to it: 464 / 448 for e4m3fn."""
    assert how.element is not None
    values = element(how.element).values()
    below, top = np.sort(np.unique(values[np.isfinite(values)]))[-2:].astype(np.float64)
    return float((top + (top - below) / 2) / top)


def _bits_below(limit: float, dtype: np.dtype[Any]) -> Any:
    """The bits of the largest number of a dtype that is at most `limit`, which is > 0."""
    bits: Any = _DTYPES[dtype.itemsize]
    with np.errstate(over="ignore"):
        rounded = np.array(limit, np.float64).astype(np.float32).astype(dtype)
    pattern = rounded.view(bits)[()]
    return pattern - bits(1) if float(rounded) > limit else pattern


def _zeros(found: Quantized) -> NDArray[np.bool_]:
    """Which codes are stored as zero though no block's arithmetic asks for it: (tokens, heads, dims)."""
    how = found.recipe
    assert how.element is not None
    if how.inner is None:
        codes = found.codes.view(np.uint8)
        zero = np.zeros(codes.shape, bool)
        for code in np.flatnonzero(element(how.element).values() == 0):
            zero |= codes == np.uint8(code)
        return zero
    scales = how.inner.format.values(found.scales).reshape(*found.codes.shape[:2], -1)
    return np.repeat(scales == 0, found.codes.shape[2] // scales.shape[2], axis=2)

"""The page "which one am I holding?": what a size, a byte or a scale gives away, computed from catalogue and sample."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

import kvformat
from kvformat.data import sample
from kvformat.elements.formats import element
from kvformat.layouts import LAYOUTS
from kvformat.recipes.catalogue import names
from kvformat.recipes.catalogue import recipe as find
from spec_pages import layouts
from spec_pages.text import Statement, bullets, page, table

_SIZES: dict[str, Any] = {"block_size": 64, "num_kv_heads": 8, "head_size": 128}


def files() -> dict[str, str]:
    """Path under spec/ and text of the page."""
    values = {"sizes": _sizes(), "bytes": bullets(_BYTES), "scales": bullets(_SCALES), "recipes": _stored_alike()}
    return {"which.md": page("which.md", values)}


def _sizes() -> str:
    """Bytes per token of every layout and mode, from small to large; those of one size together."""
    found: dict[tuple[float, str], list[str]] = defaultdict(list)
    for entry in LAYOUTS.values():
        for mode, form in entry.modes:
            made = layouts.made(entry, mode, _SIZES, order=form.orders[0])
            heads = f"{made.num_kv_heads} x {made.head_size}"
            found[made.natural_bytes / made.block_size, heads].append(
                f"[{entry.name}](layouts/{entry.name}.md) `{mode}`"
            )
    rows = [(f"{size:g}", heads, ", ".join(held)) for (size, heads), held in sorted(found.items())]
    return table(("bytes per token", "heads x dims", "layout and mode"), rows, right=("bytes per token",))


# --- what bytes give away --------------------------------------------------------------------------------------------


def _quantized(mode: str) -> Any:
    return kvformat.quantize(sample()[1].key, mode)


def _row_maxima(mode: str) -> NDArray[np.int64]:
    made = _quantized(mode)
    patterns = made.codes.view(np.uint8).astype(np.int64)
    sizes = np.abs(made.codes.astype(np.int64)) if made.codes.dtype == np.int8 else patterns & 0x7F
    maxima: NDArray[np.int64] = sizes.max(axis=-1)
    return maxima


def _all_bytes_are_codes(name: str) -> bool:
    fmt = element(name)
    return not fmt.nan_codes and not fmt.inf_codes


_BYTES = (
    Statement(
        "In `fp8_per_token_head` every row of a token and head holds a `0x7E` or `0xFE`, its largest element: 448 is "
        "what amax becomes. Rows without one are per tensor, or padding.",
        lambda: (
            bool((_row_maxima("fp8_per_token_head") == 0x7E).all())
            and not bool((_row_maxima("fp8_per_tensor") == 0x7E).all())
        ),
    ),
    Statement(
        "In `int8_per_token_head` every row holds a 127 or -127, and none a -128 (`0x80`).",
        lambda: bool((_row_maxima("int8_per_token_head") == 127).all()),
    ),
    Statement(
        "`0x80` is -0 in e4m3fn and e5m2, and the NaN in the fnuz formats. A page in which it is frequent is no fnuz "
        "page: no finite number becomes `0x80` there.",
        lambda: (
            element("e4m3fnuz").nan_codes == (0x80,)
            and not np.any(kvformat.encode(np.linspace(-600, 600, 100_001).astype(np.float32), "e4m3fnuz") == 0x80)
        ),
    ),
    Statement(
        "`0x7F` and `0xFF` are NaN in e4m3fn, and 240 and -240 in e4m3fnuz: a page that reads as full of NaN may be "
        "the other format.",
        lambda: element("e4m3fnuz").value(0x7F) == 240 and 0x7F in element("e4m3fn").nan_codes,
    ),
    Statement(
        "The same byte means twice as much in e4m3fn as in e4m3fnuz: K and V that are off by a factor of two were read "
        "in the other format, or with its scale.",
        lambda: all(element("e4m3fn").value(code) == 2 * element("e4m3fnuz").value(code) for code in range(1, 0x7F)),
    ),
    Statement(
        "Every byte is two e2m1fn codes, and every byte is an int8: nothing in the codes alone tells 4-bit data from "
        "integers. Their scales do.",
        lambda: _all_bytes_are_codes("e2m1fn") and _all_bytes_are_codes("int8"),
    ),
)

_SCALES = (
    Statement(
        "A scale is a decode multiplier if code value x scale is the size of K or V: amax / 448 for e4m3fn, amax / 127 "
        "for int8. Real K has amax between 0.1 and 500; a scale far above 1 is the reciprocal, or another format's.",
        lambda: bool(np.all(_quantized("fp8_per_token_head").scales < 1)),
    ),
    Statement(
        "The block scales of nvfp4 are e4m3fn without a sign: their bytes lie in `0x00` .. `0x7F`. Bytes above belong "
        "to data, or to e8m0fnu scales, which gather around `0x7F` (1.0).",
        lambda: bool(np.all(_quantized("nvfp4").scales <= 0x7F)),
    ),
    Statement(
        "The largest block scale under a computed global scale is `0x7E`: 448 is what the tensor's amax becomes.",
        lambda: int(_quantized("nvfp4").scales.max()) == 0x7E,
    ),
)


def _stored_alike() -> str:
    """Recipes by what they store: those of a line cannot be told apart by kinds and sizes, only by their bytes."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name in names():
        recipe = find(name)
        if recipe.element is not None:
            scales = ", ".join(f"{level.granularity.name} {level.store}" for level in recipe.levels) or "none"
            found[recipe.element, scales].append(f"[{name}](recipes/{name}.md)")
    rows = [(f"`{fmt}`", scales, ", ".join(held)) for (fmt, scales), held in found.items()]
    return table(("codes", "scales", "recipes"), rows)

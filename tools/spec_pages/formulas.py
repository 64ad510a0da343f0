"""Where an entry lies, as formulas a kernel can be written from; each is checked against the layout for every entry."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvformat.layouts import Layout

Index = int | NDArray[np.int64]

#: what the letters mean; the formulas are Python expressions, so // is integer division
LETTERS = {
    "t, h, d": "slot in the page, head, dim",
    "B, H": "block_size, num_kv_heads",
    "Dk, Dv": "head_size, head_size_v",
    "W": "bytes of a stored value: 2 for bfloat16 and float16, 4 for float32, 1 for e4m3fn",
    "i": "number of a token's head in the page: `t*H + h` in order NHD, `h*B + t` in order HND",
    "N": "`B*H`",
}


@dataclass(frozen=True)
class Formulas:
    """Helper definitions in order, and for each region the page byte of an entry."""

    where: tuple[tuple[str, str], ...]
    regions: tuple[tuple[str, str], ...]

    def byte(self, region: str, values: dict[str, Index]) -> Index:
        """The page byte that the formula of a region gives: an integer, or an array of them."""
        names = dict(values)
        for name, expression in self.where:
            names[name] = eval(expression, {}, names)
        found: Index = eval(dict(self.regions)[region], {}, names)
        return found


_CELL = Formulas(
    (("C", "W*(Dk + Dv)"),),
    (("K data", "i*C + W*d"), ("V data", "i*C + W*Dk + W*d")),
)
_SCALED_CELL = Formulas(
    (("C", "Dk + 4 + Dv + 4"),),
    (
        ("K data", "i*C + d"),
        ("K scale", "i*C + Dk"),
        ("V data", "i*C + Dk + 4 + d"),
        ("V scale", "i*C + Dk + 4 + Dv"),
    ),
)
_FOUR = (
    ("K data", "i*(Dk//2) + d//2"),
    ("K scale", "N*Dk//2 + i*(Dk//16) + d//16"),
    ("V data", "N*Dk//2 + N*Dk//16 + i*(Dv//2) + d//2"),
)
_V_SCALES = ("V0", "N*Dk//2 + N*Dk//16 + N*Dv//2")
_FOUR_LINEAR = Formulas((_V_SCALES,), (*_FOUR, ("V scale", "V0 + i*(Dv//16) + d//16")))


def _swizzled(row: str) -> Formulas:
    """V scales after the swizzle: entry (t, g) stands where (t', g') would stand."""
    where = (_V_SCALES, ("S", "Dv//16"), ("g", "d//16"), ("t2", "t//4*4 + g//(S//4)"), ("g2", "g%(S//4)*4 + t%4"))
    return Formulas(where, (*_FOUR, ("V scale", f"V0 + ({row})*S + g2")))


_STACKED = Formulas((), (("K data", "i*W*Dk + W*d"), ("V data", "N*W*Dk + i*W*Dv + W*d")))
_STACKED_FP4 = Formulas(
    (("K0", "N*Dk//2 + N*Dv//2"),),
    (
        ("K data", "i*(Dk//2) + d//2"),
        ("V data", "N*Dk//2 + i*(Dv//2) + d//2"),
        ("K scale", "K0 + i*(Dk//16) + d//16"),
        ("V scale", "K0 + N*Dk//16 + i*(Dv//16) + d//16"),
    ),
)

#: by layout, mode, V scale choice and order ("": both)
FORMULAS: dict[tuple[str, str, str, str], Formulas] = {
    ("vllm-0.33", "none", "", ""): _CELL,
    ("vllm-0.33", "fp8_per_tensor", "", ""): _CELL,
    ("vllm-0.33", "fp8_per_token_head", "", ""): _SCALED_CELL,
    ("vllm-0.33", "int8_per_token_head", "", ""): _SCALED_CELL,
    ("vllm-0.33", "nvfp4", "linear", ""): _FOUR_LINEAR,
    ("vllm-0.33", "nvfp4", "swizzled", "NHD"): _swizzled("t2*H + h"),
    ("vllm-0.33", "nvfp4", "swizzled", "HND"): _swizzled("h*B + t2"),
    ("flashinfer", "none", "", ""): _STACKED,
    ("flashinfer", "fp8_per_tensor", "", ""): _STACKED,
    ("flashinfer", "nvfp4", "", ""): _STACKED_FP4,
}


def formulas(page: Layout) -> Formulas:
    """The formulas of a layout, once they give the byte of every entry. Raises AssertionError for one that does not."""
    name, mode, choice = page.name, page.mode, page.v_scales or ""
    found = FORMULAS.get((name, mode, choice, "")) or FORMULAS[name, mode, choice, page.order]
    width = max(region.bits for region in page.regions if region.part == "code") // 8
    sizes: dict[str, Index] = {
        "B": page.block_size,
        "H": page.num_kv_heads,
        "Dk": page.head_size,
        "Dv": page.head_size_v,
        "W": width,
    }
    for region in page.regions:
        t, h, d = np.ogrid[: page.block_size, : page.num_kv_heads, : len(region.all_dims)]
        i = t * page.num_kv_heads + h if page.order == "NHD" else h * page.block_size + t
        names: dict[str, Index] = {**sizes, "t": t, "h": h, "d": d, "i": i, "N": page.block_size * page.num_kv_heads}
        right = region.address(t, h, d // region.dims_per_entry) // 8
        assert np.array_equal(np.broadcast_to(found.byte(region.name, names), right.shape), right), (
            page.spec,
            region.name,
        )
    return found

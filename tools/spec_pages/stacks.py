"""The page of stacks: where the pages of all layers lie in one tensor, each formula checked on every byte."""

from __future__ import annotations

import numpy as np

from kvformat.errors import InputError
from kvformat.layouts import LAYOUTS, Layout, Stack, layout
from kvformat.layouts.stack import STACK_ORDERS
from spec_pages.text import page, table

#: by order, the byte of the tensor that is byte x of the page of layer l and block b
FORMULAS = {
    "LBHNC": "(l*NB + b)*P + x",
    "LBNHC": "(l*NB + b)*P + x",
    "BLHNC": "(b*NL + l)*P + x",
    "BLNHC": "(b*NL + l)*P + x",
    "LHBNC": "((l*H + x//R)*NB + b)*R + x%R",
    "BHLNC": "((b*H + x//R)*NL + l)*R + x%R",
}
_LAYERS, _BLOCKS, _HEADS = 3, 5, 2


def files() -> dict[str, str]:
    """Path under spec/ and text of the page."""
    rows = []
    for order in STACK_ORDERS:
        made = _checked(order)
        pieces = f"{_HEADS} pieces of {made.page.page_bytes // _HEADS}" if "R" in FORMULAS[order] else "one piece"
        rows.append((f"`{order}`", made.page.order, pieces, f"`{FORMULAS[order]}`"))
    values = {
        "orders": table(("order", "page", "a page of 2 heads, 64 bytes, is in", "byte of the tensor"), rows),
        "modes": table(("mode of `vllm-0.33`", "`LHBNC`, `BHLNC`"), _modes()),
    }
    return {"layouts/stacks.md": page("layouts/stacks.md", values)}


def _page(mode: str, order: str) -> Layout:
    form = LAYOUTS["vllm-0.33"].form(mode)
    head_size = 64 if form.v_scales else 8 if mode == "int4_per_token_head" else 4
    return layout("vllm-0.33", mode=mode, block_size=4, num_kv_heads=_HEADS, head_size=head_size, order=order)


def _checked(order: str) -> Stack:
    """A small stack, once the formula gives the byte of each of its bytes. Raises AssertionError where it does not."""
    inside = "NHD" if order.index("N") < order.index("H") else "HND"
    made = Stack(_page("fp8_per_tensor", inside), _LAYERS, _BLOCKS, order)
    size = made.page.page_bytes
    assert size == 64
    layer, block, byte = np.ogrid[:_LAYERS, :_BLOCKS, :size]
    names = {"l": layer, "b": block, "x": byte, "NL": _LAYERS, "NB": _BLOCKS, "P": size, "H": _HEADS,
             "R": size // _HEADS}  # fmt: skip
    found = np.broadcast_to(eval(FORMULAS[order], {}, names), (_LAYERS, _BLOCKS, size))
    for place in np.ndindex(found.shape):
        assert made.locate(layer=place[0], block=place[1], byte=place[2]) == found[place], (order, place)
    return made


def _modes() -> list[tuple[str, str]]:
    """Which modes' pages can be cut by heads."""
    rows = []
    for mode, _ in LAYOUTS["vllm-0.33"].modes:
        try:
            Stack(_page(mode, "HND"), _LAYERS, _BLOCKS, "LHBNC")
        except InputError:
            rows.append((f"`{mode}`", "no: a head is in several regions of the page"))
        else:
            rows.append((f"`{mode}`", "yes"))
    return rows

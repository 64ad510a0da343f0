"""The built-in check: real K and V, written independently in every golden mode, judged, and broken once each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import numpy as np

from kvformat.data import Sample, sample
from kvformat.dump.dump import Dump
from kvformat.layouts import LAYOUTS, Layout, layout
from kvformat.modes import MODES
from kvformat.verify.compare import check
from kvformat.verify.plain import write_pages
from kvformat.verify.report import Report

_BLOCK_SIZE = 16
#: the layouts whose bytes `plain` writes; one that a user registered has no independent writer
_WRITTEN = ("vllm-0.33", "flashinfer")


@dataclass(frozen=True)
class Row:
    """What was done with one layout: how much held, and where the planted byte was and was found."""

    mode: str
    layout: str
    order: str
    v_scales: str
    compared: int
    mismatches: int
    planted: str
    found: str

    @property
    def ok(self) -> bool:
        """The pages hold, and the planted byte was found where it was planted."""
        return self.compared > 0 and self.mismatches == 0 and self.found == self.planted


@dataclass(frozen=True)
class Summary:
    """The verdict of the built-in check, one row per mode and layout."""

    rows: tuple[Row, ...]
    tokens: int

    @property
    def ok(self) -> bool:
        """Every row holds."""
        return bool(self.rows) and all(row.ok for row in self.rows)

    @property
    def status(self) -> int:
        """0 if every row holds, 1 if one does not, 2 if there is none: then nothing was judged."""
        return int(not self.ok) if self.rows else 2

    @property
    def compared(self) -> int:
        """Codes and scales compared in all rows."""
        return sum(row.compared for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """The rows as plain data."""
        return {
            "recipe": "golden/<mode>",
            "layout": None,
            "compared": self.compared,
            "mismatches": sum(row.mismatches for row in self.rows),
            "first": next((asdict(row) for row in self.rows if not row.ok), None),
            "rows": [{**asdict(row), "ok": row.ok} for row in self.rows],
        }


def run(*, progress: Callable[[int, int], None] | None = None) -> Summary:
    """Write, judge and break the sample's pages in every mode and layout there is."""
    layers = sample()
    layouts = list(_layouts(layers[0]))
    rows = []
    for done, made in enumerate(layouts, 1):
        rows.append(_row(made, layers[done % len(layers)]))
        if progress is not None:
            progress(done, len(layouts))
    return Summary(tuple(rows), len(layers[0].key))


def _layouts(layer: Sample) -> Iterator[Layout]:
    _, heads, dims = layer.key.shape
    for name in (name for name in LAYOUTS if name in _WRITTEN):
        golden = [(mode, form) for mode, form in LAYOUTS[name].modes if mode in MODES]
        for (mode, form), order in product(golden, ("NHD", "HND")):
            choices: list[str | None] = [choice for choice, _ in form.v_scales]
            for v_scales in choices or [None]:
                yield layout(
                    name,
                    mode=mode,
                    order=order,
                    block_size=_BLOCK_SIZE,
                    num_kv_heads=heads,
                    head_size=dims,
                    v_scales=v_scales,
                )


def _row(made: Layout, layer: Sample) -> Row:
    tokens = len(layer.key)
    blocks = tokens // _BLOCK_SIZE + 1
    slots = np.random.default_rng(tokens).permutation(blocks * _BLOCK_SIZE)[:tokens].astype(np.int64)
    slots[tokens // 3] = -1  # padding: writes nothing
    pages = write_pages(
        made.name,
        made.mode,
        made.order,
        layer.key,
        layer.value,
        slots,
        block_size=_BLOCK_SIZE,
        num_blocks=blocks,
        v_scales=made.v_scales,
    )
    judged = check(Dump.from_arrays(layer.key, layer.value, pages, slots, layout=made, recipe=f"golden/{made.mode}"))
    token, head, dim = tokens - 7, 1, 37
    slot = int(slots[token])
    where = made.locate(side="v", slot=slot % _BLOCK_SIZE, head=head, dim=dim)
    pages[slot // _BLOCK_SIZE, where.byte] ^= 1 << where.bit
    broken = check(Dump.from_arrays(layer.key, layer.value, pages, slots, layout=made, recipe=f"golden/{made.mode}"))
    planted = f"V token {token} head {head} dim {dim}"
    return Row(
        made.mode,
        made.name,
        made.order,
        made.v_scales or "",
        judged.compared,
        judged.mismatches,
        planted,
        _found(broken),
    )


def _found(report: Report) -> str:
    first = report.first
    if first is None or report.mismatches != 1:
        return f"{report.mismatches} differences"
    return f"{first['side'].upper()} token {first['token']} head {first['head']} dim {first['dim']}"

"""One page per layout: for each mode and order its regions, formulas, digits and a map of a small page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from kvformat.layouts import LAYOUTS, Digit, Explanation, Layout, Region, layout
from kvformat.layouts.entry import Entry
from spec_pages.formulas import LETTERS, Formulas, formulas
from spec_pages.statements_layouts import BOUNDS, CITED, PURPOSES
from spec_pages.text import block, bullets, grid, page, page_part, table, wrap

_ORDERS = ("NHD", "HND")
#: the page that is drawn
_SMALL = {"block_size": 4, "num_kv_heads": 2, "head_size": 64}
#: further pages on which the formulas must hold, the last one in every mode that takes unequal head sizes
_CHECKED = (
    {"block_size": 8, "num_kv_heads": 3, "head_size": 128},
    {"block_size": 12, "num_kv_heads": 1, "head_size": 192},
    {"block_size": 4, "num_kv_heads": 2, "head_size": 128, "head_size_v": 64},
)
#: the pages whose sizes are listed
_USUAL = {"block_size": 16, "num_kv_heads": 8, "head_size": 128}


def files() -> dict[str, str]:
    """Path under spec/ and text of the pages of the layouts."""
    return {f"layouts/{name}.md": _page(entry) for name, entry in LAYOUTS.items()}


def _page(entry: Entry) -> str:
    letters = "\n".join(f"- `{letter}`: {meaning}" for letter, meaning in LETTERS.items())
    small = ", ".join(f"{name} {size}" for name, size in _SMALL.items())
    return page(
        "layouts/layout.md",
        {
            "name": entry.name,
            "purpose": wrap(PURPOSES[entry.name]),
            "source": entry.source,
            "cited": "\n".join(f"- {line}" for line in CITED[entry.name]),
            "small": small,
            "letters": letters,
            "sizes": _sizes(entry),
            "bounds": bullets(BOUNDS[entry.name]),
            "modes": "\n\n".join(_section(entry, modes) for modes in _modes(entry)),
            "more": _swizzle(entry),
        },
    )


def _pages(entry: Entry, mode: str, order: str, sizes: Mapping[str, Any]) -> Iterator[Layout]:
    """The layouts of a mode and order: one for each choice of V scales, where there is a choice."""
    choices: list[str | None] = [name for name, _ in entry.form(mode).v_scales] or [None]
    for choice in choices:
        yield layout(entry.name, mode=mode, order=order, v_scales=choice, **sizes)


def _sizes(entry: Entry) -> str:
    """Bytes per cell, token and page for head_size 128."""
    rows = []
    for mode, _ in entry.modes:
        made = next(_pages(entry, mode, "NHD", _USUAL))
        stored = f" ({made.dtype})" if made.dtype else ""
        per_token = made.natural_bytes // made.block_size
        heads = made.num_kv_heads
        rows.append(
            (f"`{mode}`{stored}", f"{per_token // heads}", str(per_token), str(made.natural_bytes), f"`{made.recipe}`")
        )
    sizes = ", ".join(f"{name} {size}" for name, size in _USUAL.items())
    header = ("mode", "bytes per token and head, K and V", "per token", "per page", "recipe")
    return f"One layer, {sizes}:\n\n{table(header, rows, right=header[1:4])}"


def _modes(entry: Entry) -> list[list[str]]:
    """The modes, those together that have the same regions."""
    found: dict[tuple[Region, ...], list[str]] = {}
    for mode, _ in entry.modes:
        regions = tuple(
            region for order in _ORDERS for made in _pages(entry, mode, order, _SMALL) for region in made.regions
        )
        found.setdefault(regions, []).append(mode)
    return list(found.values())


def _section(entry: Entry, modes: list[str]) -> str:
    for mode in modes:
        _check(entry, mode)
    mode = modes[0]
    title = f"## Mode {mode}" if len(modes) == 1 else f"## Modes {' and '.join(modes)}"
    parts = [title]
    for order in _ORDERS:
        pages = list(_pages(entry, mode, order, _SMALL))
        if order == _ORDERS[0]:
            parts.append(_shape(pages[0]))
        parts += [_whole(pages[0], f"### {order}"), *(_changed(other, pages[0], f"### {order}") for other in pages[1:])]
    return "\n\n".join(parts)


def _check(entry: Entry, mode: str) -> None:
    """Raises AssertionError unless the formulas give the byte of every entry, on pages of several sizes."""
    for sizes in (_SMALL, *_CHECKED):
        if "head_size_v" in sizes and entry.form(mode).head_sizes == "equal":
            continue
        for order in _ORDERS:
            for made in _pages(entry, mode, order, sizes):
                formulas(made)


def _shape(page: Layout) -> str:
    """What a page is made of."""
    stored = f", dtype {page.dtype}" if page.dtype else ""
    held = ", ".join(f"{region.name} {region.columns} x {region.bits} bits" for region in page.regions)
    return wrap(f"The example page has {page.natural_bytes} bytes{stored}. For each token and head it holds: {held}.")


def _whole(page: Layout, title: str) -> str:
    """The sections of one page: regions and formulas, digits, and the map."""
    found = formulas(page)
    choice = f", V scales {page.v_scales}" if page.v_scales else ""
    regions = page.regions
    parts = [
        f"{title}{choice}",
        _regions(regions, found),
        _where(found),
        _digits(regions),
        block(_map_text(_map(page))),
    ]
    return "\n\n".join(filter(None, parts))


def _changed(page: Layout, other: Layout, title: str) -> str:
    """The same for a page that differs from another one in a few regions: those alone."""
    found, known = formulas(page), set(other.regions)
    regions = tuple(region for region in page.regions if region not in known)
    lines = [row for row in _map(page) if row not in set(_map(other))]
    intro = f"As with {other.v_scales} V scales, but for:"
    parts = [f"{title}, V scales {page.v_scales}", intro, _regions(regions, found), _where(found), _digits(regions)]
    return "\n\n".join(filter(None, (*parts, block(_map_text(lines)))))


def _where(found: Formulas) -> str:
    lines = "\n".join(f"{name} = {expression}" for name, expression in found.where)
    return f"with\n\n{block(lines)}" if lines else ""


def _regions(regions: tuple[Region, ...], found: Formulas) -> str:
    rows = []
    for region in regions:
        described = region.describe()
        strides = [_stride(described[name]) for name in ("slot_stride", "head_stride")]
        formula = dict(found.regions)[region.name]
        rows.append((region.name, str(region.offset), str(region.num_bytes), *strides, f"`{formula}`"))
    header = ("region", "first byte", "bytes", "slot stride", "head stride", "byte of an entry")
    return table(header, rows, right=header[1:5])


def _stride(stride: object) -> str:
    return "digits" if stride is None else str(stride)


def _digits(regions: tuple[Region, ...]) -> str:
    rows = [
        (region.name, *(_digit_text(digits) for digits in (region.slot, region.head, region.column)))
        for region in regions
    ]
    return table(("digits of", "slot", "head", "column"), rows)


def _digit_text(digits: tuple[Digit, ...]) -> str:
    def stride(bits: int) -> str:
        return f"{bits} bits" if bits % 8 else str(bits // 8)

    return ", ".join(f"{digit.size} x {stride(digit.stride)}" for digit in digits)


# --- the map ---------------------------------------------------------------------------------------------------------

Row = tuple[str, ...]


def _map(page: Layout) -> list[Row]:
    """Every byte of the page: one row for each token's head, or for four swizzled scales."""
    rows: list[Row] = []
    for line in _lines(page):
        first, last, found = line[0][0], line[-1][1], line[0][2]
        if len({each.slot for _, _, each in line}) > 1:
            held = "  ".join(f"t{each.slot}{_dims(page, each)}" for _, _, each in line)
            rows.append((f"{first}..{last}", f"head {found.head}", f"{found.region} {held}"))
            continue
        pieces = (
            f"{f'{start}..{stop}: ' if len(line) > 1 else ''}{each.region} {_dims(page, each)}"
            for start, stop, each in line
        )
        rows.append((f"{first}..{last}", f"slot {found.slot} head {found.head}", *(piece.strip() for piece in pieces)))
    return rows


def _map_text(rows: list[Row]) -> str:
    """The rows in columns."""
    width = max(map(len, rows))
    padded = [(*row, *[""] * (width - len(row))) for row in rows]
    return grid(("bytes", "", "contents", *[""] * (width - 3)), padded, left=width)


Run = tuple[int, int, Explanation]


def _lines(page: Layout) -> Iterator[list[Run]]:
    """Runs of bytes that belong on one line of the map."""
    runs = list(_runs(page))
    for _, several in groupby(
        runs, key=lambda run: (run[2].slot, run[2].head) if _long(run) else run[2].region + str(run[2].head)
    ):
        line = list(several)
        step = len(line) if _long(line[0]) else 4
        yield from (line[start : start + step] for start in range(0, len(line), step))


def _long(run: Run) -> bool:
    return run[1] > run[0]


def _runs(page: Layout) -> Iterator[Run]:
    """Bytes that follow each other in one region, slot and head: the first, the last, and what all of them hold."""
    start, held = 0, page.explain(byte=0)
    for byte in range(1, page.page_bytes + 1):
        found = page.explain(byte=byte) if byte < page.page_bytes else None
        same = found is not None and (found.region, found.slot, found.head) == (held.region, held.slot, held.head)
        if same and found is not None and held.dims.start <= found.dims.start <= held.dims.stop:
            dims = range(held.dims.start, found.dims.stop)
            held = Explanation(held.side, held.part, held.slot, held.head, dims, held.region)
            continue
        yield start, byte - 1, held
        if found is not None:
            start, held = byte, found


def _dims(page: Layout, found: Explanation) -> str:
    """`d0..63` for codes, `g0..3` for scales of groups, nothing for a scale that all dims share."""
    shared = next(region.dims_per_entry for region in page.regions if region.name == found.region)
    if found.part == "scale" and shared == (page.head_size if found.side == "k" else page.head_size_v):
        return ""
    letter, first, last = "d", found.dims.start, found.dims.stop - 1
    if found.part == "scale":
        letter, first, last = "g", first // shared, last // shared
    return f"{letter}{first}" if first == last else f"{letter}{first}..{last}"


# --- the swizzle -----------------------------------------------------------------------------------------------------


def _swizzle(entry: Entry) -> str:
    """The swizzled V scales drawn out, where the layout has them."""
    if not any(form.v_scales for _, form in entry.modes):
        return ""
    parts = []
    for head_size in (64, 128):
        pages = {
            choice: layout(
                entry.name,
                mode="nvfp4",
                order="HND",
                block_size=4,
                num_kv_heads=1,
                head_size=head_size,
                v_scales=choice,
            )
            for choice in ("linear", "swizzled")
        }
        groups = head_size // 16
        drawn = [f"{choice}\n{_plane(page, groups)}" for choice, page in pages.items()]
        parts.append(f"head_size {head_size}: 4 tokens x {groups} groups.\n\n" + block("\n\n".join(drawn)))
    return page_part("layouts/swizzle.md", {"drawings": "\n\n".join(parts)})


def _plane(page: Layout, groups: int) -> str:
    offset = page.region(side="v", part="scale").offset
    cells = {}
    for slot in range(4):
        for group in range(groups):
            place = page.locate(side="v", slot=slot, head=0, dim=16 * group, part="scale")
            cells[place.byte - offset] = f"t{slot}g{group}"
    assert sorted(cells) == list(range(4 * groups))
    rows = [(f"+{row * groups}", *(cells[row * groups + column] for column in range(groups))) for row in range(4)]
    return grid(("byte", *(f"+{column}" for column in range(groups))), rows)


def summary() -> str:
    """The layouts and their modes, for the index."""
    rows = [
        (f"[`{name}`](layouts/{name}.md)", ", ".join(f"`{mode}`" for mode, _ in entry.modes), entry.source)
        for name, entry in LAYOUTS.items()
    ]
    return table(("layout", "modes", "source"), rows)

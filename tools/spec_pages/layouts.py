"""One page per layout: for each mode and order its regions, formulas, digits and a map of a small page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from kvformat.errors import InputError
from kvformat.layouts import LAYOUTS, Digit, Explanation, Layout, Region, layout
from kvformat.layouts.entry import Entry, Form
from spec_pages import diagrams
from spec_pages.formulas import LETTERS, Formulas, formulas
from spec_pages.statements_layouts import BOUNDS, CITED, PURPOSES
from spec_pages.text import block, bullets, grid, page, page_part, table, wrap

#: the page that is drawn: the first of these that a mode can have
_SMALL = {"block_size": 4, "num_kv_heads": 2, "head_size": 64}
_SMALLS = (_SMALL, {**_SMALL, "head_size": 128}, {**_SMALL, "block_size": 32})
#: further pages on which the formulas must hold, where a mode can have them
_CHECKED = (
    {"block_size": 8, "num_kv_heads": 3, "head_size": 128},
    {"block_size": 12, "num_kv_heads": 1, "head_size": 192},
    {"block_size": 4, "num_kv_heads": 2, "head_size": 128, "head_size_v": 64},
    {"block_size": 64, "num_kv_heads": 2, "head_size": 64, "head_size_v": 192},
)
#: the layouts whose swizzle is drawn
_DRAWN = ("vllm-0.33",)
#: the pages whose sizes are listed
_USUAL = {"block_size": 64, "num_kv_heads": 8, "head_size": 128}


def files() -> dict[str, str]:
    """Path under spec/ and text of the pages of the layouts, and of the maps that they show."""
    pages = {f"layouts/{name}.md": _page(entry) for name, entry in LAYOUTS.items()}
    return pages | diagrams.map_files(page for entry in LAYOUTS.values() for page in _drawn(entry))


def _page(entry: Entry) -> str:
    letters = "\n".join(f"- `{letter}`: {meaning}" for letter, meaning in LETTERS.items())
    return page(
        "layouts/layout.md",
        {
            "name": entry.name,
            "purpose": wrap(PURPOSES[entry.name]),
            "source": entry.source,
            "cited": "\n".join(f"- {line}" for line in CITED[entry.name]),
            "letters": letters,
            "sizes": _sizes(entry),
            "bounds": bullets(BOUNDS[entry.name]),
            "modes": "\n\n".join(_section(entry, modes) for modes in _modes(entry)),
            "more": _swizzle(entry) if entry.name in _DRAWN else "",
        },
    )


def made(entry: Entry, mode: str, sizes: Mapping[str, Any], **choices: Any) -> Layout:
    """The layout of those sizes, but for what the form fixes. Raises InputError for a page that it cannot have."""
    form = entry.form(mode)
    fixed = {"num_kv_heads": form.num_kv_heads, "head_size": form.head_size}
    given = {**sizes, **{name: size for name, size in fixed.items() if size}}
    if "v" not in form.sides or form.head_size:
        given.pop("head_size_v", None)
    return layout(entry.name, mode=mode, **given, **choices)


def _pages(entry: Entry, mode: str, order: str, sizes: Mapping[str, Any]) -> Iterator[Layout]:
    """The layouts of a mode and order: one for each choice of V scales, where there is a choice."""
    choices: list[str | None] = [name for name, _ in entry.form(mode).v_scales] or [None]
    for choice in choices:
        yield made(entry, mode, sizes, order=order, v_scales=choice)


def _small(entry: Entry, mode: str) -> Mapping[str, Any]:
    """The sizes of the page that is drawn."""
    for sizes in _SMALLS:
        try:
            list(_pages(entry, mode, entry.form(mode).orders[0], sizes))
        except InputError:
            continue
        return sizes
    raise AssertionError(f"no small page of {entry.name} in mode {mode}")


def _sizes(entry: Entry) -> str:
    """Bytes per cell, token and page for head_size 128."""
    rows = []
    for mode, form in entry.modes:
        made = next(_pages(entry, mode, form.orders[0], _USUAL))
        stored = f" ({made.dtype})" if made.dtype else ""
        heads = "-" if form.num_kv_heads else f"{made.natural_bytes / made.block_size / made.num_kv_heads:g}"
        per_token = f"{made.natural_bytes / made.block_size:g}"
        rows.append((f"`{mode}`{stored}", heads, per_token, str(made.natural_bytes), f"`{made.recipe}`"))
    usual = {name: size for name, size in _USUAL.items() if name == "block_size" or not _latent(entry)}
    sizes = ", ".join(f"{name} {size}" for name, size in usual.items())
    header = ("mode", "bytes per token and head, K and V", "per token", "per page", "recipe")
    return f"One layer, {sizes}:\n\n{table(header, rows, right=header[1:4])}"


def _latent(entry: Entry) -> bool:
    return all(form.num_kv_heads for _, form in entry.modes)


def _modes(entry: Entry) -> list[list[str]]:
    """The modes, those together that have the same regions."""
    found: dict[tuple[Region, ...], list[str]] = {}
    for mode, form in entry.modes:
        regions = tuple(
            region
            for order in form.orders
            for made in _pages(entry, mode, order, _small(entry, mode))
            for region in made.regions
        )
        found.setdefault(regions, []).append(mode)
    return list(found.values())


def _section(entry: Entry, modes: list[str]) -> str:
    for mode in modes:
        _check(entry, mode)
    mode, form = modes[0], entry.form(modes[0])
    title = f"## Mode {mode}" if len(modes) == 1 else f"## Modes {' and '.join(modes)}"
    parts = [title]
    for orders in _orders(form):
        pages = list(_pages(entry, mode, orders[0], _small(entry, mode)))
        if len(parts) == 1:
            parts += filter(None, (_shape(pages[0]), _tensors(pages[0])))
        heading = f"### {' and '.join(orders)}"
        parts += [_whole(pages[0], heading), *(_changed(other, pages[0], heading) for other in pages[1:])]
    return "\n\n".join(parts)


def _drawn(entry: Entry) -> Iterator[Layout]:
    """The pages whose maps are drawn: those of each section."""
    for modes in _modes(entry):
        for orders in _orders(entry.form(modes[0])):
            yield from _pages(entry, modes[0], orders[0], _small(entry, modes[0]))


def _orders(form: Form) -> list[tuple[str, ...]]:
    """The orders of a mode, together where there is one head and they do not differ."""
    if form.num_kv_heads == 1:
        return [form.orders]
    return [(order,) for order in form.orders]


def _check(entry: Entry, mode: str) -> None:
    """Raises AssertionError unless the formulas give the byte of every entry, on pages of several sizes."""
    checked = 0
    for sizes in (*_SMALLS, *_CHECKED):
        for order in entry.form(mode).orders:
            try:
                pages = list(_pages(entry, mode, order, sizes))
            except InputError:
                continue
            checked += len([formulas(made) for made in pages])
    assert checked > 1, (entry.name, mode)


def _shape(page: Layout) -> str:
    """What a page is made of."""
    stored = f", dtype {page.dtype}" if page.dtype else ""
    held = ", ".join(f"{region.name} {region.columns} x {region.bits} bits" for region in page.regions)
    own = "".join(f" {region.name} follows `{region.recipe}`." for region in page.regions if region.recipe)
    copies = "".join(
        f" A {region.name} is its byte {region.copies} times." for region in page.regions if region.copies > 1
    )
    sizes = f"block_size {page.block_size}, num_kv_heads {page.num_kv_heads}, head_size {page.head_size}"
    example = f"The example page, {sizes}, has {page.natural_bytes} bytes{stored}."
    return wrap(f"{example} For each token and head it holds: {held}.{own}{copies}")


def _tensors(page: Layout) -> str:
    """In which tensors of the engine a page lies, where it has several."""
    if len(page.tensors) < 2:
        return ""
    held = ", ".join(f"`{name}` {size} bytes" for name, size in page.tensors)
    return wrap(f"The engine keeps it in {len(page.tensors)} tensors, one after the other here: {held}.")


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
        _image(page),
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
    return "\n\n".join(filter(None, (*parts, _image(page), block(_map_text(lines)))))


def _image(page: Layout) -> str:
    return f"![map of the page]({diagrams.map_path(page)})"


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
        if found.part == "padding":
            rows.append((f"{first}..{last}", "", "padding"))
            continue
        slots = {each.slot for _, _, each in line}
        if len(slots) > 1 or not any(map(_long, line)):
            held = "  ".join(f"{f't{each.slot}' if len(slots) > 1 else ''}{_dims(page, each)}" for _, _, each in line)
            whose = f"head {found.head}" if len(slots) > 1 else f"slot {found.slot} head {found.head}"
            rows.append((f"{first}..{last}", whose, f"{found.region} {held}"))
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
        step = len(line) if _long(line[0]) else 8 if len({run[2].slot for run in line}) == 1 else 4
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
    """The swizzled V scales drawn out."""
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

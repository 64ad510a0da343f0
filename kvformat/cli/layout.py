"""kvformat layout: where every code and scale of a page lies, and what one of its bytes means."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvformat.cli import complete
from kvformat.cli.outcome import HOLDS, print_json, say
from kvformat.errors import InputError
from kvformat.layouts import load_layout

if TYPE_CHECKING:
    from kvformat.layouts import Layout
    from kvformat.layouts.page import Explanation, Location


def layout(
    name: Annotated[str, typer.Argument(help="Layout: vllm-0.33, flashinfer, ...", autocompletion=complete.layouts)],
    mode: Annotated[
        str,
        typer.Option(help="none, fp8_per_tensor, nvfp4, ...: one that the layout has.", autocompletion=complete.modes),
    ],
    block_size: Annotated[int, typer.Option(help="Slots in a page.")],
    num_kv_heads: Annotated[int | None, typer.Option(help="KV heads in a page; latent attention has one.")] = None,
    head_size: Annotated[int | None, typer.Option(help="Dims per head, of K; latent rows have one size.")] = None,
    head_size_v: Annotated[int | None, typer.Option(help="Dims per head, of V; as K where it is not given.")] = None,
    order: Annotated[str | None, typer.Option(help="NHD or HND; the layout's first one if not given.")] = None,
    v_scales: Annotated[str | None, typer.Option(help="swizzled or linear, where the layout has the choice.")] = None,
    page_bytes: Annotated[int | None, typer.Option(help="Bytes from page to page, padding included.")] = None,
    dtype: Annotated[str | None, typer.Option(help="Of the stored values, mode none only.")] = None,
    nibbles: Annotated[str | None, typer.Option(help="low_first or high_first, for 4-bit codes.")] = None,
    byte: Annotated[int | None, typer.Option(help="Say what this byte of the page holds.")] = None,
    locate: Annotated[str | None, typer.Option(help="SIDE,SLOT,HEAD,DIM[,scale]: say where this entry lies.")] = None,
    layout_file: Annotated[str | None, typer.Option(help="A TOML file with a layout that NAME may be.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """Where every code and scale of a page lies. --byte and --locate answer one question instead."""
    from kvformat.layouts import layout as find_layout

    if byte is not None and locate is not None:
        raise InputError("--byte and --locate are two questions; ask one at a time")
    if layout_file:
        load_layout(layout_file)
    page = find_layout(
        name,
        mode=mode,
        block_size=block_size,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        head_size_v=head_size_v,
        order=order,
        v_scales=v_scales,
        page_bytes=page_bytes,
        dtype=dtype,
        nibbles=nibbles,
    )
    answer = None
    if byte is not None:
        answer = _byte_json(byte, page.explain(byte=byte))
    elif locate is not None:
        answer = _locate(page, locate)
    if as_json:
        return print_json(page.describe() if answer is None else {"layout": page.name, "mode": page.mode, **answer})
    if answer is None:
        _show(page)
    else:
        say(answer["text"])
    return HOLDS


def _byte_json(byte: int, found: Explanation) -> dict[str, Any]:
    if found.part == "padding":
        return {"byte": byte, "part": "padding", "text": f"byte {byte}: padding"}
    first, last = found.dims.start, found.dims.stop - 1
    dims = f"dim {first}" if first == last else f"dims {first}..{last}"
    text = f"byte {byte}: {found.region}: {found.part} of {found.side}, slot {found.slot}, head {found.head}, {dims}"
    place = {"side": found.side, "part": found.part, "slot": found.slot, "head": found.head, "dims": [first, last]}
    return {"byte": byte, "region": found.region, **place, "text": text}


def _locate(page: Layout, question: str) -> dict[str, Any]:
    """The answer to SIDE,SLOT,HEAD,DIM[,PART]."""
    words = question.replace(" ", "").split(",")
    part = words.pop() if len(words) == 5 else "code"
    if len(words) != 4 or not all(word.isascii() and word.isdigit() and len(word) < 10 for word in words[1:]):
        raise InputError(f"--locate takes SIDE,SLOT,HEAD,DIM[,scale], such as k,3,2,17; got {question[:40]!r}")
    slot, head, dim = map(int, words[1:])
    found = page.locate(side=words[0], slot=slot, head=head, dim=dim, part=part)
    place = {"side": words[0], "part": part, "slot": slot, "head": head, "dim": dim}
    text = f"{part} of {words[0]}, slot {slot}, head {head}, dim {dim}: {_place(found)}"
    return {**place, "byte": found.byte, "bit": found.bit, "bits": found.bits, "text": text}


def _place(found: Location) -> str:
    if found.bits >= 8:
        last = found.byte + found.bits // 8 - 1
        return f"byte {found.byte}" if last == found.byte else f"bytes {found.byte}..{last}"
    return f"byte {found.byte}, bits {found.bit}..{found.bit + found.bits - 1}"


def _show(page: Layout) -> None:
    from kvformat.cli import console

    out = console.stdout()
    out.print(" ".join(f"{name}={value}" for name, value in page.spec.items()), style="bold")
    columns = ("offset", "bytes", "slot stride", "head stride", "bits per entry", "dims per entry")
    table = console.grid("region", *columns, right=columns)
    for described in (region.describe() for region in page.regions):
        strides = ("-" if described[name] is None else str(described[name]) for name in ("slot_stride", "head_stride"))
        sizes = (str(described[name]) for name in ("bits_per_entry", "dims_per_entry"))
        table.add_row(str(described["name"]), str(described["offset"]), str(described["bytes"]), *strides, *sizes)
    if page.page_bytes > page.natural_bytes:
        padding = (str(page.natural_bytes), str(page.page_bytes - page.natural_bytes))
        table.add_row("padding", *padding, "-", "-", "-", "-")
    out.print(table)
    per_token = page.page_bytes / page.block_size
    out.print(f"{page.page_bytes} bytes per page, {per_token:g} per token; recipe {page.recipe}")
    for region in page.regions:
        if region.recipe:
            out.print(f"- {region.name} by {region.recipe}")
    if len(page.tensors) > 1:
        held = ", ".join(f"{name} {size}" for name, size in page.tensors)
        out.print(f"- bytes of a page in each of the engine's tensors: {held}")
    if any(region.describe()["slot_stride"] is None for region in page.regions):
        out.print("- a swizzled region has no single stride; --locate answers for one entry, --json lists its digits")

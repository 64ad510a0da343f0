"""kvformat convert: pages in another layout, or with codes of another format; lossless, or refused."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvformat.cli import complete
from kvformat.cli.outcome import HOLDS, print_json, printable, say
from kvformat.cli.recipes import find
from kvformat.errors import InputError
from kvformat.layouts import load_layout

if TYPE_CHECKING:
    from kvformat.dump.dump import Dump, Pages
    from kvformat.layouts import Layout


def convert(
    source: Annotated[
        str, typer.Argument(metavar="PAGES", help="A dump, or pages alone: a safetensors file with a dump's metadata.")
    ],
    target: Annotated[str, typer.Argument(metavar="OUT", help="The file to write, of the same kind.")],
    layout: Annotated[
        str | None,
        typer.Option(help="Layout of the new pages; that of PAGES if not given.", autocompletion=complete.layouts),
    ] = None,
    order: Annotated[str | None, typer.Option(help="NHD or HND.")] = None,
    v_scales: Annotated[str | None, typer.Option(help="swizzled or linear, where the layout has the choice.")] = None,
    nibbles: Annotated[str | None, typer.Option(help="low_first or high_first, for 4-bit codes.")] = None,
    block_size: Annotated[int | None, typer.Option(help="Slots in a page.")] = None,
    page_bytes: Annotated[int | None, typer.Option(help="Bytes from page to page, padding included.")] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="Recipe whose codes are of another format (fn, fnuz): codes and scales change.",
            autocompletion=complete.recipes,
        ),
    ] = None,
    drop_padding: Annotated[bool, typer.Option("--drop-padding", help="Padding may hold anything; it goes.")] = False,
    drop_zero_signs: Annotated[
        bool, typer.Option("--drop-zero-signs", help="A -0 that the new format does not have becomes 0.")
    ] = False,
    layout_file: Annotated[str | None, typer.Option(help="A TOML file with a layout that is named.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """The same cache in another layout: every code and scale at its new byte, or one line that says what would be lost.

    What is not named stays as it is. The padding of the new pages is zero.
    """
    from kvformat.conversion import Cache
    from kvformat.conversion import convert as converted
    from kvformat.dump.dump import load_any
    from kvformat.recipes import recipe as find_recipe

    if layout_file:
        load_layout(layout_file)
    dump = load_any(source)
    choices = {"order": order, "v_scales": v_scales, "nibbles": nibbles, "block_size": block_size}
    wanted = _wanted(dump.layout, layout, page_bytes, choices)
    how = find_recipe(dump.layout.recipe if dump.recipe is None else dump.recipe)
    held = Cache(dump.pages, dump.layout, how, dump.k_scale, dump.v_scale)
    target_recipe = find(recipe) if recipe else None
    made = converted(held, wanted, target_recipe, drop_padding=drop_padding, drop_zero_signs=drop_zero_signs)
    new: dict[str, Any] = {"pages": made.pages, "layout": made.layout, "k_scale": made.k_scale, "v_scale": made.v_scale}
    # what declared no recipe meant its layout's, which the new layout's is not
    result = replace(dump, **new, recipe=made.recipe.name)
    result.save(target)
    document = _document(dump, result, made.recipe.name)
    if as_json:
        return print_json(document)
    for name, value in document["changed"].items():
        before, after = ("-" if each is None else each for each in value)
        say(f"{name}: {before} -> {after}")
    size = f"{result.pages.shape[0]} pages of {result.pages.shape[1]} bytes"
    say(f"{printable(target)}: {size}, {result.layout.name}, {made.recipe.name}")
    return HOLDS


def _wanted(held: Layout, name: str | None, page_bytes: int | None, choices: dict[str, Any]) -> Layout:
    """The layout asked for: what is not said stays as it is where the new layout has it, else is its default."""
    from kvformat.layouts import LAYOUTS
    from kvformat.layouts import layout as find_layout

    given = {key: value for key, value in choices.items() if value is not None}
    kept = held.spec
    moved = name is not None and name != held.name
    if moved or given.keys() - {"order"}:
        kept.pop("page_bytes")
    if moved and name is not None and name in LAYOUTS:
        form = LAYOUTS[name].form(held.mode)
        if form.sides != held.sides:
            lacking = (
                "stores V, which these pages lack" if "v" in form.sides else "has no place for V, which would be lost"
            )
            raise InputError(f"layout {name} in mode {held.mode} {lacking}")
        if held.order not in form.orders:
            kept.pop("order")
        if held.v_scales not in dict(form.v_scales):
            kept.pop("v_scales", None)
    arguments = {**kept, **given, "name": name or held.name}
    if page_bytes is not None:
        arguments["page_bytes"] = page_bytes
    return find_layout(**arguments)


def _document(before: Dump | Pages, after: Dump | Pages, recipe: str) -> dict[str, Any]:
    """What changed, from and to, and what the pages are now."""
    old, new = ({**dump.layout.spec, "k_scale": dump.k_scale, "v_scale": dump.v_scale} for dump in (before, after))
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    changed = {name: [_plain(old.get(name)), _plain(new.get(name))] for name in names}
    return {
        "recipe": recipe,
        "layout": after.layout.spec,
        "pages": len(after.pages),
        "changed": changed,
    }


def _plain(value: Any) -> Any:
    return float(value) if hasattr(value, "dtype") else value

"""kvformat diagnose: the name of the bug in a dump, and probes for a kernel to write."""

from __future__ import annotations

from typing import Annotated

import typer

from kvformat.cli import complete
from kvformat.cli.outcome import HOLDS, print_json, printable, say
from kvformat.cli.recipes import find
from kvformat.errors import InputError
from kvformat.layouts import load_layout


def diagnose(
    dump: Annotated[str | None, typer.Argument(metavar="[DUMP]", help="A dump (safetensors file).")] = None,
    recipe: Annotated[
        str | None, typer.Option(help="What the dump is taken to declare.", autocompletion=complete.recipes)
    ] = None,
    layout_file: Annotated[str | None, typer.Option(help="A TOML file with a layout that the dump may name.")] = None,
    probe: Annotated[
        bool, typer.Option("--probe", help="Write a probe: a dump whose pages your kernel fills.")
    ] = False,
    attention: Annotated[
        bool, typer.Option("--attention", help="With --probe: pages and queries whose right output is known exactly.")
    ] = False,
    output: Annotated[str | None, typer.Option("-o", "--output", metavar="FILE", help="Where the probe goes.")] = None,
    mode: Annotated[str | None, typer.Option(help="Mode of the probe.", autocompletion=complete.modes)] = None,
    layout: Annotated[str, typer.Option(help="Layout of the probe.", autocompletion=complete.layouts)] = "vllm-0.33",
    order: Annotated[str, typer.Option(help="NHD or HND.")] = "NHD",
    block_size: Annotated[int, typer.Option(help="Slots in a page.")] = 16,
    num_kv_heads: Annotated[int, typer.Option(help="KV heads.")] = 4,
    head_size: Annotated[int, typer.Option(help="Dims per head.")] = 64,
    v_scales: Annotated[str | None, typer.Option(help="nvfp4: swizzled or linear.")] = None,
    dtype: Annotated[str, typer.Option(help="Of K and V: bfloat16, float16 or float32.")] = "bfloat16",
    group: Annotated[int, typer.Option(help="With --attention: query heads to a KV head.")] = 4,
    sinks: Annotated[bool, typer.Option("--sinks", help="With --attention: a sink logit for each query head.")] = False,
    accumulate: Annotated[str, typer.Option(help="With --attention: float16 has one-hot rows alone.")] = "float32",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """Name the recipe, layout and faults that left a dump's bytes. Status 1: not (only) what the dump declares.

    With --probe --mode M -o FILE: write K and V on which as many faults as possible leave different bytes. Run them
    through the kernel, put what it wrote in place of `pages`, and diagnose the file. With --attention as well: pages
    that are written and queries whose right output is known bit for bit; put the kernel's in place of `output`, and
    check the file.
    """
    if layout_file:
        load_layout(layout_file)
    if attention and not probe:
        raise InputError("--attention is for a probe: --probe --attention --mode MODE -o FILE")
    if not probe:
        if dump is None:
            raise InputError("name a dump, or write a probe with --probe --mode MODE -o FILE")
        if mode is not None or output is not None:
            raise InputError("--mode and -o are for a probe: add --probe, or leave them out to diagnose a dump")
        return _diagnose(dump, recipe, as_json=as_json)
    if dump is not None or mode is None or output is None:
        raise InputError("a probe is written with --probe --mode MODE -o FILE, without a dump")
    if recipe is not None:
        raise InputError("--recipe is for a dump; a probe is the same for every recipe of its mode")
    if attention:
        from kvformat.attention.probes import attention_probe

        asked = attention_probe(
            mode, name=layout, order=order, block_size=block_size, num_kv_heads=num_kv_heads, head_size=head_size,
            group=group, v_scales=v_scales, dtype=dtype, accumulate=accumulate, sinks=sinks,
        )  # fmt: skip
        asked.save(output)
        if as_json:
            return print_json(
                {"probe": output, "mode": mode, "tokens": asked.tokens, "query_heads": num_kv_heads * group}
            )
        say(
            f"{printable(output)}: {asked.tokens} tokens in pages of {mode} and a query for each, causal, "
            f"{num_kv_heads * group} query heads; run your kernel on them, put its output in place of `output` "
            "(NaN now), and check the file. With probabilities in FP8 a K scale that is 1 % off is invisible"
        )
        return HOLDS
    from kvformat.diagnose.probe import probe as make

    made = make(
        mode,
        name=layout,
        order=order,
        block_size=block_size,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        v_scales=v_scales,
        dtype=dtype,
    )
    made.save(output)
    if as_json:
        return print_json({"probe": output, "mode": mode, "tokens": made.tokens})
    say(
        f"{printable(output)}: {made.tokens} tokens of K and V for {mode}; write them with your kernel to the slots in "
        "slot_mapping, put its pages in place of `pages`, and diagnose the file"
    )
    return HOLDS


def _diagnose(path: str, recipe: str | None, *, as_json: bool) -> int:
    from kvformat.cli import console
    from kvformat.dump.dump import Dump

    how = find(recipe) if recipe else None  # first: the dump may declare what a TOML file defines
    opened = Dump.load(path)
    from kvformat.diagnose.search import diagnose as judge  # compiled code: a file that is no dump does not wait for it

    with console.progress(printable(path)) as advance:
        diagnosis = judge(opened, recipe=how, progress=advance)
    if as_json:
        return print_json({"dump": path, **diagnosis.to_json()}, diagnosis.status)
    say(f"{printable(path)}: {diagnosis}")
    return diagnosis.status

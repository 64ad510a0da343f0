"""kvformat compat: whether two engines may share pages, from the configurations of their caches."""

from __future__ import annotations

from typing import Annotated

import typer

from kvformat.cli.outcome import print_json, printable, say


def compat(
    writer: Annotated[str, typer.Argument(metavar="A.json", help="The cache that writes the pages.")],
    reader: Annotated[str, typer.Argument(metavar="B.json", help="The cache that is to read them.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """Whether pages of cache A serve an engine with cache B. Status 0: the same bytes.

    A configuration is a JSON object: kv_cache_dtype (or recipe and layout), block_size, num_kv_heads, head_size; and
    where they apply head_size_v, order, v_scales, page_bytes, k_scale, v_scale.
    """
    from kvformat.prefix.compat import CacheConfig, compatible

    answer = compatible(CacheConfig.load(writer), CacheConfig.load(reader))
    if as_json:
        document = {"writer": writer, "reader": reader, "verdict": answer.verdict, "reasons": list(answer.reasons)}
        return print_json(document, answer.status)
    first, *reasons = str(answer).splitlines()
    say(f"{printable(writer)} -> {printable(reader)}: {first}")
    for reason in reasons:
        say(f"  {printable(reason)}")
    return answer.status

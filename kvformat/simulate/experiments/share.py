"""Sharing a cache: prefix hits in every mode, what a store that knows no modes gives its readers, and transcoding."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvformat.cache import PagedCache
from kvformat.layouts import layout
from kvformat.modes import MODES
from kvformat.prefix.hashes import Identity, Store, aware, blind, block_hashes
from kvformat.simulate import transfer
from kvformat.simulate.experiments.result import Progress, Result, Settings, mode_name
from kvformat.simulate.profiles import profile

Array = NDArray[Any]

_BLOCK, _HEADS, _DIM = 16, 2, 128
#: modes whose pages are equally long, so that a blind store can mix them up without any check failing
SAME_SIZE = ("int8_per_token_head", "fp8_per_token_head")
#: producer, consumer; bf16 on the wire first
PAIRS = (
    ("golden/none", "golden/fp8_per_tensor"),
    ("golden/none", "golden/fp8_per_token_head"),
    ("golden/none", "golden/nvfp4"),
    ("golden/fp8_per_tensor", "golden/fp8_per_tensor"),
    ("golden/fp8_per_token_head", "golden/fp8_per_token_head"),
    ("golden/int8_per_token_head", "golden/int8_per_token_head"),
    ("golden/fp8_per_tensor", "golden/nvfp4"),
    ("golden/fp8_per_token_head", "golden/nvfp4"),
    ("golden/int8_per_token_head", "golden/nvfp4"),
    ("golden/nvfp4", "golden/fp8_per_tensor"),
    ("golden/nvfp4", "golden/fp8_per_token_head"),
    ("golden/fp8_per_token_head", "golden/int8_per_token_head"),
    ("golden/int8_per_token_head", "golden/fp8_per_token_head"),
)


def identity(mode: str) -> Identity:
    """A cache of that mode as a shared store knows it."""
    made = layout("vllm-0.33", mode=mode, block_size=_BLOCK, num_kv_heads=_HEADS, head_size=_DIM)
    scale = 0.02 if MODES[mode].tensor_scale else None
    return Identity(made, f"golden/{mode}", scale, scale)


def written(who: Identity, key: Array, value: Array) -> PagedCache:
    """One page with those tokens."""
    cache = PagedCache(who.layout, 1, k_scale=who.k_scale, v_scale=who.v_scale)
    cache.write(key, value, np.arange(len(key)), recipe=who.recipe)
    return cache


def misread(key: Array, value: Array, writer: str, reader: str, store: Store) -> tuple[float, float] | None:
    """What a reader of one mode gets of a writer of another; None: a miss.

    The relative error of the keys that are numbers, and the share of those that are NaN.
    """
    ours, theirs = identity(writer), identity(reader)
    (block,) = block_hashes(range(_BLOCK), _BLOCK)
    store.put(ours, block, written(ours, key, value).pages[0])
    page = store.get(theirs, block)
    if page is None:
        return None
    held = written(theirs, key, value)
    held.pages = page[None]
    got, _ = held.gather([0], _BLOCK, np.float64)
    number = np.isfinite(got)
    return float(np.linalg.norm((got - key)[number]) / np.linalg.norm(key[number])), float(1 - number.mean())


def run(settings: Settings, progress: Progress) -> Result:
    """Rows of two kinds: a blind store's answer, and a transcoding beside direct quantization."""
    sample = profile("llama").sample(settings.seed, settings.tokens, kv_heads=_HEADS, head_dim=_DIM)
    import ml_dtypes

    key = sample.key.astype(ml_dtypes.bfloat16)
    rows: list[dict[str, Any]] = []
    part = key[:_BLOCK].astype(np.float32)
    for writer, reader in (SAME_SIZE, SAME_SIZE[::-1]):
        for name, how in (("blind", blind), ("aware", aware)):
            got = misread(part, sample.value[:_BLOCK], writer, reader, Store(how))
            note = "a miss" if got is None else f"wrong bytes; {got[1]:.1%} are NaN"
            rows.append(_line(f"{name} store", writer, reader, error=None if got is None else got[0], note=note))
    for done, (producer, consumer) in enumerate(PAIRS, 1):
        rows.append(_transcoded(key, producer, consumer))
        progress(done, len(PAIRS))
    chain = {mode: block_hashes(range(settings.tokens), _BLOCK) for mode in MODES}
    blind_error = rows[0]["error"]
    added = max(row["added"] for row in rows if row["added"] is not None)
    equal = [f"{row['from']} to {row['to']}" for row in rows if row["equal bytes"]]
    return Result(
        "sharing",
        "Prefix sharing and transfer",
        rows,
        [
            (f"the hash chain of {settings.tokens} tokens is the same in all {len(chain)} modes: quantization"
            " changes no prefix hit"),
            (f"a store that knows no modes gives an FP8 reader the bytes of an INT8 writer: keys off by"
            f" {blind_error:.0%}; keyed by layout, recipe and scales it is a miss"),
            (f"transcoding equals direct quantization for {'; '.join(equal)}; elsewhere the error grows up to"
            f" {added:.2f}-fold"),
        ],
    )  # fmt: skip


def _transcoded(key: Array, producer: str, consumer: str) -> dict[str, Any]:
    found = transfer.compare(
        key, producer, consumer, producer_scale=_scale(producer, key), consumer_scale=_scale(consumer, key)
    )
    return _line("transcoding", mode_name(producer), mode_name(consumer), error=found.transcoded_error,
                 equal=found.equal, codes=found.different_codes, added=found.added)  # fmt: skip


def _scale(recipe: str, key: Array) -> float | None:
    """One calibrated scale per mode that has one, with room above: a round number, as a checkpoint would hold."""
    if not MODES[mode_name(recipe)].tensor_scale:
        return None
    return float(np.abs(key.astype(np.float32)).max()) * 1.1 / (2688 if mode_name(recipe) == "nvfp4" else 448)


def _line(
    kind: str,
    writer: str,
    reader: str,
    *,
    error: float | None,
    note: str = "",
    equal: bool | None = None,
    codes: float | None = None,
    added: float | None = None,
) -> dict[str, Any]:
    return {"kind": kind, "from": writer, "to": reader, "error": error, "equal bytes": equal,
            "codes that differ": codes, "added": added, "note": note}  # fmt: skip

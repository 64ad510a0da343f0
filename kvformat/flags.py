"""What the flags of engines store: each value of each option, from data/flags.toml and, for vLLM, cache_dtypes.py."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from importlib.resources import files
from typing import Any

from kvformat.cache_dtypes import CACHE_DTYPES, CacheDtype, KVQuantMode


@dataclass(frozen=True)
class Engine:
    """An engine, the option that chooses what its cache stores, and where that was read."""

    name: str
    option: str
    source: str
    #: what holds for all its values
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Flag:
    """One value of an engine's option."""

    engine: str
    value: str
    #: codes and parameters, in words
    stores: str
    #: where the scale comes from
    scale: str
    #: hardware and backend
    runs_on: str
    #: bits of a value with its share of the parameters, of K and of V; None: a layout says it, or nobody here does
    bits: tuple[Fraction, Fraction] | None = None
    recipe: str | None = None
    layout: str | None = None
    #: the layout's mode
    mode: str | None = None
    traps: tuple[str, ...] = ()


_NONE, _GIVEN, _HEADS = "none: the values themselves", "the checkpoint, else 1.0", "computed per token and head"
_TABLE = "K: codes of a table after a Hadamard transform and a float16 norm; V: codes, a float16 scale and minimum"
_OCTAVE = "codes of a table after a Hadamard transform, a float16 scale"
#: of vLLM's modes: what they store, where the scale comes from, and the layout's mode
_MODES: Mapping[str, tuple[str, str, str]] = {
    "NONE": ("values", _NONE, "none"),
    "FP8_PER_TENSOR": ("e4m3fn codes", _GIVEN, "fp8_per_tensor"),
    "INT8_PER_TOKEN_HEAD": ("int8 codes, a float32 scale per token and head", _HEADS, "int8_per_token_head"),
    "FP8_PER_TOKEN_HEAD": ("e4m3fn codes, a float32 scale per token and head", _HEADS, "fp8_per_token_head"),
    "INT4_PER_TOKEN_HEAD": (
        "4-bit codes after a Hadamard transform, scale and zero point in one float32 per token and head",
        _HEADS,
        "int4_per_token_head",
    ),
    "NVFP4": (
        "e2m1fn codes, one e4m3fn scale for 16 of them",
        "computed for 16 dims under the checkpoint's scale, else 1.0",
        "nvfp4",
    ),
    "NVFP4_DS_MLA": (
        "latent rows: e2m1fn codes, one e4m3fn scale for 16 of them",
        "computed for 16 dims",
        "nvfp4_ds_mla",
    ),
    "TURBOQUANT_K8V4": (
        "K: float8 codes; V: 4-bit codes, a float16 scale and minimum",
        "none of K; of V computed per token and head",
        "",
    ),
    **dict.fromkeys(("TURBOQUANT_4BIT_NC", "TURBOQUANT_K3V4_NC", "TURBOQUANT_3BIT_NC"), (_TABLE, _HEADS, "")),
    **dict.fromkeys(("OCTAVE_K3V4", "OCTAVE_K3V3", "OCTAVE_K3V3_COMPACT"), (_OCTAVE, _HEADS, "")),
    "ULTRAQUANT_4BIT": (
        "4-bit codes of a table, a power of two for 32 of them; K after a Hadamard transform",
        "computed for 32 dims",
        "",
    ),
}
#: where a string stores something else than its mode does
_STRINGS: Mapping[str, tuple[str, str, str]] = {
    "fp8_inc": ("float8 codes of Gaudi, whose format was not read here", _GIVEN, ""),
    "fp8_e5m2": ("e5m2 codes", _GIVEN, "fp8_per_tensor"),
    "fp8_ds_mla": (
        "latent rows: e4m3fn codes, one float32 scale for 128 of them, 64 dims in bfloat16",
        "computed for 128 dims",
        "fp8_ds_mla",
    ),
}


def _of_vllm(entry: CacheDtype) -> Flag:
    """The entry of a --kv-cache-dtype string."""
    stores, scale, mode = _STRINGS.get(entry.name) or _MODES[KVQuantMode(entry.mode).name]
    backends = dict.fromkeys(writer.backend for writer in entry.writers)
    return Flag(
        engine="vLLM",
        value=entry.name,
        stores=stores,
        scale=scale,
        runs_on=f"{', '.join(entry.native)} ({', '.join(backends)})",
        recipe=entry.recipe,
        layout=entry.layout,
        mode=mode if entry.layout else None,
        traps=entry.traps,
    )


def _parsed(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a table as the dataclasses have them: lists are tuples, bits are fractions."""
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
    if "bits" in values:
        values["bits"] = tuple(map(Fraction, values["bits"]))
    return values


_DATA = tomllib.loads(files("kvformat.data").joinpath("flags.toml").read_text("utf-8"))

#: every engine, by name
ENGINES: Mapping[str, Engine] = {entry["name"]: Engine(**_parsed(entry)) for entry in _DATA["engine"]}
#: every value of every engine's option
FLAGS: tuple[Flag, ...] = (
    *map(_of_vllm, CACHE_DTYPES.values()),
    *(Flag(**_parsed(entry)) for entry in _DATA["flag"]),
)

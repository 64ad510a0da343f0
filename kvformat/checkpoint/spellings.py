"""How checkpoints spell the scales of K and V, and which of these spellings an engine loads: data."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Side = Literal["k", "v"]
SIDES: tuple[Side, Side] = ("k", "v")


@dataclass(frozen=True)
class Spelling:
    """One way to name a scale.

    pattern: of what follows the layer's number in a tensor's name; its group `side` says K or V, and where it has none
    the scale is for both. template: how `kvformat scales --calibrate` writes it, empty where it does not.
    """

    name: str
    pattern: str
    by: str
    template: str = ""

    def match(self, tail: str) -> tuple[Side, ...]:
        """The sides that a tensor of that name is for; none where it is spelt in another way."""
        found = re.fullmatch(self.pattern, tail)
        if found is None:
            return ()
        return (found["side"],) if "side" in found.groupdict() else SIDES  # type: ignore[return-value] # [kv]


#: the first one that matches holds
SPELLINGS: tuple[Spelling, ...] = (
    Spelling(
        "projection",
        r"(.*\.)?(self_attn|mixer)\.[kv]_proj\.(?P<side>[kv])_scale",
        "ModelOpt",
        "model.layers.{layer}.self_attn.{side}_proj.{side}_scale",
    ),
    Spelling("fused projection", r"(.*\.)?self_attn\.(qkv|qkqkv)_proj\.(?P<side>[kv])_scale", "Qwen3 MoE exports"),
    Spelling(
        "projection output",
        r"(.*\.)?(?P<side>[kv])_proj\.output_scale",
        "Quark, early compressed-tensors",
        "model.layers.{layer}.self_attn.{side}_proj.output_scale",
    ),
    Spelling("cache module", r"(.*\.)?self_attn\.(?P<side>[kv])_cache\.scale", "Hunyuan V3"),
    Spelling("attn module", r"(.*\.)?attn\.(?P<side>[kv])_scale", "the engines' own name"),
    Spelling("one for both", r"(.*\.)?kv_scale", "AutoFP8"),
    Spelling(
        "attention",
        r"(.*\.)?(?P<side>[kv])_scale",
        "compressed-tensors, llm-compressor",
        "model.layers.{layer}.self_attn.{side}_scale",
    ),
)

#: names that mean a scale of K or V, though nothing above spells it so
SUSPECT = re.compile(r"(?i)(.*[._])?(?P<side>kv|key|value|k|v)_?(cache)?[._](quant[._])?(scale|scaling_factor|amax)s?")


@dataclass(frozen=True)
class Loader:
    """What one engine does with the scales of a checkpoint whose quantization_config has one of these methods.

    needs: keys of quantization_config of which one must be there, or no scale is loaded; empty: none. loads: names of
    spellings. per_head: a scale may have one value per KV head. lone: what the side without a scale
    gets where the other one has it. zero: what a scale of 0 becomes. source: the files of the engine that say so.
    """

    engine: str
    methods: frozenset[str]
    needs: tuple[str, ...]
    loads: frozenset[str]
    per_head: bool
    lone: Literal["the other side's", "1.0"]
    zero: Literal["0", "1.0", "an error"]
    source: str


_NAMES = frozenset(each.name for each in SPELLINGS)
_VLLM = "vllm/model_executor/layers/quantization"
_SGLANG = "sglang/srt/layers/quantization/kv_cache.py, sglang/srt/model_loader/weight_utils.py"

LOADERS: tuple[Loader, ...] = (
    Loader(
        "vllm-0.33",
        frozenset({"fp8", "quark"}),
        (),
        _NAMES,
        per_head=False,
        lone="the other side's",
        zero="an error",
        source=f"{_VLLM}/kv_cache.py L84-150, base_config.py L219-245, fp8.py L211-222, quark/quark.py L952-961",
    ),
    Loader(
        "vllm-0.33",
        frozenset({"modelopt", "modelopt_fp4"}),
        ("kv_cache_quant_algo", "kv_cache_scheme"),
        _NAMES - {"projection output"},
        per_head=False,
        lone="the other side's",
        zero="an error",
        source=f"{_VLLM}/kv_cache.py L84-150, base_config.py L219-245, modelopt.py L1851",
    ),
    Loader(
        "vllm-0.33",
        frozenset({"compressed-tensors"}),
        (),
        _NAMES - {"projection output"},
        per_head=True,
        lone="1.0",
        zero="0",
        source=f"{_VLLM}/compressed_tensors/compressed_tensors.py L1159-1281, base_config.py L219-245",
    ),
    Loader(
        "sglang-0.5",
        frozenset({"fp8", "quark"}),
        (),
        _NAMES - {"fused projection", "cache module"},
        per_head=False,
        lone="the other side's",
        zero="1.0",
        source=_SGLANG,
    ),
    Loader(
        "sglang-0.5",
        frozenset({"modelopt", "modelopt_fp4", "modelopt_fp8"}),
        ("kv_cache_quant_algo",),
        _NAMES - {"fused projection", "cache module"},
        per_head=False,
        lone="the other side's",
        zero="1.0",
        source=f"{_SGLANG}, sglang/srt/layers/quantization/modelopt_quant.py L347",
    ),
    Loader(
        "sglang-0.5",
        frozenset({"compressed-tensors"}),
        ("kv_cache_scheme",),
        _NAMES - {"fused projection", "cache module"},
        per_head=False,
        lone="the other side's",
        zero="1.0",
        source=f"{_SGLANG}, sglang/srt/layers/quantization/compressed_tensors/compressed_tensors.py L1267-1287",
    ),
)

ENGINES = tuple(dict.fromkeys(loader.engine for loader in LOADERS))


def loader(engine: str, method: str) -> Loader | None:
    """How an engine loads the scales of a checkpoint of that quantization method; None where it loads none."""
    return next((each for each in LOADERS if each.engine == engine and method in each.methods), None)


#: the default of every engine for a side without a scale
DEFAULT = 1.0

TEMPLATES: Mapping[str, str] = MappingProxyType({each.name: each.template for each in SPELLINGS if each.template})

"""Models as data: their layers, as their public configurations have them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from kvformat.errors import unknown_name
from kvformat.sizing.plan import Layers, Model

_HUB = "config.json on the Hugging Face Hub"


def _grouped(name: str, count: int, heads: int, head_size: int) -> Mapping[str, Any]:
    return {"name": name, "layers": [{"count": count, "heads": heads, "head_size": head_size}]}


def _windowed(name: str, full: int, sliding: int, window: int, heads: int, head_size: int) -> Mapping[str, Any]:
    rows = {"heads": heads, "head_size": head_size}
    return {"name": name, "layers": [{"count": full, **rows}, {"count": sliding, "window": window, **rows}]}


_V4_NOTES = "The compressor's state, a few tokens a layer, is not counted."

ENTRIES: tuple[Mapping[str, Any], ...] = (
    _grouped("llama-2-7b", 32, 32, 128),
    _grouped("llama-2-13b", 40, 40, 128),
    _grouped("llama-2-70b", 80, 8, 128),
    _grouped("llama-3-8b", 32, 8, 128),
    _grouped("llama-3-70b", 80, 8, 128),
    _grouped("mistral-7b", 32, 8, 128),
    _grouped("qwen2.5-0.5b", 24, 2, 64),
    _grouped("qwen2.5-7b", 28, 4, 128),
    _grouped("qwen2.5-72b", 80, 8, 128),
    _grouped("qwen3-8b", 36, 8, 128),
    _grouped("qwen3-30b-a3b", 48, 4, 128),
    _grouped("qwen3-235b-a22b", 94, 4, 128),
    _grouped("smollm2-135m", 30, 3, 64),
    # multi-query attention: one head of K and V
    _grouped("gemma-2b", 18, 1, 256),
    _grouped("falcon-7b", 32, 1, 64),
    # every second layer, and five of six, see a window only
    _windowed("gpt-oss-20b", 12, 12, 128, 8, 64),
    _windowed("gpt-oss-120b", 18, 18, 128, 8, 64),
    _windowed("gemma-3-27b", 10, 52, 1024, 16, 128),
    {"name": "deepseek-v2", "layers": [{"count": 60, "attention": "mla"}]},
    {"name": "deepseek-v3", "layers": [{"count": 61, "attention": "mla"}]},
    {"name": "deepseek-v3.2", "layers": [{"count": 61, "attention": "mla with indexer"}]},
    {
        "name": "deepseek-v4-flash",
        "layers": [
            {"count": 2, "attention": "v4 window"},
            {"count": 21, "attention": "csa"},
            {"count": 20, "attention": "hca"},
        ],
        "source": "compress_ratios [0, 0] + [4, 128] * 20 + [4] as vLLM 0.33.0 reads them",
        "notes": _V4_NOTES,
    },
    {
        "name": "deepseek-v4-pro",
        "layers": [{"count": 30, "attention": "csa"}, {"count": 31, "attention": "hca"}],
        "source": "the vLLM blog on DeepSeek V4",
        "notes": _V4_NOTES,
    },
)


def parse_model(described: Mapping[str, Any]) -> Model:
    """The model that a plain mapping describes."""
    layers = tuple(Layers(**group) for group in described["layers"])
    return Model(described["name"], layers, described.get("source", _HUB), described.get("notes", ""))


#: every model by name
MODELS: Mapping[str, Model] = MappingProxyType({entry["name"]: parse_model(entry) for entry in ENTRIES})


def find_model(name: str) -> Model:
    """The model of that name, in whatever case. Raises InputError, naming the close names, for an unknown one."""
    if name.lower() not in MODELS:
        raise unknown_name("model", name, MODELS)
    return MODELS[name.lower()]

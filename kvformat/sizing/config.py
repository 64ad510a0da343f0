"""A model from its config.json: the layers it has, and what each of them keeps of a sequence."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kvformat.errors import InputError
from kvformat.sizing.plan import Layers, Model

#: the names under which configurations have a number
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers")
_HEADS = ("num_attention_heads", "n_head")
_HIDDEN = ("hidden_size", "n_embd", "d_model")
#: what `layer_types` calls them
_FULL = ("full_attention", "attention", "global_attention")
_SLIDING = ("sliding_attention", "sliding_window_attention", "local_attention")
_LINEAR = ("linear_attention", "mamba", "recurrent", "conv", "gated_delta_net")
#: families whose layers all slide but for every so-many-th
_PERIODS = {"gemma3": 6, "gemma2": 2, "gpt_oss": 2}
#: what else says how layers attend, where layer_types does not: a size that ignores it would be wrong
_UNREAD = (
    "attention_chunk_size", "attn_layer_indices", "attn_layer_period", "attn_type_list", "block_types",
    "hybrid_layer_ids", "hybrid_override_pattern", "layers_block_type", "linear_attn_config",
)  # fmt: skip
#: what says that layers share what they keep, or keep other tokens than those of the text
_SHARED = ("num_kv_shared_layers", "cross_attention_layers")
#: more layers than any model has
_MOST_LAYERS = 10_000
#: attention of a layer of DeepSeek V4 by its compression ratio
_RATIOS = {0: "v4 window", 4: "csa", 128: "hca"}


def load_config(path: str | Path) -> Model:
    """The model of a config.json, or of the one in a directory. Raises InputError, naming the file, for others."""
    file = Path(path)
    file = file / "config.json" if file.is_dir() else file
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: no readable config.json: {' '.join(str(error).split())}") from None
    if not isinstance(config, dict):
        raise InputError(f"{path}: a config.json is an object; this is {type(config).__name__}")
    try:
        return parse_config(config, name=str(config.get("_name_or_path") or config.get("model_type") or file.name))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def parse_config(config: Mapping[str, Any], *, name: str) -> Model:
    """The model that a configuration describes. Raises InputError for one that does not say how its layers attend."""
    text = config.get("text_config", config)  # of a model that sees or hears, too
    if not isinstance(text, Mapping):
        raise InputError(f"text_config must be an object; got {text!r}")
    config = text
    count = _number(config, _LAYERS)
    if count > _MOST_LAYERS:
        raise InputError(f"a model of {count} layers is none: at most {_MOST_LAYERS}")
    unread = [key for key in _SHARED if config.get(key)]
    if config.get("layer_types") is None:  # an empty list says something, too: no layer attends
        unread += [key for key in _UNREAD if config.get(key) not in (None, False, 0)]
    if unread:
        raise InputError(f"{unread[0]} changes what its layers keep, and is not read here")
    layers = [_layer(config, index, count) for index in range(count)]
    groups = Counter(layers)
    found = tuple(Layers(number, *layer) for layer, number in groups.items())
    notes = (
        "State of linear layers, of a fixed size, is not counted." if any("linear" in layer for layer in groups) else ""
    )
    if not any(group.streams() for group in found):
        raise InputError("no layer keeps anything of a token")
    return Model(name, found, "config.json", notes)


_Layer = tuple[str, int, int, int, int]


def _layer(config: Mapping[str, Any], index: int, count: int) -> _Layer:
    """What makes a layer: attention, heads, head_size, head_size_v, window."""
    ratios = config.get("compress_ratios")
    if ratios is not None:
        return _compressed(ratios, index, count)
    if config.get("kv_lora_rank"):
        return _latent(config)
    window = _number(config, ("sliding_window",), default=0)
    kind = _kind(config, index, count, window)
    if kind == "linear":
        return "linear", 0, 0, 0, 0
    if kind == "window" and not window:
        raise InputError(f"layer {index} is a sliding one, and sliding_window is missing")
    heads, size = _heads(config), _head_size(config)
    return "kv", heads, size, _number(config, ("v_head_dim",), default=size), window if kind == "window" else 0


def _compressed(ratios: Any, index: int, count: int) -> _Layer:
    if not isinstance(ratios, list) or len(ratios) < count or ratios[index] not in tuple(_RATIOS):
        known = ", ".join(map(str, _RATIOS))
        raise InputError(f"compress_ratios must have one of {known} for each of {count} layers; got {ratios!r:.80}")
    return _RATIOS[ratios[index]], 0, 0, 0, 0


def _latent(config: Mapping[str, Any]) -> _Layer:
    row = (_number(config, ("kv_lora_rank",)), _number(config, ("qk_rope_head_dim",)))
    if row != (512, 64):
        raise InputError(f"latent rows of {row[0]} + {row[1]} dims have no layout; only 512 + 64 have")
    indexer = _number(config, ("index_head_dim",), default=0)
    if indexer not in (0, 128):
        raise InputError(f"indexer keys of {indexer} dims have no layout; only 128 have")
    return ("mla with indexer" if indexer else "mla"), 0, 0, 0, 0


def _kind(config: Mapping[str, Any], index: int, count: int, window: int) -> str:
    """`full`, `window` or `linear`."""
    types = config.get("layer_types")
    if types is not None:
        if not isinstance(types, list) or len(types) != count:
            raise InputError(f"layer_types must list {count} layers; got {types!r:.80}")
        for names, kind in ((_FULL, "full"), (_SLIDING, "window"), (_LINEAR, "linear")):
            if types[index] in names:
                return kind
        raise InputError(
            f"layer {index} is of type {types[index]!r}; known: {', '.join((*_FULL, *_SLIDING, *_LINEAR))}"
        )
    period = _number(config, ("full_attention_interval",), default=0)
    if period:  # Qwen3-Next: all layers are linear but for every so-many-th
        return "linear" if _every_but(period)(index) else "full"
    if not window:
        return "full"
    return "window" if _pattern(config)(index) else "full"


def _every_but(period: int) -> Callable[[int], bool]:
    return lambda index: (index + 1) % period != 0


def _pattern(config: Mapping[str, Any]) -> Callable[[int], bool]:
    """Which layers slide in a configuration that has a window and no layer_types."""
    if config.get("use_sliding_window") is False:  # Qwen2
        return lambda _index: False
    if "max_window_layers" in config:
        first = _number(config, ("max_window_layers",))
        return lambda index: index >= first
    if config.get("sliding_window_pattern"):
        return _every_but(_number(config, ("sliding_window_pattern",)))
    family = str(config.get("model_type", ""))
    period = next((period for name, period in _PERIODS.items() if family.startswith(name)), 0)
    return _every_but(period) if period else lambda _index: True


def _heads(config: Mapping[str, Any]) -> int:
    """KV heads: said, or one of a multi-query model, or as many as query heads."""
    if config.get("multi_query") and not config.get("new_decoder_architecture"):
        return 1
    return _number(config, ("num_key_value_heads", "num_kv_heads", "n_head_kv", *_HEADS))


def _head_size(config: Mapping[str, Any]) -> int:
    given = _number(config, ("head_dim",), default=0)
    if given:
        return given
    hidden, heads = _number(config, _HIDDEN), _number(config, _HEADS)
    if hidden % heads:
        raise InputError(f"there is no head_dim, and {_HIDDEN[0]} {hidden} does not divide into {heads} heads")
    return hidden // heads


def _number(config: Mapping[str, Any], names: tuple[str, ...], default: int | None = None) -> int:
    """The first of these that the configuration has. Raises InputError for one that is no count, or where none is."""
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        if type(value) is not int or not 0 <= value < 1 << 31 or (not value and default is None):
            raise InputError(f"{name} must be a positive integer; got {value!r:.80}")
        return value
    if default is None:
        raise InputError(f"there is no {names[0]}" + (f" (nor {', '.join(names[1:])})" if names[1:] else ""))
    return default

"""A model from its config.json: the layers it has, and what each of them keeps of a sequence."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from kvformat.errors import InputError
from kvformat.files import regular
from kvformat.sizing import keys
from kvformat.sizing.plan import Layers, Model

#: more layers than any model has
_MOST_LAYERS = 10_000
#: attention of a layer of DeepSeek V4 by its compression ratio
_RATIOS = {0: "v4 window", 4: "csa", 128: "hca"}
#: sizes of a latent row, and of an indexer's key, for which there is a layout
_LATENT, _INDEXER = (512, 64), 128
#: and the sizes of DeepSeek V4's compressed layers
_V4 = {"head_size": 512, "window": 128, "indexer": 128}
#: what makes a layer: attention, heads, head_size, head_size_v, window
_Layer = tuple[str, int, int, int, int]
_Config = Mapping[str, Any]


def load_config(path: str | Path) -> Model:
    """The model of a config.json, or of the one in a directory. Raises InputError, naming the file, for others."""
    file = Path(path)
    file = regular(file / "config.json" if file.is_dir() else file)  # a pipe would be waited for
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


def parse_config(config: _Config, *, name: str) -> Model:
    """The model that a configuration describes.

    Raises InputError, with the key's name, where one speaks of what layers keep and is not read.
    """
    outside, config = _text(config)
    family = next(
        (words for kind, words in keys.FAMILIES.items() if str(config.get("model_type")).startswith(kind)), {}
    )
    config = {key: value for key, value in config.items() if value is not None}
    config = config if "per_layer_config" in config else {**family, **config}
    count = _count(config)
    kinds, said_by = _kinds(config, count)
    unread = _unread(config, said_by) or _unread(
        {key: outside[key] for key in outside if keys.TIES.search(key)}, said_by
    )
    if unread:
        raise InputError(f"{unread} changes what its layers keep, and is not read here")
    layers = [_layer(of_layer, kind) for of_layer, kind in zip(_per_layer(config, count), kinds, strict=True)]
    groups = Counter(layers)
    times = _number(config, ("attentions_per_layer",), default=1)
    found = tuple(Layers(number * times, *layer) for layer, number in groups.items())
    state = any("linear" in layer for layer in groups) or "hybrid" in str(config.get(said_by))
    if not any(group.streams() for group in found):
        named = [key for key in (said_by, *keys.SHARING) if key == said_by != "" or config.get(key)]
        raise InputError(f"no layer keeps anything of a token, by {', '.join(named)}")
    return Model(
        name, found, "config.json", "State of linear layers, of a fixed size, is not counted." if state else ""
    )


def _text(config: _Config) -> tuple[_Config, _Config]:
    """What is said of the whole model, and the part that writes text, with what is nested in it beside the rest."""
    if config.get("is_encoder_decoder"):
        raise InputError("is_encoder_decoder: its layers also keep K and V of what the encoder read; not read here")
    for part in keys.TEXT_PARTS:
        inner = config.get(part)
        if inner is not None:
            if not isinstance(inner, Mapping):
                raise InputError(f"{part} must be an object; got {inner!r:.80}")
            outside, text = _text(inner)
            whole = {key: value for key, value in config.items() if not isinstance(value, Mapping)}
            return {**whole, **outside}, text
    nested = [config[key] for key in keys.NESTED if isinstance(config.get(key), Mapping)]
    return {}, {key: value for part in (*nested, config) for key, value in part.items()}


def _count(config: _Config) -> int:
    """How many layers there are: said, or as many as are listed."""
    listed = [config.get(kind.key) for kind in keys.KINDS if kind.form == "list"]
    default = next((len(each) for each in listed if isinstance(each, list)), None)
    count = _number(config, keys.NUMBERS["layers"], default=default)
    if count > _MOST_LAYERS:
        raise InputError(f"a model of {count} layers is none: at most {_MOST_LAYERS}")
    return count


def _unread(config: _Config, said_by: str) -> str:
    """The first key that speaks of what is kept and that nothing here understands."""
    harmless = [pattern for patterns in keys.HARMLESS.values() for pattern in patterns]
    harmless += (*keys.STATE, *keys.REPEATED) if said_by else ()
    for key, value in config.items():
        if key in keys.ONLY:
            known = sorted(set(value)) if isinstance(value, list) else value
            if known not in keys.ONLY[key]:
                return key
        elif not keys.SPEAKS.search(key) or key in keys.READ or value in (False, 0, "", [], {}):
            continue
        elif not any(fnmatchcase(key, pattern) for pattern in harmless):
            return key
    return ""


# what kind each layer is of


def _kinds(config: _Config, count: int) -> tuple[list[str], str]:
    """The kind of each layer, and the key that says so: "" where none does and all attend."""
    if config.get("compress_ratios") is not None:
        return _compressed(config["compress_ratios"], count), "compress_ratios"
    form = next((each for each in keys.KINDS if config.get(each.key) is not None), None)
    kinds = _windows(config, count) if form is None else _FORMS[form.form](config, form, count)
    kept = _keeping(config, count)
    return [kind if keeps else "none" for kind, keeps in zip(kinds, kept, strict=True)], form.key if form else ""


def _listed(config: _Config, form: keys.Kinds, count: int) -> list[str]:
    said = config[form.key]
    if not isinstance(said, list | str) or len(said) != count:
        raise InputError(f"{form.key} must list {count} layers; got {said!r:.80}")
    for index, name in enumerate(said):
        if not isinstance(name, str | int) or name not in form.names:
            raise InputError(f"{form.key}: layer {index} is of type {name!r}; known: {', '.join(map(str, form.names))}")
    return [form.names[name] for name in said]


def _indexed(config: _Config, form: keys.Kinds, count: int) -> list[str]:
    said = config[form.key]
    said = said.get(form.inside) if form.inside and isinstance(said, Mapping) else said
    if not isinstance(said, list) or not all(type(i) is int and form.first <= i < count + form.first for i in said):
        name = f"{form.key}.{form.inside}" if form.inside else form.key
        raise InputError(f"{name} must list some of {count} layers; got {said!r:.80}")
    return ["full" if index + form.first in said else "linear" for index in range(count)]


def _every(config: _Config, form: keys.Kinds, count: int) -> list[str]:
    step = _number(config, (form.key,))
    return ["full" if (index + 1) % step == 0 else "linear" for index in range(count)]


def _period(config: _Config, form: keys.Kinds, count: int) -> list[str]:
    step, rest = _number(config, (form.key,)), _number(config, (form.inside,), default=0)
    return ["full" if index % step == rest else "linear" for index in range(count)]


def _all(config: _Config, form: keys.Kinds, count: int) -> list[str]:
    return [form.names[config[form.key]]] * count


_FORMS: Mapping[str, Callable[[_Config, keys.Kinds, int], list[str]]] = {
    "list": _listed, "letters": _listed, "indices": _indexed, "every": _every, "period": _period, "all": _all,
}  # fmt: skip


def _windows(config: _Config, count: int) -> list[str]:
    """Which layers slide in a configuration that does not list them."""
    if _number(config, keys.NUMBERS["chunk"], default=0):
        raise InputError(f"{keys.NUMBERS['chunk'][0]} is there, and no layer_types that says which layers it holds for")
    if not _number(config, keys.NUMBERS["window"], default=0) or config.get("use_sliding_window") is False:
        return ["full"] * count
    if "max_window_layers" in config:
        first = _number(config, ("max_window_layers",), default=0)
        return ["window" if index >= first else "full" for index in range(count)]
    names = ("sliding_window_pattern", "_sliding_window_pattern", "global_attn_every_n_layers", "layer_switch")
    period = _number(config, names, default=0)
    return ["full" if period and (index + 1) % period == 0 else "window" for index in range(count)]


def _keeping(config: _Config, count: int) -> list[bool]:
    """Which layers keep what they attend to; the others read what one of these keeps."""
    last, step = (_number(config, (key,), default=0) for key in keys.SHARING[:2])
    source = config.get("kv_source_layers") or list(range(count))
    if not isinstance(source, list) or len(source) != count:
        raise InputError(f"kv_source_layers must name a layer for each of {count}; got {source!r:.80}")
    return [
        index < count - last and (not step or index % step == 0) and source[index] == index for index in range(count)
    ]


def _compressed(ratios: Any, count: int) -> list[str]:
    known = ", ".join(map(str, _RATIOS))
    for index in range(count):
        if not isinstance(ratios, list) or len(ratios) < count or ratios[index] not in tuple(_RATIOS):
            raise InputError(f"compress_ratios must have one of {known} for each of {count} layers; got {ratios!r:.80}")
    return [_RATIOS[ratios[index]] for index in range(count)]


# what a layer of its kind keeps


def _per_layer(config: _Config, count: int) -> Iterator[_Config]:
    """The configuration of each layer: the model's, and what is said of the layer alone."""
    own = config.get("per_layer_config") or {}
    if not isinstance(own, Mapping) or not all(str(key).isdecimal() and isinstance(own[key], Mapping) for key in own):
        raise InputError(f"per_layer_config must hold an object for each layer by its number; got {own!r:.80}")
    by_index = {int(key): value for key, value in own.items()}
    for key, value in ((key, value) for each in by_index.values() for key, value in each.items()):
        if value is not None and key not in keys.READ and _unread({key: value}, ""):
            raise InputError(f"per_layer_config: {key} changes what its layers keep, and is not read here")
    lists = {key: config[key] for key in keys.PER_LAYER if config.get(key) is not None}
    for key, value in lists.items():
        if not isinstance(value, list) or len(value) != count:
            raise InputError(f"{key} must have a number for each of {count} layers; got {value!r:.80}")
    for index in range(count):
        listed = {keys.PER_LAYER[key]: value[index] for key, value in lists.items()}
        yield {**config, **listed, **by_index.get(index, {})}


def _layer(config: _Config, kind: str) -> _Layer:
    if kind in ("linear", "none"):
        return kind, 0, 0, 0, 0
    if kind in _RATIOS.values():
        for name, known in _V4.items():
            if _number(config, keys.NUMBERS[name], default=known) != known:
                raise InputError(
                    f"{keys.NUMBERS[name][0]} of compressed layers must be {known}, for which there is a layout"
                )
        return kind, 0, 0, 0, 0
    window = 0
    if kind in ("window", "chunk"):
        names = keys.NUMBERS[kind]
        window = _number(config, names, default=0)
        if not window and (kind == "chunk" or "per_layer_config" not in config):
            raise InputError(f"there are {kind} layers, and {names[0]} is missing")
    indexer = _number(config, keys.NUMBERS["indexer"], default=0)
    if _number(config, keys.NUMBERS["latent"], default=0):
        return _latent(config, indexer, window)
    if indexer or kind == "indexed":
        raise InputError("index_head_dim: keys of an indexer beside heads of K and V are not read here")
    own = keys.OF_KIND.get("window" if window else "full", {})
    times = _number(config, ("swa_times_kv_heads",), default=1) if window else 1
    heads = _number(config, own.get("kv_heads", ()), default=0) or _heads(config, own) * times
    size = _number(config, own.get("head_size", ()), default=0) or _head_size(config)
    size_v = _number(config, (*own.get("head_size_v", ()), *keys.NUMBERS["head_size_v"]), default=0)
    return "kv", heads, size, size_v or size, window


def _latent(config: _Config, indexer: int, window: int) -> _Layer:
    row = tuple(_number(config, keys.NUMBERS[name], default=0) for name in ("latent", "rope"))
    if row != _LATENT:
        raise InputError(
            f"kv_lora_rank, qk_rope_head_dim: latent rows of {' + '.join(map(str, row))} dims have no layout; "
            f"only {' + '.join(map(str, _LATENT))} have"
        )
    if indexer not in (0, _INDEXER):
        raise InputError(f"index_head_dim: indexer keys of {indexer} dims have no layout; only {_INDEXER} have")
    return ("mla with indexer" if indexer else "mla"), 0, 0, 0, window


def _heads(config: _Config, own: Mapping[str, tuple[str, ...]]) -> int:
    """KV heads: said, or one of a multi-query model, or as many as query heads."""
    if config.get("multi_query") and not config.get("new_decoder_architecture"):
        return 1
    names = [name for name in keys.NUMBERS["kv_heads"] if _open(config, name)]
    return _number(config, (*names, *own.get("heads", ()), *keys.NUMBERS["heads"]))


def _open(config: _Config, name: str) -> bool:
    gate, default = keys.GATES.get(name, ("", True))
    return bool(config.get(gate, default)) if gate else True


def _head_size(config: _Config) -> int:
    given = _number(config, keys.NUMBERS["head_size"], default=0)
    if given:
        return given
    hidden, heads = _number(config, keys.NUMBERS["hidden"]), _number(config, keys.NUMBERS["heads"])
    if hidden % heads:
        raise InputError(f"there is no head_dim, and hidden_size {hidden} does not divide into {heads} heads")
    return hidden // heads


def _number(config: _Config, names: tuple[str, ...], default: int | None = None) -> int:
    """The first of these that the configuration has. Raises InputError for one that is no count, or where none is."""
    for name in names:
        value = config.get(name) if _open(config, name) else None
        if value is None:
            continue
        if type(value) is not int or not 0 <= value < 1 << 31 or (not value and default is None):
            raise InputError(f"{name} must be a positive integer; got {value!r:.80}")
        return value
    if default is None:
        raise InputError(f"there is no {names[0]}" + (f" (nor {', '.join(names[1:])})" if names[1:] else ""))
    return default

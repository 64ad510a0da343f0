"""`size` against transformers 5.24: each of its configurations is read as its cache is made, or refused by name."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import pytest

from kvformat.errors import InputError
from kvformat.sizing import Layers, parse_config
from tests.oracle.libraries import load

# 820 configurations are made, and some 120 models on torch's meta device
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

#: what transformers cannot make a cache of, counted by hand from its default configuration
BY_HAND = {
    # layer_types: 23 heavily and 20 sparsely compressed layers, their sizes those of DeepSeek V4
    "deepseek_v4": {Layers(23, "hca"), Layers(20, "csa")},
    # its language model is Gemma 2B: 18 layers, one head of 256
    "pi0": {Layers(18, "kv", 1, 256, 256)},
}
#: what people ask about: none of these may be refused
READ = (
    "llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next", "gemma",
    "gemma2", "gemma3", "gemma3_text", "gemma3n", "gemma4", "phi", "phi3", "phimoe", "gpt2", "gpt_neox",
    "gpt_bigcode", "falcon", "falcon_h1", "bloom", "opt", "starcoder2", "stablelm", "cohere", "cohere2",
    "cohere2_moe", "dbrx", "olmo2", "olmo3", "granite", "granitemoe", "jamba", "zamba", "zamba2", "nemotron",
    "nemotron_h", "minimax", "minimax_m2", "gpt_oss", "llama4", "deepseek_v2", "deepseek_v3", "deepseek_v32",
    "glm4", "kimi_linear", "bailing_hybrid", "longcat_flash", "lfm2", "jetmoe", "ernie4_5_moe", "exaone4",
    "smollm3", "step3p5", "mimo_v2_flash", "hunyuan_v1_moe", "arcee", "seed_oss", "apertus", "internvl",
    "qwen2_5_vl", "qwen3_vl", "llava", "mistral3", "xglm",
)  # fmt: skip


@pytest.fixture(scope="module")
def library() -> Any:
    transformers = load("transformers", "5.24", "transformers")
    transformers.logging.set_verbosity_error()
    return transformers


@pytest.fixture(scope="module")
def configurations(library) -> dict[str, Any]:
    """The default configuration of each class by its model_type."""
    found, unable = {}, []
    for name, make in library.CONFIG_MAPPING.items():
        try:
            found[name] = make()
        except Exception:  # noqa: BLE001 whatever a default may raise
            unable.append(name)
    assert unable == ["gemma4_assistant", "nougat"]  # neither has a default that it accepts itself
    return found


def files(configuration) -> list[dict[str, Any]]:
    """Its config.json as it is saved, and with every default written out."""
    return [json.loads(configuration.to_json_string(use_diff=short)) for short in (True, False)]


def kinds_of(cache) -> Counter[tuple[str, int]]:
    kinds: Counter[tuple[str, int]] = Counter()
    for layer in cache.layers:
        name, window = type(layer).__name__, getattr(layer, "sliding_window", None) or 0
        known = {"DummyLayer": "none", "LinearAttentionLayer": "linear", "DynamicIndexedLayer": "indexed"}
        kinds[known.get(name, "attention"), window if "Sliding" in name else 0] += 1
    return kinds


def kinds_read(model) -> Counter[tuple[str, int]]:
    known = {"linear": "linear", "none": "none", "mla with indexer": "indexed"}
    kinds: Counter[tuple[str, int]] = Counter()
    for group in model.layers:
        kinds[known.get(group.attention, "attention"), group.window] += group.count
    return kinds


def names_in(described) -> set[str]:
    if not isinstance(described, dict):
        return set()
    return set(described).union(*(names_in(inner) for inner in described.values()))


def wrong(library, name, configuration, described) -> str:
    """Why the answer to one config.json is not what it must be."""
    try:
        model = parse_config(described, name=name)
    except InputError as error:
        named = set(re.findall(r"\w+", str(error)))
        missing = str(error).startswith("there is no ")
        return "" if missing or named & names_in(described) else f"refused without the name of a key: {error}"
    if name in BY_HAND:
        return "" if set(model.layers) == BY_HAND[name] else f"{model.layers}"
    expected = kinds_of(library.DynamicCache(config=configuration))
    return "" if kinds_read(model) == expected else f"{kinds_read(model)}, transformers {expected}"


def test_layers_are_those_of_the_cache_or_a_key_is_named(library, configurations):
    found = {
        (name, len(described)): says
        for name, configuration in configurations.items()
        for described in files(configuration)
        if (says := wrong(library, name, configuration, described))
    }
    assert found == {}


def test_models_that_people_ask_about_are_read(configurations):
    for name in READ:
        for described in files(configurations[name]):
            parse_config(described, name=name)


#: its cache has linear states in a list of its own: the last layer, a linear one, is none of `layers`
OWN_LIST = {"minimax"}


def keys_and_values(library, configuration) -> list[Any] | None:
    """K and V of each layer after four tokens, on a device that computes shapes only; None where it does not run."""
    import torch

    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)  # experts are multiplied in nothing wider
    try:
        mappings = (library.MODEL_FOR_CAUSAL_LM_MAPPING, library.MODEL_MAPPING)
        made = next(mapping[type(configuration)] for mapping in mappings if type(configuration) in mapping)
        with torch.device("meta"), torch.no_grad():
            model = (made[0] if isinstance(made, list | tuple) else made)(configuration).eval()
            cache = model(input_ids=torch.zeros((1, 4), dtype=torch.long), use_cache=True).past_key_values
            return [(layer.keys, layer.values) if hasattr(layer, "keys") else None for layer in cache.layers]
    except Exception:  # noqa: BLE001 no such model, or it needs values, pictures or sound
        return None
    finally:
        torch.set_default_dtype(default)


def test_heads_and_head_sizes_are_those_of_a_forward(library, configurations):
    compared, found = 0, {}
    for name, configuration in configurations.items():
        try:
            model = parse_config(files(configuration)[0], name=name)
        except InputError:
            continue
        if any(group.attention not in ("kv", "linear", "none") for group in model.layers):
            continue  # latent rows: transformers keeps what it computes of them
        ran = keys_and_values(library, configuration)
        if ran is None:
            continue
        compared += 1
        shapes = Counter(
            (pair[0].shape[1], pair[0].shape[3], pair[1].shape[3]) if pair and pair[0] is not None else ()
            for pair in ran
        )
        read: Counter[tuple[int, ...]] = Counter()
        for group in model.layers:
            read[(group.heads, group.head_size, group.head_size_v) if group.heads else ()] += group.count
        if name in OWN_LIST:
            for counts in (read, shapes):
                counts.pop((), None)
        if read != shapes:
            found[name] = f"{read}, transformers {shapes}"
    assert found == {}
    assert compared >= 160  # of the some 350 that are read; the others are compared by their layers

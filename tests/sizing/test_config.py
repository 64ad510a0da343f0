"""Models from config.json: the public forms of it, and one line for everything else."""

from __future__ import annotations

import json

import pytest

from kvformat.errors import InputError
from kvformat.sizing import Layers, load_config, modes_of, parse_config, size
from kvformat.sizing.models import MODELS

LLAMA = {"model_type": "llama", "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
         "hidden_size": 8192}  # fmt: skip
GEMMA3 = {"model_type": "gemma3", "text_config": {
    "model_type": "gemma3_text", "num_hidden_layers": 62, "num_attention_heads": 32, "num_key_value_heads": 16,
    "head_dim": 128, "hidden_size": 5376, "sliding_window": 1024, "sliding_window_pattern": 6}}  # fmt: skip
GPT_OSS = {"model_type": "gpt_oss", "num_hidden_layers": 24, "num_attention_heads": 64, "num_key_value_heads": 8,
           "head_dim": 64, "hidden_size": 2880, "sliding_window": 128,
           "layer_types": ["sliding_attention", "full_attention"] * 12}  # fmt: skip
DEEPSEEK = {"model_type": "deepseek_v3", "num_hidden_layers": 61, "num_attention_heads": 128, "hidden_size": 7168,
            "kv_lora_rank": 512, "qk_rope_head_dim": 64, "v_head_dim": 128}  # fmt: skip
QWEN = {"model_type": "qwen2", "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
        "hidden_size": 3584, "sliding_window": 131072, "use_sliding_window": False,
        "max_window_layers": 28}  # fmt: skip
FALCON = {"model_type": "falcon", "num_hidden_layers": 32, "num_attention_heads": 71, "hidden_size": 4544,
          "multi_query": True, "new_decoder_architecture": False}  # fmt: skip
GPT2 = {"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768}
V4 = {"model_type": "deepseek_v4", "num_hidden_layers": 43, "compress_ratios": [0, 0] + [4, 128] * 20 + [4]}


def layers(config):
    return set(parse_config(config, name="test").layers)


@pytest.mark.parametrize(
    "config, model",
    [
        (LLAMA, "llama-2-70b"), (GEMMA3, "gemma-3-27b"), (GPT_OSS, "gpt-oss-20b"), (DEEPSEEK, "deepseek-v3"),
        (DEEPSEEK | {"index_head_dim": 128}, "deepseek-v3.2"), (QWEN, "qwen2.5-7b"), (FALCON, "falcon-7b"),
        (V4, "deepseek-v4-flash"),
    ],
)  # fmt: skip
def test_a_public_configuration_is_the_model_of_that_name(config, model):
    parsed = parse_config(config, name="test")
    assert modes_of(parsed) == modes_of(MODELS[model])
    for mode in modes_of(parsed):
        found, expected = (size(each, mode, 5000) for each in (parsed, MODELS[model]))
        assert (found.bytes, found.per_token) == (expected.bytes, expected.per_token)


def test_what_the_layers_are():
    assert layers(GPT2) == {Layers(12, "kv", 12, 64, 64)}
    assert layers(GPT_OSS) == {Layers(12, "kv", 8, 64, 64), Layers(12, "kv", 8, 64, 64, 128)}
    assert layers(GEMMA3) == {Layers(10, "kv", 16, 128, 128), Layers(52, "kv", 16, 128, 128, 1024)}


@pytest.mark.parametrize(
    "change, expected",
    [
        # Mistral v0.1: all layers slide
        ({"sliding_window": 4096}, {Layers(4, "kv", 2, 64, 64, 4096)}),
        ({"sliding_window": None}, {Layers(4, "kv", 2, 64, 64)}),
        ({"sliding_window": 64, "use_sliding_window": True, "max_window_layers": 3},
         {Layers(3, "kv", 2, 64, 64), Layers(1, "kv", 2, 64, 64, 64)}),
        ({"sliding_window": 64, "model_type": "gemma2"}, {Layers(2, "kv", 2, 64, 64), Layers(2, "kv", 2, 64, 64, 64)}),
        ({"layer_types": ["linear_attention"] * 3 + ["full_attention"]},
         {Layers(3, "linear"), Layers(1, "kv", 2, 64, 64)}),
        # Qwen3-Next, which leaves layer_types to its code; where they are there, they count
        ({"full_attention_interval": 4}, {Layers(3, "linear"), Layers(1, "kv", 2, 64, 64)}),
        ({"full_attention_interval": 4, "layer_types": ["full_attention"] * 4}, {Layers(4, "kv", 2, 64, 64)}),
        ({"v_head_dim": 32}, {Layers(4, "kv", 2, 64, 32)}),
    ],
)  # fmt: skip
def test_which_layers_slide(change, expected):
    base = {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    assert layers(base | change) == expected


@pytest.mark.parametrize(
    "change, says",
    [
        ({"num_hidden_layers": None}, "there is no num_hidden_layers (nor n_layer, num_layers)"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a positive integer; got 0"),
        ({"num_key_value_heads": "8"}, "num_key_value_heads must be a positive integer; got '8'"),
        ({"num_hidden_layers": True}, "num_hidden_layers must be a positive integer; got True"),
        ({"hidden_size": 100}, "there is no head_dim, and hidden_size 100 does not divide into 64 heads"),
        ({"layer_types": ["full_attention"]}, "layer_types must list 80 layers; got ['full_attention']"),
        ({"layer_types": ["chunked_attention"] * 80}, "layer 0 is of type 'chunked_attention'; known: full_attention"),
        ({"layer_types": ["sliding_attention"] * 80}, "layer 0 is a sliding one, and sliding_window is missing"),
        ({"layer_types": ["linear_attention"] * 80}, "no layer keeps anything of a token"),
        ({"kv_lora_rank": 256, "qk_rope_head_dim": 64}, "latent rows of 256 + 64 dims have no layout"),
        ({"compress_ratios": [4]}, "compress_ratios must have one of 0, 4, 128 for each of 80 layers; got [4]"),
        ({"text_config": 7}, "text_config must be an object; got 7"),
        ({"num_hidden_layers": 1 << 30}, "a model of 1073741824 layers is none: at most 10000"),
        (
            {"compress_ratios": [[]] * 80},
            "compress_ratios must have one of 0, 4, 128 for each of 80 layers; got [[], []",
        ),
        ({"attn_type_list": [0, 1] * 40}, "attn_type_list changes what its layers keep, and is not read here"),
        ({"attn_layer_indices": [9, 18, 27]}, "attn_layer_indices changes what its layers keep"),  # Bamba
        ({"attn_layer_indices": []}, "attn_layer_indices changes what its layers keep"),
        ({"attn_layer_indices": [9], "layer_types": None}, "attn_layer_indices changes what its layers keep"),
        ({"block_types": ["recurrent", "recurrent", "attention"]}, "block_types changes what its"),  # RecurrentGemma
        ({"full_attention_interval": "4"}, "full_attention_interval must be a positive integer; got '4'"),
        (
            {"num_kv_shared_layers": 15, "layer_types": ["full_attention"] * 80},
            "num_kv_shared_layers changes what its layers keep, and is not read here",
        ),
        (
            {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "index_head_dim": 64},
            "indexer keys of 64 dims have no layout; only 128 have",
        ),
    ],
)
def test_a_configuration_that_says_too_little_is_one_line(change, says):
    with pytest.raises(InputError) as error:
        parse_config(LLAMA | change, name="test")
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_or_its_directory_is_read(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert load_config(tmp_path) == load_config(tmp_path / "config.json")
    assert load_config(tmp_path).layers == (Layers(80, "kv", 8, 128, 128),)


@pytest.mark.parametrize("text", ["", "[1]", "{", "\xff", "[" * 100_000])
def test_a_file_that_is_no_configuration_is_one_line_that_names_it(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(InputError) as error:
        load_config(path)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)

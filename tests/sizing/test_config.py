"""Models from config.json: the public forms of it, and one line for everything else."""

from __future__ import annotations

import json
import os

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

# what findings were made of: each as its public config.json has it, and its layers counted by hand
KIMI_LINEAR = {
    "model_type": "kimi_linear", "num_hidden_layers": 27, "num_attention_heads": 32, "num_key_value_heads": 32,
    "head_dim": 72, "hidden_size": 2304, "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "mla_use_nope": True, "num_expert_group": 1, "topk_group": 1,
    "moe_layer_freq": 1, "first_k_dense_replace": 1, "num_shared_experts": 1, "num_nextn_predict_layers": 0,
    "linear_attn_config": {
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "head_dim": 128, "num_heads": 32, "short_conv_kernel_size": 4,
        "kda_layers": [1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15, 17, 18, 19, 21, 22, 23, 25, 26]}}  # fmt: skip
BAILING_HYBRID = {
    "model_type": "bailing_hybrid", "num_hidden_layers": 42, "layer_group_size": 6, "num_attention_heads": 32,
    "num_key_value_heads": 32, "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
    "short_conv_kernel_size": 4, "kda_lower_bound": -5.0, "n_group": 8, "topk_group": 4}  # fmt: skip
LONGCAT = {
    "model_type": "longcat_flash", "num_layers": 28, "num_attention_heads": 64, "hidden_size": 6144,
    "kv_lora_rank": 512, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "attention_method": "MLA", "zero_expert_num": 256}  # fmt: skip
GEMMA4 = {"model_type": "gemma4", "text_config": {
    "model_type": "gemma4_text", "num_hidden_layers": 30, "num_attention_heads": 8, "num_key_value_heads": 4,
    "head_dim": 256, "hidden_size": 2816, "sliding_window": 1024, "num_kv_shared_layers": 0,
    "layer_types": [*["sliding_attention"] * 5, "full_attention"] * 5}}  # fmt: skip
CHATGLM3 = {
    "model_type": "chatglm", "num_layers": 28, "num_attention_heads": 32, "hidden_size": 4096, "kv_channels": 128,
    "multi_query_attention": True, "multi_query_group_num": 2, "add_qkv_bias": True, "interleaved_qkv": False,
    "apply_query_key_layer_scaling": True, "attention_softmax_in_fp32": True}  # fmt: skip
STEP3 = {"model_type": "step3_vl", "text_config": {
    "num_hidden_layers": 61, "num_attention_heads": 64, "num_attention_groups": 1, "head_dim": 256, "hidden_size": 7168,
    "share_q_dim": 2048, "share_expert_dim": 5120}}  # fmt: skip
LFM2 = {
    "model_type": "lfm2", "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "num_heads": 32,
    "hidden_size": 2048, "full_attn_idxs": [2, 5, 8, 10, 12, 14], "conv_L_cache": 3, "conv_dim": 2048,
    "block_dim": 2048, "block_ff_dim": 12288, "block_norm_eps": 1e-5, "block_use_swiglu": True,
    "block_mlp_init_scale": 1.0}  # fmt: skip
HUNYUAN_LARGE = {
    "model_type": "hunyuan", "num_hidden_layers": 64, "num_attention_heads": 80, "num_key_value_heads": 8,
    "attention_head_dim": 128, "hidden_size": 6400, "use_cla": True, "cla_share_factor": 2, "use_qk_norm": True,
    "num_shared_expert": 1}  # fmt: skip
JETMOE = {"model_type": "jetmoe", "num_hidden_layers": 24, "num_attention_heads": 32, "num_key_value_heads": 16,
          "kv_channels": 128, "hidden_size": 2048}  # fmt: skip

# models that were right before any of that, with the keys of their files that speak of layers and heads
LLAMA31 = {"model_type": "llama", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
           "hidden_size": 4096, "attention_bias": False, "attention_dropout": 0.0, "pretraining_tp": 1}  # fmt: skip
QWEN3_MOE = {
    "model_type": "qwen3_moe", "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4,
    "head_dim": 128, "hidden_size": 2048, "decoder_sparse_step": 1, "max_window_layers": 48, "sliding_window": None,
    "mlp_only_layers": [], "use_sliding_window": False}  # fmt: skip
GEMMA2 = {
    "model_type": "gemma2", "num_hidden_layers": 42, "num_attention_heads": 16, "num_key_value_heads": 8,
    "head_dim": 256, "hidden_size": 3584, "sliding_window": 4096, "attn_logit_softcapping": 50.0,
    "query_pre_attn_scalar": 256}  # fmt: skip
MISTRAL = {"model_type": "mistral", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
           "hidden_size": 4096, "sliding_window": 4096}  # fmt: skip
PHI3_SMALL = {
    "model_type": "phi3small", "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "hidden_size": 4096, "blocksparse_block_size": 64, "blocksparse_num_local_blocks": 16, "mup_attn_multiplier": 1.0,
    "dense_attention_every_n_layers": 2, "blocksparse_homo_head_pattern": False,
    "blocksparse_vert_stride": 8}  # fmt: skip
QWEN3_NEXT = {
    "model_type": "qwen3_next", "num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 2,
    "head_dim": 256, "hidden_size": 2048, "full_attention_interval": 4, "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
    "shared_expert_intermediate_size": 512}  # fmt: skip
GLM45_AIR = {
    "model_type": "glm4_moe", "num_hidden_layers": 46, "num_attention_heads": 96, "num_key_value_heads": 8,
    "head_dim": 128, "hidden_size": 4096, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1,
    "num_nextn_predict_layers": 1, "use_qk_norm": False, "attention_bias": True}  # fmt: skip
# its code doubles the KV heads of sliding layers, unless the file says how many they are
MIMO_V2 = {
    "model_type": "mimo_v2_flash", "num_hidden_layers": 48, "num_attention_heads": 64, "num_key_value_heads": 4,
    "head_dim": 192, "v_head_dim": 128, "hidden_size": 4096, "sliding_window": 128,
    "layer_types": ["full_attention", *["sliding_attention"] * 5] * 8}  # fmt: skip
LLAMA4 = {"model_type": "llama4_text", "num_hidden_layers": 4, "num_attention_heads": 4, "head_dim": 8,
          "attention_chunk_size": 8192, "no_rope_layers": [1, 1, 1, 0]}  # fmt: skip


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


@pytest.mark.parametrize(
    "config, expected",
    [
        (KIMI_LINEAR, {Layers(7, "mla"), Layers(20, "linear")}),
        (BAILING_HYBRID, {Layers(7, "mla"), Layers(35, "linear")}),  # 42 / 6
        (LONGCAT, {Layers(56, "mla")}),  # two attentions a layer
        (GEMMA4, {Layers(25, "kv", 4, 256, 256, 1024), Layers(5, "kv", 4, 512, 512)}),
        (CHATGLM3, {Layers(28, "kv", 2, 128, 128)}),
        (CHATGLM3 | {"multi_query_attention": False}, {Layers(28, "kv", 32, 128, 128)}),
        (STEP3, {Layers(61, "kv", 1, 256, 256)}),
        (LFM2, {Layers(6, "kv", 8, 64, 64), Layers(10, "linear")}),
        (HUNYUAN_LARGE, {Layers(32, "kv", 8, 128, 128), Layers(32, "none")}),  # every second layer shares
        (HUNYUAN_LARGE | {"use_cla": False}, {Layers(64, "kv", 8, 128, 128)}),
        (MIMO_V2, {Layers(8, "kv", 4, 192, 128), Layers(40, "kv", 8, 192, 128, 128)}),
        (MIMO_V2 | {"swa_num_key_value_heads": 6}, {Layers(8, "kv", 4, 192, 128), Layers(40, "kv", 6, 192, 128, 128)}),
        (JETMOE, {Layers(24, "kv", 16, 128, 128)}),
        (LLAMA31, {Layers(32, "kv", 8, 128, 128)}),
        (QWEN3_MOE, {Layers(48, "kv", 4, 128, 128)}),
        (GEMMA2, {Layers(21, "kv", 8, 256, 256, 4096), Layers(21, "kv", 8, 256, 256)}),
        (MISTRAL, {Layers(32, "kv", 8, 128, 128, 4096)}),
        (PHI3_SMALL, {Layers(32, "kv", 8, 128, 128)}),  # sparse blocks are read, all are kept
        (QWEN3_NEXT, {Layers(12, "kv", 2, 256, 256), Layers(36, "linear")}),
        (GLM45_AIR, {Layers(46, "kv", 8, 128, 128)}),
    ],
)  # fmt: skip
def test_layers_counted_by_hand(config, expected):
    assert layers(config) == expected


@pytest.mark.parametrize(
    "change, expected",
    [
        # heads of full layers that differ, said by kind, for all of them or for one layer
        ({"attention_k_eq_v": True, "num_global_key_value_heads": 2},
         {Layers(25, "kv", 4, 256, 256, 1024), Layers(5, "kv", 2, 512, 512)}),
        ({"num_global_key_value_heads": 2}, {Layers(25, "kv", 4, 256, 256, 1024), Layers(5, "kv", 4, 512, 512)}),
        ({"per_layer_config": {"05": {"head_dim": 384}}},
         {Layers(25, "kv", 4, 256, 256, 1024), Layers(1, "kv", 4, 384, 384), Layers(4, "kv", 4, 256, 256)}),
        # the last layers read what an earlier one keeps: of 20 kept ones, every sixth is full
        ({"num_kv_shared_layers": 10},
         {Layers(17, "kv", 4, 256, 256, 1024), Layers(3, "kv", 4, 512, 512), Layers(10, "none")}),
        ({"swa_num_key_value_heads": 8, "swa_head_dim": 128},
         {Layers(25, "kv", 8, 128, 128, 1024), Layers(5, "kv", 4, 512, 512)}),
    ],
)  # fmt: skip
def test_layers_may_differ_in_heads_and_share_what_they_keep(change, expected):
    assert layers(GEMMA4["text_config"] | change) == expected


@pytest.mark.parametrize(
    "change, linear, full",
    [
        ({"layers_block_type": ["mamba", "attention", "moe", "hybrid"]}, 1, 2),
        ({"attn_type_list": [0, 0, 0, 1]}, 3, 1),
        ({"hybrid_override_pattern": "M-M*", "mamba_num_heads": 64}, 2, 1),
        ({"attn_layer_indices": [1, 3], "mamba_n_heads": 64}, 2, 2),
        ({"attn_layer_period": 4, "attn_layer_offset": 2}, 3, 1),
        ({"full_attn_idxs": [0, 1, 2]}, 1, 3),
        ({"layer_types": ["full_attention"] * 4, "full_attn_idxs": [0]}, 0, 4),  # a list of types says it better
    ],
)  # fmt: skip
def test_each_way_to_say_which_layers_attend(change, linear, full):
    base = {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    found = {(group.attention, group.count) for group in layers(base | change)}
    assert found >= {pair for pair in (("linear", linear), ("kv", full)) if pair[1]}


UNREAD = [
    ({"num_kv_groups": 4}, "num_kv_groups"),
    ({"attention_sharing_stride": 2}, "attention_sharing_stride"),
    ({"layers_per_cache": 2}, "layers_per_cache"),
    ({"head_groups": 2}, "head_groups"),
    ({"window_per_head": [1, 2]}, "window_per_head"),
    ({"block_types": ["recurrent", "recurrent", "attention"]}, "block_types"),  # RecurrentGemma
    ({"n_recurrent_loops": 2}, "n_recurrent_loops"),  # each loop keeps its own
    ({"cross_attention_layers": [3, 8]}, "cross_attention_layers"),
    ({"mamba_n_heads": 128}, "mamba_n_heads"),  # a state, and nothing says of which layers
    ({"indexer_types": ["full", "shared"]}, "indexer_types"),
    ({"index_head_dim": 128}, "index_head_dim"),  # beside heads of K and V
    ({"is_encoder_decoder": True}, "is_encoder_decoder"),
    ({"patch_size": 14}, "patch_size"),  # looks at pictures in one go and keeps nothing
    ({"per_layer_config": {"3": {"kv_groups": 2}}}, "kv_groups"),
    ({"per_layer_config": [{}]}, "per_layer_config"),
    ({"num_key_value_heads_per_layer": [8]}, "num_key_value_heads_per_layer"),
    ({"hybrid_override_pattern": "M" * 79 + "?"}, "hybrid_override_pattern"),
    ({"attn_layer_indices": [80]}, "attn_layer_indices"),
    ({"linear_attn_config": {"full_attn_layers": [0]}}, "linear_attn_config.full_attn_layers"),
    ({"kv_source_layers": [0, 0]}, "kv_source_layers"),
]


@pytest.mark.parametrize("change, name", UNREAD)
def test_a_key_that_speaks_of_what_is_kept_and_is_not_read_is_named(change, name):
    with pytest.raises(InputError, match=name.replace(".", "[.]")):
        parse_config(LLAMA | change, name="test")


def test_the_same_holds_around_the_text_part_for_what_ties_it_to_another():
    assert layers({"text_config": LLAMA, "vision_feature_layer": -2, "patch_size": 14}) == layers(LLAMA)
    with pytest.raises(InputError, match="cross_layer_interval"):
        parse_config({"text_config": LLAMA, "cross_layer_interval": 4}, name="test")


def test_chunks_without_a_list_of_the_layers_that_have_them_are_refused():
    with pytest.raises(InputError, match="attention_chunk_size is there, and no layer_types"):
        parse_config(LLAMA4, name="test")
    types = ["chunked_attention"] * 3 + ["full_attention"]
    assert layers(LLAMA4 | {"layer_types": types}) == {Layers(3, "kv", 4, 8, 8, 8192), Layers(1, "kv", 4, 8, 8)}


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
        (
            {"num_hidden_layers": None},
            "there is no num_hidden_layers (nor n_layer, num_layers, n_layers, layers, decoder_layers)",
        ),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a positive integer; got 0"),
        ({"num_key_value_heads": "8"}, "num_key_value_heads must be a positive integer; got '8'"),
        ({"num_hidden_layers": True}, "num_hidden_layers must be a positive integer; got True"),
        ({"hidden_size": 100}, "there is no head_dim, and hidden_size 100 does not divide into 64 heads"),
        ({"layer_types": ["full_attention"]}, "layer_types must list 80 layers; got ['full_attention']"),
        ({"layer_types": ["chunky"] * 80}, "layer_types: layer 0 is of type 'chunky'; known: full_attention"),
        ({"layer_types": ["chunked_attention"] * 80}, "there are chunk layers, and attention_chunk_size is missing"),
        ({"layer_types": ["sliding_attention"] * 80}, "there are window layers, and sliding_window is missing"),
        ({"layer_types": ["linear_attention"] * 80}, "no layer keeps anything of a token"),
        ({"kv_lora_rank": 256, "qk_rope_head_dim": 64}, "latent rows of 256 + 64 dims have no layout"),
        ({"compress_ratios": [4]}, "compress_ratios must have one of 0, 4, 128 for each of 80 layers; got [4]"),
        ({"text_config": 7}, "text_config must be an object; got 7"),
        ({"num_hidden_layers": 1 << 30}, "a model of 1073741824 layers is none: at most 10000"),
        (
            {"compress_ratios": [[]] * 80},
            "compress_ratios must have one of 0, 4, 128 for each of 80 layers; got [[], []",
        ),
        ({"attn_type_list": [0, 1]}, "attn_type_list must list 80 layers; got [0, 1]"),
        ({"attn_layer_indices": []}, "no layer keeps anything of a token, by attn_layer_indices"),
        ({"full_attention_interval": "4"}, "full_attention_interval must be a positive integer; got '4'"),
        ({"num_kv_shared_layers": 80}, "no layer keeps anything of a token, by num_kv_shared_layers"),
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


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(InputError, match="is a pipe or a device"):
        load_config(tmp_path)

"""Ten architectures of transformers, tiny and with random weights."""

from __future__ import annotations

import torch
from transformers import AutoConfig, AutoModelForCausalLM

_SIZES = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "max_position_embeddings": 256,
}

#: what differs from _SIZES. Windows of 16 are shorter than the sequences of the tests.
CONFIGS = {
    "llama": {**_SIZES, "head_dim": 16},
    "qwen3": {**_SIZES, "head_dim": 32},
    "gemma3_text": {
        **_SIZES,
        "head_dim": 32,
        "sliding_window": 16,
        "layer_types": [*["sliding_attention"] * 3, "full_attention"],
    },
    "gpt_oss": {
        **_SIZES,
        "head_dim": 32,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 16,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "deepseek_v3": {  # K has 32 dims per head, V 16
        **_SIZES,
        "num_key_value_heads": 4,
        "moe_intermediate_size": 32,
        "n_routed_experts": 8,
        "n_group": 2,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "kv_lora_rank": 32,
        "q_lora_rank": 32,
        "qk_rope_head_dim": 16,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
        "first_k_dense_replace": 1,
    },
    "mistral": {**_SIZES, "head_dim": 16, "sliding_window": 16},
    "phi": {**_SIZES, "num_key_value_heads": 4},
    "gpt2": {"n_embd": 64, "n_layer": 4, "n_head": 4, "vocab_size": 64, "n_positions": 256},
    "falcon": {
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "vocab_size": 64,
        "multi_query": True,
        "alibi": False,
        "new_decoder_architecture": False,
    },
    "glm": {**_SIZES, "head_dim": 16, "pad_token_id": 0},
}


def model(name):
    """A model of that architecture, float32, and its config."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(name, **CONFIGS[name])
    return AutoModelForCausalLM.from_config(config).eval(), config


def prompt(batch=2, tokens=24, seed=0):
    """Token ids (batch, tokens); 0 is left for padding."""
    return torch.randint(1, 64, (batch, tokens), generator=torch.Generator().manual_seed(seed))


def generate(net, ids, cache, mask=None, **options):
    """Twelve more tokens, greedily unless the options say otherwise."""
    mask = torch.ones_like(ids) if mask is None else mask
    options = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0, **options}
    return net.generate(ids, attention_mask=mask, cache=cache, **options)

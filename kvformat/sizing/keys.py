"""What the keys of a config.json mean for a cache, as data: which numbers they hold, which layers they describe.

A key whose name speaks of heads, groups, layers, attention, windows or sharing is read by one of these tables, stands
under HARMLESS with the reason why it changes nothing that is kept, or is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

#: where the configuration of the part that writes text stands in that of a model that also sees or hears
TEXT_PARTS = (
    "text_config", "llm_config", "language_config", "thinker_config", "vlm_config", "decoder_config", "decoder",
)  # fmt: skip
#: tables inside of a configuration whose keys mean what they mean outside
NESTED = ("attn_config",)

#: the names of a number: the first that a configuration has counts
NUMBERS: Mapping[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "layers", "decoder_layers"),
    "heads": (
        "num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads", "decoder_attention_heads",
    ),
    "kv_heads": (
        "num_key_value_heads", "num_kv_heads", "n_head_kv", "kv_n_heads", "multi_query_group_num",
        "num_attention_groups",
    ),
    "head_size": ("head_dim", "attention_head_dim", "kv_channels", "d_kv", "d_head", "dim_head"),
    "head_size_v": ("v_head_dim",),
    "hidden": ("hidden_size", "n_embd", "d_model", "embed_dim"),
    "window": ("sliding_window", "sliding_window_size"),
    "chunk": ("attention_chunk_size",),
    "latent": ("kv_lora_rank",),
    "rope": ("qk_rope_head_dim",),
    "indexer": ("index_head_dim",),
}  # fmt: skip
#: the same numbers where layers of one kind have their own
OF_KIND: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "window": {
        "heads": ("swa_num_attention_heads",),
        "kv_heads": ("swa_num_key_value_heads",),
        "head_size": ("swa_head_dim",),
        "head_size_v": ("swa_v_head_dim",),
    },
    "full": {
        "kv_heads": ("num_global_key_value_heads",),
        "head_size": ("global_head_dim",),
    },
}
#: numbers that count only where another key is true, and whether it is where it is missing
GATES: Mapping[str, tuple[str, bool]] = {
    "multi_query_group_num": ("multi_query_attention", False),
    "num_global_key_value_heads": ("attention_k_eq_v", False),
    "cla_share_factor": ("use_cla", False),
}
#: lists of one number for each layer
PER_LAYER: Mapping[str, str] = {
    "num_attention_heads_per_layer": "num_attention_heads",
    "num_key_value_heads_per_layer": "num_key_value_heads",
}

#: what lists of layers call them: `full` and `window` keep K and V, `indexed` an indexer's key too, `linear` a state of
#: a fixed size, `none` nothing; `csa` and `hca` are the compressed layers of DeepSeek V4
TYPES: Mapping[object, str] = {
    **dict.fromkeys(("full_attention", "attention", "global_attention"), "full"),
    **dict.fromkeys(("sliding_attention", "sliding_window_attention", "local_attention"), "window"),
    "chunked_attention": "chunk",
    "indexed_attention": "indexed",
    **dict.fromkeys(("linear_attention", "mamba", "recurrent", "conv", "gated_delta_net"), "linear"),
    # heads and a state side by side
    "hybrid": "full",
    "hybrid_sliding": "window",
    **dict.fromkeys(("mlp", "moe"), "none"),
    "compressed_sparse_attention": "csa",
    "heavily_compressed_attention": "hca",
}


class Kinds(NamedTuple):
    """A key that says what kind each layer is of, and how it says so."""

    key: str
    #: list: a name for each layer; letters: a letter for each; indices: the layers with attention; every: the last of
    #: each so many layers; period: those whose number has a given remainder; all: one name for all of them
    form: str
    names: Mapping[object, str] = TYPES
    #: where the list of indices lies inside of the key's value, and what it counts from
    inside: str = ""
    first: int = 0


#: the first that a configuration has counts. Layers that are not said to attend are linear.
KINDS: tuple[Kinds, ...] = (
    Kinds("layer_types", "list"),
    Kinds("layers_block_type", "list"),
    Kinds("attn_type_list", "list", {0: "linear", 1: "full"}),
    Kinds("hybrid_override_pattern", "letters", {"M": "linear", "*": "full", "-": "none", "E": "none"}),
    Kinds("full_attn_idxs", "indices"),
    Kinds("attn_layer_indices", "indices"),
    Kinds("linear_attn_config", "indices", inside="full_attn_layers", first=1),
    Kinds("attn_layer_period", "period", inside="attn_layer_offset"),
    Kinds("full_attention_interval", "every"),
    Kinds("layer_group_size", "every"),
    Kinds("every_layer", "all"),
)
#: how layers share what one of them keeps: with `num_kv_shared_layers` the last ones keep nothing, with
#: `cla_share_factor` the first of each so many does, `kv_source_layers` names for each layer the one that keeps
SHARING = ("num_kv_shared_layers", "cla_share_factor", "kv_source_layers")

#: what the code of a family takes for granted and its config.json does not say, by the beginning of `model_type`
FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "gemma2": {"sliding_window_pattern": 2},
    "gemma3": {"sliding_window_pattern": 6},
    "gpt_oss": {"sliding_window_pattern": 2},
    "gemma4": {"global_head_dim": 512},
    "longcat_flash": {"attentions_per_layer": 2},
    "falcon_h1": {"every_layer": "hybrid"},
    "mimo_v2_flash": {"swa_times_kv_heads": 2},
}
#: keys whose other values are not read
ONLY: Mapping[str, tuple[object, ...]] = {
    "indexer_types": (["full"],),
    "compress_rates": ({"compressed_sparse_attention": 4, "heavily_compressed_attention": 128},),
    "attention_method": ("MLA",),
    "order_of_interleaved_layers": ("local_attn_first",),
}

#: what is read beside all of the above, by the code that knows its meaning
_READ = (
    "compress_ratios", "multi_query", "new_decoder_architecture", "multi_query_attention", "attention_k_eq_v",
    "use_cla", "use_sliding_window", "max_window_layers", "sliding_window_pattern", "_sliding_window_pattern",
    "global_attn_every_n_layers", "layer_switch", "per_layer_config", "attn_layer_offset", "attentions_per_layer",
    "swa_times_kv_heads",
)  # fmt: skip
READ: frozenset[str] = frozenset(
    (
        *(name for names in NUMBERS.values() for name in names),
        *(name for kind in OF_KIND.values() for names in kind.values() for name in names),
        *(kind.key for kind in KINDS),
        *PER_LAYER,
        *SHARING,
        *NESTED,
        *_READ,
    )
)
#: names that speak of what is kept
SPEAKS = re.compile(
    r"head|group|layer|attn|attention|window|shar(e|ed|ing)(_|$)|kv|hybrid|recurr|loop|compress|chunk|block|local|global"
    r"|pattern|(^|_)cla(_|$)|mamba|ssm|linear|conv|latent|lora_rank|index|query|interval|period|encoder|cross"
    r"|patch_size|image_size|roi_size|num_channels|mel_bins",
    re.IGNORECASE,
)
#: of what stands outside of the part that writes text, only what ties that part to another one speaks
TIES = re.compile(r"cross|shar(e|ed|ing)(_|$)|loop|recurr|kv", re.IGNORECASE)
#: what such a name may say and change nothing that is kept (shell patterns)
HARMLESS: Mapping[str, tuple[str, ...]] = {
    "training, initial values, normalisation": (
        "*dropout*", "*pdrop", "*drop_rate", "*layerdrop", "*drop_path*", "*layer_norm*", "*layernorm*", "*_norm_*",
        "*norm_eps", "*initializer*", "*_bias", "use_qk_norm", "*qk_norm*", "*layer_scale*", "layerscale*",
        "chunk_size_feed_forward", "gradient_checkpointing*", "summary_*", "pretraining_tp", "*loss*", "*_cost",
        "classifier_*", "add_cross_attention", "tie_encoder_decoder",
    ),
    "the arithmetic of attention, not what it reads": (
        "*softcap*", "attention_multiplier", "attention_in_multiplier", "attention_out_multiplier", "attn_scale",
        "attn_temperature_tuning", "attention_value_scale", "query_pre_attn_scalar", "mup_attn_*",
        "use_logn_attn", "*layer_scaling", "clip_qkv", "scale_attn*", "*softmax_in_fp32",
        "*attn_implementation*", "use_attention_gate", "attn_output_gate", "parallel_attn", "scale_depth",
        "*flash_attn*",
        "full_attn_alpha_factor", "full_attn_beta_factor", "relative_attention_*", "attn_logit*", "qk_layernorm",
    ),
    "the query's side": (
        "q_lora_rank", "o_lora_rank", "o_groups", "qk_nope_head_dim", "qk_head_dim", "share_q_dim",
        "num_sliding_attention_heads",
    ),
    "which of the kept tokens are read": (
        "index_n_heads", "index_topk", "index_kpool*", "blocksparse_*", "dense_attention_every_n_layers",
    ),
    "feed-forward and experts": (
        "*expert*", "mlp_*", "moe_*", "*_moe_*", "n_group", "topk_group", "num_dense_layers", "decoder_sparse_step",
        "shared_intermediate_size", "first_k_dense_replace", "block_auto_adjust_ff_dim", "block_ffn_dim_multiplier",
        "block_multiple_of", "block_dim", "block_ff_dim", "block_use_*", "block_*_scale", "activation_sparsity_pattern",
    ),
    "layers that draft or that are trained with": ("mtp_*", "num_nextn_predict_layers", "num_mtp_*"),
    "positions": (
        "no_rope_layer*", "nope_layer_interval", "layer_rope_theta", "rope_*", "compress_rope_theta", "rotary_*",
        "original_max_*", "partial_rotary*", "local_rope_theta", "rope_local_base_freq", "global_rope_theta",
    ),
    "embeddings of a layer's input": ("hidden_size_per_layer_input", "vocab_size_per_layer_input"),
    "tokens and outputs": (
        "*_token_id", "*_token_index", "*_index", "*head_multiplier", "id2label", "label2id", "share_embedding*",
        "output_attentions", "use_bidirectional_attention", "mm_*", "*share_input_output*",
    ),
    "pictures and sound": ("vision_*", "image_*", "video_*", "audio_*", "*projector*", "visual_*", "*_vision_*"),
}  # fmt: skip
#: state of linear layers, of a fixed size: it changes nothing where the configuration says which layers are linear
STATE: tuple[str, ...] = (
    "mamba*", "n_mamba_heads", "linear_*", "ssm_*", "*conv*", "short_conv*", "n_groups", "chunk_size", "use_mamba_*",
    "hidden_mamba_act", "num_mem_blocks", "block_size", "attention_hidden_size", "num_query_groups", "kda_*",
    "lightning_*",
)  # fmt: skip
#: which layers are of which kind, said a second time where a list says it
REPEATED: tuple[str, ...] = ("*sliding_window_pattern", "hybrid_layer_ids", "full_attention_*", "*local_layers")

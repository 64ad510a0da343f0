"""What the layouts are for, where they are defined, and what they refuse, each refusal checked."""

from __future__ import annotations

from typing import Any

from kvformat import InputError
from kvformat.layouts import layout
from spec_pages.text import Statement

PURPOSES = {
    "vllm-0.33": "The page of one layer's cache block in vLLM 0.33: what a cache writer, an attention kernel or a "
    "transfer of blocks between machines has to agree on. Where the pages of all layers lie in one tensor, in the "
    "orders LBHNC, BLHNC and so on: [all layers in one tensor](stacks.md).",
    "vllm-0.33-minimax-m3": "The nvfp4 page that vLLM's fused MiniMax-M3 kernel writes: each head's K and V in one "
    "piece, so that a page split over ranks is a slice of it.",
    "vllm-0.32-cpu": "The page of vLLM's CPU backend without AMX: of each head a plane of K, column-major "
    "(`[head_size, slots]`), then a plane of V, row-major (`[slots, head_size]`). Release 0.32 truncates its FP8 "
    "codes.",
    "vllm-0.33-cpu": "The page of vLLM's CPU backend without AMX: of each head a plane of K, column-major "
    "(`[head_size, slots]`), then a plane of V, row-major (`[slots, head_size]`). Release 0.33 rounds its FP8 codes to "
    "nearest even.",
    "vllm-unfused": "The page of vLLM before K and V of a head shared a cell: "
    "`kv_cache[num_blocks, 2, block_size, num_kv_heads, head_size]`, and with a scale per token and head "
    "`head_size + 4`, the float32 scale behind the codes. Which release changed it was not established.",
    "vllm-split": "What vLLM's per-token-head writer takes: K and V in tensors of their own, as older FlashAttention "
    "backends kept them (`[2, num_blocks, ...]`), and the scales in two float32 tensors "
    "`[num_blocks, block_size, num_kv_heads]`.",
    "vllm-0.33-mla": "Pages of latent attention (DeepSeek V2 to V3.2): one row of 512 latent and 64 RoPE dims a "
    "token, no V. Mode fp8_ds_mla is the record of 656 bytes, nvfp4_ds_mla that of 352.",
    "vllm-0.33-deepseek-v4": "Pages of DeepSeek V4's compressed rows: 584 bytes a row, the scales behind all rows of "
    "the page, the page rounded up to a multiple of 576.",
    "vllm-0.33-deepseek-v41": "Pages of DeepSeek V4.1's rows: 528 bytes in mode mxfp8, 288 in mode nvfp4_ds_mla, the "
    "scales behind each row.",
    "vllm-0.33-indexer": "Pages of the keys by which DeepSeek's indexer picks tokens: all codes of the page, then all "
    "scales.",
    "flashinfer": "The page of FlashInfer's stacked cache tensors: K and V of a page on dimension 1. In mode nvfp4 "
    "the page of the scale tensor stands behind the page of the data tensor.",
    "flashinfer-split": "K and V in tensors of their own, FlashInfer's tuple form. SM100's trtllm-gen "
    "attention reads V scales swizzled, which FlashInfer's append does not write.",
    "flashinfer-mla": "What FlashInfer's MLA append writes: latent and RoPE dims in tensors of their own. In mode "
    "nvfp4 the RoPE dims are e4m3fn with a scale of their own; it is judged here as 1.",
    "tensorrt-llm": "What TensorRT-LLM's pools hold of one block and one layer: heads before slots, and in mode nvfp4 "
    "a second pool of scales under the same block ids. V scales interleave four tokens, so only whole blocks can be "
    "copied.",
    "sglang": "What SGLang's buffers hold of one page: token before head, K and V apart, scales in buffers of their "
    "own.",
    "sglang-native": "SGLang's nvfp4 buffers as the trtllm_mha decode reads them: codes token before head, scales head "
    "before token, those of V interleaved. With FlashInfer's prefill SGLang keeps the scales of `sglang` as well.",
    "sglang-minimax-m3": "SGLang's row of MiniMax-M3 per layer and page: K, K scales, V and V scales, each padded to "
    "128 bytes. Which place its reader wants the V scales in was not established: both are here.",
    "sglang-mla": "SGLang's rows of latent attention. Mode fp8_per_tile is the record of 656 bytes that FlashMLA's "
    "sparse decode reads: the bytes lie as in vLLM's fp8_ds_mla, the scales are no powers of two.",
    "tiles-128x4": "Scales in tiles of 128 rows x 4 columns, as block-scaled matrix products read them: each head's "
    "plane of (slots, groups) is one matrix, padded to whole tiles.",
    "tiles-8x4": "Scales in tiles of 8 rows x 4 columns, which FlashInfer and TensorRT-LLM use for few rows.",
    "llama-cpp": "llama.cpp's K and V tensors of a layer: a row of ggml's structs for each cell, heads in order, each "
    "struct of 32 dims with its parameters before its codes. Cells follow each other, so a page is any number of them. "
    "V is not transposed, which is so where flash attention is on.",
    "mlx-lm": "The six arrays of mlx-lm's QuantizedKVCache for one sequence: codes, scales and biases of K, then of V, "
    "each `[heads, tokens, columns]`. Codes are one stream of bits, the first in the lowest ones.",
    "openvino-by-token": "OpenVINO's pages where K, too, is quantized by token: "
    "`[blocks, heads, 32, scale | zero point | codes]`. By channel, K's default, has another page, which is not here.",
    "executorch": "ExecuTorch's QuantizedKVCache for one sequence: int8 codes `[tokens, heads, head_size]`, float32 "
    "scales and int8 zero points in tensors of their own.",
    "onnxruntime": "The present keys and values of ONNX Runtime's GroupQueryAttention for one sequence: "
    "`[heads, tokens, head_size]`. The scales are inputs of the operator.",
}

_CPU_SHAPE = "the tensor, cut in two: vllm/v1/attention/backends/cpu_attn.py, do_kv_cache_update"
_CPU_PLANES = "column-major K, row-major V: csrc/cpu/cpu_attn_vec.hpp and cpu_attn_fp8.hpp, reshape_and_cache"

CITED = {
    "vllm-0.33": (
        "cells of K and V: vllm/v1/kv_cache_interface.py L552-602, flash_attn.py L1446-1448",
        "inline scales: vllm/v1/attention/backends/triton_attn.py L308-319, L414-475",
        "nvfp4 pages: csrc/nvfp4_kv_cache_kernels.cu L339-370; the V scale swizzle: L34-48",
        "orders of layers: vllm/v1/kv_cache_layout.py L15-28",
    ),
    "vllm-0.33-minimax-m3": ("head-slot pages: L313-330, K scales linear, V scales swizzled",),
    "vllm-0.32-cpu": (_CPU_SHAPE, _CPU_PLANES),
    "vllm-0.33-cpu": (_CPU_SHAPE, _CPU_PLANES),
    "vllm-unfused": (
        "the shape: vllm/v1/attention/backends/triton_attn.py, kv_cache.unbind(1)",
        "padded strides: https://github.com/vllm-project/vllm/issues/49716",
    ),
    "vllm-split": ("the arguments: triton_reshape_and_cache_flash_per_token_head_quant",),
    "vllm-0.33-mla": (
        "656 bytes: csrc/cache_kernels.cu L530-635",
        "352 bytes: csrc/nvfp4_ds_mla_cache_kernels.cu L36-69",
    ),
    "vllm-0.33-deepseek-v4": (
        "records: L360-424; the page's alignment: vllm/v1/kv_cache_interface.py L719-726",
        "its Triton twin: vllm/models/deepseek_v4/common/ops/cache_utils.py L109-151",
    ),
    "vllm-0.33-deepseek-v41": (
        "528 bytes: cache_utils.py L224-229",
        "288 bytes: fused_compress_quant_cache.py L481-538",
    ),
    "vllm-0.33-indexer": (
        "scales of mxfp8 four times in a uint32: L697-700",
        "mxfp4: vllm/models/deepseek_v4/common/ops/fused_compress_quant_cache.py",
    ),
    "flashinfer": (
        "data: flashinfer/page.py L587",
        "nvfp4 scales: flashinfer/page.py L716-760",
    ),
    "flashinfer-split": ("flashinfer/page.py L431-433, L716-760",),
    "flashinfer-mla": (
        "flashinfer/page.py L352-395",
        "nvfp4: include/flashinfer/page.cuh L965-1003",
    ),
    "tensorrt-llm": ("createBlockScalePools; quantizeAndWriteFP4KVCache",),
    "sglang": ("mxfp8: kernels/ops/kvcache/mxfp8_quant_store_kv.py L36-58",),
    "sglang-native": ("the same formula: FlashInfer flashinfer/fp4_quantization.py L2360-2400",),
    "sglang-minimax-m3": ("page size 128",),
    "sglang-mla": ("656 bytes: dsa_quant_k_cache.py L6-10, L263-276",),
    "tiles-128x4": ("torchao/prototype/mx_formats/utils.py to_blocked",),
    "tiles-8x4": ("m//8*(nK*32) + k//4*32 + m%8*4 + k%4 with nK = ceil(K/4)",),
    "llama-cpp": ("ggml/src/ggml-common.h, block_q8_0 and the like", "src/llama-kv-cache.cpp, cache_k_l and cache_v_l"),
    "mlx-lm": ("mlx/backend/cpu/quantized.cpp, quantize",),
    "openvino-by-token": ("scaled_attn/attn_quant.cpp",),
    "executorch": ("kernels/quantized/cpu/op_quantize.cpp",),
    "onnxruntime": ("core/mlas/lib/qkv_quant.cpp",),
}

_SIZES: dict[str, Any] = {"block_size": 4, "num_kv_heads": 2, "head_size": 64}


def _refused(what: str, name: str, **changes: Any) -> Statement:
    """What is refused, with the answer itself as the text."""
    arguments = {**_SIZES, **changes}
    try:
        layout(name, **arguments)
    except InputError as error:
        return Statement(f'{what}: "{error}"', lambda: True)
    return Statement(what, lambda: False)


_MLA: dict[str, Any] = {"num_kv_heads": 1, "head_size": 576}


def _padding(name: str, mode: str, byte: int, what: str, **sizes: Any) -> Statement:
    """A byte of a small page that holds nothing."""
    arguments = {"block_size": 4, **sizes}
    return Statement(what, lambda: layout(name, mode=mode, **arguments).explain(byte=byte).part == "padding")


def _scaled(name: str, mode: str) -> tuple[Statement, ...]:
    return (
        _refused(f"`{mode}`, head_size 66", name, mode=mode, head_size=66),
        _refused(f"`{mode}`, head_size 64, head_size_v 128", name, mode=mode, head_size_v=128),
    )


BOUNDS = {
    "vllm-0.33": (
        *_scaled("vllm-0.33", "fp8_per_token_head"),
        *_scaled("vllm-0.33", "int8_per_token_head"),
        _refused("`nvfp4`, head_size 72", "vllm-0.33", mode="nvfp4", head_size=72),
        _refused("`nvfp4`, swizzled, head_size 80", "vllm-0.33", mode="nvfp4", head_size=80),
        _refused("`nvfp4`, swizzled, block_size 6", "vllm-0.33", mode="nvfp4", block_size=6),
        _refused("page_bytes below the natural size", "vllm-0.33", mode="none", page_bytes=1000),
        Statement(
            "`page_bytes` above the natural size is padding at the end of the page.",
            lambda: layout("vllm-0.33", mode="nvfp4", page_bytes=1000, **_SIZES).explain(byte=999).part == "padding",
        ),
    ),
    "vllm-0.33-minimax-m3": (
        _refused("head_size 64", "vllm-0.33-minimax-m3", mode="nvfp4"),
        _refused("order NHD", "vllm-0.33-minimax-m3", mode="nvfp4", head_size=128, order="NHD"),
    ),
    **{
        name: (
            _refused("`nvfp4`", name, mode="nvfp4"),
            _refused("order NHD", name, mode="none", order="NHD"),
            _refused("head_size_v unlike head_size", name, mode="none", head_size_v=128),
        )
        for name in ("vllm-0.32-cpu", "vllm-0.33-cpu")
    },
    "vllm-unfused": (
        _refused("`nvfp4`", "vllm-unfused", mode="nvfp4"),
        _refused("`fp8_per_token_head`, head_size 66", "vllm-unfused", mode="fp8_per_token_head", head_size=66),
    ),
    "vllm-split": (_refused("`nvfp4`", "vllm-split", mode="nvfp4"),),
    "vllm-0.33-mla": (
        _refused("two heads", "vllm-0.33-mla", mode="fp8_ds_mla", head_size=576),
        _refused("another head size", "vllm-0.33-mla", mode="fp8_ds_mla", num_kv_heads=1),
        _refused("a V", "vllm-0.33-mla", mode="fp8_ds_mla", head_size_v=512, **_MLA),
    ),
    "vllm-0.33-deepseek-v4": (
        _refused("head_size 576", "vllm-0.33-deepseek-v4", mode="fp8_ds_mla", **_MLA),
        _padding(
            "vllm-0.33-deepseek-v4",
            "fp8_ds_mla",
            4 * 576 + 7,
            "The eighth byte of a row's scales is padding; the Triton writer stores 0 there.",
        ),
        _padding(
            "vllm-0.33-deepseek-v4",
            "fp8_ds_mla",
            4 * 584,
            "What rounds the page up to a multiple of 576 is padding.",
        ),
    ),
    "vllm-0.33-deepseek-v41": (_refused("head_size 576", "vllm-0.33-deepseek-v41", mode="mxfp8", **_MLA),),
    "vllm-0.33-indexer": (_refused("head_size 64", "vllm-0.33-indexer", mode="indexer_k", num_kv_heads=1),),
    "flashinfer": (
        _refused("`int8_per_token_head`", "flashinfer", mode="int8_per_token_head"),
        _refused("`nvfp4`, head_size 72", "flashinfer", mode="nvfp4", head_size=72),
        _refused("a choice of V scales", "flashinfer", mode="nvfp4", v_scales="swizzled"),
        _refused("page_bytes below the natural size", "flashinfer", mode="none", page_bytes=1000),
        Statement(
            "`page_bytes` above the natural size is padding at the end of the page.",
            lambda: layout("flashinfer", mode="nvfp4", page_bytes=1000, **_SIZES).explain(byte=999).part == "padding",
        ),
    ),
    "flashinfer-split": (_refused("`nvfp4`, head_size 72", "flashinfer-split", mode="nvfp4", head_size=72),),
    "flashinfer-mla": (_refused("head_size 64", "flashinfer-mla", mode="none", num_kv_heads=1),),
    "tensorrt-llm": (
        _refused("order NHD", "tensorrt-llm", mode="nvfp4", order="NHD"),
        _refused("`nvfp4`, head_size 80", "tensorrt-llm", mode="nvfp4", head_size=80),
        _refused("`nvfp4`, block_size 6", "tensorrt-llm", mode="nvfp4", block_size=6),
    ),
    "sglang": (
        _refused("order HND", "sglang", mode="nvfp4", order="HND"),
        _refused("`mxfp8`, block_size 4", "sglang", mode="mxfp8"),
    ),
    "sglang-native": (_refused("block_size 6", "sglang-native", mode="nvfp4", block_size=6),),
    "sglang-minimax-m3": (
        _padding(
            "sglang-minimax-m3",
            "nvfp4",
            256 + 32,
            "What rounds a part up to 128 bytes is padding.",
            num_kv_heads=2,
            head_size=64,
        ),
    ),
    "sglang-mla": (_refused("head_size 64", "sglang-mla", mode="fp8_per_tile", num_kv_heads=1),),
    "tiles-128x4": (
        _padding(
            "tiles-128x4",
            "nvfp4",
            4 * 64 + 4,
            "What pads a head's scales to whole tiles is padding: of 4 x 4 scales in a tile of 512 bytes, 496 bytes.",
            num_kv_heads=1,
            head_size=64,
        ),
    ),
    "tiles-8x4": (
        _padding(
            "tiles-8x4",
            "nvfp4",
            4 * 64 + 16,
            "What pads a head's scales to whole tiles is padding: of 4 x 4 scales in a tile of 32 bytes, 16 bytes.",
            num_kv_heads=1,
            head_size=64,
        ),
    ),
    "llama-cpp": (
        _refused("`q8_0`, head_size 48", "llama-cpp", mode="q8_0", head_size=48),
        _refused("order HND", "llama-cpp", mode="q8_0", order="HND"),
    ),
    "mlx-lm": (_refused("head_size 96", "mlx-lm", mode="affine4_group64", head_size=96),),
    "openvino-by-token": (_refused("order NHD", "openvino-by-token", mode="uint8_per_token_head", order="NHD"),),
    "executorch": (_refused("order HND", "executorch", mode="int8_zero_per_token_head", order="HND"),),
    "onnxruntime": (_refused("order NHD", "onnxruntime", mode="int8_per_tensor", order="NHD"),),
}

"""The caches of MLX, OpenVINO, ExecuTorch and ONNX Runtime as data: parameters in tensors of their own, or in front."""

from __future__ import annotations

from collections.abc import Mapping

Sections = list[Mapping[str, object]]


def _apart(*parts: tuple[str, str]) -> Sections:
    """Each part of K, then of V, in a tensor of its own."""
    return [
        {"per": "page", "record": [f"{side}.{part}"], "tensor": f"{name}{suffix}"}
        for side, name in (("k", "keys"), ("v", "values"))
        for part, suffix in parts
    ]


# (B, heads, tokens, columns), a batch entry at a time: mlx_lm/models/cache.py, QuantizedKVCache
_MLX = _apart(("code", ""), ("scale", ".scales"), ("b", ".biases"))


def _mlx(bits: int, group: int) -> Mapping[str, object]:
    recipe = f"mlx-0.32/cpu/affine{bits}_group{group}"
    return {"recipe": recipe, "sections": _MLX, "order": "HND", "head_size_multiple": group}


def _openvino(bits: int, **more: object) -> Mapping[str, object]:
    # [blocks, heads, 32, [fp32 scale | fp32 zero point | codes]]
    sections = [
        {"per": "cell", "record": [f"{side}.scale", f"{side}.zp", f"{side}.code"], "tensor": name}
        for side, name in (("k", "key_cache"), ("v", "value_cache"))
    ]
    recipe = f"openvino-2026.4/by-token/uint{bits}_per_token_head"
    return {"recipe": recipe, "sections": sections, "order": "HND", **more}


# (B, T, H, D) int8, (B, T, H, 1) float32 scales and int8 zero points
_EXECUTORCH = _apart(("code", ""), ("scale", ".scales"), ("zp", ".zero_points"))

# (B, kv_heads, tokens, D), or D / 2 bytes; scales are inputs of the operator
_ONNXRUNTIME = _apart(("code", ""))


def _onnxruntime(bits: int) -> Mapping[str, object]:
    return {"recipe": f"onnxruntime-1.32/gqa/int{bits}_per_tensor", "sections": _ONNXRUNTIME, "order": "HND"}


ENTRIES: tuple[Mapping[str, object], ...] = (
    {
        "name": "mlx-lm",
        "source": "mlx-lm 0.32.2, mlx_lm/models/cache.py, QuantizedKVCache",
        "modes": {f"affine{bits}_group{group}": _mlx(bits, group) for bits, group in ((3, 64), (4, 64), (8, 64))},
    },
    {
        "name": "openvino-by-token",
        "source": "openvino 2026.4.1, intel_cpu/src/nodes/kernels/scaled_attn/executor_pa.cpp",
        "modes": {
            "uint8_per_token_head": _openvino(8),
            "uint4_per_token_head": _openvino(4, nibbles="high_first", head_size_multiple=2),
        },
    },
    {
        "name": "executorch",
        "source": "executorch 1.5.1, examples/models/llama/source_transformation/custom_kv_cache.py",
        "modes": {
            "int8_zero_per_token_head": {
                "recipe": "executorch-1.5/kernel/int8_zero_per_token_head",
                "sections": _EXECUTORCH,
                "order": "NHD",
            },
        },
    },
    {
        "name": "onnxruntime",
        "source": "onnxruntime 1.32.0, contrib_ops/cpu/bert/gqa_attention_base.h",
        "modes": {"int8_per_tensor": _onnxruntime(8), "int4_per_tensor": _onnxruntime(4)},
    },
)

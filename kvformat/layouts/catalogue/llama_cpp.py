"""llama.cpp's cache as data: K and V tensors of a layer, a row of blocks for each cell."""

from __future__ import annotations

from collections.abc import Mapping

# ggml-common.h: block_q8_0 and the like are structs without padding, the parameters before the codes; a row of
# n_embd_gqa values is that of one cell, heads in order (llama-kv-cache.cpp, cache_k_l and cache_v_l). V is not
# transposed where flash attention is on, which quantized V needs.


def _tensors(*record: str | Mapping[str, object]) -> list[Mapping[str, object]]:
    """K's tensor and V's, rows of structs."""

    def of(side: str) -> list[object]:
        return [
            f"{side}.{part}" if isinstance(part, str) else {**part, "part": f"{side}.{part['part']}"} for part in record
        ]

    return [{"per": "group", "record": of(side), "tensor": f"cache_{side}"} for side in "kv"]


def _form(recipe: str, sections: list[Mapping[str, object]]) -> Mapping[str, object]:
    return {"recipe": f"ggml-0.25/reference/{recipe}", "sections": sections, "order": "NHD"}


# dim j in the low nibble of byte j, dim j + 16 in the high one; the fifth bits in a uint32, bit j that of dim j
_NIBBLES = {"part": "code", "bits": 4, "swizzle": "halves"}
_FIFTH = {"part": "code", "bits": 1, "first_bit": 4}

ENTRIES: tuple[Mapping[str, object], ...] = (
    {
        "name": "llama-cpp",
        "source": "llama.cpp as in llama-cpp-python 0.3.36, src/llama-kv-cache.cpp and ggml/src/ggml-common.h",
        "modes": {
            "none": {
                "recipe": "golden/none",
                "sections": [{"per": "page", "record": [f"{side}.code"], "tensor": f"cache_{side}"} for side in "kv"],
                "order": "NHD",
            },
            "q8_0": _form("q8_0", _tensors("scale", "code")),
            "q4_0": _form("q4_0", _tensors("scale", _NIBBLES)),
            "q4_1": _form("q4_1", _tensors("scale", "m", _NIBBLES)),
            "q5_0": _form("q5_0", _tensors("scale", _FIFTH, _NIBBLES)),
            "q5_1": _form("q5_1", _tensors("scale", "m", _FIFTH, _NIBBLES)),
        },
    },
)

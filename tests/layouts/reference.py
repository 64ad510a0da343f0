"""Where every entry of a page lies, by the formulas of vLLM's and FlashInfer's sources; other engines are in `engines`.

Written out by hand, one function per layout, and sharing nothing with the code under test.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.layouts import engines
from tests.layouts.engines import ITEM_BYTES


@dataclass(frozen=True)
class Config:
    """The arguments of one `layout` call."""

    name: str
    mode: str
    order: str
    block_size: int
    num_kv_heads: int
    head_size: int
    head_size_v: int
    v_scales: str | None = None
    dtype: str | None = None
    padding: int = 0
    nibbles: str | None = None

    @property
    def arguments(self):
        names = (
            "mode",
            "order",
            "block_size",
            "num_kv_heads",
            "head_size",
            "head_size_v",
            "v_scales",
            "dtype",
            "nibbles",
        )
        given = {name: getattr(self, name) for name in names}
        given["page_bytes"] = natural_bytes(self) + self.padding if self.padding else None
        return given

    def __str__(self):
        sizes = f"{self.block_size}x{self.num_kv_heads}x{self.head_size}/{self.head_size_v}+{self.padding}"
        return "-".join(
            filter(None, (self.name, self.mode, self.order, sizes, self.v_scales, self.dtype, self.nibbles))
        )


def _rows(name, mode, order, block_size, num_kv_heads, head_size, head_size_v=None, **more):
    return Config(name, mode, order, block_size, num_kv_heads, head_size, head_size_v or head_size, **more)


def _latent(name, mode, head_size, block_size=3, **more):
    return Config(name, mode, "NHD", block_size, 1, head_size, 0, **more)


_HEADS = ("fp8_per_token_head", "int8_per_token_head", "int4_per_token_head")
ENGINES = (
    *(
        _rows("vllm-0.33", "int4_per_token_head", order, 3, heads, size, nibbles=nibbles)
        for order in ("NHD", "HND")
        for heads, size, nibbles in ((1, 8, None), (2, 16, "high_first"))
    ),
    _rows("vllm-0.33-minimax-m3", "nvfp4", "HND", 8, 2, 128),
    _rows("vllm-0.33-minimax-m3", "nvfp4", "HND", 4, 1, 128, padding=9, nibbles="high_first"),
    *(
        _rows(name, mode, order, 3, 2, 8, 16, padding=order == "HND")
        for name in ("vllm-unfused", "vllm-split")
        for mode in ("fp8_per_tensor", *_HEADS)
        for order in ("NHD", "HND")
    ),
    *(_rows(f"vllm-{v}-cpu", "fp8_per_tensor", "HND", 4, 2, 8, padding=7 * (v == "0.33")) for v in ("0.32", "0.33")),
    *(_rows(f"vllm-{v}-cpu", "none", "HND", 4, 3, 6, dtype=d) for v in ("0.32", "0.33") for d in ITEM_BYTES),
    *(_rows(name, "none", "HND", 2, 3, 4, 6, dtype=d) for name in ("vllm-unfused", "vllm-split") for d in ITEM_BYTES),
    *(
        _latent(name, "none", 576, dtype=d)
        for name in ("vllm-0.33-mla", "sglang-mla", "flashinfer-mla")
        for d in ITEM_BYTES
    ),
    *(_latent("vllm-0.33-mla", mode, 576, padding=5) for mode in ("fp8_per_tensor", "fp8_ds_mla", "nvfp4_ds_mla")),
    *(_latent("vllm-0.33-deepseek-v4", "fp8_ds_mla", 512, bs) for bs in (1, 3, 64)),
    *(_latent("vllm-0.33-deepseek-v41", mode, 512) for mode in ("mxfp8", "nvfp4_ds_mla")),
    *(
        _latent("vllm-0.33-indexer", mode, 128, 5)
        for mode in ("indexer_k", "indexer_k_ue8m0", "indexer_k_mxfp8", "indexer_k_mxfp4")
    ),
    *(
        _rows("flashinfer-split", mode, order, 3, 2, 16, 32)
        for mode in ("fp8_per_tensor", "nvfp4")
        for order in ("NHD", "HND")
    ),
    _rows("flashinfer-split", "none", "HND", 3, 2, 6, dtype="float16"),
    _rows("flashinfer-split", "nvfp4", "HND", 3, 2, 32, nibbles="high_first"),
    *(_latent("flashinfer-mla", mode, 576) for mode in ("fp8_per_tensor", "nvfp4")),
    _latent("flashinfer-mla", "nvfp4", 576, 2, nibbles="high_first", padding=3),
    _rows("tensorrt-llm", "none", "HND", 3, 2, 6, dtype="bfloat16"),
    _rows("tensorrt-llm", "fp8_per_tensor", "HND", 3, 2, 6),
    _rows("tensorrt-llm", "nvfp4", "HND", 8, 2, 64, 128),
    _rows("sglang", "none", "NHD", 3, 2, 6, dtype="float16"),
    _rows("sglang", "fp8_per_tensor", "NHD", 3, 2, 6, 10),
    _rows("sglang", "nvfp4", "NHD", 3, 2, 16, 48),
    _rows("sglang", "fp4_mx_block16", "NHD", 3, 2, 16, 48),
    *(_rows("sglang", "mxfp8", "NHD", bs, heads, 32, 64) for bs, heads in ((32, 2), (64, 1))),
    *(_rows("sglang-native", "nvfp4", "NHD", bs, 2, 64, 128) for bs in (4, 8)),
    *(_rows("sglang-minimax-m3", "nvfp4", "HND", 4, 2, 64, v_scales=v) for v in ("linear", "swizzled")),
    *(_latent("sglang-mla", mode, 576) for mode in ("fp8_unscaled", "fp8_per_tile")),
    *(_rows("tiles-128x4", mode, "HND", 130, 1, 32) for mode in ("nvfp4", "mxfp4", "mxfp8")),
    *(_rows("tiles-8x4", mode, "HND", 9, 2, 96, 160) for mode in ("nvfp4", "mxfp4", "mxfp8")),
    *(_rows("llama-cpp", mode, "NHD", 3, 2, 64, 32, padding=3) for mode in ("q8_0", "q4_0", "q4_1")),
    _rows("llama-cpp", "none", "NHD", 3, 2, 6, 10, dtype="float16"),
    *(_rows("mlx-lm", f"affine{bits}_group64", "HND", 3, 2, 64, 128, padding=1) for bits in (3, 4, 8)),
    *(_rows("openvino-by-token", f"uint{bits}_per_token_head", "HND", 3, 2, 6, 10) for bits in (8, 4)),
    _rows("executorch", "int8_zero_per_token_head", "NHD", 3, 2, 6, 10, padding=3),
    *(_rows("onnxruntime", f"int{bits}_per_tensor", "HND", 3, 2, 6, 10) for bits in (8, 4)),
)

CONFIGS = (
    *(Config("vllm-0.33", "none", order, 3, 2, 6, 4, dtype=d) for order in ("NHD", "HND") for d in ITEM_BYTES),
    *(
        Config("vllm-0.33", mode, order, bs, nkv, d, d, padding=padding)
        for mode in ("fp8_per_tensor", "fp8_per_token_head", "int8_per_token_head")
        for order in ("NHD", "HND")
        for bs, nkv, d, padding in ((2, 1, 4, 8), (1, 1, 4, 0), (3, 2, 8, 5), (4, 3, 12, 0))
    ),
    Config("vllm-0.33", "fp8_per_tensor", "HND", 3, 2, 5, 7),
    *(
        Config("vllm-0.33", "nvfp4", order, bs, nkv, d, dv, v_scales, padding=padding)
        for v_scales in ("swizzled", "linear")
        for order in ("NHD", "HND")
        for bs, nkv, d, dv, padding in (
            (4, 1, 64, 64, 0),
            (4, 2, 128, 128, 7),
            (8, 3, 64, 64, 0),
            (4, 1, 256, 256, 1),
            (4, 2, 16, 64, 0),
        )
    ),
    *(Config("vllm-0.33", "nvfp4", order, 3, 2, 48, 16, "linear") for order in ("NHD", "HND")),
    *(Config("flashinfer", "none", order, 3, 2, 6, 6, dtype="float16") for order in ("NHD", "HND")),
    *(Config("flashinfer", "fp8_per_tensor", order, 3, 2, 6, 6, padding=3) for order in ("NHD", "HND")),
    *(Config("flashinfer", "nvfp4", order, 4, 2, 64, 64, padding=2) for order in ("NHD", "HND")),
    *(Config("flashinfer", "nvfp4", order, 3, 2, 16, 32) for order in ("NHD", "HND")),
    Config("vllm-0.33", "nvfp4", "HND", 4, 2, 64, 64, "swizzled", nibbles="high_first"),
    *ENGINES,
)


def natural_bytes(c):
    """Bytes of an unpadded page."""
    if engines.place_of(c):
        return engines.natural_bytes(c)
    tokens, both = c.block_size * c.num_kv_heads, c.head_size + c.head_size_v
    if c.mode == "none":
        return tokens * both * ITEM_BYTES[c.dtype]
    if c.mode == "fp8_per_tensor":
        return tokens * both
    if c.mode == "nvfp4":
        return tokens * (both // 2 + both // 16)
    return tokens * (both + 8)


def entries(c):
    """(side, part, slot, head, dims, first bit, bits) of every entry of the page."""
    place = engines.place_of(c) or _HERE[c.name, c.mode]
    for t in range(c.block_size):
        for h in range(c.num_kv_heads):
            for side, part, dims, byte, bit, bits in place(c, t, h):
                yield side, part, t, h, dims, byte * 8 + bit, bits


def _vllm_cell(c, t, h):
    """K = C[0:hs], V = C[hs:] of the same (head, slot)."""
    item = ITEM_BYTES.get(c.dtype, 1)
    cell_bytes = (c.head_size + c.head_size_v) * item
    cell = cell_bytes * (t * c.num_kv_heads + h if c.order == "NHD" else h * c.block_size + t)
    for e in range(c.head_size):
        yield "k", "code", range(e, e + 1), cell + e * item, 0, item * 8
    for e in range(c.head_size_v):
        yield "v", "code", range(e, e + 1), cell + c.head_size * item + e * item, 0, item * 8


def _vllm_scaled_cell(c, t, h):
    """[K | K scale | V | V scale], K's scale at hs and V's at C/2 + hs."""
    hs = c.head_size
    cell_bytes = 2 * hs + 8
    cell = cell_bytes * (t * c.num_kv_heads + h if c.order == "NHD" else h * c.block_size + t)
    for e in range(hs):
        yield "k", "code", range(e, e + 1), cell + e, 0, 8
        yield "v", "code", range(e, e + 1), cell + cell_bytes // 2 + e, 0, 8
    yield "k", "scale", range(hs), cell + hs, 0, 32
    yield "v", "scale", range(hs), cell + cell_bytes // 2 + hs, 0, 32


def _vllm_nvfp4(c, t, h):
    """[K data | K scale | V data | V scale]; V scales at (t', s') = (t/4*4 + s/(S/4), s%(S/4)*4 + t%4)."""
    bs, nkv, high = c.block_size, c.num_kv_heads, c.nibbles == "high_first"
    k_scale = nkv * bs * c.head_size // 2
    v_data = k_scale + nkv * bs * c.head_size // 16
    v_scale = v_data + nkv * bs * c.head_size_v // 2
    for side, base, scale, d in (("k", 0, k_scale, c.head_size), ("v", v_data, v_scale, c.head_size_v)):
        for e in range(d):
            hnd = h * bs * d // 2 + t * d // 2 + e // 2
            nhd = t * nkv * d // 2 + h * d // 2 + e // 2
            yield side, "code", range(e, e + 1), base + (nhd if c.order == "NHD" else hnd), 4 * ((e + high) % 2), 4
        groups = d // 16
        for s in range(groups):
            row, column = t, s
            if side == "v" and c.v_scales == "swizzled":
                row = (t // 4) * 4 + s // (groups // 4)
                column = (s % (groups // 4)) * 4 + t % 4
            hnd = h * bs * groups + row * groups + column
            nhd = row * nkv * groups + h * groups + column
            yield side, "scale", range(16 * s, 16 * s + 16), scale + (nhd if c.order == "NHD" else hnd), 0, 8


def _flashinfer(c, t, h):
    """[2, page, heads, dim] in NHD, [2, heads, page, dim] in HND, with K = 0."""
    item = ITEM_BYTES.get(c.dtype, 1)
    for kv, side in enumerate("kv"):
        for e in range(c.head_size):
            yield side, "code", range(e, e + 1), _stacked(c, kv, t, h, e, c.head_size) * item, 0, item * 8


def _flashinfer_nvfp4(c, t, h):
    """K and V of dim/2 bytes, then the scale tensor of dim/16 bytes, paged the same way."""
    rows, scales = c.block_size * c.num_kv_heads, c.block_size * c.num_kv_heads * (c.head_size + c.head_size_v) // 2
    for side, d, data, scale in (
        ("k", c.head_size, 0, scales),
        ("v", c.head_size_v, rows * c.head_size // 2, scales + rows * c.head_size // 16),
    ):
        for e in range(d):
            yield side, "code", range(e, e + 1), data + _stacked(c, 0, t, h, e // 2, d // 2), 4 * (e % 2), 4
        for s in range(d // 16):
            yield side, "scale", range(16 * s, 16 * s + 16), scale + _stacked(c, 0, t, h, s, d // 16), 0, 8


def _stacked(c, kv, t, h, e, width):
    if c.order == "NHD":
        return ((kv * c.block_size + t) * c.num_kv_heads + h) * width + e
    return ((kv * c.num_kv_heads + h) * c.block_size + t) * width + e


def region_name(c, side, part, dims):
    """What explanations call the region of an entry."""
    if engines.place_of(c) and part == "code" and side == "k" and dims.start >= (engines.rope_starts(c) or c.head_size):
        return "K rope"
    return f"{side.upper()} {'data' if part == 'code' else part}"


_HERE = {
    ("vllm-0.33", "none"): _vllm_cell,
    ("vllm-0.33", "fp8_per_tensor"): _vllm_cell,
    ("vllm-0.33", "fp8_per_token_head"): _vllm_scaled_cell,
    ("vllm-0.33", "int8_per_token_head"): _vllm_scaled_cell,
    ("vllm-0.33", "nvfp4"): _vllm_nvfp4,
    ("flashinfer", "none"): _flashinfer,
    ("flashinfer", "fp8_per_tensor"): _flashinfer,
    ("flashinfer", "nvfp4"): _flashinfer_nvfp4,
}

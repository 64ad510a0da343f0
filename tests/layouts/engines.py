"""Where every entry lies in the pages of further engines, written out by hand from their sources, one function each.

Each takes a Config, a slot t and a head h, and yields (side, part, dims, byte, bit, bits). Nothing here is shared with
the code under test.
"""

from __future__ import annotations

ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}


def _row(c, t, h, order=None):
    """The number of a (slot, head) in a tensor [slots][heads] or [heads][slots]."""
    return t * c.num_kv_heads + h if (order or c.order) == "NHD" else h * c.block_size + t


def _bytes(side, part, first_byte, count, width=1, first_dim=0, dims=1):
    """Entries of whole bytes, one after the other."""
    for e in range(count):
        start = first_dim + e * dims
        yield side, part, range(start, start + dims), first_byte + e * width, 0, 8 * width


def _nibbles(side, first_byte, count, high_first=False):
    for e in range(count):
        yield side, "code", range(e, e + 1), first_byte + e // 2, 4 * ((e + high_first) % 2), 4


def _codes(c, side, first_byte, count):
    """The codes of a head, packed if they are of 4 bits."""
    if c.mode in FOUR_BITS:
        yield from _nibbles(side, first_byte, count, c.nibbles == "high_first")
    else:
        yield from _bytes(side, "code", first_byte, count, ITEM_BYTES.get(c.dtype, 1))


FOUR_BITS = ("int4_per_token_head", "nvfp4", "fp4_mx_block16", "mxfp4", "indexer_k_mxfp4", "nvfp4_ds_mla")
#: dims that share a scale, and bytes of one, where scales lie in the page
SHARED = {"nvfp4": (16, 1), "fp4_mx_block16": (16, 1), "mxfp8": (32, 1), "mxfp4": (32, 1)}


def _packed(c, size):
    """Bytes of a head's codes."""
    return size // 2 if c.mode in FOUR_BITS else size * ITEM_BYTES.get(c.dtype, 1)


# --- vLLM ------------------------------------------------------------------------------------------------------------


def vllm_int4(c, t, h):
    """[K: hs/2 | K scale | V: hs/2 | V scale], 136 bytes for head_size 128."""
    half = c.head_size // 2 + 4
    for number, side in enumerate("kv"):
        at = 2 * half * _row(c, t, h) + number * half
        yield from _nibbles(side, at, c.head_size, c.nibbles == "high_first")
        yield side, "scale", range(c.head_size), at + c.head_size // 2, 0, 32


def vllm_minimax(c, t, h):
    """Slot 2*head + side of [bs*64 codes][bs*8 scales]; K scales linear, V scales in quads of tokens."""
    piece = c.block_size * 72
    for number, side in enumerate("kv"):
        at = (2 * h + number) * piece
        yield from _nibbles(side, at + t * 64, 128, c.nibbles == "high_first")
        for s in range(8):
            place = t * 8 + s
            if side == "v":  # 4 quarters of 2 groups: t' = t/4*4 + s/2, s' = s%2*4 + t%4
                place = (t // 4 * 4 + s // 2) * 8 + s % 2 * 4 + t % 4
            yield side, "scale", range(16 * s, 16 * s + 16), at + c.block_size * 64 + place, 0, 8


def vllm_cpu(c, t, h):
    """Per head K [hs][slots], then V [slots][hs]: kdst[i * block_size + t], vdst[t * head_dim + i]."""
    width = ITEM_BYTES.get(c.dtype, 1)
    plane = c.block_size * c.head_size * width
    for i in range(c.head_size):
        yield "k", "code", range(i, i + 1), 2 * h * plane + (i * c.block_size + t) * width, 0, 8 * width
    yield from _bytes("v", "code", (2 * h + 1) * plane + t * c.head_size * width, c.head_size, width)


def vllm_unfused(c, t, h):
    """[2][slots][heads][hs] or, with inline scales, [2][slots][heads][hs + 4]."""
    start = 0
    for side, size in (("k", c.head_size), ("v", c.head_size_v)):
        data = _packed(c, size)
        pitch = data + (4 if c.mode.endswith("per_token_head") else 0)
        at = start + _row(c, t, h) * pitch
        yield from _codes(c, side, at, size)
        if c.mode.endswith("per_token_head"):
            yield side, "scale", range(size), at + data, 0, 32
        start += c.block_size * c.num_kv_heads * pitch


def vllm_split(c, t, h):
    """key_cache, value_cache, k_scale_cache, v_scale_cache, the last two [slots][heads] of float32."""
    rows = c.block_size * c.num_kv_heads
    start = 0
    for side, size in (("k", c.head_size), ("v", c.head_size_v)):
        yield from _codes(c, side, start + _row(c, t, h) * _packed(c, size), size)
        start += rows * _packed(c, size)
    if c.mode.endswith("per_token_head"):
        for number, (side, size) in enumerate((("k", c.head_size), ("v", c.head_size_v))):
            yield side, "scale", range(size), start + 4 * (number * rows + t * c.num_kv_heads + h), 0, 32


def mla(c, t, _h):
    """One row of 576 values or codes a token."""
    width = ITEM_BYTES.get(c.dtype, 1)
    yield from _bytes("k", "code", t * 576 * width, 576, width)


def mla_656(_c, t, _h):
    """512 fp8 | 4 float32 at 512 | 64 bfloat16 at 528."""
    at = 656 * t
    yield from _bytes("k", "code", at, 512)
    yield from _bytes("k", "scale", at + 512, 4, 4, dims=128)
    yield from _bytes("k", "code", at + 528, 64, 2, first_dim=512)


def mla_352(c, t, _h):
    """256 bytes of e2m1 | 64 e4m3 at 256 | 32 scales at 320, that of block s at 8*(s&3) + (s>>2)."""
    at = 352 * t
    yield from _nibbles("k", at, 512, c.nibbles == "high_first")
    yield from _bytes("k", "code", at + 256, 64, first_dim=512)
    for s in range(32):
        yield "k", "scale", range(16 * s, 16 * s + 16), at + 320 + 8 * (s & 3) + (s >> 2), 0, 8


def v4_584(c, t, _h):
    """bs rows of 448 fp8 | 64 bfloat16, then bs times 7 exponents and a zero."""
    yield from _bytes("k", "code", 576 * t, 448)
    yield from _bytes("k", "code", 576 * t + 448, 64, 2, first_dim=448)
    yield from _bytes("k", "scale", 576 * c.block_size + 8 * t, 7, dims=64)


def v41_528(_c, t, _h):
    """512 fp8 | 16 exponents."""
    yield from _bytes("k", "code", 528 * t, 512)
    yield from _bytes("k", "scale", 528 * t + 512, 16, dims=32)


def v41_288(c, t, _h):
    """256 bytes of e2m1 | 32 scales."""
    yield from _nibbles("k", 288 * t, 512, c.nibbles == "high_first")
    yield from _bytes("k", "scale", 288 * t + 256, 32, dims=16)


def indexer(c, t, _h):
    """All codes of the page, then one 4-byte scale a token."""
    yield from _bytes("k", "code", 128 * t, 128)
    yield "k", "scale", range(128), 128 * c.block_size + 4 * t, 0, 32


def indexer_mxfp4(c, t, _h):
    """bs rows of 64 bytes, then bs times 4 exponents."""
    yield from _nibbles("k", 64 * t, 128, c.nibbles == "high_first")
    yield from _bytes("k", "scale", 64 * c.block_size + 4 * t, 4, dims=32)


# --- FlashInfer, TensorRT-LLM, SGLang --------------------------------------------------------------------------------


def tensors(c, t, h, scale_order=None, k_place=None, v_place=None):
    """K codes, V codes, K scales, V scales, each a tensor; a place: the byte of (t, h, s) among a tensor's scales."""
    rows, start = c.block_size * c.num_kv_heads, 0
    for side, size in (("k", c.head_size), ("v", c.head_size_v)):
        yield from _codes(c, side, start + _row(c, t, h) * _packed(c, size), size)
        start += rows * _packed(c, size)
    if c.mode not in SHARED:
        return
    dims = SHARED[c.mode][0]
    for side, size, place in (("k", c.head_size, k_place), ("v", c.head_size_v, v_place)):
        groups = size // dims
        for s in range(groups):
            at = place(t, h, s, groups) if place else _row(c, t, h, scale_order) * groups + s
            yield side, "scale", range(dims * s, dims * s + dims), start + at, 0, 8
        start += rows * groups


def flashinfer_mla(c, t, _h):
    """ckv_cache [slots][512], then kpe_cache [slots][64]; for nvfp4 [slots][256], [slots][32], [slots][64]."""
    bs, width = c.block_size, ITEM_BYTES.get(c.dtype, 1)
    if c.mode == "nvfp4":
        yield from _nibbles("k", 256 * t, 512, c.nibbles == "high_first")
        yield from _bytes("k", "scale", 256 * bs + 32 * t, 32, dims=16)
        yield from _bytes("k", "code", 288 * bs + 64 * t, 64, first_dim=512)
        return
    yield from _bytes("k", "code", 512 * width * t, 512, width)
    yield from _bytes("k", "code", 512 * width * bs + 64 * width * t, 64, width, first_dim=512)


def _interleaved(c):
    """Within a (page, head) tile [T, S]: t//4*4*S + s*4 + t%4."""
    return lambda t, h, s, groups: h * c.block_size * groups + t // 4 * 4 * groups + s * 4 + t % 4


def tensorrt_llm(c, t, h):
    """pool [2][heads][slots][hs], block scale pool [2][heads][slots][hs/16], V interleaved."""
    yield from tensors(c, t, h, v_place=_interleaved(c))


def sglang(c, t, h):
    """Buffers [slots][heads][hs], scale buffers [slots][heads][groups]."""
    yield from tensors(c, t, h)


def sglang_mxfp8(c, t, h):
    """((page*NKV+h)*32 + p%32)*(PAGE/32*SF) + p//32*SF + blk."""
    page = c.block_size

    def place(p, h, s, groups):
        return (h * 32 + p % 32) * (page // 32 * groups) + p // 32 * groups + s

    yield from tensors(c, t, h, k_place=place, v_place=place)


def sglang_native(c, t, h):
    """Scale buffers [heads][slots][groups], V interleaved; codes stay [slots][heads]."""
    yield from tensors(c, t, h, scale_order="HND", v_place=_interleaved(c))


def sglang_minimax(c, t, h):
    """K, K scales, V, V scales, each [heads][slots] and padded to 128 bytes."""
    rows, start = c.block_size * c.num_kv_heads, 0
    for side, size in (("k", c.head_size), ("v", c.head_size_v)):
        yield from _nibbles(side, start + _row(c, t, h) * size // 2, size, c.nibbles == "high_first")
        start += _up(rows * size // 2, 128)
        groups = size // 16
        for s in range(groups):
            at = _row(c, t, h) * groups + s
            if side == "v" and c.v_scales == "swizzled":
                at = _interleaved(c)(t, h, s, groups)
            yield side, "scale", range(16 * s, 16 * s + 16), start + at, 0, 8
        start += _up(rows * groups, 128)


def _up(size, multiple):
    return (size + multiple - 1) // multiple * multiple


def tiles(c, t, h):
    """Codes [2][heads][slots][..]; then K and V scales, each head's [slots][groups] plane in tiles."""
    rows, start = c.block_size * c.num_kv_heads, 0
    for side, size in (("k", c.head_size), ("v", c.head_size_v)):
        yield from _codes(c, side, start + _row(c, t, h) * _packed(c, size), size)
        start += rows * _packed(c, size)
    dims = SHARED[c.mode][0]
    for side, size in (("k", c.head_size), ("v", c.head_size_v)):
        groups = size // dims
        for k in range(groups):
            at = start + h * _tile_bytes(c, groups) + _tile_place(c, t, k, groups)
            yield side, "scale", range(dims * k, dims * k + dims), at, 0, 8
        start += c.num_kv_heads * _tile_bytes(c, groups)


def _tile_bytes(c, groups):
    rows = 128 if c.name == "tiles-128x4" else 8
    return _up(c.block_size, rows) * _up(groups, 4)


def _tile_place(c, m, k, groups):
    if c.name == "tiles-128x4":
        return k % 4 + k // 4 * 512 + m % 32 * 16 + m % 128 // 32 * 4 + m // 128 * 128 * _up(groups, 4)
    return m // 8 * (_up(groups, 4) // 4 * 32) + k // 4 * 32 + m % 8 * 4 + k % 4


# --- llama.cpp -------------------------------------------------------------------------------------------------------

#: the fields of a struct of 32 dims before its codes (float16 each), and bits of a code
STRUCTS = {"q8_0": (("scale",), 8), "q4_0": (("scale",), 4), "q4_1": (("scale", "m"), 4)}


def llama_cpp(c, t, h):
    """A row of [heads][head_size / 32] structs for each cell, K's rows and then V's: fp16 d, perhaps fp16 m; qs."""
    fields, bits = STRUCTS[c.mode]
    size_of, start = 2 * len(fields) + 4 * bits, 0
    for side, size in (("k", c.head_size), ("v", c.head_size_v)):
        for group in range(size // 32):
            at = start + ((t * c.num_kv_heads + h) * (size // 32) + group) * size_of
            dims = range(32 * group, 32 * group + 32)
            for number, field in enumerate(fields):
                yield side, field, dims, at + 2 * number, 0, 16
            at += 2 * len(fields)
            if bits == 8:
                yield from _bytes(side, "code", at, 32, first_dim=dims.start)
                continue
            for e in range(32):  # j in the low nibble of byte j, j + 16 in the high one
                yield side, "code", range(dims.start + e, dims.start + e + 1), at + e % 16, 4 * (e // 16), 4
        start += c.block_size * c.num_kv_heads * size // 32 * size_of


# --- laptops ---------------------------------------------------------------------------------------------------------


def _packed_row(side, first_byte, count, bits):
    """Codes one after the other, from bit 0 of a byte on, across bytes: MLX's uint32 words are little-endian."""
    for e in range(count):
        at = e * bits
        yield side, "code", range(e, e + 1), first_byte + at // 8, at % 8, bits


def mlx(c, t, h):
    """Keys, their scales and their biases, then V's: each [heads][tokens][columns]."""
    bits, group, start = int(c.mode[6]), 64, 0
    row, rows = _row(c, t, h, "HND"), c.block_size * c.num_kv_heads
    for side, size in (("k", c.head_size), ("v", c.head_size_v)):
        yield from _packed_row(side, start + row * size * bits // 8, size, bits)
        start += rows * size * bits // 8
        for part in ("scale", "b"):
            at = start + row * (size // group) * 2
            yield from _bytes(side, part, at, size // group, 2, dims=group)
            start += rows * (size // group) * 2


def openvino(c, t, h):
    """[heads][tokens][fp32 scale | fp32 zero point | codes]; of 4 bits the even one is the high nibble."""
    bits, start = 8 if c.mode.startswith("uint8") else 4, 0
    for side, size in (("k", c.head_size), ("v", c.head_size_v)):
        at = start + _row(c, t, h, "HND") * (8 + size * bits // 8)
        yield side, "scale", range(size), at, 0, 32
        yield side, "zp", range(size), at + 4, 0, 32
        yield from _bytes(side, "code", at + 8, size) if bits == 8 else _nibbles(side, at + 8, size, high_first=True)
        start += c.block_size * c.num_kv_heads * (8 + size * bits // 8)


def executorch(c, t, h):
    """int8 [tokens][heads][dims], then float32 scales, then int8 zero points; K's and then V's."""
    row, rows, start = _row(c, t, h, "NHD"), c.block_size * c.num_kv_heads, 0
    for side, size in (("k", c.head_size), ("v", c.head_size_v)):
        yield from _bytes(side, "code", start + row * size, size)
        yield side, "scale", range(size), start + rows * size + 4 * row, 0, 32
        yield side, "zp", range(size), start + rows * (size + 4) + row, 0, 8
        start += rows * (size + 5)


def onnxruntime(c, t, h):
    """[heads][tokens][dims] of bytes, or of nibbles, the even one low; scales are given from outside."""
    bits, start = 8 if c.mode.startswith("int8") else 4, 0
    for side, size in (("k", c.head_size), ("v", c.head_size_v)):
        yield from _packed_row(side, start + _row(c, t, h, "HND") * size * bits // 8, size, bits)
        start += c.block_size * c.num_kv_heads * size * bits // 8


#: modes whose codes lie in two places each, nibbles and fifth bits: test_structs has them
IN_TWO_PLACES = {("llama-cpp", "q5_0"), ("llama-cpp", "q5_1")}

PLACES = {
    ("llama-cpp", "none"): tensors,
    "llama-cpp": llama_cpp,
    "mlx-lm": mlx,
    "openvino-by-token": openvino,
    "executorch": executorch,
    "onnxruntime": onnxruntime,
    "vllm-0.33-minimax-m3": vllm_minimax,
    "vllm-0.32-cpu": vllm_cpu,
    "vllm-0.33-cpu": vllm_cpu,
    "vllm-unfused": vllm_unfused,
    "vllm-split": vllm_split,
    "vllm-0.33-deepseek-v4": v4_584,
    "flashinfer-split": tensors,
    "flashinfer-mla": flashinfer_mla,
    "tensorrt-llm": tensorrt_llm,
    "sglang": sglang,
    "sglang-native": sglang_native,
    "sglang-minimax-m3": sglang_minimax,
    "tiles-128x4": tiles,
    "tiles-8x4": tiles,
    ("vllm-0.33", "int4_per_token_head"): vllm_int4,
    ("vllm-0.33-mla", "none"): mla,
    ("vllm-0.33-mla", "fp8_per_tensor"): mla,
    ("vllm-0.33-mla", "fp8_ds_mla"): mla_656,
    ("vllm-0.33-mla", "nvfp4_ds_mla"): mla_352,
    ("vllm-0.33-deepseek-v41", "mxfp8"): v41_528,
    ("vllm-0.33-deepseek-v41", "nvfp4_ds_mla"): v41_288,
    ("vllm-0.33-indexer", "indexer_k"): indexer,
    ("vllm-0.33-indexer", "indexer_k_ue8m0"): indexer,
    ("vllm-0.33-indexer", "indexer_k_mxfp8"): indexer,
    ("vllm-0.33-indexer", "indexer_k_mxfp4"): indexer_mxfp4,
    ("sglang", "mxfp8"): sglang_mxfp8,
    ("sglang-mla", "none"): mla,
    ("sglang-mla", "fp8_unscaled"): mla,
    ("sglang-mla", "fp8_per_tile"): mla_656,
}


def place_of(c):
    """The function of a Config: its layout's in its mode, else its layout's; None where it is not one of these."""
    return PLACES.get((c.name, c.mode)) or PLACES.get(c.name)


#: bytes of a token in latent pages, by layout and mode; those of V4 apart
_RECORDS = {
    ("vllm-0.33-mla", "fp8_per_tensor"): 576,
    ("vllm-0.33-mla", "fp8_ds_mla"): 656,
    ("vllm-0.33-mla", "nvfp4_ds_mla"): 352,
    ("vllm-0.33-deepseek-v41", "mxfp8"): 528,
    ("vllm-0.33-deepseek-v41", "nvfp4_ds_mla"): 288,
    ("vllm-0.33-indexer", "indexer_k"): 132,
    ("vllm-0.33-indexer", "indexer_k_ue8m0"): 132,
    ("vllm-0.33-indexer", "indexer_k_mxfp8"): 132,
    ("vllm-0.33-indexer", "indexer_k_mxfp4"): 68,
    ("flashinfer-mla", "fp8_per_tensor"): 576,
    ("flashinfer-mla", "nvfp4"): 352,
    ("sglang-mla", "fp8_unscaled"): 576,
    ("sglang-mla", "fp8_per_tile"): 656,
}


def natural_bytes(c):
    """Bytes of an unpadded page."""
    if (c.name, c.mode) in _RECORDS:
        return c.block_size * _RECORDS[c.name, c.mode]
    if c.name.endswith("mla"):
        return c.block_size * 576 * ITEM_BYTES[c.dtype]
    if c.name == "vllm-0.33-deepseek-v4":
        return _up(584 * c.block_size, 576)
    rows, total = c.block_size * c.num_kv_heads, 0
    if c.name in ("llama-cpp", "mlx-lm", "openvino-by-token", "executorch", "onnxruntime"):  # nothing but entries
        cells = ((t, h) for t in range(c.block_size) for h in range(c.num_kv_heads))
        return sum(bits for t, h in cells for *_, bits in place_of(c)(c, t, h)) // 8
    for size in (c.head_size, c.head_size_v):
        data = rows * _packed(c, size)
        groups = size // SHARED[c.mode][0] if c.mode in SHARED else 0
        scales = 4 * rows if c.mode.endswith("per_token_head") else rows * groups
        if c.name.startswith("tiles"):
            scales = c.num_kv_heads * _tile_bytes(c, groups)
        if c.name == "sglang-minimax-m3":
            data, scales = _up(data, 128), _up(scales, 128)
        total += data + scales
    return total


def rope_starts(c):
    """The dim from which on a latent row's codes are called `K rope`; 0 where they are not."""
    if c.name == "vllm-0.33-deepseek-v4":
        return 448
    mixed = c.mode in ("fp8_ds_mla", "fp8_per_tile") or (c.name, c.mode) == ("vllm-0.33-mla", "nvfp4_ds_mla")
    return 512 if mixed or c.name == "flashinfer-mla" else 0

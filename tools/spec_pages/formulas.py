"""Where an entry lies, as formulas a kernel can be written from; each is checked against the layout for every entry."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvformat.layouts import Layout

Index = int | NDArray[np.int64]

#: what the letters mean; the formulas are Python expressions, so // is integer division
LETTERS = {
    "t, h, d": "slot in the page, head, dim",
    "B, H": "block_size, num_kv_heads",
    "Dk, Dv": "head_size, head_size_v",
    "W": "bytes of a stored value: 2 for bfloat16 and float16, 4 for float32, 1 for e4m3fn",
    "i": "number of a token's head in the page: `t*H + h` in order NHD, `h*B + t` in order HND",
    "N": "`B*H`",
}


@dataclass(frozen=True)
class Formulas:
    """Helper definitions in order, and for each region the page byte of an entry."""

    where: tuple[tuple[str, str], ...]
    regions: tuple[tuple[str, str], ...]

    def byte(self, region: str, values: dict[str, Index]) -> Index:
        """The page byte that the formula of a region gives: an integer, or an array of them."""
        names = dict(values)
        for name, expression in self.where:
            names[name] = eval(expression, {}, names)
        found: Index = eval(dict(self.regions)[region], {}, names)
        return found


_CELL = Formulas(
    (("C", "W*(Dk + Dv)"),),
    (("K data", "i*C + W*d"), ("V data", "i*C + W*Dk + W*d")),
)
_SCALED_CELL = Formulas(
    (("C", "Dk + 4 + Dv + 4"),),
    (
        ("K data", "i*C + d"),
        ("K scale", "i*C + Dk"),
        ("V data", "i*C + Dk + 4 + d"),
        ("V scale", "i*C + Dk + 4 + Dv"),
    ),
)
_FOUR = (
    ("K data", "i*(Dk//2) + d//2"),
    ("K scale", "N*Dk//2 + i*(Dk//16) + d//16"),
    ("V data", "N*Dk//2 + N*Dk//16 + i*(Dv//2) + d//2"),
)
_V_SCALES = ("V0", "N*Dk//2 + N*Dk//16 + N*Dv//2")
_FOUR_LINEAR = Formulas((_V_SCALES,), (*_FOUR, ("V scale", "V0 + i*(Dv//16) + d//16")))


def _swizzled(row: str) -> Formulas:
    """V scales after the swizzle: entry (t, g) stands where (t', g') would stand."""
    where = (_V_SCALES, ("S", "Dv//16"), ("g", "d//16"), ("t2", "t//4*4 + g//(S//4)"), ("g2", "g%(S//4)*4 + t%4"))
    return Formulas(where, (*_FOUR, ("V scale", f"V0 + ({row})*S + g2")))


_STACKED = Formulas((), (("K data", "i*W*Dk + W*d"), ("V data", "N*W*Dk + i*W*Dv + W*d")))
_COLUMNS_THEN_ROWS = Formulas(
    (("P", "W*B*Dk"),),
    (("K data", "2*h*P + W*(d*B + t)"), ("V data", "(2*h + 1)*P + W*(t*Dv + d)")),
)
_STACKED_CODES = (("K data", "i*(Dk//2) + d//2"), ("V data", "N*Dk//2 + i*(Dv//2) + d//2"))
_K0 = ("K0", "N*Dk//2 + N*Dv//2")
_V0 = ("V0", "K0 + N*Dk//16")
_STACKED_FP4 = Formulas(
    (_K0,),
    (
        *_STACKED_CODES,
        ("K scale", "K0 + i*(Dk//16) + d//16"),
        ("V scale", "K0 + N*Dk//16 + i*(Dv//16) + d//16"),
    ),
)
#: the V scales of a head, four tokens interleaved: the swizzle of vLLM, where rows of a head follow one another
_QUADS = "V0 + h*B*S + t//4*4*S + 4*(d//16) + t%4"


def _inline(packed: str) -> Formulas:
    """K then V, the scale behind each row; `packed`: what divides dims into bytes."""
    k, v = f"Dk{packed} + 4", f"Dv{packed} + 4"
    return Formulas(
        (),
        (
            ("K data", f"i*({k}) + d{packed}"),
            ("K scale", f"i*({k}) + Dk{packed}"),
            ("V data", f"N*({k}) + i*({v}) + d{packed}"),
            ("V scale", f"N*({k}) + i*({v}) + Dv{packed}"),
        ),
    )


def _apart(packed: str) -> Formulas:
    """Codes and scales in tensors of their own, scales token by token."""
    start = f"N*(Dk{packed}) + N*(Dv{packed})"
    return Formulas(
        (("S0", start),),
        (
            ("K data", f"i*(Dk{packed}) + d{packed}"),
            ("V data", f"N*(Dk{packed}) + i*(Dv{packed}) + d{packed}"),
            ("K scale", "S0 + 4*(t*H + h)"),
            ("V scale", "S0 + 4*N + 4*(t*H + h)"),
        ),
    )


_SCALED_INT4_CELL = Formulas(
    (("C", "Dk//2 + 4 + Dv//2 + 4"),),
    (
        ("K data", "i*C + d//2"),
        ("K scale", "i*C + Dk//2"),
        ("V data", "i*C + Dk//2 + 4 + d//2"),
        ("V scale", "i*C + Dk//2 + 4 + Dv//2"),
    ),
)
_HEAD_SLOTS = Formulas(
    (("P", "72*B"), ("g", "d//16"), ("t2", "t//4*4 + g//2"), ("g2", "g%2*4 + t%4")),
    (
        ("K data", "2*h*P + 64*t + d//2"),
        ("K scale", "2*h*P + 64*B + 8*t + d//16"),
        ("V data", "(2*h + 1)*P + 64*t + d//2"),
        ("V scale", "(2*h + 1)*P + 64*B + 8*t2 + g2"),
    ),
)

_ROW = Formulas((), (("K data", "W*(Dk*t + d)"),))
_ROW_656 = Formulas(
    (), (("K data", "656*t + d"), ("K scale", "656*t + 512 + 4*(d//128)"), ("K rope", "656*t + 528 + 2*(d - 512)"))
)
_ROW_352 = Formulas(
    (("s", "d//16"),),
    (("K data", "352*t + d//2"), ("K rope", "352*t + 256 + d - 512"), ("K scale", "352*t + 320 + s%4*8 + s//4")),
)
_ROW_584 = Formulas(
    (), (("K data", "576*t + d"), ("K rope", "576*t + 448 + 2*(d - 448)"), ("K scale", "576*B + 8*t + d//64"))
)
_ROW_528 = Formulas((), (("K data", "528*t + d"), ("K scale", "528*t + 512 + d//32")))
_ROW_288 = Formulas((), (("K data", "288*t + d//2"), ("K scale", "288*t + 256 + d//16")))
_INDEXER = Formulas((), (("K data", "128*t + d"), ("K scale", "128*B + 4*t")))
_INDEXER_MXFP4 = Formulas((), (("K data", "64*t + d//2"), ("K scale", "64*B + 4*t + d//32")))
_CKV_KPE = Formulas((), (("K data", "W*(512*t + d)"), ("K rope", "512*W*B + W*(64*t + d - 512)")))
_CKV_SF_KPE = Formulas(
    (), (("K data", "256*t + d//2"), ("K scale", "256*B + 32*t + d//16"), ("K rope", "288*B + 64*t + d - 512"))
)

_POOLS = Formulas(
    (_K0, _V0, ("S", "Dv//16")), (*_STACKED_CODES, ("K scale", "K0 + i*(Dk//16) + d//16"), ("V scale", _QUADS))
)
_NATIVE = Formulas(
    (_K0, _V0, ("S", "Dv//16")),
    (*_STACKED_CODES, ("K scale", "K0 + (h*B + t)*(Dk//16) + d//16"), ("V scale", _QUADS)),
)
_ROWS_32 = Formulas(
    (("K0", "N*Dk + N*Dv"), ("Sk", "Dk//32"), ("Sv", "Dv//32")),
    (
        ("K data", "i*Dk + d"),
        ("V data", "N*Dk + i*Dv + d"),
        ("K scale", "K0 + (32*h + t%32)*(B//32*Sk) + t//32*Sk + d//32"),
        ("V scale", "K0 + N*Sk + (32*h + t%32)*(B//32*Sv) + t//32*Sv + d//32"),
    ),
)


def _padded(v_scale: str) -> Formulas:
    """K, K scales, V, V scales, each padded to 128 bytes."""
    where = (
        ("K0", "(N*Dk//2 + 127)//128*128"),
        ("V1", "K0 + (N*Dk//16 + 127)//128*128"),
        ("V0", "V1 + (N*Dv//2 + 127)//128*128"),
        ("S", "Dv//16"),
    )
    regions = (
        ("K data", "i*(Dk//2) + d//2"),
        ("K scale", "K0 + i*(Dk//16) + d//16"),
        ("V data", "V1 + i*(Dv//2) + d//2"),
        ("V scale", v_scale),
    )
    return Formulas(where, regions)


def _tiles(packed: str, dims: int, rows: int, place: str) -> Formulas:
    """Codes as stacked, then the scales of each head in tiles of `rows` x 4."""
    where = (
        ("K0", f"N*(Dk{packed}) + N*(Dv{packed})"),
        ("G", f"(Dk//{dims} + 3)//4*4"),
        ("Gv", f"(Dv//{dims} + 3)//4*4"),
        ("R", f"(B + {rows - 1})//{rows}*{rows}"),
        ("k", f"d//{dims}"),
    )
    regions = (
        ("K data", f"i*(Dk{packed}) + d{packed}"),
        ("V data", f"N*(Dk{packed}) + i*(Dv{packed}) + d{packed}"),
        ("K scale", f"K0 + h*R*G + {place}"),
        ("V scale", f"K0 + H*R*G + h*R*Gv + {place.replace('G', 'Gv')}"),
    )
    return Formulas(where, regions)


_TILE_128 = "k%4 + k//4*512 + t%32*16 + t%128//32*4 + t//128*128*G"
_TILE_8 = "t//8*8*G + k//4*32 + t%8*4 + k%4"
_VALUES = ("none", "fp8_per_tensor")
_HEADS_8 = ("fp8_per_token_head", "int8_per_token_head")


def _of(name: str, found: Formulas, *modes: str) -> dict[tuple[str, str, str, str], Formulas]:
    return {(name, mode, "", ""): found for mode in modes}


def _structs(size: int, **parts: str) -> Formulas:
    """Rows of structs of 32 dims, K's and then V's; `parts`: by what regions are called, the byte of a struct."""
    regions = [
        (f"{side} {part.replace('_', ' ')}", f"{start}(i*(D{side.lower()}//32) + d//32)*{size} + {inside}")
        for side, start in (("K", ""), ("V", f"N*(Dk//32)*{size} + "))
        for part, inside in parts.items()
    ]
    return Formulas((), tuple(regions))


def _six_arrays(bits: int) -> Formulas:
    """Codes, scales and biases of 64 dims, those of K and then those of V; each parameter has 2 bytes."""
    regions = [
        (f"{side} {part}", f"{start} + {inside}".replace("D", f"D{side.lower()}").removeprefix("0 + "))
        for side, start in (("K", "0"), ("V", "V0"))
        for part, inside in (
            ("data", f"i*(D*{bits}//8) + d*{bits}//8"),
            ("scale", f"N*(D*{bits}//8) + 2*(i*(D//64) + d//64)"),
            ("b", f"N*(D*{bits}//8) + 2*N*(D//64) + 2*(i*(D//64) + d//64)"),
        )
    ]
    return Formulas((("V0", f"N*(Dk*{bits}//8) + 4*N*(Dk//64)"),), tuple(regions))


def _led_cell(bits: int) -> Formulas:
    """Scale and zero point before the codes of each row."""
    k, v = (f"({size}*{bits}//8 + 8)" for size in ("Dk", "Dv"))
    parts = (("scale", "0"), ("zp", "4"), ("data", f"8 + d*{bits}//8"))
    regions = [("K", f"i*{k}"), ("V", f"N*{k} + i*{v}")]
    return Formulas((), tuple((f"{side} {part}", f"{at} + {inside}") for side, at in regions for part, inside in parts))


_ZERO_POINTS = Formulas(
    (("V0", "N*Dk + 5*N"),),
    (
        ("K data", "i*Dk + d"),
        ("K scale", "N*Dk + 4*i"),
        ("K zp", "N*Dk + 4*N + i"),
        ("V data", "V0 + i*Dv + d"),
        ("V scale", "V0 + N*Dv + 4*i"),
        ("V zp", "V0 + N*Dv + 4*N + i"),
    ),
)
#: by layout, mode, V scale choice and order ("": both)
FORMULAS: dict[tuple[str, str, str, str], Formulas] = {
    **_of("vllm-0.33", _CELL, *_VALUES),
    **_of("vllm-0.33", _SCALED_CELL, *_HEADS_8),
    **_of("vllm-0.33", _SCALED_INT4_CELL, "int4_per_token_head"),
    ("vllm-0.33", "nvfp4", "linear", ""): _FOUR_LINEAR,
    ("vllm-0.33", "nvfp4", "swizzled", "NHD"): _swizzled("t2*H + h"),
    ("vllm-0.33", "nvfp4", "swizzled", "HND"): _swizzled("h*B + t2"),
    **_of("vllm-0.33-minimax-m3", _HEAD_SLOTS, "nvfp4"),
    **_of("vllm-0.32-cpu", _COLUMNS_THEN_ROWS, *_VALUES),
    **_of("vllm-0.33-cpu", _COLUMNS_THEN_ROWS, *_VALUES),
    **_of("vllm-unfused", _STACKED, *_VALUES),
    **_of("vllm-unfused", _inline(""), *_HEADS_8),
    **_of("vllm-unfused", _inline("//2"), "int4_per_token_head"),
    **_of("vllm-split", _STACKED, *_VALUES),
    **_of("vllm-split", _apart(""), *_HEADS_8),
    **_of("vllm-split", _apart("//2"), "int4_per_token_head"),
    **_of("vllm-0.33-mla", _ROW, *_VALUES),
    **_of("vllm-0.33-mla", _ROW_656, "fp8_ds_mla"),
    **_of("vllm-0.33-mla", _ROW_352, "nvfp4_ds_mla"),
    **_of("vllm-0.33-deepseek-v4", _ROW_584, "fp8_ds_mla"),
    **_of("vllm-0.33-deepseek-v41", _ROW_528, "mxfp8"),
    **_of("vllm-0.33-deepseek-v41", _ROW_288, "nvfp4_ds_mla"),
    **_of("vllm-0.33-indexer", _INDEXER, "indexer_k", "indexer_k_ue8m0", "indexer_k_mxfp8"),
    **_of("vllm-0.33-indexer", _INDEXER_MXFP4, "indexer_k_mxfp4"),
    **_of("flashinfer", _STACKED, *_VALUES),
    **_of("flashinfer", _STACKED_FP4, "nvfp4"),
    **_of("flashinfer-split", _STACKED, *_VALUES),
    **_of("flashinfer-split", _STACKED_FP4, "nvfp4"),
    **_of("flashinfer-mla", _CKV_KPE, *_VALUES),
    **_of("flashinfer-mla", _CKV_SF_KPE, "nvfp4"),
    **_of("tensorrt-llm", _STACKED, *_VALUES),
    **_of("tensorrt-llm", _POOLS, "nvfp4"),
    **_of("sglang", _STACKED, *_VALUES),
    **_of("sglang", _STACKED_FP4, "nvfp4", "fp4_mx_block16"),
    **_of("sglang", _ROWS_32, "mxfp8"),
    **_of("sglang-native", _NATIVE, "nvfp4"),
    ("sglang-minimax-m3", "nvfp4", "linear", ""): _padded("V0 + i*S + d//16"),
    ("sglang-minimax-m3", "nvfp4", "swizzled", ""): _padded(_QUADS),
    **_of("sglang-mla", _ROW, "none", "fp8_unscaled"),
    **_of("sglang-mla", _ROW_656, "fp8_per_tile"),
    **_of("tiles-128x4", _tiles("//2", 16, 128, _TILE_128), "nvfp4"),
    **_of("tiles-128x4", _tiles("//2", 32, 128, _TILE_128), "mxfp4"),
    **_of("tiles-128x4", _tiles("", 32, 128, _TILE_128), "mxfp8"),
    **_of("tiles-8x4", _tiles("//2", 16, 8, _TILE_8), "nvfp4"),
    **_of("tiles-8x4", _tiles("//2", 32, 8, _TILE_8), "mxfp4"),
    **_of("tiles-8x4", _tiles("", 32, 8, _TILE_8), "mxfp8"),
    **_of("llama-cpp", _STACKED, "none"),
    **_of("llama-cpp", _structs(34, scale="0", data="2 + d%32"), "q8_0"),
    **_of("llama-cpp", _structs(18, scale="0", data="2 + d%16"), "q4_0"),
    **_of("llama-cpp", _structs(20, scale="0", m="2", data="4 + d%16"), "q4_1"),
    **_of("llama-cpp", _structs(22, scale="0", bits_4_up="2 + d%32//8", data="6 + d%16"), "q5_0"),
    **_of("llama-cpp", _structs(24, scale="0", m="2", bits_4_up="4 + d%32//8", data="8 + d%16"), "q5_1"),
    **{
        key: each
        for bits in (3, 4, 8)
        for key, each in _of("mlx-lm", _six_arrays(bits), f"affine{bits}_group64").items()
    },
    **_of("openvino-by-token", _led_cell(8), "uint8_per_token_head"),
    **_of("openvino-by-token", _led_cell(4), "uint4_per_token_head"),
    **_of("executorch", _ZERO_POINTS, "int8_zero_per_token_head"),
    **_of("onnxruntime", _STACKED, "int8_per_tensor"),
    **_of("onnxruntime", Formulas((), _STACKED_CODES), "int4_per_tensor"),
}


def formulas(page: Layout) -> Formulas:
    """The formulas of a layout, once they give the byte of every entry. Raises AssertionError for one that does not."""
    name, mode, choice = page.name, page.mode, page.v_scales or ""
    found = FORMULAS.get((name, mode, choice, "")) or FORMULAS[name, mode, choice, page.order]
    width = page.regions[0].bits // 8
    sizes: dict[str, Index] = {
        "B": page.block_size,
        "H": page.num_kv_heads,
        "Dk": page.head_size,
        "Dv": page.head_size_v,
        "W": width,
    }
    for region in page.regions:
        first, last = region.all_dims.start, region.all_dims.stop
        t, h, d = np.ogrid[: page.block_size, : page.num_kv_heads, first:last]
        i = t * page.num_kv_heads + h if page.order == "NHD" else h * page.block_size + t
        names: dict[str, Index] = {**sizes, "t": t, "h": h, "d": d, "i": i, "N": page.block_size * page.num_kv_heads}
        right = region.address(t, h, (d - first) // region.dims_per_entry) // 8
        assert np.array_equal(np.broadcast_to(found.byte(region.name, names), right.shape), right), (
            page.spec,
            region.name,
        )
    return found

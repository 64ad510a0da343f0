"""Writers in plain NumPy, written by hand, right ones and faulty ones: nothing here runs the code under test.

A writer is the golden arithmetic with one of its steps given as a function. Casts are those of ml_dtypes or tables;
addresses are the formulas of `kvformat.verify.plain`, which shares nothing with the layouts.
"""

# ruff: noqa: ARG005 a writer hands all of its numbers to each of its steps

from __future__ import annotations

import ml_dtypes
import numpy as np

from kvformat import Dump, layout
from kvformat.verify.plain import _code_byte, _scale_byte, _swizzled

E4M3, E5M2, FNUZ = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float8_e4m3fnuz
BF16 = ml_dtypes.bfloat16
MODES = ("fp8_per_tensor", "fp8_per_token_head", "int8_per_token_head", "nvfp4")
F32 = np.float32
QMAX = {"fp8_per_tensor": F32(448), "fp8_per_token_head": F32(448), "int8_per_token_head": F32(127), "nvfp4": F32(6)}
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])

BLOCK, HEADS, DIMS, BLOCKS = 8, 3, 64, 7
#: neither the first nor the last block; token 5 is padding
SLOTS = np.random.default_rng(4).permutation((BLOCKS - 2) * BLOCK)[:32].astype(np.int64) + BLOCK
SLOTS[5] = -1
TOKENS = 32


def nearest(x, values, tie="even"):
    """Indices of the values (ascending, >= 0) nearest to |x|; ties to the even index, up, down or truncated."""
    x = np.abs(np.asarray(x, np.float64))
    low = np.clip(np.searchsorted(values, x, side="right") - 1, 0, len(values) - 1)
    high = np.minimum(low + 1, len(values) - 1)
    middle = (values[low] + values[high]) / 2
    up = {"even": (x > middle) | ((x == middle) & (low % 2 == 1)), "up": x >= middle, "down": x > middle,
          "truncated": np.zeros(x.shape, bool)}[tie]  # fmt: skip
    return np.where(np.isnan(x), 0, np.where(up, high, low))


def e2m1(q, tie="even"):
    q = np.asarray(q)
    codes = (nearest(q, E2M1, tie) + 8 * np.signbit(q)).astype(np.uint8)
    return np.where(np.isnan(q), 0, codes).astype(np.uint8)


E4M3_VALUES = np.unique(np.abs(np.arange(127, dtype=np.uint8).view(E4M3).astype(np.float64)))


def e4m3(q, tie="even"):
    q = np.asarray(q)
    codes = (nearest(q, E4M3_VALUES, tie) + 128 * np.signbit(q)).astype(np.uint8)
    return np.where(np.isnan(q), 0x7F, codes).astype(np.uint8)


def int8(q):
    return np.where(np.isnan(q), 0, np.clip(q, -128, 127)).astype(np.int8).view(np.uint8)


ENCODE = {
    "fp8_per_tensor": e4m3,
    "fp8_per_token_head": e4m3,
    "int8_per_token_head": lambda q: int8(np.clip(np.rint(q), -127, 127)),
    "nvfp4": e2m1,
}


def finite_amax(x):
    return np.max(np.where(np.isfinite(x), np.abs(x), F32(0)), axis=-1, keepdims=True).astype(F32)


def write(mode, x, *, given=None, amax=finite_amax, scale=None, stored=None, used=None, quotient=None, encode=None):
    """Codes (tokens, heads, bytes) and scale bytes (tokens, heads, bytes) of x, float32 (tokens, heads, dims).

    scale: of amax and g. stored: of the scale, what the page has (float32, or e4m3fn codes). used: of the scale before
    and after it is stored, what codes are made with. quotient: of x, that scale and g. encode: of the quotient.
    """
    with np.errstate(all="ignore"):
        tokens, heads, dims = x.shape
        encode = encode or ENCODE[mode]
        if mode == "fp8_per_tensor":
            s = F32(given) if given is not None else nonzero(amax(x.reshape(-1)) / QMAX[mode])
            q = (quotient or (lambda x, s, g: x / s))(x, s, None)
            return encode(q), np.zeros((tokens, heads, 0), np.uint8)
        block = 16 if mode == "nvfp4" else dims
        groups = x.reshape(tokens, heads, dims // block, block)
        g = F32(given) if given is not None else F32(1)
        if mode == "nvfp4" and given is None:
            g = nonzero(finite_amax(x.reshape(-1)) / F32(2688))
        a = amax(groups)
        exact = (scale or golden_scale(mode))(a, g)
        if mode == "nvfp4":
            codes = (stored or e4m3)(exact)
            after = codes.view(E4M3).astype(F32)
            scales = codes.reshape(tokens, heads, -1)
        else:
            held = exact if stored is None else stored(exact)
            after, scales = exact, np.ascontiguousarray(held.astype("<f4")).view(np.uint8).reshape(tokens, heads, -1)
        s = after if used is None else used(exact, after)
        q = (quotient or QUOTIENT[mode])(groups, s, g)
        codes = encode(q).reshape(tokens, heads, dims)
        return (codes[..., 0::2] | codes[..., 1::2] << 4 if mode == "nvfp4" else codes), scales


def golden_scale(mode):
    if mode == "nvfp4":
        return lambda a, g: a / (F32(6) * g)
    return lambda a, g: nonzero(a / QMAX[mode])


def _two_level(x, s, g):
    d = s * g
    return np.where(d == 0, np.copysign(F32(0), x), x / d).astype(F32)


QUOTIENT = {"fp8_per_token_head": lambda x, s, g: x / s, "int8_per_token_head": lambda x, s, g: x / s,
            "nvfp4": _two_level}  # fmt: skip


def nonzero(scale):
    return np.where(scale == 0, F32(1), scale).astype(F32)


# --- pages --------------------------------------------------------------------------------------------------------


def spread(mode, sides, *, order="NHD", slots=SLOTS, blocks=BLOCKS, block=BLOCK, v_scales="swizzled", padding=0,
           code_byte=None, scale_byte=None, fill=0xA5):  # fmt: skip
    """Pages of vllm-0.33 that hold the rows of both sides: [(codes, scales), (codes, scales)].

    code_byte, scale_byte: of (page, slot, head, side, byte of the row) the byte of all pages where it belongs, in place
    of the right one. What lies outside is not written.
    """
    heads, data = sides[0][0].shape[1:]
    scale = sides[0][1].shape[2]
    length = 2 * block * heads * (data + scale) + padding
    flat = np.full(blocks * length, fill, np.uint8)

    def right_code(page, slot, head, side, byte):
        row = slot * heads + head if order == "NHD" else head * block + slot
        return page * length + _code_byte("vllm-0.33", mode, side, row, block * heads, data, scale) + byte

    def right_scale(page, slot, head, side, byte):
        place = slot, head, byte
        if side == 1 and mode == "nvfp4" and v_scales == "swizzled":
            place = _swizzled(slot, head, byte, scale)
        if mode != "nvfp4":
            return right_code(page, slot, head, side, data + byte)
        return page * length + _scale_byte("vllm-0.33", mode, side, place, order, (block, heads), data, scale)

    for token, at in enumerate(slots):
        for head in range(heads):
            for side in range(2) if at >= 0 else ():
                page, slot = divmod(int(at), block)
                for rows, address in (
                    (sides[side][0], code_byte or right_code),
                    (sides[side][1], scale_byte or right_scale),
                ):
                    for byte, stored in enumerate(rows[token, head]):
                        where = address(page, slot, head, side, byte)
                        if 0 <= where < len(flat):
                            flat[where] = stored
    return flat.reshape(blocks, length)


def dump_of(mode, key, value, pages, *, recipe=None, order="NHD", slots=SLOTS, block=BLOCK, v_scales="swizzled",
            k_scale=None, v_scale=None, stored=None):  # fmt: skip
    made = layout(
        "vllm-0.33", mode=mode, order=order, block_size=block, num_kv_heads=key.shape[1], head_size=key.shape[2],
        v_scales=v_scales if mode == "nvfp4" else None, page_bytes=pages.shape[1], dtype=stored,
    )  # fmt: skip
    return Dump.from_arrays(
        key, value, pages, slots, layout=made, recipe=recipe or f"golden/{mode}", k_scale=k_scale, v_scale=v_scale
    )


def rows(mode, seed, tokens=TOKENS, dims=DIMS, scale=None):
    """K or V that shows most faults: ties, zeros of both signs, NaN, Inf, tiny rows, and ordinary ones."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(tokens, HEADS, dims)) * 2.0 ** rng.integers(-4, 5, (tokens, HEADS, 1))
    x = (x.reshape(tokens, HEADS, -1, 16) * 2.0 ** rng.integers(-2, 3, (tokens, HEADS, dims // 16, 1))).reshape(x.shape)
    top, unit = float(QMAX[mode]), 1.0 if scale is None else float(scale)
    if mode == "nvfp4" and scale is None:
        x[0, 0, 0] = 2688 * 4  # g = 4: a power of two, so that quotients can be ties
        unit = 4.0
    for t in range(6, 14):  # halves of steps, under scales that are powers of two
        steps = rng.integers(-2 * int(top), 2 * int(top), (HEADS, dims)) / 2 if top != 448 else (
            rng.choice([-1, 1], (HEADS, dims)) * rng.integers(16, 32, (HEADS, dims)) / 16
            * 2.0 ** rng.integers(-9, 8, (HEADS, dims)))  # fmt: skip
        steps[:, ::16] = top
        x[t] = steps * unit * 2.0 ** (rng.integers(-3, 3) if scale is None or mode == "nvfp4" else 0)
    x[14], x[15] = 0.0, -0.0
    x[16, :, ::3], x[17, :, ::3] = 0.0, -0.0
    x[18, 0, 3], x[19, 1, 5], x[20, 2, 7] = np.nan, np.inf, -np.inf
    for t, size in zip(range(21, 27), (1e-3, 1e-5, 1e-6, 1e-9, 1e-12, 1e-39), strict=True):
        x[t] = rng.normal(size=(HEADS, dims)) * size
    x[27] *= 2.0 ** -(np.arange(dims) % 24)
    x[28, :, :16] = -0.0
    if scale is not None and mode == "fp8_per_tensor":
        x[29] = rng.uniform(449, 463, (HEADS, dims)) * scale
        x[30] = rng.uniform(465, 3000, (HEADS, dims)) * scale * rng.choice([-1, 1], (HEADS, dims))
    return x.astype(np.float32)

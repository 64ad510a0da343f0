"""Planes that are transposed or x-packed, and every bit of a page: against NumPy's own reshape and transpose."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import kvformat as kvf
from kvformat.layouts import layout as layout_of
from kvformat.layouts.convert import rearrange
from kvformat.layouts.entry import parse_entry

TOKENS, HEADS, DIMS, BLOCK = 37, 3, 64, 16


def page_of(mode, k, v, **more):
    sections = [
        {"per": "page", "tensor": name, "order": "HND", "record": [{"part": f"{side}.code", "swizzle": swizzle}]}
        for side, name, swizzle in (("k", "key_cache", k), ("v", "value_cache", v))
    ]
    recipe = {"none": "golden/none", "fp8_per_tensor": "golden/fp8_per_tensor"}[mode]
    entry = parse_entry(
        {
            "name": "packed",
            "source": "this test",
            "modes": {mode: {"recipe": recipe, "order": "HND", "sections": sections}},
        }
    )
    return layout_of(entry, mode=mode, block_size=BLOCK, num_kv_heads=HEADS, head_size=DIMS, **more)


def _written(layout, **scales):
    generator = np.random.default_rng(3)
    key, value = (generator.standard_normal((TOKENS, HEADS, DIMS)).astype(np.float32) for _ in "kv")
    cache = kvf.PagedCache(layout, num_blocks=4, **scales)
    slots = generator.permutation(4 * BLOCK)[:TOKENS]
    cache.write(key, value, slots)
    return key, value, slots, cache


@pytest.mark.parametrize("mode, x, dtype", [("none", 8, ml_dtypes.bfloat16), ("fp8_per_tensor", 16, np.uint8)])
def test_reshape_and_cache_pages_are_the_5d_and_4d_tensors_of_vllm(mode, x, dtype):
    scales = {"k_scale": 0.01, "v_scale": 0.02} if mode != "none" else {}
    layout = page_of(mode, f"packed-{x}", "transposed")
    key, value, slots, cache = _written(layout, **scales)
    sizes = dict(layout.tensors)
    k_cache = cache.pages[:, : sizes["key_cache"]].copy().view(dtype).reshape(4, HEADS, DIMS // x, BLOCK, x)
    v_cache = cache.pages[:, sizes["key_cache"] :].copy().view(dtype).reshape(4, HEADS, DIMS, BLOCK)

    def stored(values, scale):
        if mode == "none":
            return values.astype(dtype)
        return kvf.quantize(values, mode, scale=scale).codes

    wanted_k, wanted_v = stored(key, 0.01), stored(value, 0.02)
    for token, slot in enumerate(slots):
        block, position = divmod(int(slot), BLOCK)
        # csrc/cache_kernels.cu: x_idx = dim / x, x_offset = dim % x
        assert k_cache[block, :, :, position, :].reshape(HEADS, DIMS).tobytes() == wanted_k[token].tobytes()
        assert v_cache[block, :, :, position].tobytes() == wanted_v[token].tobytes()


def test_row_packed_v_is_aiter_s_assembly_tensor():
    layout = page_of("fp8_per_tensor", "packed-16", "row-packed-16")
    _, value, slots, cache = _written(layout, k_scale=0.01, v_scale=0.02)
    v_cache = cache.pages[:, dict(layout.tensors)["key_cache"] :].reshape(4, HEADS, BLOCK // 16, DIMS, 16)
    wanted = kvf.quantize(value, "fp8_per_tensor", scale=0.02).codes
    for token, slot in enumerate(slots):
        block, position = divmod(int(slot), BLOCK)
        np.testing.assert_array_equal(v_cache[block, :, position // 16, :, position % 16], wanted[token])


@pytest.mark.parametrize(
    "layout",
    [
        page_of("fp8_per_tensor", "packed-16", "transposed"),
        page_of("none", "packed-8", "row-packed-8"),
        kvf.layout("vllm-0.33", mode="nvfp4", block_size=16, num_kv_heads=2, head_size=64),
        kvf.layout("vllm-0.33", mode="nvfp4", block_size=16, num_kv_heads=2, head_size=64, nibbles="high_first"),
        kvf.layout("vllm-0.33", mode="int4_per_token_head", block_size=4, num_kv_heads=2, head_size=32, page_bytes=999),
        kvf.layout("flashinfer", mode="nvfp4", block_size=16, num_kv_heads=2, head_size=64),
    ],
    ids=lambda layout: f"{layout.name} {layout.mode}",
)
def test_explain_and_locate_are_inverse_on_every_bit(layout):
    held = {}
    for byte in range(layout.page_bytes):
        for bit in range(8):
            found = layout.explain(byte=byte, bit=bit)
            if found.side is None:
                continue
            place = layout.locate(
                side=found.side, slot=found.slot, head=found.head, dim=found.dims.start, part=found.part
            )
            assert 0 <= byte * 8 + bit - (place.byte * 8 + place.bit) < place.bits
            held[found.side, found.part, found.slot, found.head, found.dims] = (
                held.get((found.side, found.part, found.slot, found.head, found.dims), 0) + 1
            )
    counts = {(r.side, r.part): (r.slots * r.heads * r.columns, r.bits) for r in layout.regions}
    for (side, part), (entries, bits) in counts.items():
        widths = [width for key, width in held.items() if key[:2] == (side, part)]
        assert (len(widths), set(widths)) == (entries, {bits})


@pytest.mark.parametrize("bit", [-1, 8, 1.5])
def test_a_bit_that_no_byte_has_is_refused(bit):
    layout = page_of("fp8_per_tensor", "packed-16", "transposed")
    with pytest.raises(kvf.InputError, match=r"bit must be an integer in 0\.\.7"):
        layout.explain(byte=0, bit=bit)


def test_converting_a_packed_cache_to_vllm_s_default_keeps_every_code():
    packed = page_of("fp8_per_tensor", "packed-16", "transposed")
    key, value, slots, cache = _written(packed, k_scale=0.01, v_scale=0.02)
    plain = kvf.PagedCache(
        kvf.layout("vllm-0.33", mode="fp8_per_tensor", block_size=BLOCK, num_kv_heads=HEADS, head_size=DIMS),
        num_blocks=4,
        k_scale=0.01,
        v_scale=0.02,
    )
    plain.write(key, value, slots)
    made = rearrange(cache.pages, packed, plain.layout)
    found = kvf.PagedCache(plain.layout, num_blocks=4, k_scale=0.01, v_scale=0.02)
    found.pages[:] = made
    for a, b in zip(plain.gather(range(4), 64), found.gather(range(4), 64), strict=True):
        np.testing.assert_array_equal(a.reshape(64, -1)[np.sort(slots)], b.reshape(64, -1)[np.sort(slots)])


def test_pages_of_vllm_s_cpu_backend_have_a_column_major_k_and_a_row_major_v_per_head():
    record = [{"part": "k.code", "swizzle": "transposed"}, "v.code"]
    sections = [{"per": "head", "order": "HND", "record": record}]
    modes = {"fp8_per_tensor": {"recipe": "golden/fp8_per_tensor", "order": "HND", "sections": sections}}
    entry = parse_entry({"name": "cpu", "source": "this test", "modes": modes})
    layout = layout_of(entry, mode="fp8_per_tensor", block_size=BLOCK, num_kv_heads=HEADS, head_size=DIMS)
    key, value, slots, cache = _written(layout, k_scale=0.01, v_scale=0.02)
    k, v = (kvf.quantize(x, "fp8_per_tensor", scale=s).codes for x, s in ((key, 0.01), (value, 0.02)))
    # csrc/cpu/cpu_attn: (blocks, heads, 2 * block, D), cut in two: K as (D, block), V as (block, D)
    pages = cache.pages.reshape(4, HEADS, 2, BLOCK * DIMS)
    for token, slot in enumerate(slots):
        block, position = divmod(int(slot), BLOCK)
        np.testing.assert_array_equal(pages[block, :, 0].reshape(HEADS, DIMS, BLOCK)[:, :, position], k[token])
        np.testing.assert_array_equal(pages[block, :, 1].reshape(HEADS, BLOCK, DIMS)[:, position], v[token])

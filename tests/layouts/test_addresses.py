"""`locate` and `explain` against the written formulas, for every entry and every byte of many small pages."""

import numpy as np
import pytest

from kvformat.layouts import LAYOUTS, Digit, Explanation, Location, Region, layout
from tests.layouts.engines import IN_TWO_PLACES
from tests.layouts.reference import CONFIGS, Config, entries, natural_bytes, region_name


@pytest.fixture(params=CONFIGS, ids=str)
def config(request):
    return request.param


def made(config):
    return layout(config.name, **config.arguments)


def test_every_dim_is_located_where_the_formula_says(config):
    page = made(config)
    for side, part, slot, head, dims, bit, bits in entries(config):
        for dim in dims:
            found = page.locate(side=side, slot=slot, head=head, dim=dim, part=part)
            assert found == Location(bit // 8, bit % 8, bits), (side, part, slot, head, dim)


def test_every_byte_is_explained_as_the_formula_says(config):
    page = made(config)
    expected = [Explanation(None, "padding", None, None, range(0), "padding")] * page.page_bytes
    for side, part, slot, head, dims, bit, bits in entries(config):
        name = region_name(config, side, part, dims)
        for byte in range(bit // 8, -(-(bit + bits) // 8)):
            low = expected[byte].dims
            # a byte of two nibbles stands for both dims, side by side or 16 apart
            whole = range(low.start, dims.stop, dims.start - low[-1]) if low else dims
            expected[byte] = Explanation(side, part, slot, head, whole, name)
    assert [page.explain(byte=byte) for byte in range(page.page_bytes)] == expected


def test_entries_never_share_a_bit_and_padding_is_the_rest(config):
    page = made(config)
    owners, expected = np.zeros((2, page.page_bytes * 8), int)
    for _, _, _, _, _, bit, bits in entries(config):
        expected[bit : bit + bits] += 1
    for region in page.regions:
        for slot in range(config.block_size):
            for head in range(config.num_kv_heads):
                places = {
                    page.locate(side=region.side, slot=slot, head=head, dim=d, part=region.part)
                    for d in region.all_dims
                }
                for place in places:
                    start = place.byte * 8 + place.bit
                    owners[start : start + place.bits] += 1
    assert owners.max() == 1
    assert np.array_equal(owners, expected)
    assert owners[page.natural_bytes * 8 :].tolist() == [0] * (config.padding * 8)


def test_locate_and_explain_are_inverses(config):
    page = made(config)
    for byte in range(page.page_bytes):
        said = page.explain(byte=byte)
        for dim in said.dims:
            place = page.locate(side=said.side, slot=said.slot, head=said.head, dim=dim, part=said.part)
            assert place.byte <= byte <= (place.byte * 8 + place.bit + place.bits - 1) // 8


def test_a_page_is_as_large_as_the_formula_says(config):
    page = made(config)
    assert page.natural_bytes == natural_bytes(config)
    assert page.page_bytes == natural_bytes(config) + config.padding
    assert sum(region.num_bytes for region in page.regions) * 8 == sum(bits for *_, bits in entries(config))


def test_every_layout_and_mode_of_the_catalogue_has_a_reference():
    known = {(name, mode) for name, entry in LAYOUTS.items() for mode, _ in entry.modes}
    assert known - IN_TWO_PLACES == {(config.name, config.mode) for config in CONFIGS}


def test_a_layout_is_made_again_by_its_spec(config):
    page = made(config)
    again = layout(**page.spec)
    assert again == page
    assert hash(again) == hash(page)
    assert all(isinstance(value, str | int) for value in page.spec.values())


def test_addresses_of_arrays_are_those_of_their_elements(config):
    for region in made(config).regions:
        slot, head, column = np.ogrid[: region.slots, : region.heads, : region.columns]
        one_by_one = [
            [[region.address(t, h, c) for c in range(region.columns)] for h in range(region.heads)]
            for t in range(region.slots)
        ]
        assert region.address(slot, head, column).tolist() == one_by_one


@pytest.mark.parametrize("mode", ["int8_per_token_head", "fp8_per_token_head"])
@pytest.mark.parametrize("order", ["NHD", "HND"])
def test_a_per_token_head_cell_of_head_size_128_has_264_bytes(mode, order):
    page = layout("vllm-0.33", mode=mode, block_size=16, num_kv_heads=8, head_size=128, order=order)
    assert page.natural_bytes == 16 * 8 * 264
    next_cell = {"head": 1, "slot": 0} if order == "NHD" else {"head": 0, "slot": 1}
    assert page.locate(side="k", dim=0, **next_cell).byte == 264
    scales = [page.locate(side=side, slot=0, head=0, dim=0, part="scale") for side in "kv"]
    assert scales == [Location(128, 0, 32), Location(260, 0, 32)]


def test_bug_zoo_g1_the_scale_of_a_padded_page_is_found_by_stride_not_by_shape():
    # vllm-project/vllm#49716: natural page 32 bytes, stride 40; the K scale of page 1 token 0 is at 44, not 36
    page = layout("vllm-0.33", mode="int8_per_token_head", block_size=2, num_kv_heads=1, head_size=4, page_bytes=40)
    assert page.natural_bytes == 32
    place = page.locate(side="k", slot=0, head=0, dim=0, part="scale")
    assert 1 * page.page_bytes + place.byte == 44
    pages = np.arange(2 * 40, dtype=np.uint8).reshape(2, 40)
    assert page.region(side="k", part="scale").read(pages, [1], [0]).tolist() == [[[44, 45, 46, 47]]]


@pytest.mark.parametrize(
    "head_size, linear_read_of_token_0",
    [(64, [1, 1, 1, 1]), (256, [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4])],
)
@pytest.mark.parametrize("order", ["NHD", "HND"])
def test_bug_zoo_e1_a_linear_read_of_swizzled_v_scales(head_size, linear_read_of_token_0, order):
    # vllm-project/vllm#50084: scale g+1 for group g of every token of a page of 4
    shape = {"mode": "nvfp4", "block_size": 4, "num_kv_heads": 1, "head_size": head_size, "order": order}
    written, read = (layout("vllm-0.33", **shape, v_scales=how) for how in ("swizzled", "linear"))
    pages = np.zeros((1, written.page_bytes), np.uint8)
    right = np.tile(np.arange(1, head_size // 16 + 1, dtype=np.uint8), (4, 1, 1))
    written.region(side="v", part="scale").write(pages, [0] * 4, range(4), right)
    assert np.array_equal(written.region(side="v", part="scale").read(pages, [0] * 4, range(4)), right)
    assert read.region(side="v", part="scale").read(pages, [0], [0]).tolist() == [[linear_read_of_token_0]]


def test_every_one_of_the_four_bytes_of_a_float32_scale_is_that_scale():
    page = layout("vllm-0.33", mode="int8_per_token_head", block_size=2, num_kv_heads=1, head_size=4)
    said = {page.explain(byte=16 + 12 + byte) for byte in range(4)}
    assert said == {Explanation("v", "scale", 1, 0, range(4), "V scale")}


def test_the_even_dim_of_an_nvfp4_byte_is_the_low_nibble():
    page = layout("vllm-0.33", mode="nvfp4", block_size=4, num_kv_heads=1, head_size=64)
    assert page.locate(side="k", slot=0, head=0, dim=6) == Location(3, 0, 4)
    assert page.locate(side="k", slot=0, head=0, dim=7) == Location(3, 4, 4)
    assert page.explain(byte=3).dims == range(6, 8)


def test_a_pairwise_digit_is_the_same_region_as_a_nibble_stride():
    def region(column):
        return Region("K data", "k", "code", 4, 1, 2, 1, 6, (Digit(2, 24),), (Digit(1, 0),), column)

    pairs, nibbles = region((Digit(3, 8), Digit(2, 4))), region((Digit(6, 4),))
    assert [pairs.find(bit) for bit in range(64)] == [nibbles.find(bit) for bit in range(64)]
    pages = np.arange(14, dtype=np.uint8).reshape(2, 7)
    assert np.array_equal(pairs.read(pages, [1, 0], [0, 1]), nibbles.read(pages, [1, 0], [0, 1]))


def test_explaining_a_huge_page_needs_no_table():
    page = layout("vllm-0.33", mode="nvfp4", block_size=1 << 20, num_kv_heads=1 << 10, head_size=1 << 10, order="HND")
    assert page.page_bytes == 2 * (1 << 30) * (512 + 64)
    place = page.locate(side="v", slot=(1 << 20) - 1, head=1023, dim=1023, part="scale")
    assert place == Location(page.page_bytes - 1, 0, 8)
    assert page.explain(byte=place.byte).dims == range(1008, 1024)


def test_a_description_says_offsets_sizes_and_strides():
    config = Config("vllm-0.33", "nvfp4", "HND", 4, 2, 64, 64, "swizzled")
    regions = {region["name"]: region for region in made(config).describe()["regions"]}
    shown = [
        (r["offset"], r["bytes"], r["bits_per_entry"], r["slot_stride"], r["head_stride"]) for r in regions.values()
    ]
    assert shown == [(0, 256, 4, 32, 128), (256, 32, 8, 4, 16), (288, 256, 4, 32, 128), (544, 32, 8, None, 16)]

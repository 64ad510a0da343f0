"""A layout is data: swizzles, fixed records, tiles and inner padding come from an entry alone."""

import copy
import tomllib

import numpy as np
import pytest

from kvformat.errors import InputError
from kvformat.layouts import LAYOUTS, Digit, Region, catalogue, layout, register
from kvformat.layouts.catalogue import flashinfer, sglang, tensorrt_llm, tiles, vllm, vllm_mla
from kvformat.layouts.entry import parse_entry
from kvformat.layouts.swizzle import SWIZZLES


@pytest.fixture(autouse=True)
def _what_a_test_registers_goes_with_it(monkeypatch):
    monkeypatch.setattr(catalogue, "_LAYOUTS", dict(catalogue._LAYOUTS))


def described(name, sections, mode="fp8_per_tensor", **form):
    return {"name": name, "source": "a test", "modes": {mode: {"recipe": "golden/x", "sections": sections, **form}}}


def plane_offsets(name, rows, columns):
    """The entry offset of every (row, column) of a plane whose rows follow one another."""
    plane = SWIZZLES[name].plane(rows, columns)

    def offset(index, terms):
        total = 0
        for size, row_pitches, entries in reversed(terms):
            index, digit = divmod(index, size)
            total += digit * (row_pitches * plane.columns + entries)
        return total

    return [[offset(m, plane.row) + offset(k, plane.column) for k in range(columns)] for m in range(rows)], plane


@pytest.mark.parametrize("rows, columns", [(130, 9), (128, 4), (1, 1), (16, 8), (257, 3)])
def test_128x4_tiles_are_the_cublas_formula(rows, columns):
    offsets, plane = plane_offsets("128x4", rows, columns)
    ceil4 = (columns + 3) // 4 * 4
    for m in range(rows):
        for k in range(columns):
            expected = k % 4 + k // 4 * 512 + m % 32 * 16 + m % 128 // 32 * 4 + m // 128 * 128 * ceil4
            assert offsets[m][k] == expected
    assert plane.rows * plane.columns == -(-rows // 128) * 128 * ceil4  # 3072 for 130 x 9, as torchao's to_blocked


@pytest.mark.parametrize("rows, columns", [(130, 9), (8, 4), (1, 1), (16, 8), (9, 3)])
def test_8x4_tiles_are_the_flashinfer_formula(rows, columns):
    offsets, plane = plane_offsets("8x4", rows, columns)
    across = -(-columns // 4)
    for m in range(rows):
        for k in range(columns):
            assert offsets[m][k] == m // 8 * (across * 32) + k // 4 * 32 + m % 8 * 4 + k % 4
    assert plane.rows * plane.columns == -(-rows // 8) * across * 32


@pytest.mark.parametrize("rows, columns", [(4, 4), (16, 8), (8, 16), (32, 4)])
def test_the_4_token_swizzle_is_tensorrt_llms_formula_too(rows, columns):
    # TensorRT-LLM writes it with one digit less: s*4 = s//(S/4)*S + s%(S/4)*4 where rows are contiguous
    offsets, _ = plane_offsets("4-token", rows, columns)
    for t in range(rows):
        assert offsets[t] == [t // 4 * 4 * columns + s * 4 + t % 4 for s in range(columns)]


FAMILIES = (vllm, vllm_mla, flashinfer, tensorrt_llm, sglang, tiles)


@pytest.mark.parametrize("entry", [e for family in FAMILIES for e in family.ENTRIES], ids=lambda entry: entry["name"])
def test_a_shipped_entry_is_strings_and_numbers(entry):
    def leaves(value):
        if isinstance(value, dict):
            return [leaf for key, inner in value.items() for leaf in [key, *leaves(inner)]]
        if isinstance(value, list):
            return [leaf for inner in value for leaf in leaves(inner)]
        return [value]

    assert {type(leaf) for leaf in leaves(entry)} <= {str, int}
    assert LAYOUTS[entry["name"]] == parse_entry(entry)


def test_an_entry_written_in_toml_is_the_same_layout():
    entry = tomllib.loads("""
        name = "test/toml"
        source = "a test"
        [modes.nvfp4]
        recipe = "golden/nvfp4"
        v_scales = {swizzled = "4-token", linear = "linear"}
        sections = [{per = "page", record = ["k.code", "k.scale", {part = "v.code"}, "v.scale"]}]
    """)
    register(entry)
    sizes = {"mode": "nvfp4", "block_size": 8, "num_kv_heads": 2, "head_size": 64}
    assert layout("test/toml", **sizes).regions == layout("vllm-0.33", **sizes).regions


def test_the_656_byte_fp8_mla_record_is_data():
    # vLLM, csrc/cache_kernels.cu, fp8_ds_mla: 512 fp8 | 4 float32 scales @512 | 64 bfloat16 @528
    record = [
        {"part": "k.code", "columns": 512},
        {"part": "k.scale", "bits": 32, "columns": 4, "dims_per_entry": 128},
        {"part": "k.code", "name": "K rope", "bits": 16, "columns": 64, "first_dim": 512},
    ]
    register(described("test/fp8_ds_mla", [{"per": "cell", "record": record}]))
    sizes = {"mode": "fp8_per_tensor", "block_size": 64, "num_kv_heads": 1}
    page = layout("test/fp8_ds_mla", **sizes, head_size=576)
    assert page.page_bytes == 64 * 656
    at = {"side": "k", "slot": 3, "head": 0}
    assert page.locate(**at, dim=511).byte == 3 * 656 + 511
    assert page.locate(**at, dim=300, part="scale").byte == 3 * 656 + 512 + 2 * 4
    assert page.locate(**at, dim=575).byte == 3 * 656 + 528 + 63 * 2
    said = page.explain(byte=3 * 656 + 655)
    assert (said.region, said.dims, said.slot) == ("K rope", range(575, 576), 3)
    with pytest.raises(InputError, match="has no k scale of dim 512; it has K data, K scale, K rope"):
        page.locate(**at, dim=512, part="scale")
    with pytest.raises(InputError, match="has no v code of dim 0"):
        page.locate(side="v", slot=0, head=0, dim=0)
    for head_size in (128, 640):
        with pytest.raises(InputError, match=f"in mode fp8_per_tensor needs head_size 576; got {head_size}"):
            layout("test/fp8_ds_mla", **sizes, head_size=head_size)


def test_one_piece_per_head_is_data():
    # vLLM, fused_minimax_m3_qknorm_rope_kv_insert_kernel.cu: slot 2*head+side, each slot [bs*64 data][bs*8 scales]
    sections = [{"per": "head", "record": ["k.code", "k.scale", "v.code", "v.scale"]}]
    register(described("test/minimax", sections, mode="nvfp4"))
    page = layout("test/minimax", mode="nvfp4", block_size=16, num_kv_heads=2, head_size=128, order="HND")
    piece = 16 * 64 + 16 * 8
    for head in range(2):
        for number, side in enumerate("kv"):
            start = (2 * head + number) * piece
            at = {"side": side, "slot": 5, "head": head, "dim": 34}
            assert page.locate(**at).byte == start + 5 * 64 + 17
            assert page.locate(**at, part="scale").byte == start + 16 * 64 + 5 * 8 + 2


def test_a_row_of_all_heads_per_token_is_data():
    register(described("test/per-slot", [{"per": "slot", "record": ["k.code", "v.code"]}]))
    page = layout("test/per-slot", mode="fp8_per_tensor", block_size=4, num_kv_heads=3, head_size=8)
    assert page.locate(side="v", slot=2, head=1, dim=5).byte == 2 * (2 * 3 * 8) + 3 * 8 + 8 + 5


def test_padding_inside_a_page_is_data_and_explained():
    sections = [
        {"per": "cell", "record": ["k.code", "v.code"], "record_align": 16, "align": 128},
        {"per": "page", "record": [{"part": "k.scale", "bits": 32}], "align": 128},
    ]
    register(described("test/aligned", sections))
    page = layout("test/aligned", mode="fp8_per_tensor", block_size=3, num_kv_heads=2, head_size=6, order="HND")
    assert page.natural_bytes == 256
    names = [page.explain(byte=byte).region for byte in range(256)]
    cell = ["K data"] * 6 + ["V data"] * 6 + ["padding"] * 4
    assert names == cell * 6 + ["padding"] * 32 + ["K scale"] * 24 + ["padding"] * 104


@pytest.mark.parametrize("block_size, head_size", [(16, 64), (130, 144), (128, 16)])
def test_tiled_scales_are_data_and_their_padding_is_padding(block_size, head_size):
    scale = {"part": "k.scale", "swizzle": "128x4"}
    register(described("test/tiled", [{"per": "page", "record": ["k.code", scale]}], mode="nvfp4"))
    page = layout("test/tiled", mode="nvfp4", block_size=block_size, num_kv_heads=2, head_size=head_size, order="HND")
    region = page.region(side="k", part="scale")
    columns, ceil4 = head_size // 16, -(-head_size // 64) * 4
    plane = -(-block_size // 128) * 128 * ceil4
    expected = ["padding"] * (2 * plane)
    for h in range(2):
        for m in range(block_size):
            for k in range(columns):
                tile = k % 4 + k // 4 * 512 + m % 32 * 16 + m % 128 // 32 * 4 + m // 128 * 128 * ceil4
                expected[h * plane + tile] = (m, h, range(16 * k, 16 * k + 16))
    said = [page.explain(byte=byte) for byte in range(region.offset, page.page_bytes)]
    assert [(s.slot, s.head, s.dims) if s.part == "scale" else s.part for s in said] == expected

    pages = np.full((2, page.page_bytes), 0xA5, np.uint8)
    rows = np.random.default_rng(1).integers(0, 128, (block_size, 2, columns), np.uint8)
    region.write(pages, np.ones(block_size, int), np.arange(block_size), rows)
    assert np.array_equal(region.read(pages, np.ones(block_size, int), np.arange(block_size)), rows)
    where = [place if place == "padding" else "scale" for place in expected]
    assert [byte == 0xA5 for byte in pages[1, region.offset :]] == [place == "padding" for place in where]
    with pytest.raises(InputError, match="K scale swizzle 128x4 needs the slots of a head side by side: order HND"):
        layout("test/tiled", mode="nvfp4", block_size=block_size, num_kv_heads=2, head_size=head_size, order="NHD")


def test_a_name_means_one_layout():
    register(copy.deepcopy(vllm.ENTRIES[0]))
    changed = described("vllm-0.33", [{"per": "page", "record": ["k.code", "v.code"]}])
    with pytest.raises(InputError, match=r"layout 'vllm-0\.33' is already registered as something else"):
        register(changed)
    assert LAYOUTS["vllm-0.33"] == parse_entry(vllm.ENTRIES[0])


CELL = {"per": "cell", "record": ["k.code", "v.code"]}


@pytest.mark.parametrize(
    "entry, message",
    [
        ({"source": "", "modes": {}}, "layout entry None: name is missing"),
        ({"name": 7, "source": "", "modes": {}}, "layout entry 7: name must be a string; got 7"),
        ({"name": "x", "modes": {}}, "layout entry 'x': source is missing"),
        ({"name": "x", "source": ""}, "layout entry 'x': modes must be a table; got None"),
        (
            {"name": "x", "source": "", "modes": {}, "mode": 1},
            "layout entry 'x': unknown key 'mode'; did you mean modes or name?",
        ),
        (
            described("x", [CELL], mode="fp8"),
            "layout entry 'x': unknown mode 'fp8'; did you mean mxfp8 or nvfp4 or mxfp4?",
        ),
        (described("x", []), "sections must be a list; got []"),
        (described("x", [CELL], head_sizes="same"), "unknown head_sizes 'same'; known: any, equal"),
        (described("x", [CELL], head_size_multiple=0), "head_size_multiple must be at least 1; got 0"),
        (described("x", [CELL], head_size_multiple=True), "head_size_multiple must be a number; got True"),
        (described("x", [CELL], v_scales={"y": "5-token"}), "unknown swizzle '5-token'; did you mean 4-token?"),
        (described("x", [CELL], v_scales={"y": ["linear"]}), "unknown swizzle \"['linear']\"; did you mean linear?"),
        (described("x", [{**CELL, "per": "token"}]), "unknown per 'token'; known: cell, group, head, page, slot"),
        (described("x", [{**CELL, "pad": 3}]), "unknown key 'pad'; "),
        (described("x", [{**CELL, "align": 0}]), "align must be at least 1; got 0"),
        (described("x", [{"per": "cell"}]), "record must be a list; got None"),
        (described("x", [{"per": "cell", "record": ["k.codes"]}]), "unknown part 'k.codes'; did you mean k.code"),
        (
            described("x", [{"per": "cell", "record": [{"part": "k.code", "bits": -1}]}]),
            "bits must be at least 0; got -1",
        ),
        (described("x", [{"per": "cell", "record": [7]}]), "record must be a table; got 7"),
        (described("x", [CELL], order="NDH"), "unknown order 'NDH'; did you mean NHD or HND?"),
        (described("x", [{**CELL, "order": "N"}]), "unknown order 'N'"),
        (
            described("x", [{"per": "cell", "record": [{"part": "k.code", "dtype": "float64"}]}]),
            "unknown dtype 'float64'; did you mean float16 or bfloat16 or float32?",
        ),
        (
            described("x", [{"per": "cell", "record": [{"part": "k.code", "copies": 0}]}]),
            "copies must be at least 1; got 0",
        ),
        (
            described("x", [{**CELL, "tensor": "a"}, CELL, {**CELL, "tensor": "a"}]),
            "the sections of a tensor must follow one another; got a, , a",
        ),
    ],
)
def test_a_malformed_entry_is_one_line_that_says_where(entry, message):
    with pytest.raises(InputError) as error:
        register(entry)
    assert message in str(error.value)
    assert str(error.value).startswith("layout entry")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "record, message",
    [
        (["k.code", "k.scale"], "mode fp8_per_tensor has no scale in the page; a scale part there must say its bits"),
        ([{"part": "k.code", "first_dim": 2}], "K data must begin at dim 0; it begins at 2"),
        ([{"part": "k.code", "bits": 4}], "K data of 7 x 4 bits does not fill whole bytes; choose another head_size"),
        ([{"part": "k.code", "first_dim": 7}], "K data begins at dim 7: head_size must be larger; got 7"),
        (["k.code", "k.code"], "K data must begin at dim 7; it begins at 0"),
        (["k.code", {"part": "k.scale", "bits": 8, "columns": 2}], "needs head_size 14; got 7"),
    ],
)
def test_an_entry_that_does_not_fit_the_mode_or_head_size_is_refused(record, message):
    name = f"test/unfit/{message}"
    register(described(name, [{"per": "cell", "record": record}]))
    with pytest.raises(InputError) as error:
        layout(name, mode="fp8_per_tensor", block_size=1, num_kv_heads=1, head_size=7)
    assert message in str(error.value)


def region(bits=8, slot=(2, 32), head=(1, 0), column=((4, 8),)):
    columns = tuple(Digit(*digit) for digit in column)
    return Region("K data", "k", "code", bits, 0, 2, 1, 4, (Digit(*slot),), (Digit(*head),), columns)


@pytest.mark.parametrize(
    "digits, message",
    [
        ({"slot": (2, 24)}, "a stride of 24 bits overlaps the 32 bits below it"),
        ({"slot": (2, 8)}, "a stride of 8 bits overlaps the 16 bits below it"),
        ({"column": ((3, 8),)}, "the digits of column count to 3, not 4"),
        ({"head": (2, 64)}, "the digits of head count to 2, not 1"),
        ({"bits": 4, "column": ((2, 8), (2, 16))}, "do not fill whole bytes, low bits first"),
        ({"bits": 4, "slot": (2, 20), "column": ((4, 4),)}, "do not fill whole bytes, low bits first"),
    ],
)
def test_digits_that_are_no_layout_are_refused(digits, message):
    assert region().find(39) == (1, 0, 0)  # the digits that are changed here are a layout
    with pytest.raises(InputError, match=message):
        region(**digits)

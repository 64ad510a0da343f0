"""Definitions of one's own: one TOML file makes formats, modes, recipes and layouts known to everything."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest

import kvformat as kvf
from kvformat import definitions, modes
from kvformat.cli import main
from kvformat.elements import described
from kvformat.elements.formats import ELEMENTS
from kvformat.layouts import LAYOUTS
from kvformat.layouts.entry import Entry, Form, Part, Section
from kvformat.recipes import entry

MINE = '''
[[formats]]
name = "mine_six"
kind = "integer"
bits = 6
signed = true

[[formats]]
name = "mine_book"
kind = "codebook"
values = [-1.0, -0.5, 0.0, 0.25, 1.0]
ties = "nearest_up"

[[formats]]
name = "mine_float"
kind = "float"
exponent_bits = 3
mantissa_bits = 2
bias = 3
max_code = 31

[[modes]]
name = "mine_mode"
element = "mine_six"
page_scale = "float32"

[[recipes]]
name = "mine/six"
mode = "mine_mode"
element = "mine_six"
source = "this test"
code = "c = encode(clamp(round(div(x, s), half_even), -31, 31), mine_six)"
value = "v = mul(c, s)"

[[recipes.scales]]
name = "s"
granularity = "per_token_head"
program = """
s = div(amax_finite(x), 31)
s = select(eq(s, 0), 1, s)
"""

[[layouts]]
name = "mine"
source = "this test"

[layouts.modes.mine_mode]
recipe = "mine/six"
sections = [{ per = "cell", record = ["k.code", "k.scale", "v.code", "v.scale"] }]
'''


@pytest.fixture(autouse=True)
def only_here():
    """What a test defines is gone after it."""
    before, owners = definitions._snapshot(), dict(definitions._owners)
    yield
    definitions._restore(before)
    definitions._owners.clear()
    definitions._owners.update(owners)


@pytest.fixture
def path(tmp_path):
    found = tmp_path / "mine.toml"
    found.write_text(MINE)
    return found


@pytest.fixture
def dump(path, tmp_path):
    """Pages that were written by the definitions of the file."""
    kvf.register(path)
    x = np.random.default_rng(5).standard_normal((5, 2, 32)).astype(np.float32)
    layout = kvf.layout("mine", mode="mine_mode", block_size=4, num_kv_heads=2, head_size=32)
    cache = kvf.PagedCache(layout, num_blocks=2)
    slots = np.arange(5)
    cache.write(x, 2 * x, slots)
    made = kvf.Dump.from_arrays(x, 2 * x, cache.pages, slots, layout=layout, recipe="mine/six")
    made.save(tmp_path / "mine.safetensors")
    return made


def test_the_names_are_returned_and_the_file_may_be_registered_again(path):
    expected = {
        "formats": ("mine_six", "mine_book", "mine_float"),
        "modes": ("mine_mode",),
        "recipes": ("mine/six",),
        "layouts": ("mine",),
    }
    assert kvf.register(path) == kvf.register(path) == expected
    path.write_text(MINE.replace('ties = "nearest_up"', 'ties = "nearest_down"'))
    kvf.register(path)
    assert kvf.encode(np.float32(0.125), "mine_book") == 2


def test_values_of_defined_formats_are_those_by_hand(path):
    kvf.register(path)
    assert kvf.encode(np.float32([0.125, -0.75, 9]), "mine_book").tolist() == [3, 1, 4]
    assert kvf.encode(np.float32([28, 1, -0.0625, np.nan]), "mine_float").tolist() == [31, 12, 33, 31]
    assert kvf.encode(np.float32([31.5, -40, 2.5]), "mine_six").tolist() == [31, -32, 2]


def test_a_mode_of_one_s_own_goes_through_quantize_cache_and_check(dump):
    x, recipe = dump.key, kvf.recipe("mine_mode")
    assert recipe.name == "mine/six"
    scales = np.abs(x).max(axis=2) / np.float32(31)
    codes = np.clip(np.rint(x / scales[..., None]), -31, 31)
    quantized = kvf.quantize(x, "mine_mode")
    np.testing.assert_array_equal(quantized.codes, codes)
    np.testing.assert_array_equal(quantized.scales, scales)
    # a row is 32 codes of 6 bits in 24 bytes and a float32, K and V: the stream of the first row, LSB first
    row = int.from_bytes(dump.pages[0, :24].tobytes(), "little")
    assert [(row >> 6 * place) & 63 for place in range(32)] == [int(code) & 63 for code in codes[0, 0]]
    assert kvf.check(dump).ok
    pages = dump.pages.copy()
    pages[0, 1] ^= 4  # bit 10: bit 4 of the code of dim 1
    wrong = kvf.check(kvf.Dump.from_arrays(dump.key, dump.value, pages, dump.slot_mapping, layout=dump.layout))
    assert not wrong.ok
    assert "token 0, head 0, dim 1" in str(wrong)


def test_every_bit_of_a_six_bit_page_is_explained_by_the_place_that_locate_gives(dump):
    layout = dump.layout
    for side in ("k", "v"):
        for dim in range(32):
            found = layout.locate(side=side, slot=1, head=1, dim=dim)
            for bit in range(found.byte * 8 + found.bit, found.byte * 8 + found.bit + found.bits):
                held = layout.region(side=side).find(bit)
                assert held == (1, 1, dim)


@pytest.mark.slow
def test_a_mode_of_one_s_own_is_diagnosed_and_fuzzed(dump):
    assert kvf.diagnose(dump).own

    def broken(x):
        made = kvf.quantize(x, "mine/six")
        codes = made.codes.copy()
        codes[codes == -31] = -32
        return codes, made.scales

    assert not kvf.fuzz(broken, mode="mine_mode", recipe="mine/six", examples=300, seed=0).ok


@pytest.mark.usefixtures("dump")
def test_define_stands_anywhere_on_the_command_line(path, tmp_path, capsys):
    def forget():
        kept = [{name: each for name, each in t.items() if "mine" not in name} for t in definitions._tables()]
        definitions._restore(kept)

    file = str(tmp_path / "mine.safetensors")
    forget()
    assert main(["check", file]) == 2
    for line in (["--define", str(path), "check", file], ["check", file, f"--define={path}"]):
        forget()
        assert main(line) == 0, capsys.readouterr()
    assert main(["check", file, "--define"]) == 2


@pytest.mark.parametrize(
    "old, new, line, says",
    [
        ("bits = 6", "bits = 9", 5, "1 to 8 bits; got 9"),
        ("bits = 6", "bits = 0", 5, "1 to 8 bits; got 0"),
        ("bits = 6", 'bits = "6"', 5, "bits must be an integer"),
        ("signed = true", "signd = true", 6, "unknown key in format 'mine_six': 'signd'; did you mean signed"),
        ("[-1.0, -0.5, 0.0, 0.25, 1.0]", "[-1.0, 0.0, -0.5]", 11, "ascend; got 0 before -0.5"),
        ('ties = "nearest_up"', 'ties = "up"', 12, "unknown ties"),
        ("max_code = 31", "max_code = 30", 20, "codes 31..31 above max_code"),
        ("max_code = 31", "max_code = 64", 20, "0..63; got 64"),
        ('name = "mine_six"', 'name = "e4m3fn"', 2, "kvformat's own"),
        ('name = "mine_six"', 'name = ""', 2, "not empty"),
        ('name = "mine_six"', 'name = "a\\u0007b"', 2, "printable"),
        ('name = "mine_mode"', 'name = "nvfp4"', 22, "kvformat's own"),
        ('element = "mine_six"\npage', 'element = "mine_7"\npage', 24, "unknown element format"),
        ('name = "mine/six"', 'name = "golden/nvfp4"', 27, "ships with kvformat"),
        ('granularity = "per_token_head"', 'granularity = "per_row"', 37, "per_row"),
        ('recipe = "mine/six"\n', 'recipe = "mine/six"\ncolour = "red"\n', 48, "colour"),
        ('name = "mine"\n', 'name = "flashinfer"\n', 44, "kvformat's own"),
        ("[[modes]]", "[[mods]]", 22, "unknown table 'mods'"),
    ],
)
def test_what_is_wrong_is_refused_by_line_and_nothing_is_registered(path, old, new, line, says):
    text = MINE.replace(old, new, 1)
    path.write_text(text)
    before = definitions._snapshot()
    with pytest.raises(kvf.InputError, match=re.escape(says)) as error:
        kvf.register(path)
    assert "\n" not in str(error.value)
    assert abs(int(str(error.value).removeprefix(f"{path}:").partition(":")[0]) - line) <= 3, str(error.value)
    assert definitions._snapshot() == before


def test_a_name_of_another_file_cannot_be_taken(path, tmp_path):
    kvf.register(path)
    other = tmp_path / "other.toml"
    other.write_text(MINE.replace("bits = 6", "bits = 5"))
    with pytest.raises(kvf.InputError, match="'mine_six' is taken"):
        kvf.register(other)
    assert kvf.element("mine_six").bits == 6


def test_a_recipe_with_a_mode_that_nobody_described_brings_it(tmp_path):
    path = tmp_path / "alone.toml"
    path.write_text(MINE[MINE.index("[[recipes]]") : MINE.index("[[layouts]]")].replace("mine_six", "int6"))
    kvf.register(path)
    found = modes.mode("mine_mode")
    assert (found.element, found.page_scale, found.dims_per_scale, found.tensor_scale) == ("int6", "float32", 0, False)


@pytest.mark.slow
def test_each_definition_touches_one_file_and_reaches_the_generators(path, monkeypatch):
    # the counting test: nothing but the entry is written, and pages, drawings and vectors are made of it
    kvf.register(path)
    monkeypatch.syspath_prepend(str(definitions.Path(__file__).resolve().parents[1] / "tools"))
    from spec_pages import diagrams, elements
    from vector_files import elements as vectors

    for name in ("mine_six", "mine_book", "mine_float"):
        assert elements.files()[f"elements/{name}.md"].startswith("<!--")
        assert diagrams.files()[f"elements/{name}.svg"].startswith("<svg")
        assert vectors.encode_file(ELEMENTS[name]).count > ELEMENTS[name].codes
        assert vectors.decode_file(ELEMENTS[name]).count == 3 * ELEMENTS[name].codes
    assert "mine" in LAYOUTS


def test_the_reference_page_s_example_registers_and_every_key_stands_on_the_page(tmp_path):
    page = (definitions.Path(__file__).resolve().parents[1] / "spec" / "definitions.md").read_text()
    path = tmp_path / "page.toml"
    path.write_text(page.split("```toml\n")[1].split("```")[0])
    assert kvf.register(path)["layouts"] == ("mine",)
    assert kvf.quantize(np.ones((1, 1, 4), np.float32), "mine_mode").codes.tolist() == [[[31, 31, 31, 31]]]
    keys = {*modes.KEYS, *(key for known in described.KEYS.values() for key in known), *entry._REQUIRED}
    keys |= {*entry._OPTIONAL, *entry._SCALE_REQUIRED, *entry._SCALE_OPTIONAL}
    keys |= {field.name for kind in (Form, Section, Part, Entry) for field in dataclasses.fields(kind)}
    assert not [key for key in keys if f"`{key}`" not in page]

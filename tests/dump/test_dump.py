"""Dumps: what is written is what is read, and whatever is not a whole, consistent dump is refused in one line."""

from __future__ import annotations

import math
import sys

import ml_dtypes
import numpy as np
import pytest

from kvformat.dump.dump import Dump
from kvformat.errors import InputError
from kvformat.layouts import layout as make_layout
from tests.verify.dumps import (
    BLOCK,
    BLOCKS,
    DIM,
    HEADS,
    PAGE_BYTES,
    TOKENS,
    arrays,
    file_bytes,
    from_arrays,
    int8_layout,
    metadata,
    one_line,
    same_bits,
    tensor_layout,
    write,
)

# --- what is written is what is read ---


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_a_file_of_the_documented_form_is_read_bit_for_bit(tmp_path, dtype):
    given = arrays(dtype)
    dump = Dump.load(write(tmp_path / "d.safetensors", **given))
    for name, array in given.items():
        assert same_bits(getattr(dump, name), array), name
    assert (dump.mode, dump.tokens, dump.producer, dump.recipe) == ("int8_per_token_head", TOKENS, "a test", None)
    assert dump.layout == int8_layout()
    assert dump.k_scale is None
    assert dump.v_scale is None


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_save_then_load_gives_the_same_dump(tmp_path, dtype):
    layout = tensor_layout(order="HND")
    dump = from_arrays(layout, **arrays(dtype), k_scale=0.1, v_scale=np.array([3.0], np.float32), producer="p")
    dump.save(tmp_path / "d.safetensors")
    again = Dump.load(tmp_path / "d.safetensors")
    for name in ("key", "value", "pages", "slot_mapping"):
        assert same_bits(getattr(again, name), getattr(dump, name)), name
    assert (again.layout, again.recipe, again.producer) == (layout, dump.recipe, "p")
    assert again.k_scale == np.float32(0.1)
    assert again.v_scale == np.float32(3.0)


@pytest.mark.parametrize(
    "name, options",
    [
        ("vllm-0.33", {"mode": "none", "dtype": "float16"}),
        ("vllm-0.33", {"mode": "none", "head_size_v": 32}),
        ("vllm-0.33", {"mode": "nvfp4", "head_size": 64, "v_scales": "swizzled"}),
        ("vllm-0.33", {"mode": "nvfp4", "v_scales": "linear"}),
        ("flashinfer", {"mode": "nvfp4", "order": "HND"}),
        ("flashinfer", {"mode": "none"}),
    ],
)
def test_every_choice_of_a_layout_survives_the_file(tmp_path, name, options):
    layout = make_layout(name, **({"block_size": BLOCK, "num_kv_heads": HEADS, "head_size": DIM} | options))
    key = np.ones((TOKENS, HEADS, layout.head_size), np.float32)
    value = np.ones((TOKENS, HEADS, layout.head_size_v), np.float32)
    pages = np.zeros((BLOCKS, layout.page_bytes), np.uint8)
    from_arrays(layout, key=key, value=value, pages=pages).save(tmp_path / "d.safetensors")
    assert Dump.load(tmp_path / "d.safetensors").layout == layout


def test_a_recipe_is_kept_by_its_full_name(tmp_path):
    dump = from_arrays(recipe="golden/int8_per_token_head")
    dump.save(tmp_path / "d.safetensors")
    assert Dump.load(tmp_path / "d.safetensors").recipe == "golden/int8_per_token_head"


def test_a_mode_name_as_recipe_means_its_golden_recipe(tmp_path):
    path = write(tmp_path / "d.safetensors", metadata(recipe="int8_per_token_head"))
    assert Dump.load(path).recipe == "golden/int8_per_token_head"


def test_longer_pages_are_trailing_padding(tmp_path):
    pages = np.zeros((BLOCKS, PAGE_BYTES + 24), np.uint8)
    layout = Dump.load(write(tmp_path / "d.safetensors", pages=pages)).layout
    assert (layout.natural_bytes, layout.page_bytes) == (PAGE_BYTES, PAGE_BYTES + 24)


def test_tensors_that_nobody_asked_for_are_ignored(tmp_path):
    path = write(tmp_path / "d.safetensors", hidden=np.zeros((3, 4)), residual=np.zeros(2, np.int32))
    assert Dump.load(path).tokens == TOKENS


def test_tensors_at_odd_offsets_are_read_bit_for_bit_and_rows_come_aligned(tmp_path):
    given = arrays(np.float32)
    odd = {"hidden": np.zeros(3, np.uint8), **given}
    path = tmp_path / "d.safetensors"
    path.write_bytes(file_bytes(metadata(), odd))
    dump = Dump.load(path)
    assert same_bits(dump.rows("k", 1, 4), given["key"][1:4])
    assert same_bits(dump.rows("v", 0, TOKENS), given["value"])
    assert dump.rows("k", 1, 4).flags.aligned
    assert same_bits(dump.slot_mapping, given["slot_mapping"])


def test_loading_maps_the_file_and_reads_no_row(tmp_path):
    dump = Dump.load(write(tmp_path / "d.safetensors"))
    base = dump.key
    while isinstance(base, np.ndarray):
        assert not base.flags.owndata
        base = base.base
    assert not dump.key.flags.writeable
    assert not dump.pages.flags.writeable


def test_a_dump_may_be_saved_over_the_file_it_was_loaded_from(tmp_path):
    path = write(tmp_path / "d.safetensors")
    Dump.load(path).save(path)
    assert same_bits(Dump.load(path).key, arrays()["key"])


def test_a_failed_save_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    def fail(_tensors, filename, **_metadata):
        filename.write_bytes(b"half")
        raise OSError("disk full")

    path = tmp_path / "d.safetensors"
    path.write_bytes(b"old")
    monkeypatch.setattr("safetensors.numpy.save_file", fail)
    with pytest.raises(InputError, match="cannot be written: disk full"):
        from_arrays().save(path)
    assert [p.name for p in tmp_path.iterdir()] == ["d.safetensors"]
    assert path.read_bytes() == b"old"


def test_saving_into_a_missing_folder_is_one_line(tmp_path):
    with pytest.raises(InputError, match="cannot be written") as error:
        from_arrays().save(tmp_path / "no" / "d.safetensors")
    assert one_line(error)


# --- arrays in memory ---


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_big_endian_arrays_hold_the_same_numbers_nan_payloads_included(dtype):
    key = arrays(dtype)["key"]
    bits = key.view(np.uint16 if key.itemsize == 2 else np.uint32)
    bits[0, 0, 0] = (0x7FC1 if dtype is ml_dtypes.bfloat16 else 0x7E01) if key.itemsize == 2 else 0x7FC00123
    swapped = key.byteswap().view(key.dtype.newbyteorder(">"))
    slots = arrays()["slot_mapping"].astype(">i8")
    dump = from_arrays(key=swapped, value=arrays(dtype)["value"], slot_mapping=slots)
    assert same_bits(dump.key, key)
    assert same_bits(dump.slot_mapping, arrays()["slot_mapping"])


def test_big_endian_dumps_are_saved_as_the_numbers_they_hold(tmp_path):
    given = arrays()
    from_arrays(key=given["key"].astype(">f4"), value=given["value"].astype(">f4")).save(tmp_path / "d.safetensors")
    assert same_bits(Dump.load(tmp_path / "d.safetensors").key, given["key"])


def test_strided_arrays_are_read_by_their_strides(tmp_path):
    given = arrays()
    key = np.asfortranarray(given["key"])
    value = np.repeat(given["value"], 2, axis=2)[:, :, ::2]
    pages = np.repeat(given["pages"], 2, axis=0)[::2]
    dump = from_arrays(key=key, value=value, pages=pages)
    assert same_bits(dump.rows("k", 2, 4), given["key"][2:4])
    dump.save(tmp_path / "d.safetensors")
    again = Dump.load(tmp_path / "d.safetensors")
    assert same_bits(again.key, given["key"])
    assert same_bits(again.value, given["value"])
    assert same_bits(again.pages, given["pages"])


@pytest.mark.parametrize("scale", [0.1, np.float64(0.1), np.float32(0.1), np.array([0.1]), np.array(0.1, ">f8")])
def test_a_given_scale_is_rounded_once_to_float32(scale):
    dump = from_arrays(tensor_layout(), k_scale=scale)
    assert dump.k_scale == np.float32(0.1)
    assert isinstance(dump.k_scale, np.float32)


def test_a_subnormal_scale_is_a_scale():
    assert from_arrays(tensor_layout(), v_scale=2.0**-149).v_scale == np.float32(2.0**-149)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan, 2.0**-151, 1e39])
def test_a_scale_that_is_not_finite_and_positive_as_float32_is_refused(scale):
    with pytest.raises(InputError, match=r"k_scale .* must be finite and > 0") as error:
        from_arrays(tensor_layout(), k_scale=scale)
    assert one_line(error)


@pytest.mark.parametrize("scale", [np.ones(2, np.float32), np.ones((1, 1), np.float32), "1", True, 1j])
def test_a_scale_that_is_not_one_number_is_refused(scale):
    with pytest.raises(InputError, match=r"v_scale .* must be one number"):
        from_arrays(tensor_layout(), v_scale=scale)


def test_a_scale_in_a_mode_that_has_none_is_refused_by_name():
    with pytest.raises(InputError, match="int8_per_token_head has no k_scale"):
        from_arrays(k_scale=1.0)


class Unreadable:
    """What a torch.bfloat16 tensor does when NumPy asks for its numbers."""

    def __array__(self, *_arguments, **_options):
        raise TypeError("no numpy dtype\nfor it")


BAD_ARRAYS = {
    "float64 key": ({"key": np.zeros((TOKENS, HEADS, DIM))}, "key is float64; it must be one of float32"),
    "float64 value": ({"value": np.zeros((TOKENS, HEADS, DIM))}, "value is float64"),
    "integer key": ({"key": np.zeros((TOKENS, HEADS, DIM), np.int32)}, "key is int32"),
    "unreadable key": ({"key": Unreadable()}, "key is not an array: no numpy dtype for it"),
    "objects as key": ({"key": np.full((TOKENS, HEADS, DIM), None)}, "key is object"),
    "two dtypes": ({"key": np.zeros((TOKENS, HEADS, DIM), np.float16)}, "key is float16 and value is float32"),
    "flat key": ({"key": np.zeros((TOKENS, HEADS * DIM), np.float32)}, "must be .tokens, heads, head_dim."),
    "other heads": ({"key": np.zeros((TOKENS, 3, DIM), np.float32)}, r"key has shape \(5, 3, 16\)"),
    "other head_dim": ({"value": np.zeros((TOKENS, HEADS, 8), np.float32)}, r"value .* layout says \(5, 2, 16\)"),
    "other tokens": ({"value": np.zeros((4, HEADS, DIM), np.float32)}, "5 tokens and value 4"),
    "no token": (
        {name: np.zeros((0, HEADS, DIM), np.float32) for name in ("key", "value")}
        | {"slot_mapping": np.zeros(0, np.int64)},
        "holds no token",
    ),
    "short slots": ({"slot_mapping": np.zeros(4, np.int64)}, "one per token"),
    "float pages": ({"pages": np.zeros((BLOCKS, PAGE_BYTES), np.float32)}, "pages is float32"),
    "int8 pages": ({"pages": np.zeros((BLOCKS, PAGE_BYTES), np.int8)}, "pages is int8"),
    "flat pages": ({"pages": np.zeros(PAGE_BYTES, np.uint8)}, "num_blocks, page_bytes"),
    "no pages": ({"pages": np.zeros((0, PAGE_BYTES), np.uint8)}, "not empty"),
    "short pages": ({"pages": np.zeros((BLOCKS, 40), np.uint8)}, f"40 bytes long, .* {PAGE_BYTES}"),
    "slot past the end": ({"slot_mapping": np.array([0, 1, 12, 2, 3])}, "token 2 has slot 12"),
    "float slots": ({"slot_mapping": np.zeros(TOKENS)}, "slot_mapping must be integers"),
    "foreign recipe": ({"recipe": "golden/nvfp4"}, "for mode nvfp4"),
    "unknown recipe": ({"recipe": "golden/int8_per_token_heat"}, "golden/int8_per_token_head"),
    "bytes as producer": ({"producer": b"p"}, "producer must be a string"),
}


@pytest.mark.parametrize("changes, message", BAD_ARRAYS.values(), ids=BAD_ARRAYS)
def test_arrays_that_do_not_fit_together_are_refused_in_one_line(changes, message):
    with pytest.raises(InputError, match=message) as error:
        from_arrays(**changes)
    assert one_line(error)


# --- files that are no dumps ---


@pytest.mark.parametrize("name", [name for name in metadata() if name != "kvformat_dump"])
def test_missing_metadata_is_named(tmp_path, name):
    with pytest.raises(InputError, match=f"metadata has no '{name}'"):
        Dump.load(write(tmp_path / "d.safetensors", metadata(**{name: None})))


@pytest.mark.parametrize("mode, choice", [("none", "dtype"), ("nvfp4", "v_scales")])
def test_a_choice_that_the_layout_leaves_open_is_not_guessed(tmp_path, mode, choice):
    key = np.zeros((TOKENS, HEADS, 64), np.float32)
    entries = metadata(mode=mode, head_size="64", head_size_v="64")
    path = write(tmp_path / "d.safetensors", entries, key=key, value=key, pages=np.zeros((BLOCKS, 4096), np.uint8))
    with pytest.raises(InputError, match=f"metadata has no '{choice}'"):
        Dump.load(path)


@pytest.mark.parametrize("name", ["key", "value", "pages", "slot_mapping"])
def test_a_missing_tensor_is_named(tmp_path, name):
    with pytest.raises(InputError, match=f"no tensor '{name}'"):
        Dump.load(write(tmp_path / "d.safetensors", **{name: None}))


@pytest.mark.parametrize("text", ["", "four", "4.0", "-4", "0", "04", " 4", "+4", "0x4", "4_0", "٤", "9" * 5000])
def test_sizes_are_positive_decimal_integers(tmp_path, text):
    with pytest.raises(InputError, match="positive integer") as error:
        Dump.load(write(tmp_path / "d.safetensors", metadata(block_size=text)))
    assert one_line(error)
    assert len(str(error.value)) < 300


BAD_METADATA = {
    "no dump": ({"kvformat_dump": None}, "no dump: its metadata has no kvformat_dump"),
    "a later version": ({"kvformat_dump": "3"}, "version '3'; this kvformat reads versions '1' and '2'"),
    "unknown mode": ({"mode": "int8_per_token"}, "unknown mode 'int8_per_token'; did you mean int8_per_token_head"),
    "unknown layout": ({"layout": "vllm-0.3"}, "unknown layout 'vllm-0.3'; did you mean vllm-0.33"),
    "unknown order": ({"order": "NDH"}, "unknown order 'NDH'"),
    "unknown recipe": ({"recipe": "golden/int8"}, "golden/int8"),
    "mode the layout lacks": ({"layout": "flashinfer"}, "int8_per_token_head"),
    "other head count": ({"num_kv_heads": "1"}, r"layout says \(5, 1, 16\)"),
    "pages too short": ({"block_size": "400"}, "needs at least"),
}


@pytest.mark.parametrize("changes, message", BAD_METADATA.values(), ids=BAD_METADATA)
def test_metadata_that_says_something_else_is_refused_in_one_line(tmp_path, changes, message):
    path = write(tmp_path / "d.safetensors", metadata(**changes))
    with pytest.raises(InputError, match=message) as error:
        Dump.load(path)
    assert one_line(error)
    assert str(error.value).startswith(f"{path}: ")


BAD_TENSORS = {
    "float64 key": ({"key": np.zeros((TOKENS, HEADS, DIM))}, "key is float64"),
    "int32 slots": ({"slot_mapping": np.zeros(TOKENS, np.int32)}, "slot_mapping is stored as I32; it must be int64"),
    "float pages": ({"pages": np.zeros((BLOCKS, PAGE_BYTES), np.float32)}, "it must be uint8"),
    "float64 scale": ({"k_scale": np.ones(1)}, "k_scale is stored as F64; it must be float32"),
    "integer key": ({"key": np.zeros((TOKENS, HEADS, DIM), np.int32)}, "key is stored as I32"),
}


@pytest.mark.parametrize("changes, message", BAD_TENSORS.values(), ids=BAD_TENSORS)
def test_tensors_of_another_dtype_are_refused_by_name(tmp_path, changes, message):
    with pytest.raises(InputError, match=message) as error:
        Dump.load(write(tmp_path / "d.safetensors", **changes))
    assert one_line(error)


def test_a_dump_cut_off_anywhere_is_refused(tmp_path):
    whole = file_bytes(metadata(), arrays())
    path = tmp_path / "d.safetensors"
    for length in {0, 1, 7, 8, 9, 100, *range(0, len(whole), 97), len(whole) - 1}:
        path.write_bytes(whole[:length])
        with pytest.raises(InputError, match=r"not a whole safetensors file|cannot be read") as error:
            Dump.load(path)
        assert one_line(error)


@pytest.mark.parametrize("content", [b"PK\x03\x04 a zip archive", b"\x80\x04\x95 a pickle", b"\xff" * 64, b"{}" * 40])
def test_other_kinds_of_file_are_refused(tmp_path, content):
    path = tmp_path / "d.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError, match="not a whole safetensors file") as error:
        Dump.load(path)
    assert one_line(error)


def test_a_missing_file_and_a_folder_are_refused_in_one_line(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        Dump.load(tmp_path / "nothing")
    with pytest.raises(InputError, match="is a directory"):
        Dump.load(tmp_path)


def test_without_safetensors_the_extra_is_named(tmp_path, monkeypatch):
    path = write(tmp_path / "d.safetensors")
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(InputError, match=r"pip install 'kvformat\[cli\]'"):
        Dump.load(path)

"""`assert_pages` passes what holds and says what `kvformat check` says of what does not; `dump` carries the same."""

from __future__ import annotations

import pytest
import torch

import kvformat as kvf
from kvformat.torch import assert_pages, dump, write_pages

TOKENS, HEADS, DIMS, BLOCK_SIZE, BLOCKS = 6, 2, 64, 4, 3
SLOTS = torch.tensor([9, -1, 3, 4, 11, 0])


def written(mode, recipe="", order="NHD"):
    generator = torch.Generator().manual_seed(1)
    key, value = (torch.randn(TOKENS, HEADS, DIMS, generator=generator).bfloat16() for _ in range(2))
    made = kvf.layout("vllm-0.33", mode=mode, block_size=BLOCK_SIZE, num_kv_heads=HEADS, head_size=DIMS, order=order)
    pages = torch.zeros(BLOCKS, made.page_bytes, dtype=torch.uint8)
    scale = torch.tensor(0.05) if mode == "fp8_per_tensor" else torch.tensor(0.002) if mode == "nvfp4" else None
    write_pages(key, value, pages, SLOTS, scale, scale, "vllm-0.33", mode, order, BLOCK_SIZE, DIMS, recipe)
    return key, value, pages, scale, made


def cells(pages, order):
    cell = pages.shape[1] // BLOCK_SIZE // HEADS
    strides = (BLOCK_SIZE * cell, cell) if order == "HND" else (cell, HEADS * cell)
    return pages.as_strided((BLOCKS, HEADS, BLOCK_SIZE, cell), (pages.shape[1], *strides, 1))


@pytest.mark.parametrize("order", ["NHD", "HND"])
@pytest.mark.parametrize("mode", ["none", "fp8_per_tensor", "fp8_per_token_head", "int8_per_token_head"])
def test_vllms_tensor_passes_and_one_wrong_byte_fails(mode, order):
    key, value, pages, scale, _ = written(mode, order=order)
    cache = cells(pages, order)
    assert_pages(key, value, cache, SLOTS, layout="vllm-0.33", mode=mode, k_scale=scale, v_scale=scale)
    cache[0, 1, 3, 5] ^= 64
    with pytest.raises(AssertionError) as failed:
        assert_pages(key, value, cache, SLOTS, layout="vllm-0.33", mode=mode, k_scale=scale, v_scale=scale)
    said = str(failed.value)
    assert said.startswith("DIFFERS: vllm-0.33/" if mode != "none" else "DIFFERS: golden/none")
    assert "K code of token 2, head 1" in said


def test_the_error_is_the_report_of_check():
    key, value, pages, _, made = written("int8_per_token_head")
    pages[2, 2 * 136 + 5] ^= 1  # slot 9, head 0
    arrays = (key.float().numpy(), value.float().numpy(), pages.numpy(), SLOTS.numpy())
    report = kvf.check(kvf.Dump.from_arrays(*arrays, layout=made))
    with pytest.raises(AssertionError) as failed:
        assert_pages(key.float(), value.float(), pages, SLOTS, layout=made)
    assert str(failed.value) == str(report)


def test_another_recipe_is_named():
    key, value, pages, _, made = written("fp8_per_token_head", "golden/fp8_per_token_head")
    assert_pages(key, value, pages, SLOTS, layout=made, recipe="golden/fp8_per_token_head")


def test_nvfp4_pages_with_swizzled_scales():
    key, value, pages, scale, made = written("nvfp4", "golden/nvfp4", order="HND")
    assert_pages(key, value, pages, SLOTS, layout=made, recipe="nvfp4", k_scale=scale, v_scale=scale)


def test_flashinfers_tuple_of_k_and_v():
    key, value, pages, _, _ = written("none")
    cell = cells(pages, "NHD").view(torch.bfloat16).transpose(1, 2)
    cache = (cell[..., :DIMS].contiguous(), cell[..., DIMS:].contiguous())
    assert_pages(key, value, cache, SLOTS, layout="flashinfer", mode="none")
    cache[1][0, 0, 0, 0] += 1
    with pytest.raises(AssertionError, match="V code of token 5, head 0"):
        assert_pages(key, value, cache, SLOTS, layout="flashinfer", mode="none")


def test_a_dump_is_judged_the_same(tmp_path):
    pytest.importorskip("safetensors", reason="dump files need it")
    key, value, pages, _, _ = written("int8_per_token_head", order="HND")
    path = tmp_path / "kernel.safetensors"
    dump(path, key, value, cells(pages, "HND"), SLOTS, layout="vllm-0.33", mode="int8_per_token_head", producer="test")
    loaded = kvf.Dump.load(path)
    assert loaded.producer == "test"
    assert loaded.layout.order == "HND"
    assert kvf.check(loaded).ok


def test_what_cannot_be_judged_is_an_input_error():
    key, value, pages, _, made = written("int8_per_token_head")
    with pytest.raises(kvf.InputError, match="give block_size"):
        assert_pages(key, value, pages, SLOTS, layout="vllm-0.33", mode="int8_per_token_head")
    with pytest.raises(kvf.InputError, match="give mode"):
        assert_pages(key, value, pages, SLOTS, layout="vllm-0.33")
    with pytest.raises(kvf.InputError, match="nothing to judge"):
        assert_pages(key, value, pages, torch.full((TOKENS,), -1), layout=made)


def test_keys_without_a_slot_are_counted_and_warned_about():
    key, value, pages, _, made = written("int8_per_token_head")
    with pytest.warns(UserWarning, match="looked at 1 of 6 keys: slot_mapping ends"):
        report = assert_pages(key, value, pages, SLOTS[:1], layout=made)
    assert (report.judged, report.slots) == (1, BLOCKS * BLOCK_SIZE)
    report = assert_pages(key, value, pages, SLOTS, layout=made)
    assert "looked at: 5 of 6 tokens (1 without a slot), 5 of 12 slots" in str(report)


def test_more_slots_than_keys_are_refused():
    key, value, pages, _, made = written("int8_per_token_head")
    with pytest.raises(kvf.InputError, match="slot_mapping"):
        assert_pages(key[:3], value[:3], pages, SLOTS, layout=made)

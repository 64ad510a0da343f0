"""A watched writer is judged call by call, and works as it did."""

from __future__ import annotations

import pytest
import torch

import kvformat as kvf
from kvformat.torch import watch, write_pages

LAYOUT = kvf.layout("vllm-0.33", mode="int8_per_token_head", block_size=4, num_kv_heads=2, head_size=64, order="NHD")


def write(key, value, kv_cache, slot_mapping, extra=None):
    """A right writer, which answers with something of its own."""
    write_pages(key, value, kv_cache, slot_mapping, None, None, "vllm-0.33", LAYOUT.mode, "NHD", 4, 64, "")
    return "written", extra


def faulty(key, value, kv_cache, slot_mapping):
    """One wrong byte from the third call on."""
    write(key, value, kv_cache, slot_mapping)
    faulty.calls += 1
    if faulty.calls > 2:
        kv_cache[int(slot_mapping[0]) // 4].view(torch.uint8)[int(slot_mapping[0]) % 4 * (LAYOUT.page_bytes // 4)] ^= 1


def calls(writer, count=4, **named):
    generator = torch.Generator().manual_seed(0)
    pages = torch.zeros(4, LAYOUT.page_bytes, dtype=torch.uint8)
    for call in range(count):
        key, value = torch.randn(2, 3, 2, 64, generator=generator).bfloat16()
        writer(key, value, pages, torch.arange(3 * call, 3 * call + 3), **named)
    return pages


def test_a_right_writer_writes_what_it_wrote_and_is_counted():
    watched = watch(write, layout=LAYOUT)
    assert torch.equal(calls(watched), calls(write))
    assert (watched.watched.calls, watched.watched.judged, watched.watched.differing) == (4, 4, [])
    key, value = torch.ones(2, 1, 2, 64)
    assert watched(key, value, torch.zeros(4, LAYOUT.page_bytes, dtype=torch.uint8), torch.tensor([0]), extra=5) == (
        "written",
        5,
    )


def test_a_wrong_byte_is_raised_with_its_call_and_kept_as_a_dump(tmp_path):
    faulty.calls = 0
    watched = watch(faulty, layout=LAYOUT, save=tmp_path / "dumps")
    with pytest.raises(AssertionError, match=r"call 2 of the writer: DIFFERS: [\s\S]*K code of token 0, head 0, dim 0"):
        calls(watched)
    (path,) = (tmp_path / "dumps").iterdir()
    assert path.name == "call-2.safetensors"
    assert not kvf.check(kvf.Dump.load(path)).ok


def test_a_warning_stops_nothing():
    faulty.calls = 0
    watched = watch(faulty, layout=LAYOUT, action="warn")
    with pytest.warns(UserWarning, match="call [23] of the writer"):
        calls(watched)
    assert len(watched.watched.differing) == 2


def test_a_sample_is_the_first_call_and_each_so_manyth():
    watched = watch(write, layout=LAYOUT, every=3)
    calls(watched)
    assert (watched.watched.calls, watched.watched.judged) == (4, 2)


def test_a_call_that_writes_nothing_is_not_judged():
    watched = watch(write, layout=LAYOUT)
    pages = torch.zeros(4, LAYOUT.page_bytes, dtype=torch.uint8)
    key, value = torch.ones(2, 2, 2, 64)
    watched(key, value, pages, torch.tensor([-1, -1]))
    assert (watched.watched.calls, watched.watched.judged) == (1, 0)


def test_other_names_and_scales_among_the_arguments_are_told():
    def store(k, v, cache, where, s):
        write_pages(k, v, cache, where, s, s, "vllm-0.33", "fp8_per_tensor", "NHD", 4, 64, "")

    made = kvf.layout("vllm-0.33", mode="fp8_per_tensor", block_size=4, num_kv_heads=2, head_size=64, order="NHD")
    watched = watch(store, layout=made, arguments=("k", "v", "cache", "where"), k_scale="s", v_scale="s")
    key, value = torch.randn(2, 3, 2, 64, generator=torch.Generator().manual_seed(0))
    watched(key, value, torch.zeros(2, made.page_bytes, dtype=torch.uint8), torch.arange(3), torch.tensor(0.05))
    assert watched.watched.judged == 1


def test_arguments_that_the_writer_does_not_have_are_refused_at_once():
    with pytest.raises(kvf.InputError, match="has no argument 'k'; it has: key, value, kv_cache, slot_mapping, extra"):
        watch(write, layout=LAYOUT, arguments=("k", "value", "kv_cache", "slot_mapping"))
    with pytest.raises(kvf.InputError, match="every must be at least 1"):
        watch(write, layout=LAYOUT, every=0)

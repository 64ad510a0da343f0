"""A probe is a dump whose pages are still to be written; it tells hypotheses apart, and says which it cannot."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from kvformat import Dump, InputError, PagedCache, diagnose, probe
from kvformat.diagnose.catalogue import variants
from kvformat.diagnose.probe import PRODUCER
from kvformat.modes import MODES


@cache
def made_probe(mode):
    return probe(mode)


def filled(made, recipe=None):
    """The probe, its pages written by the recipe of its layout's engine, or another one."""
    cache = PagedCache(made.layout, len(made.pages))
    cache.pages[:] = made.pages
    scales = {"k_scale": made.k_scale, "v_scale": made.v_scale}
    cache.write(made.key, made.value, made.slot_mapping, recipe=recipe or f"golden/{made.mode}", **scales)
    return Dump.from_arrays(
        made.key, made.value, cache.pages, made.slot_mapping, layout=made.layout,
        recipe=recipe or f"golden/{made.mode}", producer=made.producer, **scales,
    )  # fmt: skip


@pytest.mark.parametrize(
    "mode", [pytest.param(mode, marks=pytest.mark.slow if mode != "int8_per_token_head" else []) for mode in MODES]
)
def test_a_probe_leaves_room_for_rows_that_lie_one_slot_or_block_away(mode):
    made = made_probe(mode)
    assert (made.producer, made.tokens, made.mode) == (PRODUCER, 64, mode)
    blocks = set(made.slot_mapping // made.layout.block_size)
    assert blocks == set(range(1, len(made.pages) - 1))
    assert len(set(made.slot_mapping)) == made.tokens
    assert (made.pages == made.pages[0, 0]).all()


def test_a_probe_is_the_same_every_time():
    first, second = probe("int8_per_token_head"), made_probe("int8_per_token_head")
    assert first.key.tobytes() == second.key.tobytes()
    assert first.slot_mapping.tolist() == second.slot_mapping.tolist()


@pytest.mark.slow
def test_a_probe_of_tokens_of_more_bytes_than_the_widest_has_elements():
    made = probe("none", num_kv_heads=129, head_size=64)  # 16,512 bytes a token
    assert made.tokens == 64


def test_a_probe_of_more_elements_than_any_kernel_has_is_refused_in_one_line():
    with pytest.raises(InputError, match=r"at most 16,384 elements a token.*got 129 \* 128") as error:
        probe("int8_per_token_head", num_kv_heads=129, head_size=128)
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_the_per_tensor_scales_are_no_powers_of_two():
    for mode in ("fp8_per_tensor", "nvfp4"):
        made = made_probe(mode)
        for scale in (made.k_scale, made.v_scale):
            assert np.frexp(scale)[0] != 0.5


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["int8_per_token_head", "fp8_per_token_head", "nvfp4"])
def test_a_probe_run_names_what_it_cannot_tell_apart_and_why(mode):
    found = diagnose(filled(made_probe(mode)))
    assert found.ok
    names = {name for group in found.inseparable for name in group.names}
    every = {f"{fault.id}: {variant.label}" for fault, variant in variants(mode, "content", "arithmetic", "scale")}
    assert names <= every | {"right"}
    assert all(group.why for group in found.inseparable)
    # at most a fifth of them
    assert len(names) <= len(every) / 3
    never = {f"{f.id}: {v.label}": v.never for f, v in variants(mode, "arithmetic", "scale") if v.never}
    for group in found.inseparable:
        for name in set(group.names) & set(never):
            assert group.why == never[name]
    assert set(never) <= names


def test_a_given_scale_hides_how_it_would_be_computed():
    found = diagnose(filled(made_probe("fp8_per_tensor")))
    (given,) = [group for group in found.inseparable if "given" in group.why]
    assert "qmax: 240" in given.names
    (elsewhere,) = [group for group in found.inseparable if "another scale" in group.why]
    assert "scale-elsewhere: per-tensor scale 1.0" in elsewhere.names


def test_only_probes_are_asked_what_they_hide():
    made = filled(made_probe("int8_per_token_head"))
    other = Dump.from_arrays(
        made.key, made.value, made.pages, made.slot_mapping, layout=made.layout, recipe=made.recipe
    )  # fmt: skip
    assert diagnose(other).inseparable == ()


def test_an_unwritten_probe_is_called_never_written():
    found = diagnose(made_probe("int8_per_token_head"))
    assert (found.status, found.explained) == (1, True)
    assert found.explanations[0].faults == ("never-written",)
    assert "each byte is 0xA5" in str(found).splitlines()[0]


def test_what_a_layout_refuses_a_probe_refuses():
    with pytest.raises(InputError, match="head_size"):
        probe("nvfp4", head_size=40)
    with pytest.raises(InputError, match="float32"):
        probe("nvfp4", dtype="int8")

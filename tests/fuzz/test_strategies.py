"""The strategies: what they give is legal, what they aim at is hit, and what fails shrinks to what matters."""

from __future__ import annotations

from random import Random

import ml_dtypes
import numpy as np
import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st

import kvformat as kvf
from kvformat.fuzz import profiles, strategies

FORMATS = ("e4m3fn", "e5m2", "e2m1fn", "int8", "int4", "e4m3fnuz")


@pytest.mark.parametrize("fmt", FORMATS)
def test_codes_are_all_codes_of_a_format(fmt):
    every = kvf.element(fmt).codes
    smallest, largest = (find(strategies.codes(fmt), lambda code, end=end: code == end) for end in _ends(fmt))
    assert largest - smallest == every - 1
    kvf.decode(np.array([smallest, largest], np.int8 if fmt.startswith("int") else np.uint8), fmt)


def _ends(fmt):
    half = kvf.element(fmt).codes // 2
    return (-half, half - 1) if fmt.startswith("int") else (0, 2 * half - 1)


@pytest.mark.parametrize("fmt", FORMATS)
@settings(max_examples=200)
@given(data=st.data())
def test_element_values_lie_within_an_ulp_of_a_value_or_a_midpoint(fmt, data):
    x = abs(data.draw(strategies.element_values(fmt)))
    sizes = np.unique(np.abs(kvf.element(fmt).values()))
    sizes = sizes[np.isfinite(sizes)].astype(np.float64)
    step = sizes[-1] - sizes[-2]
    known = [*sizes, *(sizes[1:] + sizes[:-1]) / 2, sizes[-1] + step / 2, sizes[-1] + step, 2 * sizes[-1]]
    assert min(abs(x - each) for each in known) <= np.spacing(np.float32(x)) * 1.01


def test_element_values_hit_a_tie_and_both_its_sides():
    for wanted in (2.5, float(np.nextafter(np.float32(2.5), np.float32(3))), 2.499999761581421):
        assert find(strategies.element_values("e2m1fn"), lambda x, wanted=wanted: x == wanted) == wanted


@pytest.mark.parametrize("mode", ["none", "fp8_per_tensor", "int8_per_token_head", "nvfp4"])
@settings(max_examples=40)
@given(data=st.data())
def test_kv_tensors_have_the_shape_and_dtype_that_were_asked_for(mode, data):
    dtype = data.draw(strategies.dtypes)
    x = data.draw(strategies.kv_tensors(mode, tokens=(2, 3), heads=2, head_dim=(16, 48), dtype=dtype, finite=True))
    assert x.dtype == dtype
    assert x.shape[0] in (2, 3)
    assert x.shape[1:] in ((2, 16), (2, 48))
    if dtype == np.float32:  # in float16 what is large becomes Inf
        assert np.isfinite(x).all()


def test_the_simplest_tensor_is_one_row_of_zeros():
    x = find(strategies.kv_tensors("nvfp4"), lambda _: True)
    assert x.shape == (1, 1, 16)
    assert x.tobytes() == bytes(x.nbytes)


@pytest.mark.slow  # five searches of two seconds
def test_what_fails_shrinks_to_the_elements_that_matter():
    # of five searches most end there; now and then one is caught in a row that has no smaller neighbour
    wanted, alone = strategies.kv_tensors("int8_per_token_head", finite=True), settings(database=None)
    found = [find(wanted, lambda x: np.count_nonzero(x) >= 2, random=Random(i), settings=alone) for i in range(5)]
    assert sorted(np.count_nonzero(x) for x in found)[2] <= 3
    assert sorted(x.size for x in found)[2] == 16


@pytest.mark.slow  # each is searched for and shrunk
@pytest.mark.parametrize("special", [np.isnan, np.isinf, lambda x: np.signbit(x) & (x == 0)], ids=["nan", "inf", "-0"])
def test_special_values_come_up(special):
    x = find(strategies.kv_tensors(dtype=strategies.FLOAT32), lambda x: special(x).any())
    assert special(x).any()


def test_an_unknown_profile_is_refused_by_name():
    with pytest.raises(kvf.InputError, match="did you mean llama"):
        find(strategies.kv_tensors(profile="lama"), lambda _: True)


@pytest.mark.parametrize("name", strategies.PROFILE_NAMES)
def test_profiles_look_like_the_caches_they_are_named_for(name):
    shape, generator = (256, 2, 64), np.random.default_rng(5)
    k, v = (make(profiles.PROFILES[name], generator, shape) for make in (profiles.keys, profiles.values))
    largest = np.abs(k).max()
    low, high = {"llama": (7, 25), "qwen_mid": (7, 27), "qwen_edge": (140, 240), "mla": (1, 5)}[name]
    assert low < largest < high
    channels = np.abs(k).max(axis=0)
    ratio = (channels.max(axis=1) / np.median(channels, axis=1)).mean()
    assert ratio > {"llama": 2, "qwen_mid": 1.8, "qwen_edge": 15, "mla": 3}[name]
    if name == "llama":  # the sink token's value is small
        norms = np.linalg.norm(v, axis=2)
        assert (norms[0] < 0.5 * np.median(norms, axis=0)).all()


@settings(max_examples=60)
@given(data=st.data())
def test_slot_mappings_are_legal_and_give_each_token_its_own_slot(data):
    slots = data.draw(strategies.slot_mappings(5, 12))
    kept = slots[slots >= 0]
    assert (slots.dtype, slots.shape) == (np.int64, (5,))
    assert len(set(kept.tolist())) == len(kept)
    assert kept.max(initial=0) < 12
    assert data.draw(strategies.slot_mappings(5, 12, padding=False)).min() >= 0


@settings(max_examples=60)
@given(table=strategies.block_tables(6, 4))
def test_block_tables_name_each_block_once(table):
    assert len(set(table.tolist())) == 4
    assert table.min() >= 0
    assert table.max() < 6


@pytest.mark.parametrize("mode", ["none", "fp8_per_token_head", "nvfp4"])
@settings(max_examples=60)
@given(data=st.data())
def test_layouts_are_layouts_of_the_mode(mode, data):
    found = data.draw(strategies.layouts(mode))
    assert found.mode == mode
    assert found.page_bytes >= found.natural_bytes
    assert kvf.layout(**found.spec) == found


@settings(max_examples=60)
@given(found=strategies.layouts("nvfp4", v_scales="swizzled", head_size=128))
def test_layouts_of_a_swizzle_and_a_head_size_have_whole_groups_of_slots(found):
    # a block of one slot was drawn here, which a swizzle of four tokens cannot have
    assert found.block_size % 4 == 0
    assert found.head_size == 128


def test_layouts_reach_head_sizes_where_a_double_swizzle_shows():
    found = find(strategies.layouts("nvfp4", v_scales="swizzled"), lambda layout: layout.head_size > 64)
    assert found.head_size in (128, 256)


@settings(max_examples=60)
@given(scale=strategies.scales())
def test_scales_are_finite_and_positive_in_float32(scale):
    assert np.isfinite(np.float32(scale))
    assert np.float32(scale) > 0
    assert float(np.float32(scale)) == scale


@settings(max_examples=30)
@given(data=st.data())
def test_outlier_tokens_change_one_token(data):
    x = data.draw(strategies.kv_tensors(tokens=3, dtype=np.dtype(ml_dtypes.bfloat16)))
    token, changed = data.draw(strategies.outlier_tokens(x))
    others = np.arange(3) != token
    assert changed[others].tobytes() == x[others].tobytes()

"""Eviction, prefix hashes, shared stores and transfer: the invariants of each."""

from __future__ import annotations

import hashlib

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvformat.attention.definition import attend
from kvformat.errors import InputError
from kvformat.modes import MODES
from kvformat.prefix import cbor
from kvformat.prefix.hashes import SEED, Store, aware, blind, block_hashes
from kvformat.recipes.quantizer import quantize
from kvformat.simulate import transfer
from kvformat.simulate.eviction import Budget, h2o, orders, protected, same_bytes, streaming
from kvformat.simulate.experiments.share import identity, misread

PER_TOKEN = ("none", "int8_per_token_head", "fp8_per_token_head")
PER_TENSOR = ("fp8_per_tensor", "nvfp4")


def normal(seed, tokens=12, heads=2, dims=32):
    return np.random.default_rng(seed).normal(0, 1, (tokens, heads, dims)).astype(np.float32)


masks = st.lists(st.booleans(), min_size=12, max_size=12).filter(any).map(np.array)


@given(seed=st.integers(0, 100), kept=masks, mode=st.sampled_from(PER_TOKEN))
def test_evict_then_quantize_is_quantize_then_evict_where_no_scale_spans_tokens(seed, kept, mode):
    assert same_bytes(*orders(normal(seed), kept, mode))


@given(seed=st.integers(0, 100), kept=masks, mode=st.sampled_from(PER_TENSOR))
def test_a_given_per_tensor_scale_spans_no_tokens_either(seed, kept, mode):
    assert same_bytes(*orders(normal(seed), kept, mode, scale=0.01))


@pytest.mark.parametrize("mode", PER_TENSOR)
def test_a_computed_per_tensor_scale_makes_the_order_matter(mode):
    x = normal(0)
    x[3] *= 50  # the outlier token leaves
    kept = np.arange(12) != 3
    first, second = orders(x, kept, mode)
    assert not same_bytes(first, second)
    # and its leaving helps the others' scale, which it does not per token
    of_tensor = (lambda q: q.scales[0]) if mode == "fp8_per_tensor" else (lambda q: q.global_scale)
    assert of_tensor(first) < of_tensor(second)


def test_streaming_keeps_sinks_and_the_last_tokens():
    seen = streaming(10, Budget(2, 3))[0]
    for query in range(10):
        expected = {*range(min(2, query + 1)), *range(max(0, query - 2), query + 1)}
        assert set(np.flatnonzero(seen[query])) == expected
    assert (seen[:5].sum(axis=1) == np.arange(1, 6)).all()  # nothing leaves while all fit


def reference_h2o(query, key, budget):
    """H2O by its definition: a dictionary of scores per kv head."""
    tokens, heads, dims = key.shape
    group = query.shape[1] // heads
    seen = np.zeros((heads, tokens, tokens), bool)
    for head in range(heads):
        score = {}
        for token in range(tokens):
            score[token] = 0.0
            seen[head, token, list(score)] = True
            for q in range(head * group, (head + 1) * group):
                weights = {j: np.exp(query[token, q] @ key[j, head] / np.sqrt(dims)) for j in score}
                for j, weight in weights.items():
                    score[j] += weight / sum(weights.values())
            if len(score) > budget.total:
                old = [j for j in score if j <= token - budget.recent]
                del score[min(old, key=lambda j: (score[j], j))]
    return seen


@given(seed=st.integers(0, 200), kept=st.integers(0, 4), recent=st.integers(1, 4), group=st.integers(1, 2))
def test_h2o_is_its_definition(seed, kept, recent, group):
    rng = np.random.default_rng(seed)
    query, key = rng.normal(0, 1, (12, 2 * group, 8)), rng.normal(0, 1, (12, 2, 8))
    budget = Budget(kept, recent)
    seen = h2o(query, key, budget)
    assert np.array_equal(seen, reference_h2o(query, key, budget))
    assert seen.sum(axis=2).max() <= budget.total + 1  # the token itself, before one leaves


@pytest.mark.parametrize("make", [Budget.streaming, Budget.heavy])
@pytest.mark.parametrize("total", [1, 2, 3, 5, 64])
def test_a_budget_is_as_large_as_was_asked_for(make, total):
    assert make(total).total == total
    with pytest.raises(InputError, match="at least 1 token"):
        make(0)


def test_protected_slots_are_the_originals_and_nothing_else_is():
    x = normal(1)
    stored = quantize(x, "nvfp4").dequantize()
    rows = protected(stored, x, [0, 5])
    assert np.array_equal(rows[[0, 5]], x[[0, 5]])
    others = [i for i in range(12) if i not in (0, 5)]
    assert np.array_equal(rows[others], stored[others])


def test_an_evicted_cache_is_the_cache_of_what_is_left():
    rng = np.random.default_rng(0)
    query, key, value = (rng.normal(0, 1, (n, 1, 8)) for n in (1, 9, 9))
    kept = np.array([0, 1, 4, 7, 8])
    seen = np.zeros((1, 1, 9), bool)
    seen[..., kept] = True
    np.testing.assert_allclose(
        attend(query, key, value, visible=seen).output, attend(query, key[kept], value[kept]).output, atol=1e-14
    )


# RFC 8949, appendix A
@pytest.mark.parametrize(
    ("item", "encoded"),
    [
        (0, "00"),
        (23, "17"),
        (24, "1818"),
        (100, "1864"),
        (1000, "1903e8"),
        (1000000, "1a000f4240"),
        (1000000000000, "1b000000e8d4a51000"),
        (18446744073709551615, "1bffffffffffffffff"),
        (-1, "20"),
        (-100, "3863"),
        (-1000, "3903e7"),
        (False, "f4"),
        (True, "f5"),
        (None, "f6"),
        (b"", "40"),
        (b"\x01\x02\x03\x04", "4401020304"),
        ("", "60"),
        ("a", "6161"),
        ("IETF", "6449455446"),
        ("\u00fc", "62c3bc"),
        ("\u6c34", "63e6b0b4"),
        ((), "80"),
        ([1, 2, 3], "83010203"),
        ((1, (2, 3), [4, 5]), "8301820203820405"),
        (list(range(1, 26)), "98190102030405060708090a0b0c0d0e0f101112131415161718181819"),
    ],
)
def test_cbor_is_that_of_the_rfc(item, encoded):
    assert cbor.encode(item).hex() == encoded


@pytest.mark.parametrize("item", [1.5, {}, 1 << 64, object()])
def test_cbor_refuses_what_no_hash_is_made_of(item):
    with pytest.raises(InputError, match="block hash"):
        cbor.encode(item)


def test_a_block_hash_is_sha256_of_parent_tokens_and_extra_keys():
    first, second = block_hashes([1, 2, 3, 4, 5], 2, (("salt",), None))
    parent = hashlib.sha256(b"\x6e" + SEED.encode()).digest()  # a text of 14 bytes
    one = hashlib.sha256(b"\x83\x58\x20" + parent + b"\x82\x01\x02" + b"\x81\x64salt").digest()
    two = hashlib.sha256(b"\x83\x58\x20" + one + b"\x82\x03\x04" + b"\xf6").digest()
    assert (first, second) == (one, two)


@given(st.lists(st.integers(0, 50000), min_size=1, max_size=40), st.integers(1, 8), st.integers(0, 39))
def test_a_hash_depends_on_every_token_up_to_its_block_and_on_none_after(tokens, size, place):
    changed = list(tokens)
    place %= len(tokens)
    changed[place] += 1
    a, b = block_hashes(tokens, size), block_hashes(changed, size)
    assert [x == y for x, y in zip(a, b, strict=True)] == [block < place // size for block in range(len(a))]


def test_the_chain_is_the_same_in_every_mode_and_the_aware_key_is_not():
    (block,) = block_hashes(range(16), 16)
    keys = {aware(identity(mode), block) for mode in MODES}
    assert len(keys) == len(MODES)
    assert {blind(identity(mode), block) for mode in MODES} == {block}


def test_the_aware_key_tells_layouts_recipes_and_scales_apart():
    from dataclasses import replace

    from kvformat.layouts import layout

    who = identity("fp8_per_tensor")
    hnd = layout("vllm-0.33", mode="fp8_per_tensor", block_size=16, num_kv_heads=2, head_size=128, order="HND")
    changed = (
        replace(who, layout=hnd),
        replace(who, recipe="vllm-0.33/rocm-fnuz/fp8_per_tensor"),
        replace(who, k_scale=0.03),
        replace(who, v_scale=0.03),
    )
    assert len({each.key(b"block") for each in (who, *changed)}) == 5


def test_a_blind_store_gives_a_reader_of_another_mode_wrong_numbers_and_an_aware_one_a_miss():
    key, value = normal(0, 16, 2, 128), normal(1, 16, 2, 128)
    pair = ("fp8_per_token_head", "int8_per_token_head")
    wrong, nan = misread(key, value, *pair, Store(blind))
    assert wrong > 0.5
    assert nan == 0
    assert misread(key, value, *pair, Store(aware)) is None
    right, _ = misread(key, value, pair[0], pair[0], Store(aware))
    assert right < 0.05


@given(
    seed=st.integers(0, 300), exponent=st.integers(-6, 6), consumer=st.sampled_from([m for m in MODES if m != "none"])
)
def test_bf16_on_the_wire_equals_direct_quantization(seed, exponent, consumer):
    x = (normal(seed) * np.float32(2.0**exponent)).astype(ml_dtypes.bfloat16)
    scale = 0.01 if MODES[consumer].tensor_scale else None
    assert transfer.compare(x, "none", consumer, consumer_scale=scale).equal


@given(seed=st.integers(0, 300), mode=st.sampled_from(["fp8_per_tensor", "fp8_per_token_head", "int8_per_token_head"]))
def test_a_mode_transcoded_to_itself_keeps_its_codes(seed, mode):
    scale = 0.01 if MODES[mode].tensor_scale else None
    found = transfer.compare(
        normal(seed), f"golden/{mode}", f"golden/{mode}", producer_scale=scale, consumer_scale=scale
    )
    assert found.different_codes == 0


@pytest.mark.parametrize(
    ("producer", "consumer"),
    [("fp8_per_token_head", "nvfp4"), ("nvfp4", "fp8_per_token_head"), ("int8_per_token_head", "fp8_per_token_head")],
)
def test_two_roundings_are_not_one_between_other_pairs(producer, consumer):
    found = transfer.compare(
        normal(0, 200, 2, 64),
        f"golden/{producer}",
        f"golden/{consumer}",
        producer_scale=0.002 if producer == "nvfp4" else None,
        consumer_scale=0.002 if consumer == "nvfp4" else None,
    )
    assert not found.equal
    assert found.different_codes > 0
    assert found.added > 1


def peer(recipe, **changes):
    scales = {"k_scale": 0.1, "v_scale": 0.1} if MODES[recipe.rpartition("/")[2]].tensor_scale else {}
    return transfer.Peer(recipe, **{"num_kv_heads": 8, "head_size": 128, "head_size_v": 128, **scales, **changes})


def test_the_handshake_copies_what_reads_alike_and_converts_the_rest():
    fp8 = "golden/fp8_per_tensor"
    assert transfer.handshake(peer(fp8), peer("vllm-0.33/csrc/fp8_per_tensor")).copy
    assert not transfer.handshake(peer(fp8), peer(fp8, k_scale=0.2)).copy
    assert not transfer.handshake(peer(fp8), peer("vllm-0.33/rocm-fnuz/fp8_per_tensor")).copy
    assert not transfer.handshake(peer("golden/int8_per_token_head"), peer("golden/nvfp4")).copy


@pytest.mark.parametrize(
    ("ours", "theirs", "message"),
    [
        (peer("golden/nvfp4"), peer("golden/nvfp4", head_size=64), "differ in head_size, 128 and 64"),
        (peer("golden/none"), peer("golden/none", num_kv_heads=4), "differ in num_kv_heads"),
        (peer("golden/fp8_per_tensor", k_scale=None), peer("golden/none"), "the producer runs .* names no k_scale"),
        (peer("golden/none"), peer("golden/nvfp4", v_scale=None), "the consumer runs"),
        (peer("golden/none"), transfer.Peer("golden/fp9", 8, 128, 128), "unknown recipe"),
    ],
)
def test_the_handshake_refuses_what_it_cannot_convert(ours, theirs, message):
    with pytest.raises(InputError, match=message):
        transfer.handshake(ours, theirs)

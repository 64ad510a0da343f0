"""Decode attention on codes: within its rounding of float64 attention over the same codes, and within the certificates
of quantization of attention over the K and V that were written."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kvformat as kvf
import kvformat.torch as kvt
from kvformat import arrays
from kvformat.torch import attention

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # the interpreter computes on NumPy arrays

BLOCK_SIZE, HEADS = 16, 2
CASES = [
    ("none", 64), ("fp8_per_tensor", 80), ("fp8_per_token_head", 128), ("int8_per_token_head", 64), ("nvfp4", 64),
]  # fmt: skip
UNIT = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}


class Case:
    """Two sequences in shuffled blocks, their queries, and what the cache holds of their K and V."""

    def __init__(self, mode, dims, lengths=(70, 23), group=3, dtype=torch.float32, seed=0, loud=20.0):
        rng = np.random.default_rng(seed)
        self.mode, self.dims, self.group, self.tau = mode, dims, group, dims**-0.5
        self.lengths = torch.tensor(lengths)
        made = {"mode": mode, "block_size": BLOCK_SIZE, "num_kv_heads": HEADS, "head_size": dims, "order": "HND"}
        self.layout = kvf.layout("vllm-0.33", **made)
        blocks = max(-(-length // BLOCK_SIZE) for length in lengths)
        self.tables = torch.from_numpy(rng.permutation(len(lengths) * blocks).reshape(len(lengths), blocks))
        self.pages = torch.zeros(len(lengths) * blocks, self.layout.page_bytes, dtype=torch.uint8)
        largest = {"fp8_per_tensor": 448, "nvfp4": 2688}.get(mode)
        self.key, self.value = [], []
        self.scale = None if largest is None else torch.tensor([5 * loud / largest])
        for length, table in zip(lengths, self.tables, strict=True):
            key, value = (torch.from_numpy(rng.standard_normal((length, HEADS, dims)).astype(np.float32)) for _ in "kv")
            key[:1] *= loud  # a sink token
            slots = (table[:, None] * BLOCK_SIZE + torch.arange(BLOCK_SIZE)).reshape(-1)[:length]
            if length:
                kvt.write_pages(key, value, self.pages, slots, self.scale, self.scale, *self.names, dims, mode)
            self.key.append(key.bfloat16().float() if mode == "none" else key)
            self.value.append(value.bfloat16().float() if mode == "none" else value)
        query = rng.standard_normal((len(lengths), HEADS * group, dims)).astype(np.float32)
        self.query = torch.from_numpy(query).to(dtype)

    @property
    def names(self):
        return ("vllm-0.33", self.mode, "HND", BLOCK_SIZE)

    def by_kernel(self, splits):
        how = (self.pages, self.tables, self.lengths, kvf.recipe(self.mode), (self.scale, self.scale), self.tau)
        errors = torch.zeros(1, dtype=torch.int64)
        found = attention.attend(self.layout, self.query, *how[:-1], errors, how[-1], splits)
        assert not errors.item()
        return found

    def read(self, sequence):
        table, length = self.tables[sequence], int(self.lengths[sequence])
        scales = (self.scale, self.scale)
        return kvt.gather_pages(self.pages, table, length, *scales, *self.names, HEADS, self.dims, self.mode)


def exact(query, key, value, tau):
    """Attention of one head in float64: weights, output, log of the sum of weights."""
    logits = tau * (key @ query)
    top = logits.max()
    weights = np.exp(logits - top)
    return weights / weights.sum(), weights @ value / weights.sum(), top + np.log(weights.sum())


def heads(case):
    for sequence in range(len(case.lengths)):
        for head in range(HEADS * case.group):
            yield sequence, head, head // case.group


def of_head(x, head):
    return x[:, head].double().numpy()


def check(case, splits):
    out, lse = case.by_kernel(splits)
    for sequence, head, kv_head in heads(case):
        if not case.lengths[sequence]:
            assert not out[sequence, head].any()
            assert lse[sequence, head] == -np.inf
            continue
        key, value = (of_head(x, kv_head) for x in case.read(sequence))
        query = case.query[sequence, head].double().numpy()
        _, wanted, log_sum = exact(query, key, value, case.tau)
        bound = attention.rounding_bound(query, key, value, case.tau, splits)
        found = out[sequence, head].double().numpy()
        assert (np.abs(found - wanted) <= bound + UNIT[case.query.dtype] * (np.abs(wanted) + bound) + 2.0**-25).all()
        assert bound.max() < 0.02 * np.abs(value).max()  # a bound that says something
        assert abs(float(lse[sequence, head]) - log_sum) < 1e-4 * max(1, abs(log_sum))


@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize(("mode", "dims"), CASES)
def test_output_is_within_its_rounding_of_float64_attention_over_the_same_codes(mode, dims, splits):
    check(Case(mode, dims), splits)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_the_output_has_the_querys_dtype(dtype):
    case = Case("int8_per_token_head", 64, dtype=dtype)
    assert case.by_kernel(2)[0].dtype == dtype
    check(case, 2)


@settings(max_examples=10)
@given(
    st.sampled_from(CASES), st.tuples(st.integers(0, 40), st.integers(0, 40)), st.sampled_from((1, 2, 5)),
    st.integers(1, 5), st.integers(0, 99), st.sampled_from((1.0, 100.0)),
)  # fmt: skip
def test_any_lengths_groups_and_splits(case, lengths, splits, group, seed, loud):
    check(Case(*case, lengths=lengths if any(lengths) else (1, 0), group=group, seed=seed, loud=loud), splits)


def certificate(case, x):
    """How far quantization can move each element: |x^ - x| by amax and format alone (round to nearest, no clipping).

    int8: amax / 254. e4m3fn with scale s: s max(2^-10, |x / s| / 17). nvfp4: 3 / 17 of the block's amax, whatever it
    rounds to, where the block scale is no subnormal e4m3fn number. Each with 2^-20 for the scale's own rounding.
    """
    size = np.abs(x)
    if case.mode == "none":
        return 0 * size
    slack = 1 + 2.0**-20
    if case.mode == "int8_per_token_head":
        return 0 * size + size.max(axis=-1, keepdims=True) / 254 * slack
    if case.mode == "nvfp4":
        blocks = size.reshape(*size.shape[:-1], -1, 16)
        amax = blocks.max(axis=-1, keepdims=True)
        assert (amax / (6 * float(case.scale)) >= 2.0**-6).all()
        return (0 * blocks + 3 * amax / 17 * slack).reshape(size.shape)
    scale = size.max(axis=-1, keepdims=True) / 448 if case.scale is None else float(case.scale)
    return np.maximum(scale * 2.0**-10, size / 17) * slack


@pytest.mark.parametrize(("mode", "dims"), CASES)
def test_output_is_within_the_certificates_of_attention_over_what_was_written(mode, dims):
    """Per channel: sum_j p~_j h_jc + tanh(omega / 4) (max v - min v), omega the range of the logits' errors."""
    case = Case(mode, dims)
    out, _ = case.by_kernel(2)
    used = []
    for sequence, head, kv_head in heads(case):
        key, value = (arrays.array(x[sequence])[:, kv_head].astype(np.float64) for x in (case.key, case.value))
        query = case.query[sequence, head].double().numpy()
        key_read, value_read = (of_head(x, kv_head) for x in case.read(sequence))
        assert (np.abs(key_read - key) <= certificate(case, key)).all()
        assert (np.abs(value_read - value) <= certificate(case, value)).all()
        _, wanted, _ = exact(query, key, value, case.tau)
        weights, _, _ = exact(query, key_read, value_read, case.tau)
        moved = case.tau * (certificate(case, key) @ np.abs(query))  # each logit by at most this, either way
        bound = weights @ certificate(case, value) + np.tanh(moved.max() / 2) * np.ptp(value, axis=0)
        bound += attention.rounding_bound(query, key_read, value_read, case.tau, 2) + 2.0**-24 * np.abs(wanted)
        off = np.abs(out[sequence, head].double().numpy() - wanted)
        assert (off <= bound).all()
        used.append((off / bound).max())
    assert mode == "none" or max(used) > 0.001


def test_a_wrong_scale_breaks_the_bound():
    case = Case("fp8_per_tensor", 64)
    case.scale = case.scale * 1.05
    wrong, _ = case.by_kernel(1)
    case.scale = case.scale / 1.05
    key, value = (of_head(x, 0) for x in case.read(0))
    query = case.query[0, 0].double().numpy()
    _, wanted, _ = exact(query, key, value, case.tau)
    bound = attention.rounding_bound(query, key, value, case.tau, 1)
    assert (np.abs(wrong[0, 0].double().numpy() - wanted) > bound).any()


def test_the_cpu_operator_is_float64_attention():
    case = Case("nvfp4", 64)
    how = (case.scale, case.scale, *case.names, HEADS, case.mode, case.tau)
    out, lse = kvt.paged_attention(case.query, case.pages, case.tables, case.lengths, *how)
    for sequence, head, kv_head in heads(case):
        key, value = (of_head(x, kv_head) for x in case.read(sequence))
        _, wanted, log_sum = exact(case.query[sequence, head].double().numpy(), key, value, case.tau)
        assert np.abs(out[sequence, head].numpy() - wanted).max() < 2.0**-23 * np.abs(wanted).max()
        assert abs(lse[sequence, head].item() - log_sum) < 2.0**-22 * abs(log_sum)


@pytest.mark.slow
def test_the_rows_of_an_exact_probe_are_right_bit_for_bit():
    from dataclasses import replace

    from kvformat.attention.probes import attention_probe
    from tests.attention.test_probes import kernel

    mode, dims = "int8_per_token_head", 64
    dump = attention_probe(mode, num_kv_heads=HEADS, group=3, head_size=dims, order="HND", block_size=BLOCK_SIZE)
    rows = np.linspace(0, dump.tokens - 1, 8).astype(np.int64)
    made = kvf.layout("vllm-0.33", mode=mode, block_size=BLOCK_SIZE, num_kv_heads=HEADS, head_size=dims, order="HND")
    blocks = -(-dump.tokens // BLOCK_SIZE)
    pages = torch.zeros(blocks, made.page_bytes, dtype=torch.uint8)
    key, value, query = (torch.from_numpy(x.astype(np.float32)) for x in (dump.key, dump.value, dump.query[rows]))
    kvt.write_pages(
        key, value, pages, torch.arange(dump.tokens), None, None, "vllm-0.33", mode, "HND", BLOCK_SIZE, dims, mode
    )  # fmt: skip
    tables, errors = torch.arange(blocks).repeat(len(rows), 1), torch.zeros(1, dtype=torch.int64)
    out, _ = attention.attend(
        made, query, pages, tables, torch.from_numpy(rows + 1), kvf.recipe(mode), (None, None), errors, dims**-0.5, 2
    )  # fmt: skip
    found = kernel(dump)
    found[rows] = out.numpy()
    report = kvf.check(replace(dump, output=found))
    assert report.status == 0, str(report)

"""Exact probes: right kernels of many kinds pass bit for bit, every wrong one is caught."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from kvformat import Dump, InputError, PagedCache, check
from kvformat.attention.probes import attention_probe, patterns
from kvformat.modes import MODES

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
HEADS, GROUP = 2, 3


def probe(mode="int8_per_token_head", **options):
    linear = {"v_scales": "linear"} if mode == "nvfp4" else {}  # swizzled ones need 64 dims
    return attention_probe(mode, **{"num_kv_heads": HEADS, "group": GROUP, "head_size": 32, **linear, **options})


def stored(dump):
    """K and V as a reader of the pages has them, float32: (tokens, q_heads, dims)."""
    cache = PagedCache(dump.layout, len(dump.pages), dump.k_scale, dump.v_scale)
    cache.pages = dump.pages
    group = dump.query.shape[1] // dump.layout.num_kv_heads
    both = cache.gather(np.arange(len(dump.pages)), len(dump.pages) * dump.layout.block_size)
    return [np.repeat(x[dump.slot_mapping], group, axis=1) for x in both]


def kernel(dump, *, key=None, value=None, p=np.float32, operands=np.float32, splits=1, order=1, base=2.0, scale=None,
           merge=None, sinks=1.0, query=None):  # fmt: skip
    """A float32 kernel: exponentials to `base`, P and tiles rounded, the context in splits, keys in an order."""
    k, v = stored(dump)
    k, v = (
        x.astype(operands).astype(np.float32) for x in (k if key is None else key(k), v if value is None else value(v))
    )
    q = dump.query.astype(np.float32) if query is None else query
    scale = np.float32(q.shape[2] ** -0.5 if scale is None else scale)
    logits = np.einsum("qhd,khd->hqk", q[:, :, ::order], k[:, :, ::order]).astype(np.float32) * scale
    tokens = len(k)
    logits = np.where(np.tri(tokens, dtype=bool), logits, np.float32(-np.inf))
    to_base = np.float32(1 / np.log(base))
    parts = []
    for keys in np.array_split(np.arange(tokens)[::order], splits):
        top = logits[..., keys].max(axis=2, keepdims=True)
        top = np.where(np.isinf(top), np.float32(0), top)
        weights = np.power(np.float32(base), (logits[..., keys] - top) * to_base).astype(np.float32)
        mixed = np.einsum("hqk,khd->hqd", weights.astype(p).astype(np.float32), v[keys]).astype(np.float32)
        total = weights.sum(axis=2, keepdims=True)
        with np.errstate(divide="ignore", invalid="ignore"):
            parts.append((mixed / np.where(total == 0, 1, total), np.log(total) + top))
    if dump.sinks is not None:
        lse = np.broadcast_to(dump.sinks[:, None, None] + np.log(np.float32(sinks)), parts[0][1].shape)
        parts.append((np.zeros_like(parts[0][0]), lse))
    top = np.maximum.reduce([part[1] for part in parts])
    raised = (lambda x: np.power(np.float32(merge), x)) if merge else np.exp
    factors = [raised(part[1] - top) for part in parts]
    out = sum(f * part[0] for f, part in zip(factors, parts, strict=True)) / sum(factors)
    return out.transpose(1, 0, 2).astype(np.float32)


def judged(dump, out, dtype=BFLOAT16):
    return check(replace(dump, output=out.astype(dtype)))


RIGHT = {
    "float32": {},
    "bfloat16 tiles and P": {"p": BFLOAT16, "operands": BFLOAT16},
    "float16 tiles and P": {"p": np.float16, "operands": np.float16},
    "P in e4m3": {"p": ml_dtypes.float8_e4m3fn},
    "five splits": {"splits": 5},
    "keys and dims backwards": {"order": -1},
    "natural exponentials": {"base": float(np.e)},
}


@pytest.mark.parametrize("how", RIGHT)
@pytest.mark.parametrize("mode", MODES)
def test_right_kernels_pass_bit_for_bit(mode, how):
    dump = probe(mode)
    for dtype in (np.float32, BFLOAT16):
        report = judged(dump, kernel(dump, **RIGHT[how]), dtype)
        assert (report.status, report.attention.exact["one-hot"] > 0) == (0, True), str(report)
        assert "right bit for bit" in str(report)


def _one_code(sign):
    def change(key):
        changed = key.copy()
        changed[5, :, 7] *= 1 - sign / 127  # one step of int8
        return changed

    return change


def _one_scale(key):
    return np.where(np.arange(len(key))[:, None, None] == 9, key * np.float32(1.01), key)


WRONG = {
    "zeros": lambda dump: 0 * kernel(dump),
    "doubled": lambda dump: 2 * kernel(dump),
    "dims rolled": lambda dump: np.roll(kernel(dump), 1, axis=2),
    "V of the next token": lambda dump: kernel(dump, value=lambda v: np.roll(v, -1, axis=0)),
    "K of the next token": lambda dump: kernel(dump, key=lambda k: np.roll(k, -1, axis=0)),
    "K of the other head": lambda dump: kernel(dump, key=lambda k: k[:, ::-1]),
    "the softmax scale 1 / head_dim": lambda dump: kernel(dump, scale=1 / dump.layout.head_size),
    "the softmax scale 1 % off": lambda dump: kernel(dump, scale=1.01 * dump.layout.head_size**-0.5),
    "K scales 1 % off": lambda dump: kernel(dump, key=lambda k: k * np.float32(1.01)),
    "V scales 1 % off": lambda dump: kernel(dump, value=lambda v: v * np.float32(1.01)),
    "one K code one step off": lambda dump: kernel(dump, key=_one_code(1)),
    "one K scale 1 % off": lambda dump: kernel(dump, key=_one_scale),
    "a merge to base 2": lambda dump: kernel(dump, splits=4, merge=2.0),
    "NaN": lambda dump: np.nan * kernel(dump),
}


@pytest.mark.parametrize("fault", WRONG)
def test_wrong_kernels_are_caught(fault):
    dump = probe()
    report = judged(dump, WRONG[fault](dump))
    assert (report.status, report.mismatches) == (1, 0), str(report)


def test_with_p_in_fp8_a_k_scale_one_percent_off_is_invisible():
    dump = probe()
    out = kernel(dump, key=lambda k: k * np.float32(1.01), p=ml_dtypes.float8_e4m3fn)
    assert judged(dump, out).attention.wrong == 0  # announced as invisible
    assert judged(dump, kernel(dump, key=lambda k: k * np.float32(1.1), p=ml_dtypes.float8_e4m3fn)).status == 1


@pytest.mark.parametrize(("times", "status"), [(1.0, 0), (2.0, 1), (1e-30, 1)])
def test_a_sink_is_counted_once(times, status):
    dump = probe(sinks=True)
    assert judged(dump, kernel(dump, sinks=times)).status == status


def test_every_element_of_v_is_reached():
    dump = probe()
    right = kernel(dump)
    for token in range(0, 64, 21):
        changed = kernel(dump, value=lambda x, t=token: np.where(np.arange(len(x))[:, None, None] == t, -x - 1, x))
        differ = changed.astype(BFLOAT16) != right.astype(BFLOAT16)
        assert differ.any(axis=0).reshape(HEADS, GROUP, 32).any(axis=1).all(), token


@pytest.mark.slow
@pytest.mark.parametrize("head_size", [64, 128])
@pytest.mark.parametrize("mode", MODES)
def test_probes_of_real_head_sizes_are_exact(mode, head_size):
    dump = attention_probe(mode, num_kv_heads=1, group=3, head_size=head_size)
    report = judged(dump, kernel(dump, p=BFLOAT16))
    assert report.status == 0, str(report)
    assert {k for k, n in report.attention.exact.items() if n} == {"one-hot", "equal pair", "known distance"}


def test_a_float16_accumulator_has_one_hot_rows_alone():
    dump = probe(accumulate="float16")
    exact = judged(dump, kernel(dump)).attention.exact
    assert {kind for kind, count in exact.items() if count} == {"one-hot"}


@pytest.mark.parametrize("dims", [16, 32, 64, 128])
def test_patterns_agree_in_half_of_the_dims_or_in_none(dims):
    rows = patterns(dims)
    products = rows @ rows.T
    assert len(rows) == 2 * dims
    assert set(np.unique(products)) == {-dims, 0, dims}
    assert (products == dims).sum() == 2 * dims


def test_a_probe_whose_pages_changed_is_no_probe():
    dump = probe()
    dump.pages[dump.slot_mapping[0] // 16] = 0
    with pytest.raises(InputError, match="has no exact output"):
        judged(dump, kernel(probe()))


def test_an_unfilled_probe_is_a_difference(tmp_path):
    dump = probe("fp8_per_tensor")
    dump.save(tmp_path / "a.safetensors")
    assert check(Dump.load(tmp_path / "a.safetensors")).status == 1


@pytest.mark.parametrize("options", [{"group": 0}, {"head_size": 8}, {"dtype": "int8"}])
def test_what_no_probe_can_be_made_of_is_one_line(options):
    with pytest.raises(InputError):
        probe(**options)


def test_every_k_code_one_step_off_is_seen():
    # in both heads, of 64 keys some elements, others than those that set the scale
    dump = probe()
    for place in range(0, 64 * 32, 11 * 19):
        token, dim = divmod(place, 32)
        k = stored(dump)[0]
        k[token, :, dim] *= np.float32(126 / 127)
        found = judged(dump, kernel(dump, key=lambda _, k=k: k))
        assert found.status == 1, (token, dim)


def test_every_k_scale_one_percent_off_is_seen():
    dump = probe()
    for token in range(0, 64, 13):
        scaled = np.where(np.arange(dump.tokens) == token, np.float32(1.01), np.float32(1))[:, None, None]
        assert judged(dump, kernel(dump, key=lambda k, scaled=scaled: k * scaled)).status == 1, token

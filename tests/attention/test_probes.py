"""Exact probes: right kernels of many kinds pass bit for bit, every wrong one is caught."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from kvformat import Dump, InputError, PagedCache, check
from kvformat.attention.definition import CAUSAL
from kvformat.attention.exact import DISTANCE, right_row
from kvformat.attention.probes import attention_probe, patterns
from kvformat.attention.rounding import Kernel, allowed
from kvformat.attention.wrong import WRONG as SET
from kvformat.attention.wrong import Work
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


def reached(dump):
    """What the rows of a probe reach, of each (token, kv head): V, K by dim, and of each head the dims of distances."""
    key, value = (x[:, :: dump.query.shape[1] // dump.layout.num_kv_heads] for x in stored(dump))
    tokens, heads, dims = key.shape
    of_v, of_k = np.zeros((tokens, heads), bool), np.zeros((tokens, heads, dims), bool)
    distant = np.zeros((heads, dims))
    query, scale = dump.query.astype(np.float64), dims**-0.5
    for row, asked in np.ndindex(query.shape[:2]):
        own = asked // (query.shape[1] // heads)
        asks, keys = query[row, asked], key[: row + 1, own].astype(np.float64)
        kind, _ = right_row(asks, keys, value[: row + 1, own].astype(np.float64), scale, None)
        best = np.argsort(keys @ asks)[::-1]
        above = best[: 1 if kind == "one-hot" else 2]
        of_v[above, own] = True
        if kind == "equal pair":
            of_k[above, own] |= asks != 0
        if kind == "known distance":
            distant[own] = np.maximum(distant[own], asks * (keys[best[0]] - keys[best[1]]) * scale)
    return of_v, of_k, distant


@pytest.mark.parametrize("group", [3, 4])
def test_every_key_value_and_scale_is_reached_and_every_dim_has_a_part_in_a_distance(group):
    # one V row holds its scale, one K row too; an equal pair sees one code of K in each dim that it asks about
    of_v, of_k, distant = reached(probe(group=group, num_kv_heads=1))
    assert of_v.all()
    assert of_k.all()
    assert (distant > DISTANCE / 5).all()


@pytest.mark.slow
@pytest.mark.parametrize("head_size", [64, 128])
@pytest.mark.parametrize("mode", ["int8_per_token_head", "nvfp4"])
def test_every_key_value_scale_and_dim_of_real_head_sizes_is_reached(mode, head_size):
    of_v, of_k, distant = reached(attention_probe(mode, num_kv_heads=1, group=4, head_size=head_size))
    assert of_v.all()
    assert of_k.all()
    assert (distant > DISTANCE / 5).all()


@pytest.mark.parametrize("dim", [0, 13])
def test_a_dim_left_out_for_all_keys_is_seen(dim):
    dump = probe()
    query = np.where(np.arange(32) == dim, 0, dump.query.astype(np.float32))
    assert judged(dump, kernel(dump, query=query)).status == 1


@pytest.mark.slow
@pytest.mark.parametrize("head_size", [64, 128])
@pytest.mark.parametrize("mode", MODES)
def test_right_kernels_pass_and_wrong_ones_do_not_at_real_head_sizes(mode, head_size):
    dump = attention_probe(mode, num_kv_heads=2, group=3, head_size=head_size)
    for how in ({"p": BFLOAT16, "operands": BFLOAT16}, {"splits": 5}):
        report = judged(dump, kernel(dump, **how))
        assert report.status == 0, str(report)
    assert {k for k, n in report.attention.exact.items() if n} == {"one-hot", "equal pair", "known distance"}
    for fault, wrong in WRONG.items():
        if "code" not in fault or mode == "int8_per_token_head":  # a step of int8
            assert judged(dump, wrong(dump)).status == 1, fault
    for dim in range(0, head_size, 7):
        query = np.where(np.arange(head_size) == dim, 0, dump.query.astype(np.float32))
        assert judged(dump, kernel(dump, query=query)).status == 1, dim


def seen_of_the_set(dump):
    """The wrong kernels of the set that a probe does not catch, run on all of its rows."""
    key, value = (x[:, :: dump.query.shape[1] // dump.layout.num_kv_heads].astype(np.float64) for x in stored(dump))
    query, scale = dump.query.astype(np.float64), dump.layout.head_size**-0.5
    sinks = None if dump.sinks is None else dump.sinks.astype(np.float64)
    kernel_of = Kernel.of({}, "bfloat16", "bfloat16")
    work = Work(query, key, value, scale, 16, sinks, allowed(query, key, value, CAUSAL, scale, kernel_of, sinks))
    chosen = [wrong for wrong in SET if not wrong.sinks or sinks is not None]
    return [w.id for w in chosen if judged(dump, w.run(work)[0].transpose(1, 0, 2)).status == 0]


@pytest.mark.parametrize("sinks", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_wrong_kernel_of_the_set_is_caught(sinks):
    assert seen_of_the_set(probe(sinks=sinks)) == []


@pytest.mark.slow
@pytest.mark.parametrize("head_size", [64, 128])
def test_every_wrong_kernel_of_the_set_is_caught_at_real_head_sizes(head_size):
    assert seen_of_the_set(attention_probe("fp8_per_token_head", num_kv_heads=2, group=4, head_size=head_size)) == []


def online(dump, tile=16):
    """Attention in one pass over tiles: the maximum so far, and sums that are scaled when it rises."""
    k, v = stored(dump)
    q, scale = dump.query.astype(np.float32), np.float32(dump.layout.head_size**-0.5)
    top = np.full((q.shape[1], len(q), 1), -np.inf, np.float32)
    total, mixed = np.zeros_like(top), np.zeros((q.shape[1], len(q), v.shape[2]), np.float32)
    for start in range(0, len(k), tile):
        logits = np.einsum("qhd,khd->hqk", q, k[start : start + tile]).astype(np.float32) * scale
        seen = np.arange(len(k))[None, start : start + tile] <= np.arange(len(q))[:, None]
        logits = np.where(seen, logits, np.float32(-np.inf))
        new = np.maximum(top, logits.max(axis=2, keepdims=True))
        factor, weights = np.exp(top - new), np.exp(logits - new)
        total = total * factor + weights.sum(axis=2, keepdims=True)
        mixed = mixed * factor + np.einsum("hqk,khd->hqd", weights, v[start : start + tile])
        top = new
    return (mixed / total).transpose(1, 0, 2)


def test_an_online_softmax_passes_bit_for_bit():
    dump = probe()
    assert judged(dump, online(dump)).status == 0


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

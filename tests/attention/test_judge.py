"""The attention output of a dump: right kernels are within the bound that follows from their bytes, wrong ones not."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from kvformat import Dump, InputError, PagedCache, check, layout
from kvformat.attention.definition import attend
from kvformat.attention.wrong import CAUGHT, WRONG
from kvformat.dump.attention import ACCUMULATORS
from kvformat.modes import MODES

TOKENS, HEADS, GROUP, DIMS = 70, 2, 3, 64
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def dumped(mode="int8_per_token_head", dtype=np.float32, queries=5, seed=0, pair=None, value_size=1.0):
    """A dump of random K and V in shuffled slots, its query, and K and V as a reader of the pages has them."""
    rng = np.random.default_rng(seed)
    key, value = pair or (rng.normal(0, size, (TOKENS, HEADS, DIMS)) for size in (1.0, value_size))
    key, value = key.astype(dtype), value.astype(dtype)
    query = rng.normal(0, 1, (queries, HEADS * GROUP, DIMS)).astype(dtype)
    made = layout("vllm-0.33", mode=mode, block_size=16, num_kv_heads=HEADS, head_size=DIMS)
    slots = rng.permutation(6 * 16)[:TOKENS]
    cache = PagedCache(made, 6)
    cache.write(key, value, slots)
    stored = (each[slots] for each in cache.gather(np.arange(6), 6 * 16, np.float64))
    scales = {"k_scale": cache.k_scale, "v_scale": cache.v_scale}
    dump = Dump.from_arrays(key, value, cache.pages, slots, layout=made, recipe=f"golden/{mode}", **scales)
    return dump, query, *stored


def kernel(query, key, value, accumulate=np.float32, operands=np.float32, window=None, splits=1, scale=DIMS**-0.5):
    """Attention as a kernel computes it, a query row and a head at a time: rounded operands, a narrow accumulator."""
    out = np.empty((len(query), query.shape[1], value.shape[2]), np.float64)
    for row in range(len(query)):
        last = len(key) - len(query) + row + 1
        first = 0 if window is None else max(0, last - window)
        for head in range(query.shape[1]):
            k, v = (x[first:last, head // GROUP].astype(operands).astype(accumulate) for x in (key, value))
            products = k * query[row, head].astype(accumulate)
            scores = np.zeros(len(k), accumulate)
            for dim in range(products.shape[1]):
                scores = (scores + products[:, dim]).astype(accumulate)
            scores = (scores * accumulate(scale)).astype(accumulate)
            parts = []
            for part in np.array_split(np.arange(len(k)), splits):
                top = scores[part].max()
                p = np.exp((scores[part] - top).astype(accumulate)).astype(accumulate)
                rounded = p.astype(operands).astype(accumulate)
                total, mixed = accumulate(0), np.zeros(v.shape[1], accumulate)
                for j, key_index in enumerate(part):
                    total = accumulate(total + p[j])
                    mixed = (mixed + rounded[j] * v[key_index]).astype(accumulate)
                parts.append((top, total, mixed))
            top = max(part[0] for part in parts)
            factors = [accumulate(np.exp(part[0] - top)) for part in parts]
            total = sum(f * part[1] for f, part in zip(factors, parts, strict=True))
            out[row, head] = sum(f * part[2] for f, part in zip(factors, parts, strict=True)) / total
    return out


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("dtype", "operands"), [(np.float32, np.float32), (BFLOAT16, BFLOAT16), (np.float16, np.float16)]
)
def test_a_right_kernel_is_within_the_bound(mode, dtype, operands):
    dump, query, key, value = dumped(mode, dtype)
    out = kernel(query, key, value, operands=operands).astype(dtype)
    report = check(dump.attending(query, out))
    assert report.ok, str(report)
    assert 0 < report.attention.worst < 1
    assert report.attention.compared == out.size


@pytest.mark.parametrize("output", [np.float32, np.float16])
def test_float16_tiles_of_subnormal_values_are_within_the_bound(output):
    # V around 1e-7 is two steps of float16's subnormals: its rounding is up to a third of it
    dump, query, key, value = dumped("none", value_size=1e-7)
    query = query.astype(np.float16).astype(np.float32)
    out = kernel(query, key, value, operands=np.float16).astype(output)
    report = check(dump.attending(query, out, operands="float16"))
    assert report.ok, str(report)


@pytest.mark.parametrize(("key_size", "query_size"), [(2.0**-25, 2.0**15), (2.0**15, 2.0**-25)])
def test_float16_tiles_that_lose_a_key_or_the_query_are_within_the_bound(key_size, query_size):
    # 2^-25 ties to 0: logits of +-2^-7 vanish, and with them an output of that size
    signs = np.where(np.arange(TOKENS) % 2, 1, -1)[:, None, None] * np.ones((1, HEADS, DIMS))
    dump, query, key, value = dumped("none", pair=(signs * key_size, signs))
    query = np.full_like(query, query_size)
    out = kernel(query.astype(np.float16), key, value, operands=np.float16).astype(np.float32)
    report = check(dump.attending(query, out, operands="float16"))
    assert (report.attention.wrong, report.mismatches) == (0, 0), str(report)
    assert not check(dump.attending(query, out)).ok


def test_tiles_narrower_than_the_query_round_the_query_as_well():
    dump, query, key, value = dumped()
    out = kernel(query.astype(BFLOAT16).astype(np.float32), key, value, operands=BFLOAT16).astype(np.float32)
    assert not check(dump.attending(query, out)).ok
    assert check(dump.attending(query, out, operands="bfloat16")).ok


@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize("window", [None, 1, 20])
def test_split_kernels_and_sliding_windows_are_within_the_bound(splits, window):
    dump, query, key, value = dumped()
    out = kernel(query, key, value, window=window, splits=splits if window != 1 else 1).astype(np.float32)
    settings = {} if window is None else {"window": window}
    assert check(dump.attending(query, out, **settings)).ok


def test_a_float16_accumulator_is_too_far_off_for_float32_and_right_for_itself():
    dump, query, key, value = dumped()
    out = kernel(query, key, value, accumulate=np.float16).astype(np.float32)
    assert not check(dump.attending(query, out)).ok
    assert check(dump.attending(query, out, accumulate="float16")).ok


@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize(("key_size", "value_size"), [(1.0, 1e-7), (1e-4, 1.0), (2.0**-20, 1.0)])
def test_a_float16_accumulator_of_small_values_is_right_for_itself(key_size, value_size, splits):
    rng = np.random.default_rng(3)
    sides = [rng.normal(0, size, (TOKENS, HEADS, DIMS)) for size in (key_size, value_size)]
    dump, query, key, value = dumped("none", pair=sides)
    query = query.astype(np.float16).astype(np.float32)
    out = kernel(query, key, value, accumulate=np.float16, operands=np.float16, splits=splits).astype(np.float32)
    report = check(dump.attending(query, out, accumulate="float16", operands="float16"))
    assert (report.attention.wrong, report.mismatches) == (0, 0), str(report)


def test_a_float16_accumulator_that_loses_every_product_is_right_for_itself():
    # 64 products of 2^-25 tie to 0; with the largest scale of float16 their sum would have been an eighth either way
    signs = np.where(np.arange(TOKENS) % 2, 1, -1)[:, None, None] * np.ones((1, HEADS, DIMS))
    dump, query, key, value = dumped("none", pair=(signs * 2.0**-12, signs))
    query, how = np.full_like(query, 2.0**-13), {"accumulate": "float16", "operands": "float16"}
    out = kernel(query, key, value, accumulate=np.float16, operands=np.float16, scale=65504.0).astype(np.float32)
    report = check(dump.attending(query, out, softmax_scale=65504.0, **how))
    assert (report.attention.wrong, report.mismatches) == (0, 0), str(report)
    assert not check(dump.attending(query, out, softmax_scale=65504.0)).ok


FAULTS = {
    "another scale of the logits": lambda q, k, v: kernel(q * np.float32(1.001), k, v),
    "one key too few": lambda q, k, v: kernel(q, k[:-1], v[:-1]),
    "the V scale of one token forgotten": lambda q, k, v: kernel(
        q, k, np.where(np.arange(TOKENS)[:, None, None] == 3, v * 127, v)
    ),
    "the wrong kv head": lambda q, k, v: kernel(q, k[:, ::-1], v[:, ::-1]),
    "a NaN": lambda q, k, v: np.where(np.arange(DIMS) == 7, np.nan, kernel(q, k, v)),
}


def test_a_kernel_that_did_not_read_the_pages_is_found():
    dump, query, _, _ = dumped()
    out = kernel(query, dump.key.astype(np.float64), dump.value.astype(np.float64)).astype(np.float32)
    assert not check(dump.attending(query, out)).ok


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_kernel_is_found_although_its_pages_hold(fault):
    dump, query, key, value = dumped()
    out = FAULTS[fault](query, key, value).astype(np.float32)
    report = check(dump.attending(query, out))
    assert report.mismatches == 0
    assert (report.ok, report.status) == (False, 1)
    assert report.attention.wrong > 0
    assert str(report).startswith("BYTES HOLD, ATTENTION DOES NOT")
    assert "beyond the bound" in str(report)


def test_the_first_wrong_output_is_where_it_is():
    dump, query, key, value = dumped(queries=6)
    out = kernel(query, key, value).astype(np.float32)
    out[4, 3, 17] += 0.01
    first = check(dump.attending(query, out)).to_json()["attention"]["first"]
    assert (first["query"], first["head"], first["dim"]) == (4, 3, 17)
    assert first["found"] - first["right"] == pytest.approx(0.01, abs=1e-4)


def test_a_dump_with_attention_survives_its_file(tmp_path):
    dump, query, key, value = dumped(dtype=BFLOAT16)
    out = kernel(query, key, value, operands=BFLOAT16).astype(BFLOAT16)
    dump.attending(query, out, window=32, accumulate="float32").save(tmp_path / "a.safetensors")
    back = Dump.load(tmp_path / "a.safetensors")
    assert np.array_equal(back.output.view(np.uint16), out.view(np.uint16))
    assert dict(back.attention) == {"window": "32", "accumulate": "float32"}


@pytest.mark.parametrize("left_out", ["query", "output"])
def test_a_file_with_one_of_the_two_is_refused_in_one_line(tmp_path, left_out):
    from safetensors import safe_open
    from safetensors.numpy import load_file, save_file

    dump, query, key, value = dumped()
    path = tmp_path / "a.safetensors"
    dump.attending(query, kernel(query, key, value).astype(np.float32)).save(path)
    with safe_open(path, "np") as file:
        metadata = file.metadata()
    save_file({name: x for name, x in load_file(path).items() if name != left_out}, path, metadata=metadata)
    with pytest.raises(InputError, match=r"alone; attention is judged by query and output: save both or neither$"):
        Dump.load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"accumulate": "float23"}, "unknown accumulate 'float23'"),
        ({"operands": "int8"}, "unknown operands 'int8'"),
        ({"window": 0}, "window must be a positive integer"),
        ({"softmax_scale": "nan"}, "softmax_scale must be a positive number"),
        ({"color": 1}, "unknown attention setting 'color'"),
    ],
)
def test_settings_that_cannot_be_judged_by_are_one_line(change, message):
    dump, query, _, _ = dumped()
    with pytest.raises(InputError, match=message):
        dump.attending(query, np.zeros((len(query), query.shape[1], DIMS), np.float32), **change)


@pytest.mark.parametrize("shape", [(5, 6, 32), (5, 5, 64), (4, 6, 64), (0, 6, 64)])
def test_an_output_of_another_shape_is_one_line(shape):
    dump, query, _, _ = dumped()
    with pytest.raises(InputError):
        dump.attending(query, np.zeros(shape, np.float32))


def test_more_queries_than_tokens_cannot_be_judged():
    dump, _, _, _ = dumped()
    query = np.zeros((TOKENS + 1, HEADS * GROUP, DIMS), np.float32)
    with pytest.raises(InputError, match="only 70 have a slot"):
        check(dump.attending(query, query))


def test_every_accumulator_is_narrower_than_float64():
    assert all(2.0**-53 < rounding.unit < 1 for rounding in ACCUMULATORS.values())


@pytest.mark.parametrize(
    ("size", "softmax_scale", "message"),
    [
        (np.nan, 0.125, "query 0, head 0, dim 0 is nan; attention needs finite numbers"),
        (np.inf, 0.125, "query 0, head 0, dim 0 is -?inf; attention needs finite numbers"),
        (1e38, 0.125, "logits may reach .*, beyond float32"),
        (1.0, 1e308, "logits may reach .*, beyond float32"),
    ],
)
def test_a_query_without_right_logits_cannot_be_judged(size, softmax_scale, message):
    dump, query, key, value = dumped()
    output = kernel(query, key, value).astype(np.float32)
    attending = dump.attending((query * np.float32(size)), output, softmax_scale=softmax_scale)
    with pytest.raises(InputError, match=message):
        check(attending)


def right(query, key, value, dtype, **how):
    """The right output, float64 attention rounded once: what no bound may accuse."""
    found = attend(query.astype(np.float64), key, value, **how)
    return found.output.transpose(1, 0, 2).astype(np.float32).astype(dtype), found.lse.T.astype(np.float32)


@pytest.mark.parametrize("dtype", [np.float32, np.float16, BFLOAT16])
@pytest.mark.parametrize("mode", MODES)
def test_zeros_never_hold(mode, dtype):
    dump, query, _, _ = dumped(mode, dtype)
    zeros = np.zeros((*query.shape[:2], DIMS), dtype)
    for accumulate in ("float32", "float16"):
        report = check(dump.attending(query, zeros, accumulate=accumulate))
        zero = report.to_json()["attention"]["would_be"]["zeros"]
        # either they are beyond the bound, or the report says that it cannot tell: nothing holds
        assert (report.status, zero) in {(1, "caught"), (2, "may pass")}
        assert report.status == 1 or accumulate == "float16"


def test_where_zeros_would_pass_the_answer_is_cannot_tell():
    # a bfloat16 accumulator of 148 roundings leaves nothing of an output near 0
    dump, query, key, value = dumped()
    out, _ = right(query, key, value, np.float32)
    report = check(dump.attending(query, out, accumulate="bfloat16"))
    assert (report.ok, report.status, report.attention.wrong) == (False, 2, 0)
    assert str(report).startswith("CANNOT TELL, but the bytes hold")
    assert report.to_json()["attention"]["would_be"]["zeros"] == "may pass"
    dump.pages[dump.slot_mapping[0] // 16, dump.slot_mapping[0] % 16 * dump.layout.page_bytes // 16] ^= 1
    assert check(dump.attending(query, out, accumulate="bfloat16")).status == 1


@pytest.mark.parametrize("wrong", [wrong for wrong in WRONG if not wrong.sinks], ids=lambda wrong: wrong.id)
def test_a_wrong_kernel_of_the_set_is_caught_where_the_report_says_so(wrong):
    from kvformat.attention.definition import CAUSAL
    from kvformat.attention.rounding import Kernel, allowed
    from kvformat.attention.wrong import Work

    said = {}
    for dtype in (np.float32, BFLOAT16):
        dump, query, key, value = dumped("fp8_per_token_head", dtype)
        out, _ = right(query, key, value, dtype)
        said[dtype] = check(dump.attending(query, out)).to_json()["attention"]["would_be"][wrong.id]
        name = np.dtype(dtype).name
        q, kernel = query.astype(np.float64), Kernel.of({}, name, name)
        work = Work(q, key, value, DIMS**-0.5, 16, None, allowed(q, key, value, CAUSAL, DIMS**-0.5, kernel))
        made = wrong.run(work)[0].transpose(1, 0, 2).astype(np.float32).astype(dtype)
        caught = check(dump.attending(query, made)).status == 1
        assert caught or said[dtype] != CAUGHT, dtype
    assert said[np.float32] == CAUGHT  # so that what is said is put to the test


def test_float32_kernels_are_told_from_all_wrong_ones():
    dump, query, key, value = dumped()
    sinks = np.linspace(-1, 2, HEADS * GROUP).astype(np.float32)
    out, lse = right(query, key, value, np.float32, sinks=sinks)
    said = check(dump.attending(query, out, lse=lse, sinks=sinks)).to_json()["attention"]["would_be"]
    assert set(said) == {wrong.id for wrong in WRONG}
    assert set(said.values()) == {CAUGHT}, said


def test_a_sink_logit_takes_its_share():
    # 8 keys and a sink of 2.0: without `sinks` in the dump the right output is beyond the bound
    dump, query, key, value = dumped(queries=1)
    sinks = np.full(HEADS * GROUP, 2.0, np.float32)
    out, lse = right(query, key, value, np.float32, sinks=sinks)
    assert check(dump.attending(query, out, sinks=sinks, lse=lse)).ok
    assert check(dump.attending(query, out)).status == 1


@pytest.mark.parametrize("base", ["e", "2"])
def test_a_log_sum_exp_is_judged(base):
    dump, query, key, value = dumped()
    out, lse = right(query, key, value, np.float32)
    scaled = lse if base == "e" else lse / np.float32(np.log(2))
    assert check(dump.attending(query, out, lse=scaled, lse_base=base)).ok
    scaled = scaled.copy()
    scaled[2, 4] += 1e-3
    report = check(dump.attending(query, out, lse=scaled, lse_base=base))
    assert (report.status, report.attention.lse_wrong, report.attention.wrong) == (1, 1, 0)
    assert (report.attention.lse_first["query"], report.attention.lse_first["head"]) == (2, 4)


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("scale", [1.0, 0.01])
def test_an_output_in_fp8_is_judged(name, scale, tmp_path):
    dump, query, key, value = dumped("fp8_per_token_head", BFLOAT16)
    out, _ = right(query, key, value, np.float32)
    codes = (out / np.float32(scale)).astype(getattr(ml_dtypes, name))
    made = dump.attending(query, codes, output_scale=scale)
    assert check(made).status in (0, 2)
    assert check(made).attention.wrong == 0
    made.save(tmp_path / "a.safetensors")
    back = Dump.load(tmp_path / "a.safetensors")
    assert back.output.dtype == codes.dtype
    assert check(back).to_json() == check(made).to_json()
    assert check(dump.attending(query, -codes, output_scale=scale)).status == 1


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "bfloat16"])
def test_narrow_probabilities_are_right_for_themselves(name):
    dump, query, key, value = dumped()
    p_format = getattr(ml_dtypes, name)
    logits = attend(query.astype(np.float64), key, value).logits
    weights = np.exp(logits - logits.max(axis=2, keepdims=True))
    stored = weights.astype(np.float32).astype(p_format).astype(np.float64)
    v = np.repeat(value, GROUP, axis=1).transpose(1, 0, 2)
    out = (stored @ v / weights.sum(axis=2, keepdims=True)).transpose(1, 0, 2).astype(np.float32)
    assert check(dump.attending(query, out, probabilities=name)).attention.wrong == 0
    assert check(dump.attending(query, out)).status == 1


@pytest.mark.parametrize("accumulate", ["float16", "fp8_tensor_core_sm90"])
def test_any_number_of_keys_is_judged(accumulate):
    # 2 n u of float16 passes 1/3 at 338 keys: the bound grows, and says so itself
    rng = np.random.default_rng(1)
    made = layout("vllm-0.33", mode="none", block_size=16, num_kv_heads=1, head_size=8)
    x = rng.normal(size=(1504, 1, 8)).astype(BFLOAT16)
    cache = PagedCache(made, 94)
    cache.write(x, x, np.arange(1504))
    dump = Dump.from_arrays(x, x, cache.pages, np.arange(1504), layout=made, recipe="golden/none")
    query = rng.normal(size=(1, 1, 8)).astype(np.float16)
    out, _ = right(query, x.astype(np.float64), x.astype(np.float64), np.float16)
    report = check(dump.attending(query, out, accumulate=accumulate))
    assert report.attention.wrong == 0
    assert report.status in (0, 2)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("planted", "others", "output", "status"),
    [
        (np.inf, 1.0, np.inf, 0),
        (-np.inf, 1.0, -np.inf, 0),
        (np.nan, 1.0, np.nan, 0),
        (np.inf, -np.inf, np.nan, 0),
        (np.inf, 1.0, -np.inf, 1),
        (np.inf, 1.0, 1.0, 1),
        (np.nan, 1.0, 1.0, 1),
    ],
)
def test_a_v_that_is_not_finite_is_judged_as_ieee_has_it(planted, others, output, status):
    dump, query, key, value = dumped("none")
    v = dump.value.copy()
    v[3, :, 7] = planted
    v[4, :, 7] = others
    dump, query, key, value = dumped("none", pair=(dump.key, v))
    finite = np.where(np.isfinite(value), value, 0)
    out, _ = right(query, key, finite, np.float32)
    out[:, :, 7] = output
    assert check(dump.attending(query, out)).status == status


@pytest.mark.filterwarnings("error")
def test_a_k_that_is_not_finite_makes_the_rows_that_see_it_nan():
    dump, query, key, value = dumped("none", queries=1)
    k = dump.key.copy()
    k[3, 0, 5] = np.nan
    dump, query, key, value = dumped("none", queries=1, pair=(k, dump.value))
    out, _ = right(query, np.nan_to_num(key), value, np.float32)
    assert check(dump.attending(query, out)).status == 1
    out[:, :GROUP] = np.nan
    assert check(dump.attending(query, out)).status == 0


def test_an_output_of_half_a_float16_subnormal_is_within_the_bound():
    value = np.full((TOKENS, HEADS, DIMS), 1.4 * 2.0**-24)
    dump, query, _, _ = dumped("none", pair=(np.zeros_like(value), value))
    out = np.full((len(query), HEADS * GROUP, DIMS), 2.0**-24, np.float16)
    report = check(dump.attending(query, out))
    assert report.attention.wrong == 0, str(report)


def test_only_a_dump_that_needs_it_has_the_newer_version(tmp_path):
    from safetensors import safe_open

    dump, query, key, value = dumped()
    out, lse = right(query, key, value, np.float32)
    for made, version in ((dump.attending(query, out), "1"), (dump.attending(query, out, lse=lse), "2")):
        made.save(tmp_path / "a.safetensors")
        with safe_open(tmp_path / "a.safetensors", "np") as file:
            assert file.metadata()["kvformat_dump"] == version
        assert check(Dump.load(tmp_path / "a.safetensors")).ok

"""What is said of one call: an answer of another form, bytes elsewhere, a changed input, an exception, a hang."""

from __future__ import annotations

import re

import ml_dtypes
import numpy as np
import pytest

import kvformat as kvf
from kvformat.fuzz import fuzz
from tests.fuzz import kernels
from tests.fuzz.kernels import INT8


def said(candidate, mode=INT8, **options):
    report = fuzz(candidate, mode=mode, seed=0, **{"examples": 200, **options})
    assert not report.ok
    assert report.status == 1
    return report.finding.fault, report.finding.message


def reshaped(x):
    codes, scales = kernels.right_int8(x)
    return codes.reshape(x.shape[0], -1), scales


def wide_codes(x):
    codes, scales = kernels.right_int8(x)
    return codes.astype(np.int32), scales


def wide_scales(x):
    codes, scales = kernels.right_int8(x)
    return codes, scales.astype(np.float64)


def returns_nothing(x):
    kernels.right_int8(x)


@pytest.mark.parametrize(
    "candidate, fault, message",
    [
        (reshaped, "wrong answer", "returns codes of shape"),
        (wide_codes, "wrong answer", "returns codes of int32; those of int8 are int8, one per byte"),
        (wide_scales, "wrong answer", "returns scales of float64; they are float32"),
        (returns_nothing, "wrong answer", r"returns nothing; a quantizer returns \(codes, scales\[, global_scale\]\)"),
        (kernels.raises, "no answer", "raises RuntimeError: a NaN in the input"),
        (kernels.changes_its_input, "changes its input", "changes its input x"),
    ],
    ids=["shape", "code dtype", "scale dtype", "nothing", "raises", "changes its input"],
)
def test_what_is_no_answer_is_called_that(candidate, fault, message):
    found, text = said(candidate)
    assert found == fault
    assert re.match(message, text), text
    assert "\n" not in text


def test_a_hang_ends_at_the_limit():
    fault, message = said(kernels.hangs, limit=0.5)
    assert (fault, message) == ("no answer", "has not returned after 0.5 s")


def test_a_write_outside_the_pages_is_seen():
    assert said(kernels.writes_before_its_pages) == ("writes elsewhere", "writes before its pages")


def clears_padding(key, value, pages, slot_mapping, *, head_size, num_kv_heads, block_size, **meta):
    row = 2 * (head_size + 4)
    known = {"head_size": head_size, "num_kv_heads": num_kv_heads, "block_size": block_size, **meta}
    kernels.right_writer(key, value, pages, slot_mapping, **{name: known[name] for name in kernels._NAMES})
    pages[:, block_size * num_kv_heads * row :] = 0


def test_a_byte_of_no_token_is_named():
    fault, message = said(clears_padding)
    assert fault == "writes elsewhere"
    assert "padding, where no token goes" in message
    assert "became 0x00" in message


def test_nan_codes_compare_as_a_class():
    def negative_nan(x):
        codes, scales = kernels.Rows("fp8_per_tensor")(x)
        return np.where(codes == 0x7F, np.uint8(0xFF), codes), scales

    assert fuzz(negative_nan, mode="fp8_per_tensor", seed=0, examples=150).ok


def test_codes_may_be_packed_or_in_an_eight_bit_float():
    def packed(x):
        codes, scales, g = kernels.right_nvfp4(x)
        return kvf.pack_nibbles(codes), scales.view(ml_dtypes.float8_e4m3fn), g

    assert fuzz(packed, mode="nvfp4", seed=0, examples=60).ok


def test_scales_may_have_a_last_axis_of_one():
    def kept(x):
        codes, scales = kernels.right_int8(x)
        return codes, scales[..., None]

    assert fuzz(kept, mode=INT8, seed=0, examples=60).ok


def test_a_reader_is_judged_in_the_dtype_that_it_returns():
    def narrow(pages, block_table, seq_len, **meta):
        sides = kernels.right_reader(pages, block_table, seq_len, **{name: meta[name] for name in kernels._NAMES})
        with np.errstate(over="ignore"):
            return tuple(side.astype(ml_dtypes.bfloat16) for side in sides)

    assert fuzz(narrow, mode=INT8, seed=0, examples=40).ok


def test_a_wrong_scale_of_the_tensor_is_reported_though_no_dump_shows_it():
    def another(x):
        codes, scales, g = kernels.right_nvfp4(x)
        return codes, scales, np.float32(2) * g

    report = fuzz(another, mode="nvfp4", seed=0, examples=50)
    assert report.finding.message.startswith("global scale of the tensor: expected")
    assert report.check() is None
    assert "global scale of the tensor" in str(report)


def test_an_approximate_recipe_allows_what_its_bounds_do():
    # x * (1 / s) in IEEE arithmetic is within the bounds of Triton's div.full
    def triton_like(x):
        wide = x.astype(np.float32)
        size = np.where(np.isnan(wide), np.float32(0), np.abs(wide)).max(axis=2)
        scale = np.maximum(size * (np.float32(1) / np.float32(448)), np.float32(1e-6))
        q = wide * (np.float32(1) / scale)[..., None]
        q = np.fmin(np.fmax(q, np.float32(-448)), np.float32(448))
        return q.astype(ml_dtypes.float8_e4m3fn), scale

    recipe = "vllm-0.33/triton-sm89/fp8_per_token_head"  # a NaN becomes the lower bound
    assert fuzz(triton_like, mode="fp8_per_token_head", recipe=recipe, seed=0, examples=120).ok
    assert not fuzz(
        kernels.Rows("fp8_per_token_head"), mode="fp8_per_token_head", recipe=recipe, seed=0, examples=60
    ).ok

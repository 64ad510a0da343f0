"""Candidates: recognised by their signature, refused in one line, called with what they name."""

from __future__ import annotations

import numpy as np
import pytest

import kvformat as kvf
from kvformat.fuzz import fuzz
from kvformat.fuzz.candidate import load, recognise
from tests.fuzz import kernels
from tests.fuzz.kernels import INT8
from tests.paged import refused


def quantizer(values, out=None):
    return values, out


def scaled(x, scale):
    return x, scale


def writer(key, value, pages, slot_mapping, **meta):
    del key, value, pages, slot_mapping, meta


def reader(pages, block_table, seq_len, *, order):
    return pages, block_table, seq_len, order


@pytest.mark.parametrize("function", [quantizer, scaled, writer, reader])
def test_the_signature_says_the_kind(function):
    expected = "quantizer" if function is scaled else function.__name__
    assert recognise(function).kind == expected


def test_a_candidate_gets_what_it_names():
    assert recognise(reader).takes("order")
    assert not recognise(reader).takes("v_scales")
    assert recognise(writer).takes("anything")
    assert not recognise(quantizer).takes("scale")
    assert recognise(scaled).takes("scale")


@pytest.mark.parametrize("function", [kernels.takes_two, lambda: 0, lambda a, b, c, d, e: (a, b, c, d, e)])
def test_another_signature_is_refused_with_the_expected_ones(function):
    message = refused(fuzz, function, mode=INT8)
    assert "a quantizer (x)" in message
    assert "a writer (key, value, pages, slot_mapping, **meta)" in message
    assert "a reader (pages, block_table, seq_len, **meta)" in message


def test_bad_input_is_one_line():
    assert "no function" in refused(recognise, 3)
    assert "kind of candidate" in refused(recognise, quantizer, kind="writter")
    assert "a writer is" in refused(recognise, quantizer, kind="writer")
    assert "unknown mode" in refused(fuzz, quantizer, mode="int9")
    assert "is for mode" in refused(fuzz, quantizer, mode=INT8, recipe="golden/nvfp4")
    assert "nothing to quantize" in refused(fuzz, quantizer, mode="none")
    assert "unknown layout" in refused(fuzz, writer, mode=INT8, layout="vllm")
    assert "has no mode" in refused(fuzz, writer, mode=INT8, layout="flashinfer", order="NHD")
    assert "budget" in refused(fuzz, quantizer, mode=INT8, budget=-1)
    assert "examples" in refused(fuzz, quantizer, mode=INT8, examples=0)
    assert "unknown dtype" in refused(fuzz, quantizer, mode=INT8, dtypes=["float8"])
    assert "multiple" in refused(fuzz, quantizer, mode="nvfp4", head_dims=[24])


@pytest.mark.parametrize(
    "target, message",
    [
        ("tests.fuzz.kernels", "MODULE:FUNCTION"),
        ("tests.fuzz.nothing:f", "there is no module 'tests.fuzz.nothing'"),
        ("tests.fuzz.kernels:truncatd", "did you mean truncated"),
        ("nowhere.py:f", "there is no file nowhere.py"),
        ("tests.fuzz.kernels:number", "is no function"),
    ],
)
def test_a_target_that_cannot_be_imported_is_refused(target, message):
    assert message in refused(fuzz, target, mode=INT8)


def test_a_target_whose_import_fails_is_refused(tmp_path):
    path = tmp_path / "broken_kernel.py"
    path.write_text("import a_module_that_is_not_there\n")
    assert "cannot be imported: ModuleNotFoundError" in refused(load, f"{path}:f")


def test_a_file_is_a_target(tmp_path):
    path = tmp_path / "my_kernel.py"
    path.write_text("class Outer:\n    @staticmethod\n    def f(x):\n        return x\n")
    assert load(f"{path}:Outer.f")(3) == 3


def test_torch_tensors_go_in_and_come_out():
    torch = pytest.importorskip("torch", reason="torch is not in the test extra; CI installs it first")
    seen = set()

    def kernel(x):
        assert isinstance(x, torch.Tensor)
        seen.add(x.dtype)
        wide = x.float()
        scale = torch.where(wide.isfinite(), wide.abs(), 0).amax(dim=2) / 127
        scale = torch.where(scale == 0, 1, scale)
        scale = torch.where(wide.isnan().any(dim=2), torch.nan, scale)
        q = (wide / scale[..., None]).round().clamp(-127, 127).nan_to_num(nan=0.0)
        return q.to(torch.int8), scale

    assert fuzz(kernel, mode=INT8, seed=0, examples=40, torch=True, isolated=False).ok
    assert fuzz(kernel, mode=INT8, seed=0, examples=10, torch=True).ok
    assert seen == {torch.float32, torch.float16, torch.bfloat16}


def test_a_device_that_is_not_there_is_refused():
    torch = pytest.importorskip("torch", reason="torch is not in the test extra; CI installs it first")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU, so no device is missing")
    assert "torch has no device 'cuda' here" in refused(fuzz, quantizer, mode=INT8, torch="cuda")


def test_given_scales_reach_a_quantizer_that_takes_one():
    given = []

    def kernel(x, scale=None):
        given.append(scale)
        return kernels.Rows("fp8_per_tensor").quantize(x.astype(np.float32), scale)

    assert fuzz(kernel, mode="fp8_per_tensor", seed=0, examples=60, isolated=False).ok
    assert any(scale is None for scale in given)
    assert len({float(scale) for scale in given if scale is not None}) > 10


def test_kvf_fuzz_is_the_search_and_the_room():
    assert kvf.fuzz(kernels.right_int8, mode=INT8, seed=0, examples=5).ok
    assert kvf.fuzz.strategies.scales is not None

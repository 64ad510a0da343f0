"""CUDA through NVIDIA's wheels: what is compiled runs, what is wrong is one line."""

from __future__ import annotations

import os

import numpy as np
import pytest

import kvformat as kvf
from kvformat import ptx
from kvformat.errors import InputError
from kvformat.ptx import toolchain

SOURCE = """
#include <cuda_fp8.h>
#ifndef OFFSET
#define OFFSET 0.0f
#endif
extern "C" __global__ void quant(const float* x, unsigned char* y, float s, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = __nv_cvt_float_to_fp8(__fdiv_rn(x[i], s) + OFFSET, __NV_SATFINITE, __NV_E4M3);
}
template <typename T> __global__ void axpy(const T* x, const T* y, T* z, T a) {
  z[threadIdx.x] = __fmul_rn(x[threadIdx.x], a) + y[threadIdx.x];
}
template __global__ void axpy<float>(const float*, const float*, float*, float);
"""


def _available():
    try:
        toolchain.nvcc()
    except InputError as error:
        return str(error)
    return ""


needs_nvcc = pytest.mark.skipif(bool(_available()) and not os.environ.get("KVFORMAT_CUDA"), reason=_available())


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    path = tmp_path_factory.mktemp("cuda") / "kernel.cu"
    path.write_text(SOURCE)
    return ptx.compile_cuda(path, arch="sm_90", options=["-std=c++17"])


@needs_nvcc
def test_a_compiled_kernel_writes_the_golden_codes(module):
    x = np.random.default_rng(0).standard_normal(300).astype(np.float32) * 100
    codes = np.zeros(300, np.uint8)
    run = module["quant"].launch(3, 128, [x, codes, 0.7, 300])
    np.testing.assert_array_equal(codes, kvf.encode(x / np.float32(0.7), "e4m3fn"))
    assert run.approximate == ()


@needs_nvcc
def test_a_template_is_found_by_a_part_of_its_name(module):
    x = np.full(32, 1 + 2.0**-12, np.float32)
    z = np.zeros(32, np.float32)
    module["axpy"].launch(1, 32, [x, -x * x, z, float(x[0])])
    assert (z == 0).all()  # the product is rounded on its own


@needs_nvcc
def test_the_first_error_of_the_compiler_is_one_line(tmp_path):
    path = tmp_path / "wrong.cu"
    path.write_text("int x = ;\nint y = ;\n")
    with pytest.raises(InputError) as caught:
        ptx.compile_cuda(path)
    assert str(caught.value).endswith("wrong.cu(1): error: expected an expression")


def test_a_missing_wheel_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(toolchain, "_roots", lambda: [tmp_path])
    path = tmp_path / "kernel.cu"
    path.write_text("")
    with pytest.raises(InputError, match="needs nvidia-cuda-nvcc: pip install"):
        ptx.compile_cuda(path)
    for file in ("bin/nvcc", "nvvm/bin/cicc"):
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).touch()
    with pytest.raises(InputError, match="needs nvidia-cuda-crt: pip install"):
        ptx.compile_cuda(path)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"arch": "90"}, "arch is sm_90, sm_100a or the like; got '90'"),
        ({"define": {"A B": 1}}, "define takes names of macros; got 'A B'"),
    ],
)
def test_bad_arguments_are_one_line(tmp_path, changed, says, monkeypatch):
    monkeypatch.setattr(toolchain, "nvcc", lambda: tmp_path / "nvcc")
    path = tmp_path / "kernel.cu"
    path.write_text("")
    with pytest.raises(InputError, match=says):
        ptx.compile_cuda(path, **changed)


def test_a_file_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        ptx.compile_cuda(tmp_path / "none.cu")

"""kvformat ptx: what stands in a compiled kernel, what is approximate or contractible, what is refused."""

from __future__ import annotations

import json

import pytest

from kvformat.cli import main

HEAD = """.version 8.7
.target sm_90
.address_size 64
"""
SUMS = (
    HEAD
    + """.visible .entry sums(.param .u64 out, .param .align 8 .b8 table[24], .param .f32 factor)
{
.reg .b64 %rd<3>; .reg .f32 %f<6>;
ld.param.u64 %rd1, [out];
cvta.to.global.u64 %rd2, %rd1;
ld.param.f32 %f1, [factor];
rcp.approx.ftz.f32 %f2, %f1;
mul.f32 %f3, %f1, %f2;
add.f32 %f4, %f3, %f1;
mul.rn.f32 %f5, %f4, %f4;
st.global.f32 [%rd2], %f5;
ret;
}
"""
)
WAITS = """.visible .entry waits(.param .u64 out)
{
.reg .b64 %rd<3>;
ld.param.u64 %rd1, [out];
mbarrier.init.shared.b64 [%rd1], 1;
ret;
}
"""


@pytest.fixture
def file(tmp_path):
    def write(text, name="kernel.ptx"):
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


def run(capsys, *arguments):
    status = main(["ptx", *arguments])
    return status, *capsys.readouterr()


def test_a_kernel_is_described(capsys, file):
    status, out, err = run(capsys, file(SUMS))
    assert (status, err) == (0, "")
    assert "PTX 8.7 for sm_90, 1 kernel" in out
    assert "sums (.u64, .b8[24], .f32)" in out
    assert "instructions   9, 9 different" in out


def test_the_document_names_each_place_by_its_line(capsys, file):
    status, out, err = run(capsys, file(SUMS), "--json")
    document = json.loads(out)
    (kernel,) = document["kernels"]
    assert (status, err, document["status"], kernel["instructions"]) == (0, "", 0, 9)
    assert [(each["name"], each["size"], each["offset"]) for each in kernel["parameters"]] == [
        ("out", 8, 0), ("table", 24, 8), ("factor", 4, 32)
    ]  # fmt: skip
    assert len(kernel["approximate"]) == 1
    assert {"rcp.approx.ftz.f32", "10"} <= set(kernel["approximate"][0].replace(":", " ").split())
    # the product without .rn goes into a sum; the one with it does not
    assert len(kernel["contractible"]) == 1
    assert kernel["counts"]["mul.rn.f32"] == 1
    assert kernel["refused"] == []


def test_what_is_not_modelled_is_status_2_and_named(capsys, file):
    path = file(SUMS + WAITS)
    status, out, _ = run(capsys, path, "--json")
    refused = {kernel["name"]: kernel["refused"] for kernel in json.loads(out)["kernels"]}
    assert status == 2
    assert refused["sums"] == []
    assert "mbarrier.init.shared.b64" in refused["waits"][0]
    assert run(capsys, path, "--entry", "sums")[0] == 0
    assert run(capsys, path, "--entry", "waits")[0] == 2


@pytest.mark.parametrize(
    ("arguments", "text", "said"),
    [
        (["--entry", "other"], SUMS, "other"),
        (["--arch", "sm_90"], SUMS, "for .cu files"),
        ([], HEAD, "no kernel"),
        ([], SUMS[:-3], "cut off"),
        ([], "not a kernel", "line 1"),
    ],
    ids=["no such entry", "compiled already", "no entry", "truncated", "no PTX"],
)
def test_what_cannot_be_read_is_one_line_and_status_2(capsys, file, arguments, text, said):
    status, out, err = run(capsys, file(text), *arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert said in err


def test_a_file_that_is_not_there_is_one_line(capsys, tmp_path):
    status, out, err = run(capsys, str(tmp_path / "none.ptx"))
    assert (status, out, err.count("\n")) == (2, "", 1)

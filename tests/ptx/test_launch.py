"""A launch: arguments, blocks, results in place, and faults that name instruction, line and thread."""

from __future__ import annotations

import numpy as np
import pytest

from kvformat import InputError, ptx

HEADER = ".version 8.0\n.target sm_90\n.address_size 64\n"

SCALE = (
    HEADER
    + """
.visible .entry scale(.param .u64 a, .param .u64 b, .param .f32 s, .param .u32 n)
{
    .reg .pred %p<2>;
    .reg .b32 %r<6>;
    .reg .f32 %f<4>;
    .reg .b64 %rd<7>;
    ld.param.u64 %rd1, [a];
    ld.param.u64 %rd2, [b];
    ld.param.f32 %f1, [s];
    ld.param.u32 %r1, [n];
    cvta.to.global.u64 %rd3, %rd1;
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.s32 %p1, %r5, %r1;
    @%p1 bra DONE;
    mul.wide.s32 %rd4, %r5, 4;
    add.s64 %rd5, %rd3, %rd4;
    ld.global.f32 %f2, [%rd5];
    mul.rn.f32 %f3, %f2, %f1;
    add.s64 %rd6, %rd2, %rd4;
    st.global.f32 [%rd6], %f3;
DONE:
    ret;
}
"""
)


@pytest.fixture(scope="module")
def scale():
    return ptx.load(SCALE)["scale"]


def test_every_thread_writes_its_element_in_place(scale):
    a, b = np.arange(1000, dtype=np.float32), np.full(1024, -1, np.float32)
    run = scale.launch(8, 128, [a, b, 0.1, 1000])
    assert np.array_equal(b[:1000], a * np.float32(0.1))
    assert (b[1000:] == -1).all()
    # the branch is executed by the 24 threads that take it
    assert run.instructions == 1024 * 10 + 24 + 1000 * 6 + 1024
    assert run.undefined == run.approximate == run.contractible == ()


def test_a_view_reaches_all_of_its_owner(scale):
    a, b = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    scale.launch(1, 32, [a[32:], b[16:48], 2.0, 32])
    assert np.array_equal(b[16:48], 2 * a[32:])


def test_an_access_out_of_bounds_names_instruction_line_and_thread(scale):
    memory = bytearray(8192)
    for of_a, of_b in ((0, 4096), (4096, 0)):  # buffers are counted as the arguments are, wherever the host has them
        a, b = np.frombuffer(memory, np.float32, 1000, of_a), np.frombuffer(memory, np.float32, 500, of_b)
        with pytest.raises(ptx.KernelFault) as caught:
            scale.launch((8, 1, 1), (128, 1, 1), [a, b, 0.5, 1000])
        fault = caught.value
        assert (fault.kind, fault.block, fault.thread) == ("out of bounds", (3, 0, 0), (116, 0, 0))
        assert "offset 2000 of buffer 1 (2000 bytes)" in str(fault)
        assert fault.statement == "st.global.f32 [%rd6], %f3"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([np.zeros(4, np.float32)], "takes 4 arguments; got 1"),
        ([np.zeros(4, np.float32), 1.5, 0.5, 4], "argument 1 .* is an integer"),
        ([np.zeros(4, np.float32), np.zeros(4, np.float32), 0.5, 2**32], "argument 3 .* does not hold 4294967296"),
        ([np.zeros(4, np.float32), np.zeros(4, np.float32), np.zeros(1), 4], "argument 2 .* is no pointer"),
        ([np.zeros(4, np.float32), np.zeros(4, np.float32), 1e39, 4], "argument 2 .* does not hold 1e"),
    ],
)
def test_wrong_arguments_are_one_line(scale, args, says):
    with pytest.raises(InputError, match=says):
        scale.launch(1, 4, args)


def test_a_read_only_array_is_not_written(scale):
    a, b = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    b.flags.writeable = False
    with pytest.raises(ptx.KernelFault, match="read-only memory written"):
        scale.launch(1, 4, [a, b, 2.0, 4])


def test_what_is_not_in_the_table_is_refused_with_its_line():
    text = HEADER + ".visible .entry k()\n{\n.reg .b32 %r<3>;\nactivemask.b32 %r1;\nadd.sat.u32 %r1, %r1, 1;\nret;\n}\n"
    kernel = ptx.load(text)["k"]
    assert [(each.opcode, each.place.line) for each in kernel.refused] == [("activemask.b32", 7), ("add.sat.u32", 8)]
    with pytest.raises(ptx.Refused, match=r"line 7: activemask.b32: the instruction activemask is not modelled"):
        kernel.launch(1, 32, [])


def test_text_that_is_cut_off_is_said():
    with pytest.raises(InputError, match="is cut off"):
        ptx.load(SCALE[: SCALE.index("DONE:")])


def test_a_name_that_several_kernels_have_is_ambiguous():
    entries = "".join(f".visible .entry {name}()\n{{\nret;\n}}\n" for name in ("copy_a", "copy_b"))
    with pytest.raises(InputError, match="2 kernels have 'copy'"):
        _ = ptx.load(HEADER + entries)["copy"]

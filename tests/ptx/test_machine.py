"""Threads, blocks, warps and memory: convergence, what is undefined, and what no GPU would finish in a defined way."""

from __future__ import annotations

import numpy as np
import pytest

from kvformat import InputError, ptx

HEADER = ".version 8.6\n.target sm_100a\n.address_size 64\n"
REGISTERS = ".reg .pred %p<9>; .reg .b16 %rs<9>; .reg .b32 %r<30>; .reg .f32 %f<9>; .reg .b64 %rd<9>;\n"


def kernel(body, parameters=".param .u64 out", module=""):
    """An entry that has out's address in %rd1, the thread in %r1 and the address of its own word in %rd2."""
    start = "ld.param.u64 %rd1, [out];\nmov.u32 %r1, %tid.x;\nmul.wide.u32 %rd2, %r1, 4;\nadd.s64 %rd2, %rd2, %rd1;\n"
    text = f"{HEADER}{module}.visible .entry k({parameters})\n{{\n{REGISTERS}{start}{body}\nret;\n}}\n"
    return ptx.load(text)["k"]


def words(body, threads=32, **options):
    """What each thread stored."""
    out = np.full(threads, 0xAAAA_AAAA, np.uint32)
    run = kernel(body, **{key: options.pop(key) for key in ("module",) if key in options}).launch(
        1, threads, [out], **options
    )
    return out, run


def fault(body, threads=32, **options):
    with pytest.raises(ptx.KernelFault) as caught:
        words(body, threads, **options)
    return caught.value


def test_threads_that_part_meet_again_at_the_lowest_counter():
    body = """and.b32 %r2, %r1, 1; setp.eq.u32 %p1, %r2, 0; mov.u32 %r3, 0;
@%p1 bra EVEN;
add.u32 %r3, %r3, 5; bra.uni JOIN;
EVEN: add.u32 %r3, %r3, 7;
JOIN: add.u32 %r3, %r3, %r1; st.global.u32 [%rd2], %r3;"""
    out, run = words(body)
    assert np.array_equal(out, np.arange(32) + np.where(np.arange(32) % 2, 5, 7))
    # 8 before the branch and the branch, 2 and 1 apart, then 2 and ret together
    assert run.steps == 8 + 2 + 1 + 3


def test_a_loop_runs_as_often_as_each_thread_wants():
    body = """mov.u32 %r3, 0; mov.u32 %r4, 0;
LOOP: setp.ge.u32 %p1, %r4, %r1; @%p1 bra END; add.u32 %r3, %r3, %r4; add.u32 %r4, %r4, 1; bra LOOP;
END: st.global.u32 [%rd2], %r3;"""
    assert np.array_equal(words(body)[0], [n * (n - 1) // 2 for n in range(32)])


def test_shuffles_wait_for_late_lanes():
    # odd lanes take a longer way to the one shuffle that all 32 take part in
    body = """and.b32 %r2, %r1, 1; setp.eq.u32 %p1, %r2, 0; mov.u32 %r3, %r1;
@%p1 bra JOIN;
add.u32 %r3, %r3, 100; bra BACK;
JOIN: shfl.sync.bfly.b32 %r5|%p2, %r3, 1, 31, -1; st.global.u32 [%rd2], %r5; bra END;
BACK: bra JOIN;
END:"""
    lanes = np.arange(32)
    partner = lanes ^ 1
    assert np.array_equal(words(body)[0], partner + np.where(partner % 2, 100, 0))


def test_exited_lanes_are_not_waited_for():
    body = """setp.ge.u32 %p1, %r1, 16; @%p1 ret;
shfl.sync.bfly.b32 %r5, %r1, 8, 31, -1; st.global.u32 [%rd2], %r5;"""
    out, _ = words(body)
    assert np.array_equal(out[:16], np.arange(16) ^ 8)
    assert (out[16:] == 0xAAAA_AAAA).all()


def test_the_value_of_a_lane_that_has_exited_is_undefined():
    body = """setp.ge.u32 %p1, %r1, 16; @%p1 ret;
shfl.sync.bfly.b32 %r5, %r1, 16, 31, -1; st.global.u32 [%rd2], %r5;"""
    assert fault(body).kind == "undefined value in memory"


@pytest.mark.parametrize(
    ("mode", "operand", "clamp", "source"),
    [
        ("up", 3, 0, lambda n: n - 3 if n >= 3 else n),
        ("down", 3, 31, lambda n: n + 3 if n + 3 < 32 else n),
        ("idx", 5, 31, lambda n: 5 + 0 * n),
        ("bfly", 16, 31, lambda n: n ^ 16),
        ("down", 1, 0x1807, lambda n: n + 1 if (n & 7) < 7 else n),  # segments of 8: mask 24 << 8, clamp 7
        ("idx", 9, 0x181F, lambda n: (n & 24) | 1),
    ],
)
def test_shuffles_read_the_lane_that_the_isa_names(mode, operand, clamp, source):
    body = f"shfl.sync.{mode}.b32 %r5|%p2, %r1, {operand}, {clamp}, -1; st.global.u32 [%rd2], %r5;"
    assert words(body)[0].tolist() == [source(n) for n in range(32)]


def test_a_shuffle_that_lanes_never_reach_is_a_fault():
    body = """setp.ge.u32 %p1, %r1, 16; @%p1 bra OTHER;
shfl.sync.bfly.b32 %r5, %r1, 8, 31, -1; bra END;
OTHER: bar.sync 0;
END: bar.sync 0;"""
    assert fault(body).kind in ("warp", "barrier")


def test_a_barrier_that_half_of_the_block_waits_for_is_a_fault():
    body = """setp.ge.u32 %p1, %r1, 32; @%p1 bra LOOP; bar.sync 0; ret;
LOOP: bar.sync 1;"""
    found = fault(body, threads=64)
    assert (found.kind, found.statement) == ("barrier", "bar.sync 0")


SHARED = ".shared .align 16 .b8 buffer[512];\n"


def test_a_barrier_lets_a_block_read_what_others_wrote():
    body = f"""{SHARED}shl.b32 %r2, %r1, 2; mov.u32 %r3, buffer; add.u32 %r4, %r3, %r2; mul.lo.u32 %r5, %r1, 3;
st.shared.u32 [%r4], %r5; bar.sync 0; xor.b32 %r6, %r2, 252; add.u32 %r6, %r6, %r3;
ld.shared.u32 %r7, [%r6]; st.global.u32 [%rd2], %r7;"""
    assert np.array_equal(words(body, 64)[0], 3 * (np.arange(64) ^ 63))


def test_two_threads_that_write_different_bytes_to_one_place_race():
    found = fault("st.global.u32 [%rd1], %r1;")
    assert (found.kind, found.thread) == ("race", (1, 0, 0))
    out, _ = words("mov.u32 %r2, 9; st.global.u32 [%rd1], %r2;")  # the same bytes are no race
    assert out[0] == 9


def test_a_barrier_orders_two_writes_to_one_place():
    body = """setp.eq.u32 %p1, %r1, 0; @%p1 st.global.u32 [%rd1], 1; bar.sync 0;
setp.eq.u32 %p2, %r1, 40; @%p2 st.global.u32 [%rd1], 2;"""
    assert words(body, 64)[0][0] == 2
    assert fault(body.replace("bar.sync 0;", ""), 64).kind == "race"


def test_blocks_are_not_ordered():
    out = np.zeros(1, np.uint32)
    with pytest.raises(ptx.KernelFault, match="race"):
        kernel("mov.u32 %r2, %ctaid.x; st.global.u32 [%rd1], %r2;").launch(2, 1, [out])


def test_an_undefined_register_is_found_where_it_reaches_memory_or_an_address():
    assert fault("add.u32 %r9, %r8, 1; st.global.u32 [%rd2], %r9;").kind == "undefined value in memory"
    assert fault("ld.global.u32 %r9, [%rd8];").kind == "undefined address"
    assert fault("@%p8 bra END; END:").kind == "undefined predicate"


def test_undefined_bits_that_are_cut_off_do_no_harm_and_are_reported():
    body = """cvt.rn.satfinite.e4m3x2.f32 %rs1, %f7, 0f3F800000; and.b16 %rs2, %rs1, 255;
cvt.u32.u16 %r2, %rs2; st.global.u32 [%rd2], %r2;"""
    for seed in range(3):
        out, run = words(body, seed=seed)
        assert (out == 0x38).all()
    assert [spot.opcode for spot in run.undefined] == ["cvt.rn.satfinite.e4m3x2.f32", "and.b16"]


def test_a_choice_by_an_undefined_predicate_is_undefined():
    body = "setp.gt.u32 %p1, %r8, 0; selp.u32 %r4, 7, 7, %p1; st.global.u32 [%rd2], %r4;"
    assert fault(body).kind == "undefined value in memory"


def test_uninitialised_shared_memory_is_undefined():
    assert fault(f"{SHARED}ld.shared.u32 %r2, [buffer]; st.global.u32 [%rd2], %r2;").kind == "undefined value in memory"


def test_local_memory_belongs_to_each_thread():
    body = """.local .align 8 .b8 depot[16];
mov.u64 %rd3, depot; cvta.local.u64 %rd4, %rd3; st.u32 [%rd4+4], %r1;
ld.local.u32 %r2, [%rd3+4]; st.global.u32 [%rd2], %r2;"""
    assert np.array_equal(words(body)[0], np.arange(32))


def test_a_misaligned_vector_is_a_fault():
    found = fault("add.s64 %rd3, %rd1, 4; ld.global.v2.u32 {%r2, %r3}, [%rd3];")
    assert (found.kind, found.thread) == ("misaligned", (0, 0, 0))


def test_trap_and_a_failed_assertion_stop_the_launch():
    assert fault("setp.eq.u32 %p1, %r1, 5; @%p1 trap;").thread == (5, 0, 0)
    module = ".extern .func __assertfail (.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);\n"
    body = "{ .param .b64 a; st.param.b64 [a], %rd1; call.uni __assertfail, (a, a, a, a, a); }"
    assert fault(body, module=module).kind == "assertion"


def test_division_by_zero_stops_the_launch():
    assert fault("div.s32 %r2, 1, %r1;").kind == "division by zero"


def test_a_step_limit_ends_an_endless_loop():
    assert fault("LOOP: bra LOOP;", step_limit=1000).kind == "step limit"


def test_a_memory_limit_is_kept():
    with pytest.raises(InputError, match="memory_limit"):
        words("", memory_limit=1000)


def test_red_max_is_independent_of_the_order_and_exch_is_not():
    out = np.zeros(32, np.uint32)
    run = kernel("red.global.gpu.relaxed.max.u32 [%rd1], %r1;").launch(4, 32, [out])
    assert out[0] == 31
    assert run.order_dependent == ()
    run = kernel("atom.global.exch.b32 %r2, [%rd1], %r1;").launch(1, 32, [out])
    assert [spot.opcode for spot in run.order_dependent] == ["atom.global.exch.b32"]
    run = kernel("red.global.add.u32 [%rd1], 1; red.global.max.u32 [%rd1], 5;").launch(1, 32, [out])
    assert [spot.opcode for spot in run.order_dependent] == ["red.global.max.u32"]


@pytest.mark.parametrize(
    ("opcode", "values", "result"),
    [
        ("redux.sync.add.u32", np.arange(32, dtype=np.uint32), 496),
        ("redux.sync.max.s32", np.arange(32, dtype=np.int32).view(np.uint32) - np.uint32(40), 2**32 - 9),
        ("redux.sync.max.abs.f32", np.array([-3.0] + [1.0] * 31, np.float32).view(np.uint32), 0x4040_0000),
        ("redux.sync.max.f32", np.array([np.nan] + [1.0] * 31, np.float32).view(np.uint32), 0x3F80_0000),
        ("redux.sync.max.NaN.f32", np.array([np.nan] + [1.0] * 31, np.float32).view(np.uint32), 0x7FFF_FFFF),
    ],
)
def test_a_reduction_gives_every_lane_the_result(opcode, values, result):
    out = values.copy()
    kernel(f"ld.global.b32 %r2, [%rd2]; {opcode} %r3, %r2, -1; st.global.b32 [%rd2], %r3;").launch(1, 32, [out])
    assert (out == result).all()


def test_votes_count_the_lanes_that_are_there():
    body = """setp.lt.u32 %p1, %r1, 3; vote.sync.ballot.b32 %r2, %p1, -1; vote.sync.any.pred %p2, %p1, -1;
vote.sync.all.pred %p3, %p1, -1; selp.u32 %r3, 16, 0, %p2; selp.u32 %r4, 32, 0, %p3; add.u32 %r2, %r2, %r3;
add.u32 %r2, %r2, %r4; st.global.u32 [%rd2], %r2;"""
    assert (words(body)[0] == 0b111 + 16).all()


def test_stmatrix_and_ldmatrix_place_the_fragments_of_the_isa():
    body = f"""{SHARED}mov.u32 %r2, buffer; shl.b32 %r3, %r1, 4; and.b32 %r3, %r3, 127; add.u32 %r3, %r3, %r2;
stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r3], {{%r1}}; bar.warp.sync -1;
ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {{%r5}}, [%r3]; st.global.u32 [%rd2], %r5;"""
    # lane n stored (n, 0) at row n / 4, columns 2 (n % 4) and 2 (n % 4) + 1; transposed it reads column n / 4
    out, _ = words(body)
    stored = np.zeros((8, 8), np.uint32)
    stored[np.arange(32) // 4, 2 * (np.arange(32) % 4)] = np.arange(32)
    lanes = np.arange(32)
    low, high = (stored[2 * (lanes % 4) + k, lanes // 4] for k in (0, 1))
    assert np.array_equal(out, low | high << 16)


def test_extended_arithmetic_carries():
    body = """mov.u32 %r2, 0xFFFFFFFF; add.cc.u32 %r3, %r2, 1; addc.u32 %r4, 0, 0;
sub.cc.u32 %r5, 0, 1; subc.u32 %r6, 5, 0;
shl.b32 %r4, %r4, 8; add.u32 %r4, %r4, %r6; st.global.u32 [%rd2], %r4;"""
    assert (words(body)[0] == 0x104).all()


def test_module_variables_keep_their_values_between_launches():
    module = ".visible .global .align 4 .u32 counter = 7;\n.const .align 4 .b8 table[4] = {1, 2, 3, 4};\n"
    k = kernel(
        "ld.global.u32 %r2, [counter]; ld.const.u8 %r3, [table+2]; add.u32 %r2, %r2, %r3; st.global.u32 [counter], %r2;"
        "st.global.u32 [%rd2], %r2;",
        module=module,
    )
    out = np.zeros(1, np.uint32)
    for wanted in (10, 13):
        k.launch(1, 1, [out])
        assert out[0] == wanted
    assert int(k.module.memory["counter"].view(np.uint32)[0]) == 13


def test_a_struct_holds_numbers_and_addresses():
    parameters = ".param .u64 out, .param .align 8 .b8 s[16]"
    body = """ld.param.u64 %rd3, [s+8]; ld.param.u32 %r2, [s]; ld.global.u32 %r3, [%rd3+4];
add.u32 %r2, %r2, %r3; st.global.u32 [%rd2], %r2;"""
    out, other = np.zeros(1, np.uint32), np.array([1, 20], np.uint32)
    kernel(body, parameters).launch(1, 1, [out, ptx.Struct(16, {0: np.uint32(5), 8: other})])
    assert out[0] == 25


def test_contraction_rounds_once_where_ptxas_may():
    body = """mul.f32 %f3, %f1, %f1; add.f32 %f4, %f3, %f2; mov.b32 %r2, %f4; st.global.b32 [%rd2], %r2;"""
    k = kernel(f"mov.f32 %f1, 0f3F800001; mov.f32 %f2, 0fBF800002;\n{body}")
    assert [spot.opcode for spot in k.contractible] == ["add.f32"]
    for contract, result in ((False, 0), (True, 0x2880_0000)):
        out = np.zeros(1, np.uint32)
        run = k.launch(1, 1, [out], contract=contract)
        assert (out[0], len(run.contractible), run.contracted) == (result, 1, contract)
    assert kernel(body.replace("mul.f32", "mul.rn.f32")).contractible == ()


def test_scopes_of_inline_assembly_have_registers_and_labels_of_their_own():
    body = """mov.u32 %r2, 1;
{ .reg .b32 t; mov.u32 t, 5; add.u32 %r2, %r2, t; }
{ .reg .b32 t; mov.u32 t, 7; add.u32 %r2, %r2, t; bra.uni OUT; add.u32 %r2, %r2, 100; OUT: }
st.global.u32 [%rd2], %r2;"""
    assert (words(body)[0] == 13).all()

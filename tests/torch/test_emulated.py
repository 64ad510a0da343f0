"""The golden kernels as compiled, on the CPU: their bytes are those of the golden codecs, on every target.

pytest tests/torch/test_emulated.py --kvformat-emulate=sm_80,sm_89,sm_90,sm_100,sm_120
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import HealthCheck, given, settings
from triton.compiler.errors import CompilationError

import kvformat as kvf
import kvformat.torch as kvt
from kvformat import arrays
from kvformat.fuzz import strategies
from kvformat.ptx import toolchain
from kvformat.torch import launch
from tests.paged import BLOCKS, HEADS, ONE_PER_MODE, SLOTS
from tests.recipes import adversarial
from tests.torch.test_pages import assert_same_bytes, assert_same_values, given_scale, written
from tools.device import table

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "spec" / "emulate"))
import faults  # noqa: E402

each_mode = pytest.mark.parametrize("config", ONE_PER_MODE, ids=lambda config: config.mode)
# the default of FP fusion is what some of these kernels are about
pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION")
TOKENS = 3  # a number of rows is a constant of the kernel where it is 1 or a multiple of 16


def bits(x):
    return x.view(torch.int32).tolist()


# --- the golden kernels ---------------------------------------------------------------------------------------------


@each_mode
def test_ties_tiny_and_huge_rows_and_nan_are_written_and_read_as_the_golden_codecs_do(config, kvformat_emulation):
    x = adversarial.anything()[..., : config.head_size].copy()
    cache, pages = written(config, torch.from_numpy(x), torch.from_numpy(x).flip(0), np.array([7, -1, 2]))
    assert_same_bytes(config, cache, pages)
    assert_same_values(cache, pages)
    assert kvformat_emulation.launches
    for each in kvformat_emulation.launches:
        assert not each.fp_fusion
        assert not each.run.undefined


@pytest.mark.parametrize("dtype", strategies.DTYPES[1:], ids=strategies.DTYPE_IDS[1:])
@pytest.mark.parametrize("mode", ["int8_per_token_head", "nvfp4"])
def test_keys_of_16_bits_are_quantized_as_the_golden_codecs_do(mode, dtype):
    x, how = adversarial.anything(dtype), kvf.recipe(mode)
    codes, scales, _ = launch.quantize(arrays.tensor(x), how, given_scale_of(how))
    wanted = kvf.quantize(x, how, scale=0.0625 if how.outer else None)
    np.testing.assert_array_equal(codes.numpy(), wanted.codes.view(np.uint8))
    np.testing.assert_array_equal(scales.numpy(), wanted.scales)


def given_scale_of(how):
    return torch.tensor([0.0625]) if how.outer else None


@each_mode
def test_rounding_outliers_and_sinks_are_searched(config):
    rows = strategies.kv_tensors(
        config.mode, tokens=TOKENS, heads=HEADS, head_dim=config.head_size, dtype=strategies.FLOAT32
    )

    @settings(max_examples=12, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(rows, rows, strategies.slot_mappings(TOKENS, SLOTS))
    def search(key, value, slots):
        scale = given_scale(config, None, 0.25)
        cache, pages = written(config, *map(arrays.tensor, (key, value)), slots, scale=scale)
        assert_same_bytes(config, cache, pages)

    search()


# --- conversions by the GPU's instruction ---------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["fp8_per_token_head", "nvfp4"])
def test_the_conversion_by_the_instruction_gives_the_same_bytes_or_does_not_compile(mode, kvformat_emulation):
    config = next(each for each in ONE_PER_MODE if each.mode == mode)
    made, how = kvf.layout(config.name, **config.arguments), kvf.recipe(mode)
    x = torch.from_numpy(adversarial.finite()[..., : config.head_size].copy())
    slots, errors = torch.tensor([7, -1, 2]), torch.zeros(1, dtype=torch.int64)
    pages = [torch.zeros(BLOCKS, made.page_bytes, dtype=torch.uint8) for _ in range(2)]

    def write(into, *, hardware):
        launch.write(made, x, "k", into, slots, how, given_scale_of(how), errors, hardware=hardware)

    first = 89 if mode == "fp8_per_token_head" else 100
    write(pages[0], hardware=True)
    if kvformat_emulation.capability < first:  # the instruction is inline assembly: the assembler refuses it
        target = kvformat_emulation.target
        assert "not supported" in assembler_says(kvformat_emulation.launches[-1].ptx, target)
        return
    write(pages[1], hardware=False)
    assert torch.equal(*pages)
    assert pages[0].any()


def assembler_says(text, target):
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.ptx"
        file.write_text(text)
        done = toolchain.run(
            [toolchain.assemblers()[0].path, f"-arch={target}", file, "-o", Path(folder) / "kernel.cubin"]
        )
        assert done.returncode
        return done.stderr


# --- the table that a GPU is asked -----------------------------------------------------------------------------------

#: one instruction of each form that the result's register takes
FORMS = ["mul.rz.f32", "rcp.rn.f32", "fma.rn.ftz.f32", "setp.ltu.f32", "cvt.rn.bf16.f32", "prmt.b32",
         "cvt.rn.satfinite.e5m2x2.f32", "cvt.rn.satfinite.e2m1x2.f32"]  # fmt: skip


@pytest.mark.parametrize("opcode", FORMS)
def test_an_instruction_of_the_table_is_asked_as_a_gpu_would_be(opcode, kvformat_emulation):
    entry = next(each for each in table.ENTRIES if each.opcode == opcode)
    given = table.operands(entry.sources, table.TILE)
    found = table.on_device(entry, given, "cpu")
    assert table.judged(entry, found, given) == 0
    assert entry.opcode in kvformat_emulation.launches[-1].ptx
    found[5] ^= 1
    assert table.judged(entry, found, given) == 1


# --- faults that the interpreter cannot see -------------------------------------------------------------------------

#: patterns that each kernel of spec/emulate/faults.py stores, and what the interpreter stores
FAULTS = {
    # 2^-46, and -2^-22 rounded as 1 - c is
    "fused": ("28800000 B4800000", "00000000 B4800000"),
    "flushed": ("00000000 3A800000", "00080000 3A800000"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_that_the_interpreter_cannot_see_is_seen(name):
    kernel = getattr(faults, name)
    compiled, interpreted = FAULTS[name]
    assert faults.run(kernel, faults.KERNELS[kernel]) == compiled != interpreted


def test_a_clamp_turns_nan_into_a_number_whose_sign_depends_on_the_target(kvformat_emulation):
    words = faults.run(faults.clamped, faults.KERNELS[faults.clamped])
    assert words == ("C3E00000 43E00000" if kvformat_emulation.capability < 90 else "43E00000 43E00000")


def test_a_plain_quotient_is_found_approximate(kvformat_emulation):
    faults.run(faults.quotient, faults.KERNELS[faults.quotient])
    assert {spot.opcode for spot in kvformat_emulation.launches[-1].run.approximate} == {"div.full.f32"}


# --- Triton's own ways of launching ---------------------------------------------------------------------------------


@triton.autotune(configs=[triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 256})], key=["n"])
@triton.heuristics({"EVEN": lambda args: args["n"] % 2 == 0})
@triton.jit
def doubled(x, y, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) * (2.0 if EVEN else 3.0), mask=i < n)


def test_autotuning_and_heuristics_work():
    x, y = torch.arange(501.0), torch.zeros(501)
    doubled[lambda meta: (triton.cdiv(501, meta["BLOCK"]),)](x, y, 501)
    assert torch.equal(y, 3 * x)


@triton.jit
def narrowed(x, y, scale, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, (tl.load(x + i, mask=i < n) / scale).to(y.dtype.element_ty), mask=i < n)


def test_fp8_tensors_are_written_by_the_instruction_or_do_not_compile(kvformat_emulation):
    x = torch.from_numpy(adversarial.finite().reshape(-1)[:256].copy())
    y = torch.zeros(256, dtype=torch.float8_e4m3fn)
    if kvformat_emulation.capability < 89:
        with pytest.raises(CompilationError, match="fp8e4nv"):
            narrowed[(1,)](x, y, 1.0, 256, BLOCK=256)
        return
    narrowed[(1,)](x, y, 1.0, 256, BLOCK=256)
    np.testing.assert_array_equal(y.view(torch.uint8).numpy(), kvf.encode(x.numpy(), "e4m3fn"))


@triton.jit
def taken(pair, factors: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(pair[1] + i, tl.load(pair[0] + i) * factors[1][0])


def test_tuples_of_tensors_and_nested_constants_are_taken():
    x, y = torch.arange(32.0), torch.zeros(32)
    taken[(1,)]((x, y), (1.0, (5.0, 2.0)), BLOCK=32)
    assert torch.equal(y, 5 * x)


def test_fusion_is_recorded_with_the_launch(kvformat_emulation):
    for fused in (True, False):
        x, y = torch.tensor([1.0 + 2.0**-23, 1.0]), torch.zeros(2)
        faults.fused[(1,)](x, y, 2, N=32, num_warps=1, enable_fp_fusion=fused)
        assert kvformat_emulation.launches[-1].fp_fusion is fused
        assert (bits(y)[0] == 0x28800000) is fused


def test_pages_of_an_emulated_kernel_are_judged():
    config = next(each for each in ONE_PER_MODE if each.mode == "int8_per_token_head")
    made = kvf.layout(config.name, **config.arguments)
    key = torch.from_numpy(adversarial.finite()[..., : config.head_size].copy())
    pages, errors = torch.zeros(BLOCKS, made.page_bytes, dtype=torch.uint8), torch.zeros(1, dtype=torch.int64)
    slots = torch.tensor([7, 0, 2])
    for side in "kv":
        launch.write(made, key, side, pages, slots, kvf.recipe(config.mode), None, errors)
    kvt.assert_pages(key, key, pages, slots, layout=made, recipe="int8_per_token_head")
    pages[0, 0] += 1
    with pytest.raises(AssertionError):
        kvt.assert_pages(key, key, pages, slots, layout=made, recipe="int8_per_token_head")


def test_an_access_out_of_bounds_names_the_thread():
    with pytest.raises(kvf.InputError, match=r"out of bounds: .*thread"):
        narrowed[(1,)](torch.zeros(100), torch.zeros(100), 1.0, 128, BLOCK=128)


@pytest.mark.parametrize("target", ["gfx942", "sm_35", "90"])
def test_other_targets_are_refused_in_one_line(target):
    with pytest.raises(kvf.InputError, match="emulate runs sm_80"), kvt.emulate(target):
        pass

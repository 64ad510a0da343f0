"""Kernels compiled ahead of time for GPUs that are not there keep their instruction contracts; wrong kernels do not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.torch import contracts
from tests.torch.cases import MODES, cases

NVIDIA = ("sm_80", "sm_89", "sm_90", "sm_100", "sm_120")
AMD = ("gfx942", "gfx950")
TARGETS = (*NVIDIA, *AMD)
ROOT = Path(__file__).parents[2]

GOLDEN = [f"write {mode} k@{target}" for mode in MODES for target in TARGETS]
GOLDEN += [f"gather {mode} v@{target}" for mode in MODES for target in ("sm_90", "gfx942")]
GOLDEN += [f"{case}@{target}" for case in ("scale nvfp4", "reduce nvfp4", "merge") for target in ("sm_80", "gfx950")]
GOLDEN += ["write fp8_per_token_head v@sm_80", "write nvfp4 flashinfer NHD@sm_90", "write nvfp4 80@sm_90"]
GOLDEN += [f"vllm-0.33/triton-nofusion/int8_per_token_head@{target}" for target in ("sm_90", "gfx942")]
ATTENTION = [f"attend {mode}@{target}" for mode in ("int8_per_token_head", "nvfp4") for target in ("sm_90", "gfx942")]
HARDWARE = [f"hardware fp8_per_token_head@{target}" for target in ("sm_89", "sm_90", "sm_100", "sm_120")]
HARDWARE += [f"hardware nvfp4@{target}" for target in ("sm_100", "sm_120")]
WRONG = {
    "wrong reciprocal nvfp4@sm_90": "8 divisions; the recipe has 32",
    "wrong reciprocal int8_per_token_head@gfx950": "the recipe has 32",
    "wrong quotient int8_per_token_head@sm_80": "div.full.f32: a division that is not correctly rounded",
    "wrong quotient nvfp4@sm_100": "div.full.f32: a division that is not correctly rounded",
    "wrong fusion@sm_90": "fma.rn.f32: one rounding where the recipe has two",
    "wrong fusion@gfx942": "v_pk_fma_f32: one rounding where the recipe has two",
}


def _all_others():
    """Every other case, for one target of each maker."""
    # exact/ divides in float64; vllm-0.33/triton/int8 has a fused multiply-add of its own
    names = [name for name in cases() if not name.startswith(("wrong", "hardware", "exact", "vllm-0.33/triton/int8"))]
    named = {*GOLDEN, *ATTENTION}
    return [made for name in names for target in ("sm_90", "gfx950") if (made := f"{name}@{target}") not in named]


OTHERS = _all_others()


def compiled(folder, wanted):
    out = folder / "compiled.json"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.torch.compile_cases", str(out), *wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(out.read_text())


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("compiled"), [*GOLDEN, *ATTENTION, *HARDWARE, *WRONG])


@pytest.fixture(scope="module")
def others(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("others"), OTHERS)


def judge(kernel, name):
    if name.startswith(("attend", "merge")):  # exponentials are approximate; attention.py bounds them
        return contracts.spills(kernel)
    stores = [] if name.startswith(("scale", "reduce")) or _swizzled(name) else contracts.store_widths(kernel)
    return contracts.rounding(kernel) + contracts.spills(kernel) + stores


def _swizzled(name):
    return name.startswith("write nvfp4 v")  # their bytes lie apart


@pytest.mark.parametrize("name", [*GOLDEN, *ATTENTION])
def test_a_kernel_keeps_its_contracts(made, name):
    assert judge(made[name], name) == []


@pytest.mark.parametrize("name", [name for name in (*GOLDEN, *ATTENTION, *HARDWARE) if name.endswith("sm_90")])
def test_what_is_compiled_ahead_of_time_is_what_a_launch_compiles(made, name):
    assert made[name]["as_launched"]


@pytest.mark.parametrize("name", [name for name in GOLDEN if name.startswith("write")])
def test_keys_and_values_are_loaded_16_bytes_at_a_time(made, name):
    assert 16 in contracts.load_widths(made[name])


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", OTHERS)
def test_every_other_kernel_keeps_its_contracts(others, name):
    assert judge(others[name], name) == []


@pytest.mark.parametrize("name", HARDWARE)
def test_the_hardware_path_converts_by_the_instruction_and_puts_the_even_element_low(made, name):
    assert contracts.operand_order(made[name]) == []
    assert contracts.rounding(made[name]) == []
    assert contracts.spills(made[name]) == []
    conversion = "e4m3x2" if "fp8" in name else "e2m1x2"
    found = contracts.ptx_instructions(made[name]["assembly"])
    assert found.count(f"cvt.rn.satfinite.{conversion}.f32") == contracts.PER_THREAD // 2


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_breaks_its_contract(made, name):
    assert any(WRONG[name] in violation for violation in contracts.rounding(made[name]))


def test_an_integer_kernel_has_no_conversion_by_the_gpu(made):
    kernel = {**made["hardware fp8_per_token_head@sm_90"], "case": "write"}
    assert any("a conversion by the GPU" in violation for violation in contracts.rounding(kernel))


def test_swapped_operands_break_the_contract(made):
    kernel = dict(made["hardware nvfp4@sm_100"])
    swapped = r"(cvt\.rn\.satfinite\.e2m1x2\.f32 b0), (%\w+), (%\w+);"
    kernel["assembly"] = contracts.re.sub(swapped, r"\1, \3, \2;", kernel["assembly"])
    assert contracts.operand_order(kernel)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("div.approx.f32 %r1, %r2, %r3;", "not correctly rounded"),
        ("rcp.approx.ftz.f32 %r1, %r2;", "a reciprocal"),
        ("@%p1 mul.ftz.f32 %r1, %r2, %r3;", "flushes"),
        ("fma.rn.f32 %r1, %r2, %r3, %r4;", "one rounding"),
        ("add.f32 %r1, %r2, %r3;", "lacks .rn"),
        ("sub.f32 %r1, %r2, %r3;", "lacks .rn"),
    ],
)
def test_one_wrong_instruction_in_ptx_breaks_the_contract(made, line, why):
    kernel = dict(made["write nvfp4 k@sm_90"])
    kernel["assembly"] = kernel["assembly"].replace("\tdiv.rn.f32", f"\t{line}\n\tdiv.rn.f32", 1)
    assert any(why in violation for violation in contracts.rounding(kernel))


@pytest.mark.parametrize("line", ["v_rcp_f32_e32 v1, v2", "v_fmac_f32_e32 v1, v2, v3", "v_pk_fma_f32 v1, v2, v3, v4"])
def test_one_wrong_instruction_in_amdgcn_breaks_the_contract(made, line):
    kernel = dict(made["write nvfp4 k@gfx942"])
    kernel["assembly"] = kernel["assembly"].replace("\tv_div_fixup_f32", f"\t{line}\n\tv_div_fixup_f32", 1)
    assert contracts.rounding(kernel)


def test_narrow_stores_spills_and_flushed_denormals_break_the_contract(made):
    kernel = dict(made["write nvfp4 k@sm_90"])
    narrow = {**kernel, "assembly": kernel["assembly"].replace("st.global.v4.b32", "st.global.b32")}
    assert contracts.store_widths(narrow)
    assert contracts.spills({**kernel, "local_bytes": 8})
    amd = dict(made["write nvfp4 k@gfx942"])
    flushed = amd["assembly"].replace("amdhsa_float_denorm_mode_32 3", "amdhsa_float_denorm_mode_32 0")
    assert contracts.rounding({**amd, "assembly": flushed})

"""Launches of every kind of kernel, to be compiled ahead of time for GPUs that are not there."""

# ruff: noqa: ARG001 every word takes HOW

from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl

import kvformat as kvf
from kvformat.torch import attention, launch

MODES = ("none", "fp8_per_tensor", "fp8_per_token_head", "int8_per_token_head", "nvfp4")
HEADS, BLOCK_SIZE, TOKENS = 8, 16, 64


def layout_of(mode, dims=128, order="HND", name="vllm-0.33", v_scales=None):
    return kvf.layout(
        name, mode=mode, order=order, block_size=BLOCK_SIZE, num_kv_heads=HEADS, head_size=dims, v_scales=v_scales
    )


def _scale(recipe):
    return torch.ones(1) if recipe.outer else None


def write(layout, side="k", recipe=None, dtype=torch.bfloat16, **how):
    made = kvf.recipe(recipe or layout.mode)
    x = torch.empty(TOKENS, HEADS, layout.head_size, dtype=dtype)
    pages = torch.empty(4, layout.page_bytes, dtype=torch.uint8)
    slots, errors = torch.zeros(TOKENS, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    with launch.recorded() as launches:
        launch.write(layout, x, side, pages, slots, made, _scale(made), errors, **how)
    return launches[0]


def gather(layout, side="k", dtype=torch.bfloat16):
    made = kvf.recipe(layout.mode)
    pages = torch.empty(4, layout.page_bytes, dtype=torch.uint8)
    blocks, errors = torch.zeros(4, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    with launch.recorded() as launches:
        launch.gather(layout, pages, side, blocks, TOKENS, made, _scale(made), errors, dtype)
    return launches[0]


def attend(layout, index=0, group=4):
    made = kvf.recipe(layout.mode)
    pages = torch.empty(4, layout.page_bytes, dtype=torch.uint8)
    query = torch.empty(2, HEADS * group, layout.head_size, dtype=torch.bfloat16)
    tables, lengths = torch.zeros(2, 64, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    scales = (_scale(made), _scale(made))
    with launch.recorded() as launches:
        attention.attend(layout, query, pages, tables, lengths, made, scales, torch.zeros(1, dtype=torch.int64), 0.1, 8)
    return launches[index]


def tensor_scale(mode, index):
    with launch.recorded() as launches:
        launch.tensor_scale(torch.empty(TOKENS, HEADS, 128, dtype=torch.bfloat16), kvf.recipe(mode))
    return launches[index]


# --- kernels that are wrong on purpose: the contracts must say so --------------------------------------------------


@triton.jit
def _reciprocal_product(a, b, HOW: tl.constexpr):
    return a * tl.div_rn(tl.full((1, 1, 1), 1.0, tl.float32), b)


@triton.jit
def _plain_quotient(a, b, HOW: tl.constexpr):
    return a / b


def with_division(launched, division):
    """The same launch with another function for the recipe's divisions of elements."""
    how = launched.constants["HOW"]
    quotient = how.trials[0].quotient
    steps = tuple(replace(step, run=division) if step.run.fn.__name__ == "_div" else step for step in quotient.steps)
    assert steps != quotient.steps
    trials = (replace(how.trials[0], quotient=replace(quotient, steps=steps)),)
    return launched._replace(constants={**launched.constants, "HOW": replace(how, trials=trials)})


def cases():
    """Every launch by name."""
    made = {}
    for mode in MODES:
        for side in "kv":
            made[f"write {mode} {side}"] = lambda mode=mode, side=side: write(layout_of(mode), side)
            made[f"gather {mode} {side}"] = lambda mode=mode, side=side: gather(layout_of(mode), side)
        made[f"write {mode} flashinfer NHD"] = lambda mode=mode: write(layout_of(mode, order="NHD", name="flashinfer"))
        made[f"attend {mode}"] = lambda mode=mode: attend(layout_of(mode))
        linear = "linear" if mode == "nvfp4" else None  # swizzled V scales need a multiple of 64
        for dims in (64, 80, 256):
            made[f"write {mode} {dims}"] = lambda mode=mode, dims=dims, linear=linear: write(
                layout_of(mode, dims, v_scales=linear)
            )
        made[f"write {mode} float32"] = lambda mode=mode: write(layout_of(mode), dtype=torch.float32)
        made[f"write {mode} float16"] = lambda mode=mode: write(layout_of(mode), dtype=torch.float16)
        made[f"attend {mode} 256"] = lambda mode=mode: attend(layout_of(mode, 256))
    for mode in ("fp8_per_token_head", "int8_per_token_head"):
        del made[f"write {mode} flashinfer NHD"]
    made["merge"] = lambda: attend(layout_of("nvfp4"), 1)
    for mode in ("fp8_per_tensor", "nvfp4"):
        made[f"reduce {mode}"] = lambda mode=mode: tensor_scale(mode, 0)
        made[f"scale {mode}"] = lambda mode=mode: tensor_scale(mode, 1)
    for mode in ("fp8_per_tensor", "fp8_per_token_head", "nvfp4"):
        made[f"hardware {mode}"] = lambda mode=mode: write(layout_of(mode), hardware=True)
    for name in ("int8_per_token_head", "fp8_per_token_head"):
        recipe = f"vllm-0.33/triton/{name}"
        made[recipe] = lambda recipe=recipe, name=name: write(layout_of(name), recipe=recipe)
    unfused = "vllm-0.33/triton-nofusion/int8_per_token_head"
    made[unfused] = lambda: write(layout_of("int8_per_token_head"), recipe=unfused)
    made["exact/nvfp4"] = lambda: write(layout_of("nvfp4"), recipe="exact/nvfp4")
    for mode in ("int8_per_token_head", "nvfp4"):
        for name, division in (("reciprocal", _reciprocal_product), ("quotient", _plain_quotient)):
            made[f"wrong {name} {mode}"] = lambda mode=mode, division=division: with_division(
                write(layout_of(mode)), division
            )
    made["wrong fusion"] = made[unfused]
    return made


#: compile options that make a case wrong
OPTIONS = {"wrong fusion": {"enable_fp_fusion": True}}

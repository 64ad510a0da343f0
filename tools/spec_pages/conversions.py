"""The page of conversions: real dumps converted, judged and converted back; and that of stacks of layers."""

from __future__ import annotations

import io
import os
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np

import kvformat as kvf
from kvformat.cli import main
from kvformat.data import sample
from kvformat.layouts import LAYOUTS
from spec_pages import stacks
from spec_pages.text import block, page, table

_SLOTS = 128


def files() -> dict[str, str]:
    """Path under spec/ and text of the page."""
    home = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            values = _values()
        finally:
            os.chdir(home)
    return {"convert.md": page("convert.md", values), **stacks.files()}


def _values() -> dict[str, str]:
    _dump("vllm", mode="nvfp4", order="HND", recipe="golden/nvfp4")
    layouts = _run(
        "convert vllm.safetensors trt.safetensors --layout tensorrt-llm",
        "check trt.safetensors",
        "convert trt.safetensors back.safetensors --layout vllm-0.33",
    )
    before, after = (kvf.Dump.load(f"{name}.safetensors").pages for name in ("vllm", "back"))
    assert np.array_equal(before, after)
    _dump("fp8", mode="fp8_per_tensor", recipe="vllm-0.33/csrc/fp8_per_tensor", k_scale=1, v_scale=1)
    codes = _run(
        "convert fp8.safetensors mi300.safetensors --recipe vllm-0.33/rocm-fnuz/fp8_per_tensor",
        "convert fp8.safetensors mi300.safetensors --recipe vllm-0.33/rocm-fnuz/fp8_per_tensor --drop-zero-signs",
        "check mi300.safetensors",
    )
    refused = _run(
        "convert vllm.safetensors out.safetensors --block-size 48",
        "convert vllm.safetensors out.safetensors --layout vllm-split",
        "convert vllm.safetensors out.safetensors --recipe torchao-0.18/nvfp4",
    )
    return {"layouts": layouts, "codes": codes, "refused": refused, "modes": _modes()}


def _dump(name: str, *, mode: str, recipe: str, order: str = "NHD", **scales: float) -> None:
    """A dump of real K and V, each value as the sample has it."""
    layer = sample()[0]
    key, value = layer.key[:_SLOTS], layer.value[:_SLOTS]
    made = kvf.layout("vllm-0.33", mode=mode, order=order, block_size=16, num_kv_heads=3, head_size=64)
    held = kvf.PagedCache(made, _SLOTS // 16)
    slots = np.arange(_SLOTS)
    held.write(key, value, slots, recipe=recipe, **scales)
    kept = {"k_scale": held.k_scale, "v_scale": held.v_scale}
    arrays = (key, value, held.pages, slots)
    kvf.Dump.from_arrays(*arrays, layout=made, recipe=recipe, **kept).save(f"{name}.safetensors")


def _run(*commands: str) -> str:
    """Commands and what they print, errors included."""
    lines = []
    for command in commands:
        out = io.StringIO()
        with redirect_stdout(out), redirect_stderr(out):
            main(command.split())
        lines += [f"$ kvformat {command}", *(line.rstrip() for line in out.getvalue().splitlines()), ""]
    return block("\n".join(lines))


def _modes() -> str:
    """By mode, the layouts between which a cache can go."""
    modes: dict[str, list[str]] = {}
    for name, entry in LAYOUTS.items():
        for mode, form in entry.modes:
            kept = "K and V" if "v" in form.sides else f"K, {form.head_size} dims"
            modes.setdefault(f"`{mode}`, {kept}", []).append(f"`{name}`")
    rows = [(mode, ", ".join(names)) for mode, names in modes.items()]
    return table(("cache", "layouts"), rows)

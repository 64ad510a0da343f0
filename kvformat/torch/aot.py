"""Compiles a launch for a GPU that need not be there, and gives its assembly and what it needs of the GPU."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kvformat.torch.launch import Launch, options

_POINTERS = {
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.uint8: "*u8",
    torch.float32: "*fp32",
}
_ALIGNED = [["tt.divisibility", 16]]


class Compiled(NamedTuple):
    """A kernel for one target: "sm_90", "gfx942", ...; `assembly` is PTX or AMDGCN."""

    target: str
    kernel: str
    assembly: str
    #: float divisions in the LLVM IR, as the kernel's source has them
    divisions: int
    #: bytes of a thread that lie in memory for want of registers, and registers that were spilled
    local_bytes: int
    spills: int


def compile_for(launch: Launch, target: str, **changed: Any) -> Compiled:
    """Compile a recorded launch for "sm_80", "gfx942" and the like, as it would be compiled there.

    Tensors are taken to be aligned to 16 bytes, as torch allocates them. changed: options other than the launch's own.
    """
    source = ASTSource(launch.kernel, *_specialised(launch))
    gpu = _target(target)
    made = triton.compile(source, target=gpu, options={**options(gpu.warp_size), **changed})
    vectors = re.findall(r"= fdiv (?:<(\d+) x )?(?:float|double)", made.asm["llir"])
    divisions = sum(int(count or 1) for count in vectors)
    if target.startswith("gfx"):
        assembly = made.asm["amdgcn"]
        counts = {
            name: int(count)
            for name, count in re.findall(r"\.(private_segment_fixed_size|\w+_spill_count):\s+(\d+)", assembly)
        }
        local = counts.pop("private_segment_fixed_size")
        return Compiled(target, launch.kernel.__name__, assembly, divisions, local, sum(counts.values()))
    stack, local = _resources(made.asm["cubin"])
    return Compiled(target, launch.kernel.__name__, made.asm["ptx"], divisions, stack + local, 0)


def _target(name: str) -> GPUTarget:
    return GPUTarget("hip", name, 64) if name.startswith("gfx") else GPUTarget("cuda", int(name[3:]), 32)


def _specialised(launch: Launch) -> tuple[dict[str, str], dict[str, Any], dict[tuple[int, ...], Any]]:
    """Signature, constants and alignments, as Triton's just-in-time compiler finds them for these arguments."""
    signature: dict[str, str] = {}
    constants: dict[str, Any] = dict(launch.constants)
    aligned: dict[tuple[int, ...], Any] = {}
    values = iter(launch.arguments)
    for index, name in enumerate(launch.kernel.arg_names):
        value = None if name in constants else next(values)
        if name in constants or value is None or (isinstance(value, int) and value == 1):
            signature[name] = "constexpr"
            constants.setdefault(name, value)
        elif isinstance(value, torch.Tensor):
            signature[name] = _POINTERS[value.dtype]
            aligned[index,] = _ALIGNED
        elif isinstance(value, float):
            signature[name] = "fp32"
        else:
            signature[name] = "i32" if value < 2**31 else "i64"
            if value % 16 == 0:
                aligned[index,] = _ALIGNED
    return signature, constants, aligned


def _resources(cubin: bytes) -> tuple[int, int]:
    """Stack and local bytes of a thread."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run(  # noqa: S603 triton's own tool on what it has just compiled
            [str(tool), "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    stack, local = re.search(r"STACK:(\d+)", text), re.search(r"LOCAL:(\d+)", text)
    assert stack is not None
    assert local is not None
    return int(stack[1]), int(local[1])

"""Triton kernels on CPU tensors, run as compiled for a GPU that is not there.

Triton asks its active driver for the target, hands it what it has compiled and calls its launcher. Here the target is
the one that was asked for, what is handed over is PTX (ptxas is not run), and the launcher runs it with `kvformat.ptx`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NoReturn

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import _allocation
from triton.runtime.driver import driver as drivers

from kvformat import ptx
from kvformat.errors import InputError
from kvformat.ptx.module import APPROXIMATE


@dataclass(frozen=True)
class _Device:
    """What a kernel may ask of its device: bytes of shared memory for a block, and multiprocessors."""

    shared: int
    multiprocessors: int


#: compute capability -> a device of it (A100, A10, Orin, L40S, H100, B200, B300, Thor, RTX 5090, GB10)
_DEVICES = {
    80: _Device(166912, 108),
    86: _Device(101376, 72),
    87: _Device(166912, 16),
    89: _Device(101376, 142),
    90: _Device(232448, 132),
    100: _Device(232448, 148),
    103: _Device(232448, 148),
    110: _Device(232448, 20),
    120: _Device(101376, 170),
    121: _Device(101376, 48),
}
#: device numbers that no GPU of this machine has: Triton keeps compiled kernels by device
_FIRST_DEVICE = 1000
_THREADS = 1024
#: numbers that are no integers; a Python float is narrowed as C narrows a double: beyond the largest it is Inf
_FLOATS = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "f32": torch.float32,
    "fp64": torch.float64,
}


@dataclass(frozen=True)
class Launched:
    """One launch: its kernel, its grid, whether products were fused into sums when it was compiled, and what it did.

    Attributes
    ----------
    fp_fusion : Triton's `enable_fp_fusion`, on by default until 3.9. Where it is on, LLVM has already contracted what
        it could, and ptxas may contract the places that `run.contractible` names
    ptx : the text that ran

    """

    kernel: str
    target: str
    grid: tuple[int, int, int]
    fp_fusion: bool
    run: ptx.Run
    ptx: str


@dataclass
class Emulation:
    """A target, how its kernels are run, and the launches so far."""

    target: str
    approximate: str = "ptxas"
    contract: bool = False
    seed: int = 0
    launches: list[Launched] = field(default_factory=list)

    @property
    def capability(self) -> int:
        """The number in the target's name."""
        return int(re.sub(r"\D", "", self.target))


@contextmanager
def emulate(target: str, *, approximate: str = "ptxas", contract: bool = False, seed: int = 0) -> Iterator[Emulation]:
    """Within it, Triton kernels that are launched on CPU tensors run as compiled for `target`.

    Parameters
    ----------
    target : "sm_80", "sm_89", "sm_90", "sm_100", "sm_120", ...
    approximate, contract, seed : as `kvformat.ptx.Kernel.launch` takes them. A kernel that was compiled with
        `enable_fp_fusion=False` is never contracted, as ptxas is then told not to.

    Yields
    ------
    An `Emulation`, whose `launches` grow.

    Raises
    ------
    InputError : an unknown target, TRITON_INTERPRET is set, or a kernel that was imported while it was set. What a
        launch can raise is in `kvformat.ptx`: `Refused`, `KernelFault`. What Triton cannot compile for the target is
        Triton's own error.

    """
    match = re.fullmatch(r"sm_(\d+)[af]?", target)
    if match is None or int(match[1]) not in _DEVICES:
        raise InputError(f"emulate runs sm_{', sm_'.join(map(str, _DEVICES))}; got {target!r}")
    if approximate not in APPROXIMATE:
        raise InputError(f"approximate is one of {', '.join(APPROXIMATE)}; got {approximate!r}")
    if triton.knobs.runtime.interpret:
        raise InputError("TRITON_INTERPRET is set: kernels would be interpreted, not compiled; unset it")
    emulation = Emulation(f"sm_{match[1]}", approximate, contract, seed)
    active, hook = drivers._active, triton.knobs.runtime.add_stages_inspection_hook  # noqa: SLF001 no driver is made
    drivers.set_active(_Driver(emulation))
    triton.knobs.runtime.add_stages_inspection_hook = _stages(hook)
    try:
        with _no_interpreter():
            yield emulation
    finally:
        drivers._active = active  # noqa: SLF001 reset_active would look for a GPU
        triton.knobs.runtime.add_stages_inspection_hook = hook


@contextmanager
def _no_interpreter() -> Iterator[None]:
    """Kernels that Triton made for its interpreter are refused: they never see a compiler."""
    interpreter = sys.modules.get("triton.runtime.interpreter")
    if interpreter is None:
        yield
        return
    kernels = interpreter.InterpretedFunction
    run = kernels.run

    def refuse(kernel: Any, *_: Any, **__: Any) -> NoReturn:
        raise InputError(
            f"{kernel.__name__} was imported under TRITON_INTERPRET and is interpreted, not compiled; import it without"
        )

    kernels.run = refuse
    try:
        yield
    finally:
        kernels.run = run


def _stages(outer: Any) -> Callable[..., Any]:
    """The hook that hands PTX over where the assembler would run, after the one that was there."""

    def hook(*arguments: Any) -> Any:
        if not arguments:  # the words of the cache key
            key, digest = outer() if outer else ("", "")
            return f"{key}kvformat-emulate", f"{digest}kvformat-emulate"
        if outer:
            outer(*arguments)
        stages = arguments[1]
        if "cubin" in stages:
            stages["cubin"] = lambda text, _: text.encode()
        return None

    return hook


class _Utils:
    """What Triton asks the CUDA driver for."""

    @staticmethod
    def get_device_properties(device: int) -> dict[str, int]:
        made = _DEVICES[device - _FIRST_DEVICE]
        return {
            "max_shared_mem": made.shared,
            "max_num_regs": 65536,
            "multiprocessor_count": made.multiprocessors,
            "warpSize": 32,
        }

    @staticmethod
    def load_binary(name: str, binary: bytes, _shared: int, _device: int) -> tuple[None, ptx.Kernel, int, int, int]:
        # a module of None: nothing to unload when no driver is active any more
        return None, _module(binary.decode())[name], 0, 0, _THREADS

    @staticmethod
    def unload_module(_module: None) -> None:
        """Nothing was loaded."""


@cache
def _module(text: str) -> ptx.Module:
    return ptx.load(text)


class _Driver:
    """Triton's active driver: one device, of one target, whose memory is the CPU's."""

    def __init__(self, emulation: Emulation) -> None:
        self.emulation = emulation
        self.utils = _Utils()
        self.launcher_cls = _Launcher

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.emulation.capability, 32)

    def get_current_device(self) -> int:
        return _FIRST_DEVICE + self.emulation.capability

    def set_current_device(self, device: int) -> None:
        if device != self.get_current_device():
            raise InputError(f"emulate has one device, {self.get_current_device()}; got {device}")

    def get_device_capability(self, _device: int | None = None) -> tuple[int, int]:
        return divmod(self.emulation.capability, 10)

    def get_current_stream(self, _device: int | None = None) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_device_interface(self) -> Any:
        return torch.cpu

    def get_benchmarker(self) -> Callable[..., Any]:
        return _benchmark

    def get_empty_cache_for_benchmark(self) -> torch.Tensor:
        return torch.empty(0)

    def clear_cache(self, _cache: torch.Tensor) -> None:
        """There is none."""


def _benchmark(call: Callable[[], Any], quantiles: Sequence[float] = (0.5,), **_: Any) -> Any:
    """For autotuning: the instructions that the launches executed, the same number on every machine."""
    active = drivers.active
    if not isinstance(active, _Driver):  # an autotuner keeps the benchmarker that it asked for first
        return active.get_benchmarker()(call, quantiles=quantiles)
    before = len(active.emulation.launches)
    call()
    return [float(sum(each.run.instructions for each in active.emulation.launches[before:]))] * len(quantiles)


class _Launcher:
    """What Triton calls to launch a compiled kernel."""

    def __init__(self, source: Any, metadata: Any) -> None:
        self.types = tuple(source.signature.values())
        self.metadata = metadata
        if getattr(metadata, "num_ctas", 1) != 1 or getattr(metadata, "launch_cooperative_grid", False):
            raise InputError(f"{metadata.name}: clusters and cooperative launches are not emulated")

    def __call__(
        self, x: int, y: int, z: int, stream: int, kernel: ptx.Kernel, _packed: Any, launch_metadata: Any, enter: Any,
        leave: Any, *arguments: Any,
    ) -> None:  # fmt: skip
        driver = drivers.active
        if not isinstance(driver, _Driver):
            raise InputError(f"{kernel.name} was compiled for kvformat.torch.emulate; launch it within")
        if not x * y * z:
            return
        how = driver.emulation
        values = list(_values(self.types, arguments, [each.size for each in kernel.parameters]))
        values += self._scratch(x * y * z, stream)[: len(kernel.parameters) - len(values)]
        if enter is not None:
            enter(launch_metadata)
        fused = bool(self.metadata.enable_fp_fusion)
        run = kernel.launch(
            (x, y, z), self.metadata.num_warps * 32, values, shared=self.metadata.shared,
            approximate=how.approximate, contract=how.contract and fused, seed=how.seed,
        )  # fmt: skip
        how.launches.append(Launched(kernel.name, how.target, (x, y, z), fused, run, kernel.module.source.text))
        if leave is not None:
            leave(launch_metadata)

    def _scratch(self, blocks: int, stream: int) -> list[torch.Tensor | None]:
        """Global and profiling scratch memory, which compiled kernels take as their last arguments."""
        size = blocks * self.metadata.global_scratch_size
        made = _allocation._allocator.get()(size, self.metadata.global_scratch_align, stream) if size else None  # noqa: SLF001
        profile = blocks * getattr(self.metadata, "profile_scratch_size", 0)
        return [made, torch.zeros(profile, dtype=torch.int8) if profile else None]


def _values(types: Sequence[Any], arguments: Sequence[Any], sizes: Sequence[int]) -> Iterator[Any]:
    """The arguments that a compiled kernel takes, tuples flattened, constants left out, numbers as bytes."""
    flat = [pair for pair in _flat(types, arguments) if pair[0] != "constexpr"]
    for (kind, value), size in zip(flat, sizes, strict=False):
        if kind.startswith("tensordesc"):
            raise InputError("tensor descriptors as arguments are not emulated")
        if kind.startswith("*"):
            yield getattr(value, "base", value)  # triton.reinterpret wraps a tensor
        else:
            yield _number(kind, value, size)


def _flat(types: Sequence[Any], arguments: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    for kind, value in zip(types, arguments, strict=True):
        if isinstance(kind, tuple):
            yield from _flat(kind, value)
        else:
            yield kind, value


def _number(kind: str, value: Any, size: int) -> bytes:
    if kind in _FLOATS:
        return bytes(torch.tensor([value], dtype=_FLOATS[kind]).view(torch.uint8).numpy().tobytes())
    return int(value).to_bytes(size, "little", signed=int(value) < 0)

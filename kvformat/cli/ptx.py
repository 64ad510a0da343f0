"""kvformat ptx: a kernel as compiled: its parameters and instructions, what is approximate, fused or not modelled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvformat.cli.outcome import CANNOT_JUDGE, HOLDS, print_json, printable, say
from kvformat.errors import InputError

if TYPE_CHECKING:
    from kvformat.ptx.module import Kernel, Module
    from kvformat.ptx.sass import Sass


def ptx(
    file: Annotated[str, typer.Argument(metavar="FILE", help="PTX, or CUDA (.cu), which NVIDIA's wheels compile.")],
    arch: Annotated[str | None, typer.Option(help="Of a .cu file: what it is compiled for (default sm_90).")] = None,
    entry: Annotated[str | None, typer.Option(metavar="NAME", help="One kernel, by a part of its name.")] = None,
    sass: Annotated[bool, typer.Option("--sass", help="Whether ptxas contracted, read from the machine code.")] = False,
    include: Annotated[list[str] | None, typer.Option("-I", help="Of a .cu file: a folder of headers.")] = None,
    define: Annotated[list[str] | None, typer.Option("-D", help="Of a .cu file: NAME or NAME=VALUE.")] = None,
    option: Annotated[list[str] | None, typer.Option("--nvcc", help="Of a .cu file: an option of nvcc.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
) -> int:
    """What a compiled kernel is made of. Status 2: a kernel has an instruction that kvformat does not run.

    Running is Python's: `kvformat.ptx.load(FILE)[NAME].launch(grid, block, args)`.
    """
    from kvformat.cli import console

    with console.progress(printable(file)) as advance:
        module = _module(file, arch, include or (), define or (), option or ())
        kernels = [module[entry]] if entry is not None else [module[name] for name in module.kernels]
        if not kernels:
            raise InputError(f"{file} has no kernel")
        found = [_described(kernel, len(kernels), advance, number, sass) for number, kernel in enumerate(kernels)]
    status = CANNOT_JUDGE if any(kernel.refused for kernel, _ in found) else HOLDS
    if as_json:
        return print_json(
            {
                "file": file, "target": module.target, "version": module.version,
                "kernels": [_json(kernel, how) for kernel, how in found],
            },
            status,
        )  # fmt: skip
    say(f"{printable(file)}: PTX {module.version} for {module.target}, {_count(len(module.kernels), 'kernel')}")
    for kernel, how in found:
        _print(kernel, how, whole=entry is not None or len(found) == 1)
    return status


def _module(
    file: str, arch: str | None, include: Sequence[str], define: Sequence[str], options: Sequence[str]
) -> Module:
    if Path(file).suffix != ".cu":
        if arch is not None or include or define or options:
            raise InputError("--arch, -I, -D and --nvcc are for .cu files; PTX is compiled already")
        from kvformat.ptx.module import load

        return load(Path(file))
    from kvformat.ptx.compile import compile_cuda

    macros = {name: value if equals else None for name, equals, value in (each.partition("=") for each in define)}
    return compile_cuda(file, arch=arch or "sm_90", include=include, define=macros, options=options)


def _described(
    kernel: Kernel, total: int, advance: Callable[[int, int], object] | None, number: int, sass: bool
) -> tuple[Kernel, Sass | None]:
    if sass:
        from kvformat.ptx.sass import assembled

        how = assembled(kernel)
    else:
        how = None
    _ = kernel.refused
    if advance:
        advance(number + 1, total)
    return kernel, how


def _json(kernel: Kernel, sass: Sass | None) -> dict[str, Any]:
    made: dict[str, Any] = {
        "name": kernel.name,
        "demangled": kernel.demangled,
        "parameters": [
            {"name": each.name, "type": each.type, "size": each.size, "offset": each.offset}
            for each in kernel.parameters
        ],
        "instructions": sum(kernel.counts.values()),
        "counts": dict(sorted(kernel.counts.items())),
        "approximate": [str(each) for each in kernel.approximate],
        "contractible": [str(each) for each in kernel.contractible],
        "refused": [str(each) for each in kernel.refused],
    }
    if sass is not None:
        made["sass"] = {
            "ptxas": sass.ptxas, "contracted": sass.contracted, "counts": sass.counts, "without": sass.apart
        }  # fmt: skip
    return made


def _print(kernel: Kernel, sass: Sass | None, *, whole: bool) -> None:
    parameters = ", ".join(f".{each.type}" + (f"[{each.size}]" if each.size > 8 else "") for each in kernel.parameters)
    name = kernel.name if kernel.demangled == kernel.name else f"{kernel.demangled}  {kernel.name}"
    say(f"\n{printable(name)} ({parameters})")
    say(f"  instructions   {sum(kernel.counts.values())}, {len(kernel.counts)} different")
    if whole:
        for opcode, count in sorted(kernel.counts.items(), key=lambda pair: (-pair[1], pair[0])):
            say(f"    {count:6}  {opcode}")
    for title, spots in (
        ("approximate", kernel.approximate),
        ("contractible", kernel.contractible),
        ("not modelled", kernel.refused),
    ):
        say(f"  {title:<14} {len(spots) or 'none'}")
        for spot in spots if whole else spots[:0]:
            say(f"    {printable(str(spot))}")
    if sass is not None:
        said = f"{_count(sass.contracted, 'place')} contracted" if sass.contracted else "nothing contracted"
        counts = ", ".join(f"{count} {name}" for name, count in sass.counts.items()) or "no float arithmetic"
        say(f"  ptxas {sass.ptxas:<8} {said} ({counts})")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"

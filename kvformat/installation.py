"""What this installation has: versions, Numba's cache, threads, extras, compilers, a GPU. It changes nothing."""

from __future__ import annotations

import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

#: what decides about bytes and speed, the core first
PACKAGES = ("numpy", "numba", "ml_dtypes", "torch", "triton")
#: programs that a part of kvformat runs, by any of these names, and that part
COMPILERS: Mapping[tuple[str, ...], str] = {
    ("cc", "gcc", "clang"): "the C99 runner of the vectors",
    ("g++", "c++", "clang++"): "NVIDIA's headers as an oracle of the tests",
    ("nvcc",): "CUDA sources",
}
_PACKAGE = re.compile(r"([A-Za-z0-9._-]+)\s*(?:\[([^]]*)\])?\s*\(?([^;)]*)\)?\s*(?:;(.*))?")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")
_SYSTEM = re.compile(r"""platform_system\s*==\s*['"]([^'"]+)['"]""")


class Finding(NamedTuple):
    """One line of the answer."""

    name: str
    says: str
    #: nothing of what kvformat needs is wrong here. What it can do without is never a fault.
    good: bool = True
    #: what would change the answer
    remedy: str = ""


class Requirement(NamedTuple):
    """A package that kvformat, or one of its extras, asks for."""

    extra: str
    name: str
    #: such as >=1.2, ==1.2, or nothing
    bound: str


def versions(names: Sequence[str] = PACKAGES) -> dict[str, str]:
    """The installed versions of these packages, none of them imported; what is missing is left out."""
    found = {name: _version(name) for name in names}
    return {name: version for name, version in found.items() if version is not None}


def findings() -> Iterator[Finding]:
    """Everything there is to say, the core first. The last one may take seconds: it imports torch."""
    from kvformat.elements import threads

    yield Finding("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    declared = requirements()
    if not declared:
        yield Finding("packages", "kvformat was not installed by pip: what it asks for is not known")
    yield from (_core(each) for each in declared if not each.extra)
    yield numba_cache()
    cores = os.cpu_count()
    yield Finding("threads", f"{threads.count()} of {cores} cores; KVFORMAT_NUM_THREADS says otherwise")
    for extra in dict.fromkeys(each.extra for each in declared if each.extra):
        yield _extra(extra, [each for each in declared if each.extra == extra])
    yield from (_compiler(names, purpose) for names, purpose in COMPILERS.items())
    yield gpu()


def requirements() -> list[Requirement]:
    """What the installed package asks for on this system, as its metadata says; an extra's extras are resolved."""
    try:
        lines = metadata.requires("kvformat") or []
    except metadata.PackageNotFoundError:
        lines = []
    found: list[Requirement] = []
    for line in lines:
        match = _PACKAGE.fullmatch(line)
        if match is None:
            continue
        name, inner, bound, marker = match.groups(default="")
        extra, system = _EXTRA.search(marker), _SYSTEM.search(marker)
        if system and system[1] != platform.system():
            continue
        where = extra[1] if extra else ""
        if name == "kvformat":
            found += [Requirement(where, name, each.strip()) for each in inner.split(",")]
        else:
            found.append(Requirement(where, name, bound.replace(" ", "")))
    direct = [each for each in found if each.name != "kvformat"]
    indirect = [(each.extra, each.bound) for each in found if each.name == "kvformat"]
    return direct + [each._replace(extra=extra) for extra, inner in indirect for each in direct if each.extra == inner]


def numba_cache() -> Finding:
    """Whether compiled kernels are kept between runs. Where they are not, every run compiles them again."""
    from kvformat.elements.static import compiled

    remedy = "set NUMBA_CACHE_DIR to a folder that you may write to"
    try:
        # the folder that Numba itself chooses for code of this package
        chosen = compiled(_version).stats.cache_path  # type: ignore[attr-defined]  # of a numba dispatcher
        if chosen is None:
            raise OSError("Numba found no folder for it")
        folder = Path(chosen)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".kvformat."):
            return Finding("numba cache", str(folder))
    except (OSError, RuntimeError) as error:  # Numba's error for no folder at all is a RuntimeError
        return Finding("numba cache", f"cannot be written: {error}", good=False, remedy=remedy)


def gpu() -> Finding:
    """The GPUs that torch sees: it launches kvformat's kernels."""
    try:
        import torch
    except ImportError:
        return Finding("gpu", "not asked, torch is missing", remedy="pip install 'kvformat[torch]'")
    if not torch.cuda.is_available():
        says = f"torch {torch.__version__} sees none: kernels run in Triton's interpreter, and are compiled without one"
        return Finding("gpu", says)
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    driver = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
    return Finding("gpu", f"torch {torch.__version__} sees {', '.join(names)} ({driver})")


def _core(wanted: Requirement) -> Finding:
    missing = lacks(wanted)
    version = _version(wanted.name)
    remedy = f"pip install '{wanted.name}{wanted.bound}'" if missing else ""
    return Finding(wanted.name, missing or str(version), good=not missing, remedy=remedy)


def _extra(name: str, wanted: list[Requirement]) -> Finding:
    missing = [says for says in map(lacks, wanted) if says]
    if missing:
        return Finding(f"extra {name}", "; ".join(missing), remedy=f"pip install 'kvformat[{name}]'")
    return Finding(f"extra {name}", "complete")


def lacks(wanted: Requirement) -> str:
    """What is wrong with the installed package; nothing if it is there and within its bound."""
    version = _version(wanted.name)
    if version is None:
        return f"{wanted.name} is missing"
    bound, least = wanted.bound[:2], _numbers(wanted.bound[2:])
    found = _numbers(version)
    if (bound == ">=" and found < least) or (bound == "==" and found != least):
        return f"{wanted.name} is {version}, not {wanted.bound}"
    return ""


def _compiler(names: tuple[str, ...], purpose: str) -> Finding:
    paths = [path for path in map(shutil.which, names) if path]
    return Finding(names[0], f"{paths[0]}, for {purpose}" if paths else f"none, for {purpose}")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    """The release of a version: 2.13.0 of 2.13.0+cpu, without zeros at its end."""
    match = re.match(r"[0-9]+(\.[0-9]+)*", version)
    numbers = [int(part) for part in match[0].split(".")] if match else []
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)

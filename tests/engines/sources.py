"""The engines' sources: pinned, fetched by pip, their hashes checked; nothing of theirs is kept in this repository."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

#: where archives are kept between runs: a folder of one's own may hold them already, their hashes are checked anyway
CACHE = Path(os.environ.get("KVFORMAT_ENGINES", Path.home() / ".cache" / "kvformat" / "engines"))


@dataclass(frozen=True)
class Source:
    """One archive of a package registry.

    Attributes
    ----------
    requirement : what pip is asked for, "vllm==0.33.0"
    file, sha256 : the archive's name and hash
    options, environment : what pip needs beside, so that a source archive comes as it is

    """

    requirement: str
    file: str
    sha256: str
    options: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()

    @property
    def engine(self) -> str:
        """The distribution's name."""
        return self.requirement.partition("==")[0]

    @property
    def version(self) -> str:
        """Its version."""
        return self.requirement.partition("==")[2]


def _vllm(version: str, sha256: str) -> Source:
    """vLLM's sources; their metadata needs its build backend: torch, setuptools_scm, setuptools_rust, grpcio-tools."""
    return Source(
        f"vllm=={version}",
        f"vllm-{version}.tar.gz",
        sha256,
        ("--no-binary", "vllm", "--no-build-isolation"),
        (
            ("VLLM_TARGET_DEVICE", "empty"),
            ("VLLM_VERSION_OVERRIDE", version),
            ("SETUPTOOLS_SCM_PRETEND_VERSION", version),
        ),
    )


VLLM = _vllm("0.33.0", "f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112")
VLLM_032 = _vllm("0.32.0", "d2c957d5eee3d0985012151315ddc62cbe0cd368fc96a5fc3510438d9dddf2ad")
SGLANG = Source(
    "sglang==0.5.23",
    "sglang-0.5.23-cp311-cp311-manylinux_2_34_x86_64.whl",
    "00b3cd5b265ac76c64185fbb6b95424f324ddd9f428d0306b77bc9db9d859937",
    ("--python-version", "3.11", "--platform", "manylinux_2_34_x86_64", "--only-binary", ":all:"),
)

_WHEEL = ("--python-version", "3.11", "--platform", "manylinux_2_28_x86_64", "--only-binary", ":all:")
LMCACHE = Source(
    "lmcache==0.5.6",
    "lmcache-0.5.6-cp311-cp311-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl",
    "14530ff72b96056e894c9b8dc70c10d019e7802799bbfde9cec298700b799194",
    _WHEEL,
)
TRANSFORMER_ENGINE = Source(
    "transformer-engine==2.20.2",
    "transformer_engine-2.20.2-py3-none-any.whl",
    "7dcfad943a1a55b2612db9a0e43697fe98c70f4c42ec391ba3a0f872f6ce2094",
    _WHEEL,
)
FLASHINFER = Source(
    "flashinfer-python==0.7.4",
    "flashinfer_python-0.7.4-py3-none-any.whl",
    "a051a62e09a2738e8b0de47a1944fd2f0f3eff01b728b662141ea660cb09dd32",
    _WHEEL,
)
# the headers that FlashInfer's sources include
TVM_FFI = Source(
    "apache-tvm-ffi==0.1.15.post2",
    "apache_tvm_ffi-0.1.15.post2-cp311-cp311-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl",
    "8ecebe749834f6ac0f2693d5964acf9ac75d0bc26e6ba64c46eb7ab00ea50fac",
    _WHEEL,
)
# its metadata is prepared by scikit-build-core, which pip fetches
GGML = Source(
    "llama-cpp-python==0.3.36",
    "llama_cpp_python-0.3.36.tar.gz",
    "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e",
    ("--no-binary", "llama-cpp-python"),
)

TORCHAO = Source(
    "torchao==0.18.0",
    "torchao-0.18.0-cp310-abi3-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl",
    "6540b148e40ba81cbd4de86392225a076a1591146e9cebb099b3b234ba9feebe",
    _WHEEL,
)
MODELOPT = Source(
    "nvidia-modelopt==0.47.0",
    "nvidia_modelopt-0.47.0-py3-none-any.whl",
    "db13e62d7efe4a1512e8b8c3f479e28d64022306f94a194f13234e7dca1d3120",
    _WHEEL,
)
COMPRESSED_TENSORS = Source(
    "compressed-tensors==0.20.1",
    "compressed_tensors-0.20.1-py3-none-any.whl",
    "15307c904904219cafcb57d55f16b1bd6baf108d0421b65dfa79eece01672382",
    _WHEEL,
)


class MismatchError(Exception):
    """An archive is not the one that was pinned."""


def fetch(source: Source) -> Path:
    """The folder that holds the unpacked archive, whose hash has been checked.

    Raises MismatchError where the archive is another one, CalledProcessError where pip cannot get it.
    """
    CACHE.mkdir(parents=True, exist_ok=True)
    archive = CACHE / source.file
    if not archive.exists():
        _download(source)
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != source.sha256:
        raise MismatchError(f"{archive}: sha256 {found}; the pinned one is {source.sha256}")
    folder = CACHE / f"unpacked-{source.sha256[:16]}"
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=CACHE) as made:
            _unpack(archive, Path(made) / "all")
            (Path(made) / "all").rename(folder)
    return folder


def imported(source: Source, package: str) -> None:
    """Let `import` find a package in the pinned archive, before one that is installed.

    Raises MismatchError where the package has been imported from elsewhere.
    """
    folder = str(fetch(source))
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.find_spec(package)
    if spec is None or not str(spec.origin).startswith(folder):
        raise MismatchError(f"{package} was imported from {spec and spec.origin}, not from {source.file}")


def _download(source: Source) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", *source.options]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as wanted:
        wanted.write(f"{source.requirement} --hash=sha256:{source.sha256}\n")
        wanted.flush()
        subprocess.run(
            [*command, "--dest", str(CACHE), "--requirement", wanted.name],
            check=True,
            env={**os.environ, **dict(source.environment)},
        )


def _unpack(archive: Path, into: Path) -> None:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            wheel.extractall(into)
    else:
        with tarfile.open(archive) as tar:
            tar.extractall(into, filter="data")

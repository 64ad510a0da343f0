"""What an installation has: requirements read from metadata, bounds compared, a cache that cannot be written."""

from __future__ import annotations

import platform
from importlib import metadata

import pytest

from kvformat import installation
from kvformat.installation import Finding, Requirement, lacks, numba_cache, requirements

#: lines as hatchling and as setuptools write them
METADATA = [
    "numpy>=1.23.3",
    "rich>=12.3; extra == 'cli'",
    'typer (>=0.15.4) ; extra == "cli"',
    "kvformat[cli,fuzz]; extra == 'test'",
    "hypothesis>=6.80; extra == 'fuzz'",
    "pytest>=7.4; extra == 'test'",
    "triton>=3.6; (platform_system == 'Linux') and extra == 'torch'",
    "winonly>=1; (platform_system == 'Windows') and extra == 'torch'",
    "torch>=2.10; extra == 'torch'",
]


@pytest.fixture(autouse=True)
def declared(monkeypatch):
    monkeypatch.setattr(metadata, "requires", lambda _: METADATA)
    monkeypatch.setattr(platform, "system", lambda: "Linux")


def test_requirements_are_those_of_the_metadata_with_extras_of_extras():
    found = set(requirements())
    assert found == {
        Requirement("", "numpy", ">=1.23.3"),
        Requirement("cli", "rich", ">=12.3"),
        Requirement("cli", "typer", ">=0.15.4"),
        Requirement("fuzz", "hypothesis", ">=6.80"),
        Requirement("test", "pytest", ">=7.4"),
        Requirement("test", "rich", ">=12.3"),
        Requirement("test", "typer", ">=0.15.4"),
        Requirement("test", "hypothesis", ">=6.80"),
        Requirement("torch", "triton", ">=3.6"),
        Requirement("torch", "torch", ">=2.10"),
    }


@pytest.mark.parametrize(
    "installed, bound, missing",
    [
        ("2.4.6", ">=1.23.3", False),
        ("1.23.3", ">=1.23.3", False),
        ("1.23", ">=1.23.0", False),
        ("1.9", ">=1.10", True),  # as numbers, not as text
        ("1.23.2", ">=1.23.3", True),
        ("2.13.0+cpu", ">=2.10", False),
        ("0.18.0", "==0.18.0", False),
        ("0.18.1", "==0.18.0", True),
        ("0.18", "==0.18.0", False),
        ("1.0rc1", "", False),
        (None, ">=1", True),
    ],
)
def test_a_version_is_compared_with_its_bound(monkeypatch, installed, bound, missing):
    def version(name):
        if installed is None:
            raise metadata.PackageNotFoundError(name)
        return installed

    monkeypatch.setattr(metadata, "version", version)
    assert bool(lacks(Requirement("", "numpy", bound))) == missing


def test_a_core_package_that_is_too_old_is_wrong_and_a_missing_extra_is_not(monkeypatch):
    def version(name):
        if name in ("numpy", "hypothesis"):
            return "1.0"
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", version)
    monkeypatch.setattr(installation, "gpu", lambda: Finding("gpu", "none"))
    found = {each.name: each for each in installation.findings()}
    assert found["numpy"] == ("numpy", "numpy is 1.0, not >=1.23.3", False, "pip install 'numpy>=1.23.3'")
    assert found["extra cli"] == ("extra cli", "rich is missing; typer is missing", True, "pip install 'kvformat[cli]'")
    assert found["extra fuzz"].says == "hypothesis is 1.0, not >=6.80"
    assert {name for name, each in found.items() if not each.good} == {"numpy"}


def test_a_cache_that_can_be_written_is_named_and_left_as_it_was(monkeypatch, tmp_path):
    from numba.core import config

    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    found = numba_cache()
    assert found.good
    assert found.says.startswith(str(tmp_path))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_no_folder_for_compiled_kernels_is_wrong_and_says_what_to_do(monkeypatch):
    from numba.core.caching import CompileResultCacheImpl

    monkeypatch.setattr(CompileResultCacheImpl, "_locator_classes", [])  # as where no folder can be written
    found = numba_cache()
    assert not found.good
    assert "NUMBA_CACHE_DIR" in found.remedy

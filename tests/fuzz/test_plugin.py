"""The pytest plugin, in a kernel's repository of its own."""

from __future__ import annotations

from importlib.metadata import entry_points

import pytest

pytest_plugins = ["pytester"]

KERNEL = """
import numpy as np
import pytest

def kernel(x):
    wide = x.astype(np.float32)
    finite = np.isfinite(wide)
    scale = np.where(finite, np.abs(wide), 0).max(axis=2) / np.float32(127)
    scale = np.where(scale == 0, np.float32(1), scale)
    scale = np.where(np.isnan(wide).any(axis=2), np.float32(np.nan), scale)
    q = np.clip({rounding}(wide / scale[..., None]), -127, 127)
    return np.where(np.isnan(q), 0, q).astype(np.int8), scale

@pytest.mark.kvformat(mode="int8_per_token_head", examples=200)
def test_kernel(kvformat_fuzz):
    kvformat_fuzz(kernel)
"""


@pytest.fixture
def repository(pytester):
    pytester.makeini("[pytest]\naddopts = --strict-markers -p no:cacheprovider\n")
    return pytester


def run(repository, **options):
    installed = any(each.name == "kvformat" for each in entry_points(group="pytest11"))
    plugin = () if installed else ("-p", "kvformat.fuzz.plugin")
    return repository.runpytest_inprocess(*plugin, "-p", "no:xdist", **options)


def test_a_right_kernel_passes(repository):
    repository.makepyfile(KERNEL.format(rounding="np.rint"))
    run(repository).assert_outcomes(passed=1)


def test_a_fault_fails_with_its_counterexample_and_no_traceback(repository):
    repository.makepyfile(KERNEL.format(rounding="np.trunc"))
    result = run(repository)
    result.assert_outcomes(failed=1)
    headline = "FAILS: *kernel, quantizer, by golden/int8_per_token_head*"
    result.stdout.fnmatch_lines([headline, "*counterexample: 1 token*"])
    result.stdout.no_fnmatch_line("*Traceback*")


def test_the_marker_says_what_is_missing(repository):
    repository.makepyfile("def test_kernel(kvformat_fuzz):\n    kvformat_fuzz(lambda x: x)\n")
    result = run(repository)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*kvformat_fuzz needs a mode*"])


def test_a_counterexample_goes_to_hypothesis_database(repository):
    repository.makepyfile(KERNEL.format(rounding="np.trunc"))
    repository.makeconftest(
        """
from hypothesis import settings
from hypothesis.database import DirectoryBasedExampleDatabase
settings.register_profile("here", database=DirectoryBasedExampleDatabase("kept"))
settings.load_profile("here")
"""
    )
    from hypothesis import settings

    before = settings.default
    try:
        run(repository).assert_outcomes(failed=1)
        assert list((repository.path / "kept").rglob("*"))
        result = run(repository)
        result.stdout.fnmatch_lines(["FAILS: *; 1 examples in *"])
    finally:
        settings.register_profile("before", before)
        settings.load_profile("before")


@pytest.mark.slow  # a process of its own, with torch and Triton in it
def test_every_test_runs_once_for_each_target_in_the_emulation(repository, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)  # tests/torch sets it, for this process
    repository.makepyfile(
        """
def test_unnamed():
    from triton.runtime.driver import driver
    print("target", driver.active.get_current_target().arch)

def test_named(kvformat_emulation):
    print("named", kvformat_emulation.target)
"""
    )
    result = repository.runpytest_subprocess("-p", "no:xdist", "-s", "--kvformat-emulate=sm_80,sm_90")
    result.assert_outcomes(passed=4)
    for line in ("target 80", "target 90", "named sm_80", "named sm_90"):
        result.stdout.fnmatch_lines([f"*{line}*"])

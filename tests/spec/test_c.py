"""spec/c: a C99 program runs the vectors on C functions, holds, and fails when any one constant of them changes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

SPEC = Path(__file__).parents[2] / "spec"
SOURCE = SPEC / "c"
KERNEL = (SOURCE / "kernel.c").read_text()
#: every named constant of the example kernel, and where its number stands
CONSTANTS = {
    match[1]: match.span(2) for match in re.finditer(r"\b([A-Z][A-Z_]+) = (0x[0-9A-F]+|\d+(?:\.\d+f)?)", KERNEL)
}


@pytest.fixture(scope="module")
def compiler():
    found = shutil.which(os.environ.get("CC", "cc"))
    if found is None:
        reason = "no C compiler: install one, or name it in CC"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


def run(compiler, folder, kernel, *, strict=True):
    """Compile the runner with a kernel and run it on the vectors; `strict`: a warning is an error."""
    for name in ("run_vectors.c", "kernel.h"):
        shutil.copy(SOURCE / name, folder)
    (folder / "kernel.c").write_text(kernel)
    flags = ["-std=c99", "-O2", "-Wall", "-Wextra", "-Wpedantic", *(["-Werror"] if strict else [])]
    command = [compiler, *flags, "run_vectors.c", "kernel.c", "-lm", "-o", "run_vectors"]
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    program = [folder / "run_vectors", SPEC / "vectors"]
    return subprocess.run(program, capture_output=True, text=True, check=False, timeout=60)


def test_the_runner_is_a_program_of_less_than_150_lines():
    assert len((SOURCE / "run_vectors.c").read_text().splitlines()) < 150


def test_the_example_kernel_holds_on_all_its_vectors(compiler, tmp_path):
    done = run(compiler, tmp_path, KERNEL)
    assert done.returncode == 0, done.stdout
    counts = [int(count) for count in re.findall(r"(\d+) tests, 0 wrong", done.stdout)]
    assert len(counts) == 3
    quoted = (SPEC / "vectors" / "README.md").read_text()
    assert done.stdout in quoted
    assert counts[0] > 1500
    assert counts[1] == 256


def test_the_kernel_names_its_constants():
    assert len(CONSTANTS) == 10


@pytest.mark.parametrize("name", CONSTANTS)
def test_one_changed_constant_fails(compiler, tmp_path, name):
    start, end = CONSTANTS[name]
    text = KERNEL[start:end]
    other = f"{float(text[:-1]) + 1}f" if text.endswith("f") and "." in text else str(int(text, 0) + 1)
    done = run(compiler, tmp_path, KERNEL[:start] + other + KERNEL[end:], strict=False)
    assert done.returncode == 1, (name, text, other, done.stdout)
    assert "wrong: {" in done.stdout


def test_no_vectors_are_no_success(compiler, tmp_path):
    run(compiler, tmp_path, KERNEL)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert subprocess.run([tmp_path / "run_vectors", empty], capture_output=True, check=False).returncode == 2

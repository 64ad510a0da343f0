"""Each rule broken on purpose, one at a time: the vectors, or the tests of the machine, must notice."""

# ruff: noqa: E501 a rule is one line: what stands there, and what stands there instead

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kvformat

ROOT = Path(__file__).parents[2]
VECTORS = ROOT / "tests" / "ptx" / "test_instructions.py"
MACHINE = ROOT / "tests" / "ptx" / "test_machine.py"

#: (rule, file, text, what stands there instead, the tests that must fail)
MUTATIONS = [
    ("NaN results are canonical", "floats", "if value == value else NAN32", "if True else NAN32", VECTORS),
    ("a NaN gives way", "floats", "out = b if p != p else a", "out = NAN32", VECTORS),
    ("xorsign takes the sign of a NaN", "floats", "sign = (a ^ b) & SIGN32", "sign = b & SIGN32 if f32(a) != f32(a) else (a ^ b) & SIGN32", VECTORS),
    ("-0 is below +0", "floats", "a < b or (a == b and np.signbit(a) and not np.signbit(b))", "a < b", VECTORS),
    ("ftz keeps the sign", "floats", "return a & SIGN32 if a", "return ZERO if a", VECTORS),
    ("div.approx beyond 2^126", "floats", "if F(2.0**126) < abs(q) < np.inf:", "if False:", VECTORS),
    ("fma rounds once", "floats", "lane32(fused(f32(a), f32(b), f32(c)))", "lane32(f32(a) * f32(b) + f32(c))", VECTORS),
    ("sums are rounded to odd", "floats", "if error != 0.0 and bits & ONE == ZERO:", "if False:", VECTORS),
    ("unordered comparisons", "floats", "(TWO if p > q else THREE)", "TWO", VECTORS),
    ("shifts are clamped", "integers", "a << b if b < SIXTY_FOUR - y else ZERO", "a << (b & (SIXTY_THREE - y))", VECTORS),
    ("signed shifts leave the sign", "integers", "I(min(b, SIXTY_THREE))", "I(b & (SIXTY_THREE - y))", VECTORS),
    ("prmt replicates signs", "integers", "if nibble & U(8):", "if False:", VECTORS),
    ("bfi is cut", "integers", "if length == ZERO or position >= width:", "if length == ZERO or position + length > width:", VECTORS),
    ("quotients are truncated", "integers", "return (ZERO - r if (signed(a, y) < I(0)) != (", "return (ZERO - r - ONE if (signed(a, y) < I(0)) != (", VECTORS),
    ("NaN to integer is 0", "conversions", "return ZERO if how & TWO else top", "return top", VECTORS),
    ("integers saturate", "conversions", "return top - ONE", "return top", VECTORS),
    ("ceil keeps -0", "conversions", "else np.ceil(value)", "else np.ceil(value) + 0.0", VECTORS),
    ("16-bit NaN", "conversions", "        return NAN16", "        return U(0x7FC0)", VECTORS),
    ("the first source is the high half", "convert", 'return dest, [e.source(low, "f32"), e.source(high, "f32")]', 'return dest, [e.source(high, "f32"), e.source(low, "f32")]', VECTORS),
    ("constants divide by their reciprocal", "arithmetic", "if divisor is not None:", "if False:", VECTORS),
    ("shuffles wait", "warps", "late = not chosen[other] and status[other] != EXITED", "late = False", MACHINE),
    ("exited lanes are not waited for", "warps", "and status[other] != EXITED", "", MACHINE),
    ("writes race", "access", "                    return RACE", "                    pass", MACHINE),
    ("barriers order writes", "access", "return old & EPOCH == tag & EPOCH", "return True", MACHINE),
    ("shared memory starts undefined", "launch", "marks[:] = 0xFF", "marks[:] = 0", MACHINE),
    ("undefined bits are followed", "undefined", "out[i] = width if T[a, i] | T[b, i] | T[c, i] | T[g, i] else ZERO", "out[i] = ZERO", MACHINE),
    ("alignment of vectors", "access", "if offset & (align - ONE):", "if False:", MACHINE),
    ("contracted sums round once", "contraction", "if a in products and products[a][2] == key:", "if False:", MACHINE),
]  # fmt: skip


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mutated")
    shutil.copytree(Path(kvformat.__file__).parent, folder / "kvformat", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "tests" / "ptx", folder / "tests" / "ptx", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def passes(folder, tests):
    target = folder / "tests" / "ptx" / tests.name
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", "-c", os.devnull]
    command += ["--rootdir", str(folder), str(target)]
    # what a mutation leaves alone is compiled once
    environment = {**os.environ, "PYTHONPATH": str(folder), "NUMBA_CACHE_DIR": str(folder / "cache")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.returncode == 0


def test_every_mutation_changes_the_text_that_is_there():
    for rule, file, old, new, _ in MUTATIONS:
        text = (Path(kvformat.__file__).parent / "ptx" / f"{file}.py").read_text(encoding="utf-8")
        assert old in text, rule
        assert old != new


@pytest.mark.exhaustive
@pytest.mark.parametrize("tests", [VECTORS, MACHINE], ids=lambda path: path.stem)
def test_the_copy_passes_as_it_is(copy, tests):
    assert passes(copy, tests)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("rule", "file", "old", "new", "tests"), MUTATIONS, ids=[m[0] for m in MUTATIONS])
def test_a_broken_rule_is_noticed(copy, rule, file, old, new, tests):
    path = copy / "kvformat" / "ptx" / f"{file}.py"
    right = path.read_text(encoding="utf-8")
    path.write_text(right.replace(old, new), encoding="utf-8")
    try:
        assert not passes(copy, tests), rule
    finally:
        path.write_text(right, encoding="utf-8")

"""Random damage gets no false name, a wrong byte is named by its place, a fault on a part with the part."""

# ruff: noqa: ARG005 a writer hands all of its numbers to each of its steps

from __future__ import annotations

import numpy as np
import pytest

from kvformat import diagnose
from tests.diagnose.by_hand import F32, dump_of, e2m1, e4m3, finite_amax, int8, spread, write
from tests.diagnose.damages import damaged, faults

FP8, INT8, NVFP4 = "fp8_per_token_head", "int8_per_token_head", "nvfp4"
TOKENS, BLOCK, HEADS, DIMS = 40, 8, 4, 32


def said_of(seeds):
    found = []
    for seed in seeds:
        damage = damaged(seed)
        found += [f"seed {seed}, {damage}: {what}" for what in faults(damage, diagnose(damage.dump))]
    return found


def test_random_damage_gets_no_false_name():
    assert said_of(range(2)) == []


@pytest.mark.slow
def test_more_random_damages_get_no_false_name():
    assert said_of(range(2, 10)) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("first", range(0, 2000, 100))
def test_two_thousand_random_damages_get_no_false_name(first):
    """What tools/damages.py writes to spec/evidence/damages.txt."""
    assert said_of(range(first, first + 100)) == []


# --- faults on a part -------------------------------------------------------------------------------------------------


def truncated(q):
    return int8(np.trunc(np.clip(q, -127, 127)))


#: what a writer does otherwise, by fault and mode
FAULTY = {
    ("round-toward-zero", INT8): {"encode": truncated},
    ("round-toward-zero", FP8): {"encode": lambda q: e4m3(q, "truncated")},
    ("round-toward-zero", NVFP4): {"encode": lambda q: e2m1(q, "truncated")},
    ("qmax", FP8): {"scale": lambda a, g: a / F32(240)},
    ("qmax", INT8): {"scale": lambda a, g: a / F32(127.5)},
    ("encode-scale", FP8): {"used": lambda exact, after: F32(1) / after},
    ("unstored-scale", NVFP4): {"used": lambda exact, after: exact},
    ("amax-scope", INT8): {"amax": lambda x: finite_amax(x[..., : x.shape[-1] // 2])},
}
#: what becomes of the right scale bytes (tokens, heads, bytes)
SCALES = {
    "scale-of-other": lambda scales: np.roll(scales, 1, axis=1),
    "scale-elsewhere": lambda scales: np.broadcast_to(np.frombuffer(F32(1).tobytes(), np.uint8), scales.shape),
}
ALL = slice(None)
#: fault, mode, sides, and on which tokens, heads and dims; with the part that is named
PARTIAL = [
    ("round-toward-zero", INT8, "kv", (ALL, ALL, slice(24, 32)), "dims 24..31"),
    ("round-toward-zero", INT8, "k", (ALL, slice(2, 3), ALL), "head 2"),
    ("round-toward-zero", INT8, "kv", (slice(11, 30), ALL, ALL), "tokens 11..29"),
    ("round-toward-zero", INT8, "v", (ALL, [0, 2], ALL), "heads 0, 2"),
    ("round-toward-zero", INT8, "kv", ([3, 9, 17, 31, 38], ALL, ALL), "tokens 3, 9, 17, 31, 38"),
    ("round-toward-zero", INT8, "kv", (np.arange(40) % 8 == 7, ALL, ALL), "slot 7 of each block"),
    ("round-toward-zero", INT8, "kv", (np.isin(np.arange(40) // 8, (0, 3)), ALL, ALL), "blocks 0, 3"),
    ("round-toward-zero", FP8, "kv", (ALL, slice(1, 3), ALL), "heads 1..2"),
    ("round-toward-zero", FP8, "k", (slice(16, 24), ALL, ALL), "tokens 16..23"),
    ("round-toward-zero", FP8, "kv", (ALL, ALL, slice(28, 32)), "dims 28..31"),
    ("round-toward-zero", NVFP4, "kv", (ALL, slice(3, 4), ALL), "head 3"),
    ("round-toward-zero", NVFP4, "v", (slice(0, 12), ALL, ALL), "tokens 0..11"),
    ("qmax", FP8, "kv", (ALL, slice(0, 1), ALL), "head 0"),
    ("qmax", FP8, "kv", (slice(20, 40), ALL, ALL), "tokens 20..39"),
    ("qmax", INT8, "k", (ALL, slice(1, 4), ALL), "heads 1..3"),
    ("encode-scale", FP8, "kv", (ALL, slice(2, 4), ALL), "heads 2..3"),
    ("amax-scope", INT8, "v", (slice(5, 25), ALL, ALL), "tokens 5..24"),
    ("scale-of-other", INT8, "kv", (slice(8, 16), ALL, ALL), "tokens 8..15"),
    ("scale-elsewhere", INT8, "k", (ALL, slice(3, 4), ALL), "head 3"),
    ("scale-elsewhere", FP8, "kv", ([2, 12, 22, 32], ALL, ALL), "tokens 2, 12, 22, 32"),
]


def parted(right, other, part):
    """The right codes and scales, and those of the other writer in one part of tokens, heads and dims."""
    tokens, heads, dims = (np.arange(count)[chosen] for count, chosen in zip((TOKENS, HEADS, DIMS), part, strict=True))
    inside = np.zeros((TOKENS, HEADS, DIMS), bool)
    inside[np.ix_(tokens, heads, dims)] = True
    codes = inside[..., :: DIMS // right[0].shape[2]]
    return np.where(codes, other[0], right[0]), np.where(inside.all(axis=2)[..., None], other[1], right[1])


#: slots are in order, in blocks of 8
SAME = {"tokens 8..15": ("block 1", "slots 8..15"), "tokens 16..23": ("block 2", "slots 16..23")}
CHEAP = {("round-toward-zero", INT8, "heads 0, 2"), ("scale-elsewhere", FP8, "tokens 2, 12, 22, 32")}


@pytest.mark.parametrize(
    "fault, mode, sides, part, named",
    [pytest.param(*case, id=f"{case[0]}-{case[1]}-{case[2]}-{case[4]}",
                  marks=() if (case[0], case[1], case[4]) in CHEAP else pytest.mark.exhaustive) for case in PARTIAL],
)  # fmt: skip
def test_a_fault_on_a_part_is_named_with_the_part(fault, mode, sides, part, named):
    made, inputs, slots = [], [], np.arange(TOKENS)
    for side, seed in (("k", 1), ("v", 2)):
        x = np.random.default_rng(seed).normal(size=(TOKENS, HEADS, DIMS)).astype(F32)
        right = write(mode, x, given=F32(0.01) if mode == NVFP4 else None)
        other = right
        if side in sides:
            given = {"given": F32(0.01)} if mode == NVFP4 else {}
            other = (
                write(mode, x, **given, **FAULTY[fault, mode]) if fault not in SCALES
                else (right[0], SCALES[fault](right[1]))
            )  # fmt: skip
        inputs.append(x)
        made.append(parted(right, other, part))
    given = {"k_scale": 0.01, "v_scale": 0.01} if mode == NVFP4 else {}
    linear = {"v_scales": "linear"} if mode == NVFP4 else {}
    pages = spread(mode, made, slots=slots, blocks=5, **linear)
    first = diagnose(dump_of(mode, *inputs, pages, slots=slots, **linear, **given)).explanations[0]
    assert (first.complete, first.faults, first.first.sides) == (True, (fault,), (sides,)), first
    assert first.first.scope in {named, *SAME.get(named, ())}

"""How hypotheses are ordered, grouped and counted; large dumps; one side alone; bounds of approximate recipes."""

from __future__ import annotations

import numpy as np
import pytest

from kvformat import Dump, InputError, diagnose, layout
from kvformat.diagnose import sample
from tests.diagnose.by_hand import dump_of, e2m1, int8, rows, spread, write
from tests.diagnose.test_recipes import written
from tests.verify.profiles import key_value

INT8 = "int8_per_token_head"


def truncated(q):
    return int8(np.trunc(np.clip(q, -127, 127)))


def without_nan(seed, mode=INT8):
    return np.nan_to_num(rows(mode, seed), nan=1)


def int8_dump(*, faulty=(True, True), damage=(), **where):
    """Truncated codes on the sides that are faulty, then single bytes of the pages damaged."""
    sides = without_nan(1), without_nan(2)
    made = [write(INT8, x, **({"encode": truncated} if bad else {})) for x, bad in zip(sides, faulty, strict=True)]
    pages = spread(INT8, made, **where)
    for page, byte in damage:
        pages[page, byte] ^= 0x20
    return dump_of(INT8, *sides, pages)


def test_a_fault_of_one_side_is_said_to_be_of_that_side():
    for faulty, side in (((True, False), "k"), ((False, True), "v"), ((True, True), "kv")):
        first = diagnose(int8_dump(faulty=faulty)).explanations[0]
        assert (first.faults, first.first.sides) == (("round-toward-zero",), (side,))


def test_what_is_declared_is_always_listed_and_what_only_one_explains_is_counted():
    found = diagnose(int8_dump())
    first, declared = found.explanations[0], found.own
    assert declared in found.explanations
    assert declared.first == found.declared
    assert declared.wrong > 0
    assert 0 < first.only <= declared.wrong  # the declared one explains all else
    assert first.explained == first.total == declared.explained + declared.wrong


def test_a_damaged_byte_beside_a_fault_is_said_to_be_an_exception():
    found = diagnose(int8_dump(damage=[(2, 5)]))
    assert not found.explained
    assert found.explanations[0].faults == ("round-toward-zero",)
    assert found.explanations[0].wrong == 1
    assert "but round-toward-zero" in str(found).splitlines()[0]
    assert "except byte 5 of block 2" in str(found).splitlines()[0]


def test_hypotheses_with_the_same_bytes_are_one_explanation():
    # without a tie half away and half even agree; a wrong format does not
    key, value = (x.astype(np.float32) for x in key_value("llama", 32, 3, 64, 1))
    made = [write(INT8, x, encode=lambda q: int8(np.clip(np.rint(q), -127, 127))) for x in (key, value)]
    found = diagnose(dump_of(INT8, key, value, spread(INT8, made)))
    assert found.ok
    names = [member.recipe for member in found.explanations[0].members]
    assert names[0] == "golden/int8_per_token_head"
    assert "modelopt-0.47/int8_per_token_head" in names
    assert all(not member.faults for member in found.explanations[0].members)


def test_a_recipe_that_is_only_admissible_comes_after_exact_ones_with_what_it_was_allowed():
    key, value = key_value("llama", 64, 3, 64, 5)
    dump = written("vllm-0.33/triton/int8_per_token_head", key, value)
    where = dump.layout.locate(side="v", slot=2, head=0, dim=0, part="scale").byte
    dump.pages[0, where : where + 4].view(np.uint32)[0] += 1  # div.approx may be off by two
    found = diagnose(dump, recipe="vllm-0.33/triton/int8_per_token_head")
    assert found.status == 0
    assert (found.own.wrong, found.own.allowance) == (0, 1)
    assert "1 bytes within its bounds" in str(found)
    dump.pages[0, where : where + 4].view(np.uint32)[0] += 50
    assert diagnose(dump, recipe="vllm-0.33/triton/int8_per_token_head").status == 1


@pytest.mark.parametrize("order", ["NHD", "HND"])
def test_a_pair_of_faults_is_named_the_one_of_arithmetic_first(order):
    dump = int8_dump(order="HND" if order == "NHD" else "NHD")
    spec = dump.layout.spec
    declared = layout(spec.pop("name"), **{**spec, "order": order})
    both = Dump.from_arrays(
        dump.key, dump.value, dump.pages, dump.slot_mapping, layout=declared, recipe=dump.recipe
    )  # fmt: skip
    first = diagnose(both).explanations[0]
    assert (first.complete, first.faults) == (True, ("round-toward-zero", "order"))


def test_a_large_dump_is_sampled_where_it_fails_and_counted_whole(monkeypatch):
    tokens = 3000
    key, value = (x.astype(np.float32) for x in key_value("llama", tokens, 2, 64, 3))
    wrong = [7, 1500, 2901]  # three tokens of a writer that truncates
    made = []
    for x in (key, value):
        right, other = write(INT8, x), write(INT8, x, encode=truncated)
        codes = right[0].copy()
        codes[wrong] = other[0][wrong]
        made.append((codes, right[1]))
    made_layout = layout("vllm-0.33", mode=INT8, block_size=8, num_kv_heads=2, head_size=64, order="NHD")
    cells = np.concatenate([part for side in made for part in side], axis=2)
    pages = np.ascontiguousarray(cells).reshape(tokens // 8, -1)
    dump = Dump.from_arrays(key, value, pages, np.arange(tokens), layout=made_layout, recipe=f"golden/{INT8}")
    monkeypatch.setattr(sample, "WHOLE", 1 << 13)
    steps = []
    found = diagnose(dump, progress=lambda done, total: steps.append((done, total)))
    assert found.tokens == tokens
    assert 64 <= found.sampled <= 128
    first = found.explanations[0]
    assert (first.complete, first.faults, first.first.scope) == (True, ("round-toward-zero",), "tokens 7, 1500, 2901")
    assert first.explained == first.total == pages.size
    assert found.own.total == pages.size
    whole = np.count_nonzero(cells[wrong] != np.concatenate([part[wrong] for x in (key, value)
                                                             for part in write(INT8, x)], axis=2))  # fmt: skip
    assert found.own.wrong == whole
    assert steps[-1] == (tokens, tokens)
    assert all(done <= total for done, total in steps)


def test_a_large_dump_with_a_fault_throughout_is_explained_whole(monkeypatch):
    key, value = (x.astype(np.float32) for x in key_value("llama", 2048, 2, 64, 3))
    made = [write("nvfp4", x, given=0.01, encode=lambda q: e2m1(q, "truncated")) for x in (key, value)]
    slots = np.arange(2048)
    pages = spread("nvfp4", made, slots=slots, blocks=256, v_scales="linear")
    dump = dump_of("nvfp4", key, value, pages, slots=slots, v_scales="linear", k_scale=0.01, v_scale=0.01)
    monkeypatch.setattr(sample, "WHOLE", 1 << 13)
    first = diagnose(dump).explanations[0]
    assert (first.complete, first.faults) == (True, ("round-toward-zero",))
    assert first.explained == first.total == pages.size


def test_what_has_no_token_in_a_slot_is_refused():
    dump = int8_dump()
    none = Dump.from_arrays(
        dump.key, dump.value, dump.pages, np.full(dump.tokens, -1), layout=dump.layout, recipe=dump.recipe
    )  # fmt: skip
    with pytest.raises(InputError, match="nothing to judge"):
        diagnose(none)

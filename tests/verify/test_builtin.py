"""The built-in check: everything holds, each planted byte is found, and a broken engine is not overlooked."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kvformat import cache
from kvformat.verify import builtin, compare
from kvformat.verify.plain import write_pages
from tests.verify.cases import CASES


@pytest.fixture(scope="module")
def summary():
    return builtin.run()


def test_every_mode_layout_order_and_v_scale_order_has_a_row_that_holds(summary):
    assert sorted((row.layout, row.mode, row.order, row.v_scales) for row in summary.rows) == sorted(
        (*case[:3], case[3] or "") for case in CASES
    )
    assert all(row.ok and row.mismatches == 0 for row in summary.rows)
    assert (summary.ok, summary.status) == (True, 0)


def test_every_row_compares_all_tokens_but_the_padding_one(summary):
    # 127 of 128 tokens, 3 heads, K and V of 64 dims; one scale a row, or one for 16 dims
    entries = {"none": 64, "fp8_per_tensor": 64, "fp8_per_token_head": 65, "int8_per_token_head": 65, "nvfp4": 68}
    for row in summary.rows:
        assert row.compared == 127 * 3 * 2 * entries[row.mode]
    assert summary.compared == sum(row.compared for row in summary.rows)


def test_every_planted_byte_is_named_where_it_was_planted(summary):
    assert {row.planted for row in summary.rows} == {row.found for row in summary.rows} == {"V token 121 head 1 dim 37"}


def test_the_document_has_the_rows_and_no_first_difference(summary):
    document = summary.to_json()
    assert (document["mismatches"], document["first"], len(document["rows"])) == (0, None, len(CASES))
    json.dumps(document, allow_nan=False)


def failing(summary):
    assert (summary.ok, summary.status) == (False, 1)
    return [row for row in summary.rows if not row.ok]


def test_an_engine_that_changes_one_code_fails_the_rows_of_its_mode(monkeypatch):
    right = cache.quantize_for

    def wrong(layout, x, recipe, scale, segment=None):
        made = right(layout, x, recipe, scale, segment)
        if recipe.name == "golden/int8_per_token_head" and len(x) > 1:
            made.codes[made.codes == 127] = 126  # a clamp at 126
        return made

    monkeypatch.setattr(cache, "quantize_for", wrong)
    summary = builtin.run()
    rows = failing(summary)
    assert [(row.layout, row.mode) for row in rows] == [("vllm-0.33", "int8_per_token_head")] * 2
    assert all(row.mismatches > 0 and row.found.endswith(" differences") for row in rows)
    document = summary.to_json()
    assert document["first"]["mode"] == "int8_per_token_head"
    assert document["mismatches"] == sum(row.mismatches for row in rows)


def test_a_writer_that_writes_one_byte_too_many_fails_its_row(monkeypatch):
    def wrong(*arguments, **options):
        pages = write_pages(*arguments, **options)
        if arguments[:3] == ("flashinfer", "nvfp4", "HND"):
            pages[2, 0] ^= 1
        return pages

    monkeypatch.setattr(builtin, "write_pages", wrong)
    (row,) = failing(builtin.run())
    assert (row.layout, row.mode, row.order, row.mismatches) == ("flashinfer", "nvfp4", "HND", 1)
    assert row.found == "2 differences"


def test_a_judge_that_sees_nothing_fails_every_row(monkeypatch):
    right = compare._wrong_codes
    monkeypatch.setattr(compare, "_wrong_codes", lambda expected, _found: right(expected, expected))
    rows = failing(builtin.run())
    assert len(rows) == len(CASES)
    assert {row.found for row in rows} == {"0 differences"}


def test_a_judge_that_names_another_place_fails_every_row(monkeypatch):
    right = compare._explain

    def wrong(dump, place):
        return right(dump, place) | {"dim": place.column ^ 1}

    monkeypatch.setattr(compare, "_explain", wrong)
    assert len(failing(builtin.run())) == len(CASES)


def test_a_check_of_no_layout_is_no_success(monkeypatch):
    monkeypatch.setattr(builtin, "LAYOUTS", {})
    summary = builtin.run()
    assert (summary.rows, summary.ok, summary.status) == ((), False, 2)


@pytest.mark.parametrize("change", [{"compared": 0}, {"mismatches": 1}, {"found": "0 differences"}])
def test_a_row_that_compared_nothing_or_does_not_hold_is_not_ok(summary, change):
    assert summary.rows[0].ok
    assert not replace(summary.rows[0], **change).ok


def test_progress_goes_through_all_rows():
    calls = []
    builtin.run(progress=lambda *call: calls.append(call))
    assert calls == [(done, len(CASES)) for done in range(1, len(CASES) + 1)]


def test_a_layout_that_a_user_registers_does_not_join(monkeypatch, summary):
    monkeypatch.setattr(builtin, "LAYOUTS", {**builtin.LAYOUTS, "mine": builtin.LAYOUTS["flashinfer"]})
    assert len(list(builtin._layouts(builtin.sample()[0]))) == len(summary.rows)

"""The search: reproducible with a seed, bounded, confirmed by the exact twin, remembered in a database."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis.database import InMemoryExampleDatabase

import kvformat as kvf
from kvformat.fuzz import fuzz, twin
from kvformat.fuzz.case import Case
from kvformat.fuzz.zoo.row_codes import Truncated
from tests.fuzz import kernels
from tests.fuzz.kernels import INT8


def seen_by(options):
    inputs = []

    def kernel(x):
        inputs.append((x.dtype, x.shape, x.tobytes()))
        return kernels.right_int8(x)

    report = fuzz(kernel, mode=INT8, isolated=False, **options)
    assert report.ok
    return inputs, report


@pytest.mark.slow
def test_a_seed_gives_the_same_examples_again_and_another_one_others():
    first, report = seen_by({"seed": 7, "examples": 250})
    again, _ = seen_by({"seed": 7, "examples": 250})
    other, _ = seen_by({"seed": 8, "examples": 250})
    assert report.examples == 250
    assert first == again
    assert first != other


def test_the_budget_only_decides_where_a_seed_stops():
    whole, _ = seen_by({"seed": 7, "examples": 250})
    some, report = seen_by({"seed": 7, "budget": 0.2})
    assert report.examples > 0
    shared = min(len(some), len(whole))
    assert some[:shared] == whole[:shared]
    assert report.seconds < 3


def test_the_readme_example_finds_the_truncation_in_two_numbers():
    report = fuzz(kernels.truncated, mode=INT8, seed=0)
    assert report.status == 1
    assert report.finding.case.key.shape[:2] == (1, 1)
    assert report.finding.case.nonzero <= 2
    assert "expected" in str(report)
    assert "found" in str(report)


def test_the_counterexample_is_a_dump_that_check_refuses(tmp_path):
    report = fuzz(kernels.truncated, mode=INT8, seed=0)
    path = tmp_path / "counterexample.safetensors"
    report.dump().save(path)
    again = kvf.check(kvf.Dump.load(path))
    assert not again.ok
    assert again.mismatches == report.check().mismatches == 1


def test_a_writers_counterexample_is_a_dump_too():
    class Writer(kernels.RightWriter):
        def rows(self, _):
            return Truncated(self.mode)

    report = fuzz(Writer(INT8), mode=INT8, seed=0)
    assert report.finding.fault == "bytes differ"
    assert report.finding.case.tokens == 1
    assert not kvf.check(report.dump()).ok
    assert "slots [0]" in str(report)


def test_no_seed_draws_one_and_says_it():
    report = fuzz(kernels.truncated, mode=INT8, budget=5)
    assert str(report.seed) in str(report)
    again = fuzz(kernels.truncated, mode=INT8, seed=report.seed)
    assert again.finding.case.key.tobytes() == report.finding.case.key.tobytes()


def test_a_difference_that_the_twin_denies_is_no_finding(monkeypatch):
    monkeypatch.setattr(twin, "agrees", lambda *_: False)
    report = fuzz(kernels.only_zeros_fail, mode=INT8, seed=0, examples=60)
    assert report.finding is None
    assert report.unconfirmed > 0
    assert report.status == 2
    assert "please report this to kvformat" in str(report)


def test_a_large_difference_that_the_twin_denies_does_not_end_the_search(monkeypatch):
    # rows of 1,024 numbers are confirmed only when they are small, which these cannot become
    monkeypatch.setattr(twin, "agrees", lambda *_: False)
    report = fuzz(kernels.truncated, mode=INT8, seed=0, examples=60, head_dims=[1024])
    assert (report.finding, report.examples, report.status) == (None, 60, 2)
    assert report.unconfirmed > 1


def test_a_fault_is_found_after_a_difference_that_the_twin_denied(monkeypatch):
    denied = []

    def agrees_from_the_second_time(*_):
        denied.append(True)
        return len(denied) > 1

    monkeypatch.setattr(twin, "agrees", agrees_from_the_second_time)
    report = fuzz(kernels.truncated, mode=INT8, seed=0, examples=60, head_dims=[1024])
    assert (report.unconfirmed, report.status) == (1, 1)
    assert report.finding.fault == "bytes differ"


def test_a_counterexample_is_kept_and_comes_first():
    database = InMemoryExampleDatabase()
    first = fuzz(kernels.truncated, mode=INT8, database=database)
    assert first.examples >= 1
    again = fuzz(kernels.truncated, mode=INT8, database=database)
    assert again.examples == 1
    # what is kept is made smaller again, by the clock: on a busy machine the first time ended early
    assert np.count_nonzero(again.finding.case.key) <= np.count_nonzero(first.finding.case.key)


def test_a_fault_that_is_gone_is_forgotten():
    database = InMemoryExampleDatabase()
    fuzz(kernels.truncated, mode=INT8, database=database, key="mine")
    assert sum(map(len, database.data.values())) == 1
    assert fuzz(kernels.right_int8, mode=INT8, database=database, key="mine", examples=20).ok
    assert sum(map(len, database.data.values())) == 0


def test_a_seed_leaves_the_database_alone():
    database = InMemoryExampleDatabase()
    fuzz(kernels.truncated, mode=INT8, database=database, seed=0)
    assert not database.data


def test_what_cannot_be_read_back_is_removed():
    database = InMemoryExampleDatabase()
    fuzz(kernels.truncated, mode=INT8, database=database)
    ((key, _),) = database.data.items()
    database.save(key, b"not a case")
    assert fuzz(kernels.truncated, mode=INT8, database=database).examples == 1
    assert b"not a case" not in database.data[key]


def test_a_case_survives_being_stored():
    case = fuzz(kernels.right_reader, mode=INT8, seed=3, examples=3).plan
    from kvformat.fuzz import corpus

    for each, _ in zip(corpus.cases(case, 3), range(12), strict=False):
        back = Case.loads(each.dumps())
        assert back.key.tobytes() == each.key.tobytes()
        assert back.key.dtype == each.key.dtype
        assert back.layout == each.layout
        assert (back.slots == each.slots).all()
        assert (back.blocks == each.blocks).all()
        assert (back.num_blocks, back.fill, back.k_scale) == (each.num_blocks, each.fill, each.k_scale)


def test_only_the_sizes_and_dtypes_that_were_named_are_tried():
    shapes = set()

    def kernel(x):
        shapes.add((x.shape[2], x.dtype.name))
        return kernels.truncated(x)

    fuzz(kernel, mode=INT8, seed=0, head_dims=[128], dtypes=["bfloat16"], isolated=False)
    assert shapes == {(128, "bfloat16")}


def test_the_report_as_plain_data():
    document = fuzz(kernels.truncated, mode=INT8, seed=0).to_json()
    assert document["fault"] == "bytes differ"
    assert document["check"]["mismatches"] == 1
    assert len(document["counterexample"]["elements"]) == document["counterexample"]["nonzero"]
    assert fuzz(kernels.right_int8, mode=INT8, seed=0, examples=10).to_json()["counterexample"] is None


@pytest.mark.parametrize(
    "kernel",
    [
        kernels.right_int8,
        *(pytest.param(kernel, marks=pytest.mark.slow) for kernel in (kernels.right_writer, kernels.right_reader)),
    ],
)
def test_a_right_kernel_is_not_accused(kernel):
    report = fuzz(kernel, mode=INT8, seed=1, examples=120)
    assert report.ok, str(report)
    assert report.status == 0
    assert str(report).startswith("holds: ")


def test_every_row_of_numbers_is_the_same_for_the_engine():
    # the reader of the search, which compiles nothing, gives what dequantize gives
    from kvformat.fuzz import reading

    for mode in ("fp8_per_tensor", INT8, "nvfp4"):
        x = np.random.default_rng(2).standard_normal((3, 2, 32)).astype(np.float32)
        x[1, 1, 4] = np.nan
        quantized = kvf.quantize(x, mode)
        assert not reading.differing(quantized.dequantize(), reading.values(quantized)).any()

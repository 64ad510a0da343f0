"""The vectors that come with kvformat are whole, cover the catalogues, and tell right functions from wrong ones."""

from __future__ import annotations

import json
import os
import shutil
from itertools import product

import ml_dtypes
import numpy as np
import pytest

import kvformat as kvf
from kvformat.elements import sweep
from kvformat.elements.formats import ELEMENTS, element
from kvformat.layouts import LAYOUTS
from kvformat.recipes import plain
from kvformat.recipes.catalogue import names
from kvformat.recipes.catalogue import recipe as find
from kvformat.vectors.runs import Choice, run
from kvformat.vectors.vectors import VectorSet, problems

VECTORS = VectorSet.load()
JSON_FILES = [entry for entry in VECTORS.entries if entry.path.endswith(".json")]
SCHEMAS = VECTORS.folder / "schema"


def document(name):
    return VECTORS.document(VECTORS.find(name))


def judged(name, function, group="*", skip=()):
    outcomes = run(VECTORS, VECTORS.find(name), function, Choice(group, frozenset(skip)))
    assert sum(outcome.judged for outcome in outcomes)
    return outcomes


def holds(*arguments, **keywords):
    wrong = [outcome.to_json() for outcome in judged(*arguments, **keywords) if outcome.mismatches]
    assert not wrong, wrong
    return True


def wrong_ids(*arguments, **keywords):
    return {outcome.first["id"] for outcome in judged(*arguments, **keywords) if outcome.mismatches}


# --- the files -------------------------------------------------------------------------------------------------------


def test_every_checksum_count_id_and_flag_is_as_the_manifest_and_the_file_say():
    assert VECTORS.verify() == []


def test_the_whole_set_stays_below_20_megabytes():
    assert 0 < sum(path.stat().st_size for path in VECTORS.folder.rglob("*") if path.is_file()) < 20_000_000


@pytest.fixture(scope="module")
def validators():
    try:
        from jsonschema import Draft202012Validator
    except ImportError:
        if os.environ.get("CI"):
            raise
        pytest.skip("jsonschema is not installed (the extra 'test')")
    found = {}
    for path in SCHEMAS.glob("*.schema.json"):
        schema = json.loads(path.read_text())
        Draft202012Validator.check_schema(schema)
        found[path.name] = Draft202012Validator(schema)
    return found


@pytest.mark.parametrize("entry", JSON_FILES, ids=lambda entry: entry.path)
def test_every_file_follows_its_schema(validators, entry):
    made = document(entry.path)
    error = next(validators[made["schema"]].iter_errors(made), None)
    assert error is None, error.message[:200]


def test_the_manifest_follows_its_schema(validators):
    manifest = json.loads((VECTORS.folder / "MANIFEST.json").read_text())
    assert next(validators["manifest.schema.json"].iter_errors(manifest), None) is None


@pytest.mark.parametrize("entry", JSON_FILES, ids=lambda entry: entry.path)
def test_every_group_and_test_stands_on_a_line_of_its_own_for_readers_without_json(entry):
    lines = VECTORS.data(entry).decode().splitlines()
    ids = [line for line in lines if line.startswith('{"id":"')]
    groups = [line for line in ids if line.endswith('"tests":[')]
    made = document(entry.path)
    assert len(groups) == len(made["testGroups"])
    assert len(ids) - len(groups) == entry.tests
    assert sum(line.startswith("]") for line in lines) == len(groups) + 1


# --- what they cover -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ELEMENTS)
def test_every_policy_of_a_format_has_its_groups(name):
    fmt = element(name)
    found = {(g["source"], g["rounding"], g["overflow"]) for g in document(f"elements/{name}_encode")["testGroups"]}
    overflows = {policy.overflow for policy in sweep.policies(fmt)}
    assert found >= set(product(["binary32"], fmt.roundings, overflows))
    assert found >= set(product(["binary64"], fmt.roundings, ["saturate"]))
    codes = {test["code"] for group in document(f"elements/{name}_decode")["testGroups"][:1] for test in group["tests"]}
    assert len(codes) == fmt.codes


@pytest.mark.parametrize("name", ELEMENTS)
def test_every_code_but_odd_nans_is_the_answer_to_some_input(name):
    fmt = element(name)
    group = document(f"elements/{name}_encode")["testGroups"][0]
    found = {test["code"] for test in group["tests"]}
    digits = fmt.digits
    unreachable = {*fmt.nan_codes, *fmt.inf_codes}  # group 0 saturates
    assert found >= {f"{code:0{digits}X}" for code in range(fmt.codes) if code not in unreachable}


def test_every_recipe_that_makes_codes_has_a_file():
    assert {entry.path for entry in VECTORS.entries if entry.path.startswith("recipes/")} == {
        f"recipes/{name}.json" for name in names() if find(name).element
    }


def test_every_mode_order_and_place_of_scales_of_every_layout_has_a_group():
    for entry in LAYOUTS.values():
        wanted = {
            "/".join(filter(None, (mode, order, choice)))
            for mode, form in entry.modes
            for order in form.orders
            for choice in [name for name, _ in form.v_scales] or [None]
        }
        assert {group["id"] for group in document(f"pages/{entry.name}")["testGroups"]} == wanted


def test_where_only_approximate_instructions_leave_room_a_result_is_merely_acceptable():
    for entry in VECTORS.entries:
        if entry.path.startswith("recipes/golden/"):
            tests = [test for group in document(entry.path)["testGroups"] for test in group["tests"]]
            assert {test["result"] for test in tests} == {"valid"}


# --- the authorities -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", document("elements/authorities")["testGroups"], ids=lambda group: group["id"])
def test_the_runs_of_kvformat_are_those_of_the_exact_twin(group):
    fmt = element(group["id"])
    for name, runs in group["runs"].items():
        if not name.startswith("kvformat "):
            continue
        word = name.removeprefix("kvformat ")
        rounding = word if word in fmt.roundings else "nearest_even"
        policy = sweep.Policy(word if word in ("saturate", "ieee") else "saturate", rounding)
        expected = []
        for each in sweep.runs(fmt, policy):
            if not expected or expected[-1][1] != f"{each.code:0{fmt.digits}X}":
                expected.append([f"{each.start:08X}", f"{each.code:0{fmt.digits}X}"])
        assert runs == expected


@pytest.mark.parametrize("group", document("elements/authorities")["testGroups"], ids=lambda group: group["id"])
def test_a_test_of_authorities_is_what_their_runs_say_and_they_differ(group):
    starts = {name: [int(start, 16) for start, _ in runs] for name, runs in group["runs"].items()}
    for test in group["tests"]:
        x = int(test["x"], 16)
        for name, code in test["expected"].items():
            place = int(np.searchsorted(starts[name], x, side="right")) - 1
            assert group["runs"][name][place][1] == code
        assert len(set(test["expected"].values())) > 1


def test_ml_dtypes_still_does_what_was_written_down():
    group = next(g for g in document("elements/authorities")["testGroups"] if g["id"] == "e4m3fn")
    x = np.array([int(test["x"], 16) for test in group["tests"]], np.uint32).view(np.float32)
    with np.errstate(all="ignore"):
        codes = x.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    assert [f"{code:02X}" for code in codes] == [test["expected"]["ml_dtypes"] for test in group["tests"]]


# --- right functions hold --------------------------------------------------------------------------------------------


#: one of each kind in the fast tier: a codec is a kernel
FAST = ("e4m3fn", "e2m1fn", "e8m0fnu", "int8")


@pytest.mark.parametrize("name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in ELEMENTS])
def test_the_golden_codec_holds(name):
    def encode(x, overflow, rounding):
        return kvf.encode(x, name, overflow=overflow, rounding=rounding)

    assert holds(f"elements/{name}_encode", encode)
    assert holds(f"elements/{name}_decode", lambda codes, dtype: kvf.decode(codes, name, dtype))


@pytest.mark.parametrize("name", ["e2m1fn", *(pytest.param(n, marks=pytest.mark.slow) for n in ELEMENTS)])
def test_the_golden_codec_holds_on_all_16_bit_inputs(name):
    assert holds(
        f"elements/{name}_all16",
        lambda x, overflow, rounding: kvf.encode(x, name, overflow=overflow, rounding=rounding),
    )


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["fp8_per_tensor", "fp8_per_token_head", "int8_per_token_head", "nvfp4"])
def test_golden_quantizers_hold(mode):
    assert holds(f"recipes/golden/{mode}", lambda x, scale=None: kvf.quantize(x, mode, scale=scale))


CODED = [name for name in names() if find(name).element]


@pytest.mark.slow
@pytest.mark.parametrize("name", CODED)
def test_every_recipe_holds(name):
    """By the NumPy reader, which needs no kernel; tests/recipes holds the kernels to the exact twin."""

    def read(x, scale=None):
        with np.errstate(all="ignore"):
            return plain.quantize(x, find(name), scale=scale)

    assert holds(f"recipes/{name}", read)


@pytest.mark.exhaustive  # three kernels a recipe: 10 seconds each
@pytest.mark.parametrize("name", CODED)
def test_every_recipe_holds_as_compiled(name):
    assert holds(f"recipes/{name}", lambda x, scale=None: kvf.quantize(x, name, scale=scale))


def write(key, value, pages, slots, *, layout, num_blocks, k_scale, v_scale, **spec):
    """kvformat's own cache as the function under test."""
    cache = kvf.PagedCache(kvf.layout(layout, **spec), num_blocks, k_scale=k_scale, v_scale=v_scale)
    cache.pages[...] = pages
    cache.write(key, value, slots)
    pages[...] = cache.pages


@pytest.mark.parametrize("name", ["flashinfer"])
def test_the_cache_holds(name):
    assert holds(f"pages/{name}", write)


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_the_cache_holds_in_every_layout(name):
    assert holds(f"pages/{name}", write)


# --- wrong ones do not -----------------------------------------------------------------------------------------------


def test_an_encoder_without_saturation_is_found_where_it_overflows():
    def cast(x):
        with np.errstate(all="ignore"):
            return x.astype(ml_dtypes.float8_e4m3fn)

    saturate = "binary32/nearest_even/saturate"
    assert holds("elements/e4m3fn_encode", cast, "binary32/nearest_even/ieee")
    assert holds("elements/e4m3fn_encode", cast, saturate, skip=("Overflow", "Infinity"))
    (outcome,) = judged("elements/e4m3fn_encode", cast, saturate)
    assert outcome.first["id"] == "43E80001"
    quoted = f"{outcome.judged:,} tests, {outcome.mismatches:,} wrong; first: {outcome.first['what']} (43E80001)"
    assert quoted in (VECTORS.folder / "README.md").read_text()


def test_rounding_twice_is_found_where_it_matters():
    def twice(x):
        return kvf.encode(x.astype(np.float32), "e4m3fn")

    assert holds("elements/e4m3fn_encode", twice, "binary32/*/saturate")
    (outcome,) = judged("elements/e4m3fn_encode", twice, "binary64/*")
    flagged = [
        test["id"]
        for test in document("elements/e4m3fn_encode")["testGroups"][2]["tests"]
        if "DoubleRounding" in test["flags"]
    ]
    assert outcome.mismatches == len(flagged) > 100


@pytest.mark.parametrize(
    "skew",
    [np.trunc, lambda x: np.floor(x + np.float32(0.5)), lambda x: np.rint(x + np.float32(2.0**-20))],
    ids=["truncates", "ties up", "off by a hair"],
)
def test_wrong_roundings_of_integers_are_found(skew):
    def encode(x):
        with np.errstate(invalid="ignore"):
            return np.nan_to_num(np.clip(skew(x), -128, 127)).astype(np.int8)

    assert wrong_ids("elements/int8_encode", encode, "binary32/*")


def quantized(change):
    """The golden nvfp4 quantizer with one thing wrong."""

    def quantize(x, scale=None):
        made = kvf.quantize(x, "nvfp4", scale=scale)
        return change(made.codes.copy(), made.scales.copy(), np.array(made.global_scale))

    return quantize


@pytest.mark.parametrize(
    "change",
    [
        lambda c, s, g: (c ^ 8, s, g),
        lambda c, s, g: (np.where(c == 8, 0, c).astype(np.uint8), s, g),
        lambda c, s, g: (c, np.maximum(s, 1), g),
        lambda c, s, g: (c, s, 1 / g),
        lambda c, s, g: (c, s[..., ::-1], g),
    ],
    ids=["sign", "minus zero", "floor of the scale", "encode multiplier", "scales the other way round"],
)
def test_wrong_quantizers_are_found(change):
    with np.errstate(all="ignore"):
        assert wrong_ids("recipes/golden/nvfp4", quantized(change))


@pytest.mark.slow
def test_an_admissible_result_of_an_approximate_recipe_is_accepted_and_another_is_not():
    name = "vllm-0.33/triton/int8_per_token_head"

    def quantize(x, steps):
        made = kvf.quantize(x, name)
        with np.errstate(all="ignore"):
            return made.codes, (made.scales.view(np.int32) + steps).view(np.float32)

    assert holds(f"recipes/{name}", lambda x: quantize(x, 0))
    (near,) = judged(f"recipes/{name}", lambda x: quantize(x, 1), "binary32")
    assert 0 < near.mismatches < near.judged  # where one ulp of the scale is within the bounds, and where it is not
    (far,) = judged(f"recipes/{name}", lambda x: quantize(x, 40), "binary32")
    assert near.mismatches < far.mismatches


def broken(**other):
    """The cache with another layout than it was asked for."""

    def write_other(key, value, pages, slots, **meta):
        write(key, value, pages, slots, **{**meta, **other})

    return write_other


@pytest.mark.parametrize("other", [{"order": "HND"}, {"v_scales": "linear"}], ids=str)
def test_a_writer_of_another_layout_is_found_at_its_first_wrong_byte(other):
    (outcome,) = judged("pages/vllm-0.33", broken(**other), "nvfp4/NHD/swizzled")
    assert outcome.mismatches == 2
    assert "page 0 byte" in outcome.first["what"] or "page 1 byte" in outcome.first["what"]


def test_a_writer_that_touches_a_slot_of_nobody_is_found():
    def zeroes(key, value, pages, slots, **meta):
        pages[...] = 0
        write(key, value, pages, slots, **meta)

    (outcome,) = judged("pages/vllm-0.33", zeroes, "fp8_per_tensor/NHD")
    assert "00, right: A5" in outcome.first["what"]


@pytest.mark.parametrize("name", ["vllm-0.33"])
def test_a_writer_that_also_fills_a_free_slot_is_found_where_results_are_merely_acceptable(name):
    def fills(key, value, pages, slots, *, layout, num_blocks, k_scale, v_scale, **spec):
        write(key, value, pages, slots, layout=layout, num_blocks=num_blocks, k_scale=k_scale, v_scale=v_scale, **spec)
        where = kvf.layout(layout, **spec)
        free = next(slot for slot in range(num_blocks * where.block_size) if slot not in set(slots.tolist()))
        block, slot = divmod(free, where.block_size)
        pages[block, where.locate(side="k", slot=slot, head=0, dim=0).byte] = 0x5A

    loose = [g for g in document(f"pages/{name}")["testGroups"] if any(t["result"] != "valid" for t in g["tests"])]
    assert "int4_per_token_head/HND" in {group["id"] for group in loose}
    for group in loose:
        assert holds(f"pages/{name}", write, group["id"])
        (outcome,) = judged(f"pages/{name}", fills, group["id"])
        assert outcome.mismatches == outcome.judged > 0
        assert "5A, right: A5" in outcome.first["what"]


# --- what cannot be judged -------------------------------------------------------------------------------------------


def refused(*arguments, **keywords):
    with pytest.raises(kvf.InputError) as error:
        judged(*arguments, **keywords)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_function_that_cannot_tell_groups_apart_is_told_to_choose():
    said = refused("elements/e5m2_encode", lambda x: x)
    assert "takes no overflow" in said
    assert "--group" in said


@pytest.mark.parametrize(
    "function, says",
    [
        (lambda x: x, "8-bit"),
        (lambda x: x[:3].astype(np.uint8), "shape"),
        (lambda x: x.no_such_thing, "AttributeError"),
        (lambda x: x.fill(0), "shape"),
    ],
    ids=["floats", "too few", "raises", "nothing"],
)
def test_answers_that_are_no_codes_are_refused(function, says):
    assert says in refused("elements/e2m1fn_encode", function, "binary32/*")


def test_unknown_files_and_groups_are_refused_by_name():
    with pytest.raises(kvf.InputError, match="did you mean elements/e4m3fn_encode"):
        VECTORS.find("elements/e4m3fm_encode")
    assert "has no group 'half'" in refused("elements/int4_encode", lambda x: x, "half")


def test_a_changed_file_is_refused(tmp_path):
    for name in ("MANIFEST.json", "elements/int4_encode.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(VECTORS.folder / name, tmp_path / name)
    changed = VectorSet.load(tmp_path)
    assert changed.document(changed.find("elements/int4_encode"))
    path = tmp_path / "elements" / "int4_encode.json"
    path.write_bytes(path.read_bytes().replace(b'"code":"7"', b'"code":"6"', 1))
    (tmp_path / "elements" / "mine.json").write_text("{}")
    with pytest.raises(kvf.InputError, match="checksum"):
        changed.document(changed.find("elements/int4_encode"))
    said = changed.verify()
    assert "elements/int4_encode.json: its checksum is not the manifest's; it has been changed" in said
    assert "elements/mine.json: the manifest does not know it" in said
    assert any("cannot be read" in line for line in said)


@pytest.mark.parametrize("manifest", [None, "[]", "{", '{"files": [{"path": "x"}]}'])
def test_a_folder_without_a_manifest_is_refused(tmp_path, manifest):
    if manifest is not None:
        (tmp_path / "MANIFEST.json").write_text(manifest)
    with pytest.raises(kvf.InputError, match=r"no vectors in|is no manifest"):
        VectorSet.load(tmp_path)


def test_inconsistent_files_are_told_apart_from_whole_ones():
    made = document("elements/int4_encode")
    assert list(problems(made, made["numberOfTests"])) == []
    assert "it says" in next(problems(made, 1))
    assert next(problems({}, 1)) == "it is no file of vectors"
    group = made["testGroups"][0]
    group["tests"].append(dict(group["tests"][0], flags=["New"]))
    group["confirmedBy"] = group["confirmedBy"][:1]
    said = " ".join(problems(made, made["numberOfTests"]))
    for problem in ("holds", "has an id twice", "two sources", "flags without a note: New"):
        assert problem in said

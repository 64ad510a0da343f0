"""Whose bits are these: a page that one recipe wrote and another one declares is called by its name."""

import dataclasses

import numpy as np
import pytest

from kvformat.cache import PagedCache
from kvformat.data import sample
from kvformat.dump import Dump
from kvformat.errors import InputError
from kvformat.layouts import layout
from kvformat.recipes.catalogue import recipe
from kvformat.recipes.entry import parse_recipe
from kvformat.verify import check

KEY, VALUE = sample()[1].key, sample()[1].value
SLOTS = np.arange(len(KEY))


def page_dump(writer, declared, *, key=KEY, value=VALUE, k_scale=None, v_scale=None):
    how = recipe(writer)
    made = layout("vllm-0.33", mode=how.mode, block_size=16, num_kv_heads=3, head_size=64)
    cache = PagedCache(made, 8, k_scale=k_scale, v_scale=v_scale)
    cache.write(key, value, SLOTS, recipe=how)
    scales = {"k_scale": k_scale, "v_scale": v_scale}
    return Dump.from_arrays(key, value, cache.pages, SLOTS, layout=made, recipe=declared, **scales)


@pytest.mark.parametrize(
    "writer, declared",
    [
        ("vllm-0.33/triton/int8_per_token_head", "golden/int8_per_token_head"),
        ("vllm-0.33/triton/fp8_per_token_head", "golden/fp8_per_token_head"),
        pytest.param("torchao-0.18/nvfp4", "golden/nvfp4", marks=pytest.mark.slow),
        pytest.param("compressed-tensors-0.20/nvfp4", "golden/nvfp4", marks=pytest.mark.slow),
        ("golden/nvfp4", "torchao-0.18/nvfp4"),
    ],
)
def test_the_first_line_names_the_recipe_that_wrote_the_page(writer, declared):
    report = check(page_dump(writer, declared))
    first_line = str(report).splitlines()[0]
    assert report.status == 1
    assert writer in report.identity.names
    assert first_line.startswith("these are ")
    assert writer in first_line
    assert first_line.endswith(f"the dump declares {declared}")


def test_a_page_that_no_recipe_explains_is_given_no_name():
    dump = page_dump("golden/int8_per_token_head", "golden/int8_per_token_head")
    where = dump.layout.locate(side="k", slot=3, head=1, dim=9)
    dump.pages[0, where.byte] ^= 0x40
    report = check(dump)
    assert report.identity.names == ()
    assert str(report).startswith("DIFFERS")


def test_a_page_that_holds_is_not_searched():
    report = check(page_dump("golden/nvfp4", "golden/nvfp4"))
    assert report.identity is None


def test_the_computed_scale_of_each_recipe_is_its_own():
    # fnuz bytes at amax / 224 are the bytes of fn at amax / 448: both halve the value
    report = check(page_dump("vllm-0.33/rocm-fnuz/fp8_per_tensor", "golden/fp8_per_tensor"))
    assert report.ok


def test_an_approximate_recipe_holds_for_every_result_within_its_bound_and_counts_them():
    dump = page_dump("vllm-0.33/triton/int8_per_token_head", "vllm-0.33/triton/int8_per_token_head")
    where = dump.layout.locate(side="v", slot=2, head=0, dim=0, part="scale")
    scale = dump.pages[0, where.byte : where.byte + 4].view(np.uint32)
    scale += np.uint32(1)  # one ulp: div.approx may be off by two
    report = check(dump)
    assert (report.status, report.allowed) == (0, 1)
    scale += np.uint32(9)
    assert check(dump).status == 1


@pytest.mark.slow
def test_a_recipe_from_outside_is_judged_by_and_not_mistaken_for_the_catalogues():
    golden = recipe("golden/int8_per_token_head")
    mine = dataclasses.replace(golden, code=recipe("modelopt-0.47/int8_per_token_head").code)
    dump = page_dump("golden/int8_per_token_head", None)
    with pytest.raises(InputError, match="'golden/int8_per_token_head' ships with kvformat"):
        check(dump, recipe=mine)
    entry = parse_recipe(
        {
            "name": "mine/int8",
            "mode": "int8_per_token_head",
            "element": "int8",
            "source": "a test",
            "scales": [{"name": "s", "granularity": "per_token_head", "program": "s = div(amax_finite(x), 127)"}],
            "code": "c = encode(round(div(x, s), half_even), int8)",
            "value": "v = mul(c, s)",
        }
    )
    assert check(dump, recipe=entry).ok  # real rows have no zeros only, NaN or quotient beyond 127

"""Where the differences lie, in words: all tokens, one head, every second nibble, scales only, several tokens."""

from __future__ import annotations

import numpy as np
import pytest

from kvformat.elements import threads
from kvformat.layouts import layout as make_layout
from tests.verify.cases import judge, written

TOKENS, HEADS, DIM = 8, 3, 64
SLOTS = np.arange(TOKENS)


def pages_of(mode, heads=HEADS, **options):
    """A page of 8 tokens, NHD, all codes of K different from zero and from their neighbours."""
    layout = make_layout("vllm-0.33", mode=mode, block_size=TOKENS, num_kv_heads=heads, head_size=DIM, **options)
    rng = np.random.default_rng(3)
    key = (1 + np.arange(DIM) % 2 * 4 + rng.random((TOKENS, heads, DIM))).astype(np.float32)
    return layout, key, written(layout, key, key, SLOTS, 1, fill=0)


def lines(report):
    """Text behind "K codes:" and the like."""
    parts = (line.strip().partition(": ") for line in str(report).splitlines()[1:])
    return {name: text for name, _, text in parts if name in ("K codes", "K scales", "V codes", "V scales")}


def cells(pages, heads=HEADS):
    """An int8 page by (token, head, byte of the cell): K, scale, V, scale."""
    return pages[0].reshape(TOKENS, heads, 2 * (DIM + 4))


def test_right_pages_have_no_where():
    layout, key, pages = pages_of("int8_per_token_head")
    assert lines(judge(layout, key, key, pages, SLOTS)) == {
        "K scales": "24 equal",
        "K codes": "1,536 equal",
        "V scales": "24 equal",
        "V codes": "1,536 equal",
    }


def test_one_head_in_all_tokens():
    layout, key, pages = pages_of("int8_per_token_head")
    cells(pages)[:, 1, :DIM] ^= 1
    said = lines(judge(layout, key, key, pages, SLOTS))
    assert said["K codes"] == "512 of 1,536 differ: all 8 tokens, head 1, all 64 dims"
    assert said["V codes"] == "1,536 equal"


def test_several_heads_are_listed():
    layout, key, pages = pages_of("int8_per_token_head", heads=6)
    cells(pages, 6)[3, [1, 2, 5], 0] ^= 1
    said = lines(judge(layout, key, key, pages, SLOTS))
    assert said["K codes"] == "3 of 3,072 differ: token 3, 3 of 6 heads (1, 2, 5), dim 0"


def test_every_second_head_is_said():
    layout, key, pages = pages_of("int8_per_token_head")
    cells(pages)[0, ::2, 9] ^= 1
    assert lines(judge(layout, key, key, pages, SLOTS))["K codes"].endswith("every second head (the even ones), dim 9")


@pytest.mark.parametrize("kept, which", [(0x0F, "odd"), (0xF0, "even")])
def test_every_second_nibble_lost(kept, which):
    layout, key, pages = pages_of("nvfp4", v_scales="linear")
    codes = pages[0, : TOKENS * HEADS * DIM // 2]  # K data comes first
    codes &= kept
    said = lines(judge(layout, key, key, pages, SLOTS))
    assert said["K codes"] == f"768 of 1,536 differ: all 8 tokens, all 3 heads, every second dim (the {which} ones)"


def test_swapped_nibbles_are_wrong_in_all_dims_and_in_no_scale():
    layout, key, pages = pages_of("nvfp4", v_scales="linear")
    codes = pages[0, : TOKENS * HEADS * DIM // 2]
    low, high = codes & 15, codes >> 4
    assert (low != high).all()
    codes[:] = low << 4 | high
    said = lines(judge(layout, key, key, pages, SLOTS))
    assert said["K codes"] == "1,536 of 1,536 differ: all 8 tokens, all 3 heads, all 64 dims"
    assert said["K scales"] == "96 equal"


def test_scales_only():
    layout, key, pages = pages_of("int8_per_token_head")
    cells(pages)[:, :, -1] ^= 1
    said = lines(judge(layout, key, key, pages, SLOTS))
    assert said["V scales"] == "24 of 24 differ: all 8 tokens, all 3 heads, the only scale"
    assert said["V codes"] == "1,536 equal"


def test_swizzled_v_scales_read_linearly():
    """Case E1 of the bug zoo: per group of four tokens the page holds a 4 x 4 transpose; K holds."""
    linear, swizzled = (
        make_layout("vllm-0.33", mode="nvfp4", block_size=4, num_kv_heads=1, head_size=64, v_scales=name)
        for name in ("linear", "swizzled")
    )
    value = np.repeat(6.0 * np.arange(1, 5), 16).astype(np.float32) * np.ones((4, 1, 1), np.float32)
    slots = np.arange(4)
    pages = written(swizzled, value, value, slots, 1, fill=0, k_scale=1, v_scale=1)
    report = judge(linear, value, value, pages, slots, k_scale=1, v_scale=1)
    said = lines(report)
    assert said["V scales"] == "12 of 16 differ: all 4 tokens, the only head, all 4 scales"
    assert said["K scales"] == "16 equal"
    assert said["K codes"] == said["V codes"] == "256 equal"
    # token 0 reads 1 1 1 1 instead of 1 2 3 4
    assert (report.first["token"], report.first["dim"], report.first["shared_by"]) == (0, 16, [16, 32])
    assert report.first["expected"] == {"code": "0x40", "value": "2"}
    assert report.first["found"] == {"code": "0x38", "value": "1"}


@pytest.mark.parametrize("chunk", [1, 3 * HEADS * DIM, 1 << 22])
@pytest.mark.parametrize(
    "tokens, text",
    [
        ([5], "token 5"),
        ([1, 2, 6], "3 of 8 tokens (1, 2, 6)"),
        ([0, 2, 4, 6], "4 of 8 tokens (0, 2, 4, 6)"),
        ([1, 2, 3, 5, 7], "5 of 8 tokens (1, 2, 3, 5, ...)"),
        (range(7), "7 of 8 tokens (0, 1, 2, 3, ...)"),
        (range(8), "all 8 tokens"),
    ],
)
def test_tokens_are_listed_by_their_rows_in_the_dump(monkeypatch, tokens, text, chunk):
    monkeypatch.setattr(threads, "TILE", chunk)
    layout, key, _ = pages_of("int8_per_token_head")
    slots = SLOTS[::-1].copy()
    pages = written(layout, key, key, slots, 1)
    for token in tokens:
        cells(pages)[slots[token], 2, 3] ^= 1
    said = lines(judge(layout, key, key, pages, slots))
    assert said["K codes"].endswith(f"differ: {text}, head 2, dim 3")


def test_all_tokens_means_all_that_have_a_slot():
    layout, key, _ = pages_of("int8_per_token_head")
    slots = SLOTS.copy()
    slots[[0, 4]] = -1
    pages = written(layout, key, key, slots, 1)
    cells(pages)[:, 0, 0] ^= 1
    said = lines(judge(layout, key, key, pages, slots))
    assert said["K codes"] == "6 of 1,152 differ: all 6 tokens, head 0, dim 0"
    one = np.where(SLOTS == 3, SLOTS, -1)
    pages = written(layout, key, key, one, 1)
    cells(pages)[3, 0, 0] ^= 1
    said = lines(judge(layout, key, key, pages, one))
    assert said["K codes"] == "1 of 192 differ: token 3, head 0, dim 0"


def test_many_dims_are_counted_and_the_first_six_listed():
    layout, key, pages = pages_of("int8_per_token_head")
    cells(pages)[0, 0, [1, 2, 5, 8, 13, 21, 34]] ^= 1
    said = lines(judge(layout, key, key, pages, SLOTS))
    assert said["K codes"] == "7 of 1,536 differ: token 0, head 0, 7 of 64 dims (1, 2, 5, 8, 13, 21, ...)"


def test_the_counts_are_in_the_document_too():
    layout, key, pages = pages_of("int8_per_token_head")
    cells(pages)[2:5, 1, [7, 9]] ^= 1
    report = judge(layout, key, key, pages, SLOTS)
    where = report.to_json()["where"]
    assert where["k"]["code"] == {"compared": 1536, "wrong": 6, "tokens": 3, "heads": [1], "columns": [7, 9]}
    assert where["k"]["scale"] == {"compared": 24, "wrong": 0, "tokens": 0, "heads": [], "columns": []}
    assert (report.compared, report.mismatches) == (2 * (1536 + 24), 6)

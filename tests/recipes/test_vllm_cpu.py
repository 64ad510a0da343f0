"""The FP8 writers of vLLM's CPU backend by hand: release 0.32 truncates, 0.33 rounds to nearest even."""

from __future__ import annotations

import numpy as np
import pytest

import kvformat as kvf

NAN, INF = np.nan, np.inf


def _code(release, x, scale=1.0):
    q = kvf.quantize(np.full((1, 1, 1), x, np.float32), f"vllm-{release}/cpu/fp8_per_tensor", scale=scale)
    return int(q.codes.item())


@pytest.mark.parametrize(
    "x, truncated, nearest",
    [
        (1.0, 0x38, 0x38),
        (1.12, 0x38, 0x39),  # between 1 and 1.125
        (1.0625, 0x38, 0x38),  # a tie; the even code is below
        (1.1875, 0x39, 0x3A),  # a tie; the even code is above
        (-1.12, 0xB8, 0xB9),
        (447.0, 0x7D, 0x7E),
        (1e9, 0x7E, 0x7E),
        (INF, 0x7E, 0x7E),
        (-INF, 0xFE, 0xFE),
        (NAN, 0x7E, 0x7E),
        (-0.0, 0x00, 0x80),
        (-(2.0**-10) * 1.5, 0x80, 0x81),  # below the smallest subnormal, 2^-9: the sign stays
        (2.0**-9 * 1.75, 0x01, 0x02),
        # times 2^-120 is 2^-126 - 2^-150, halfway between two float32 subnormals: up to 2^-126, the smallest normal
        (2.0**-6 - 2.0**-30, 0x08, 0x08),
        (2.0**-6 - 2.0**-29, 0x07, 0x08),
    ],
)
def test_the_two_releases_make_these_codes(x, truncated, nearest):
    assert (_code("0.32", x), _code("0.33", x)) == (truncated, nearest)


def test_both_multiply_by_the_rounded_reciprocal_of_the_scale():
    # 1 / 3 rounds up in float32, so that 3 * (1 / 3) is 1.0 again and 1.875 * 3 stays 1.875
    assert [_code(release, 5.625, 3.0) for release in ("0.32", "0.33")] == [0x3F, 0x3F]
    # 1 / 41 in float32 is below it: 41 * (1 / 41) rounds to 1 - 2^-24 and is truncated to 0.9375
    assert np.float32(41) * (np.float32(1) / np.float32(41)) == np.float32(1 - 2**-24)
    assert [_code(release, 41.0, 41.0) for release in ("0.32", "0.33")] == [0x37, 0x38]


def test_the_pages_of_both_releases_are_column_major_keys_before_row_major_values():
    key = np.arange(1, 9, dtype=np.float32).reshape(2, 1, 4)
    for release in ("0.32", "0.33"):
        layout = kvf.layout(
            f"vllm-{release}-cpu", mode="none", block_size=2, num_kv_heads=1, head_size=4, dtype="float32"
        )
        cache = kvf.PagedCache(layout, num_blocks=1)
        cache.write(key, key + 10, np.arange(2))
        found = cache.pages.view(np.float32).reshape(-1).tolist()
        assert found == [1, 5, 2, 6, 3, 7, 4, 8, *range(11, 19)]

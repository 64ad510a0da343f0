"""What diagnose cannot judge it refuses in one line, and calls it neither explained nor unexplained."""

from __future__ import annotations

import numpy as np
import pytest

from kvformat import Dump, InputError, diagnose, layout


@pytest.mark.parametrize(
    "name, mode, says",
    [
        ("vllm-0.33", "int4_per_token_head", "transforms whole rows first; check judges it, diagnose cannot"),
        ("vllm-0.33-mla", "fp8_ds_mla", "does not store K and V in one format each; check judges it, diagnose cannot"),
    ],
)
def test_pages_that_no_hypothesis_fits_are_refused(name, mode, says):
    sizes = {} if name.endswith("mla") else {"num_kv_heads": 2, "head_size": 64}
    page = layout(name, mode=mode, block_size=4, **sizes)
    key, value = (np.ones((2, page.num_kv_heads, size), np.float32) for size in (page.head_size, page.head_size_v))
    dump = Dump.from_arrays(key, value, np.zeros((1, page.page_bytes), np.uint8), [0, 1], layout=page)
    with pytest.raises(InputError, match=says):
        diagnose(dump)

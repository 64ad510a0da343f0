"""What diagnose cannot judge it refuses in one line, and calls it neither explained nor unexplained."""

from __future__ import annotations

import numpy as np
import pytest

from kvformat import Dump, InputError, diagnose, layout


def test_a_dump_without_a_token_in_a_slot_is_refused():
    page = layout("vllm-0.33-mla", mode="fp8_ds_mla", block_size=4)
    key = np.ones((2, 1, page.head_size), np.float32)
    dump = Dump.from_arrays(key, None, np.zeros((1, page.page_bytes), np.uint8), [-1, -1], layout=page)
    with pytest.raises(InputError, match="nothing to judge"):
        diagnose(dump)

"""kvformat against torch's cast to float8, where torch is installed.

torch is no test requirement: engines pin it exactly. Without it this one file is skipped; the other oracles are not.
"""

from __future__ import annotations

import numpy as np
import pytest

import kvformat as kvf
from tests.oracle.compare import assert_same_conversion
from tests.oracle.inputs import BFLOAT16, NARROW_DOMAINS, inputs

torch = pytest.importorskip("torch", reason="torch is not in the test extra; CI installs it first")

VERSION = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
# since 2.12 the cast to float8_e4m3fn saturates, Inf included; the one to float8_e5m2 still overflows
E4M3FN_POLICY = "saturate" if VERSION >= (2, 12) else "ieee"


@pytest.mark.parametrize("domain", NARROW_DOMAINS)
@pytest.mark.parametrize(
    ("name", "overflow"),
    [("e4m3fn", E4M3FN_POLICY), ("e5m2", "ieee"), ("e4m3fnuz", "ieee"), ("e5m2fnuz", "ieee")],
)
def test_encode_gives_the_code_of_torchs_cast(name: str, overflow: str, domain: str) -> None:
    x = inputs(name, domain).copy()  # torch wants to own what it reads
    tensor = torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) if x.dtype == BFLOAT16 else torch.from_numpy(x)
    cast = tensor.to(getattr(torch, f"float8_{name}")).view(torch.uint8).numpy()
    assert_same_conversion(kvf.encode(x, name, overflow=overflow), cast, x, name)

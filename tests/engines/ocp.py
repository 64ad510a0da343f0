"""OCP's microscaling rules against torchao 0.18, on blocks where that is the standard's arithmetic alone.

torchao departs from it for blocks that hold NaN or Inf, for scale bytes of 0, and where its binary32 logarithm forgets
an ulp of amax; none is given here.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tests.engines import sources, torchao, turning
from tests.engines.judging import Codes
from tests.oracle.libraries import HEAD_DIM, HEADS, adversarial

SOURCE = sources.TORCHAO
#: 2^-3 to 2^3: of amaxes of this size the logarithm forgets nothing; other rules have none
_NEAR, _ALL = np.exp2(np.arange(-3.0, 4)), np.exp2(np.arange(-90.0, 90))


def answers() -> Iterator[Codes]:
    """Four rules, two element formats, two dtypes."""
    sources.imported(SOURCE, "torchao")
    for dtype in ("float32", "bfloat16"):
        for mode, (element, tops) in turning.MX.items():
            for rounding in torchao.ROUNDINGS:
                units = _NEAR if rounding == "rceil" else _ALL
                x = _blocks(element, dtype, units, tops)
                codes, scales = torchao.mx(x, rounding, mode)
                yield Codes(
                    f"ocp-mx-1.0/{rounding}/{mode}", "CPU, torch", "to_mx", x, codes, scales, None,
                    "finite blocks of ordinary size", nan_as_class=True,
                )  # fmt: skip


def _blocks(element: str, dtype: str, units: np.ndarray, tops: tuple[float, ...]) -> np.ndarray:
    """Blocks whose amax is at most 8 times, or 512 times, one of the units and not far below the least."""
    many = adversarial(element, dtype, width=32, units=units, tops=tops).reshape(-1, 32)
    amax = np.abs(many.astype(np.float64)).max(axis=1)
    kept = many[(amax >= units[0] * tops[0] / 2) & (amax <= units[-1] * tops[-1])][:12_000]
    return kept[: len(kept) // 4 * 4].reshape(-1, HEADS, HEAD_DIM)

"""Compiles cases for targets and writes what came out as JSON; run where TRITON_INTERPRET is not set.

python -m tests.torch.compile_cases OUT.json "CASE@TARGET" ...
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from kvformat.torch.aot import compile_for
from kvformat.torch.launch import Launch, options
from tests.torch.cases import OPTIONS, cases


def main() -> None:
    out, *wanted = sys.argv[1:]
    launches, made = cases(), {}
    for name in wanted:
        case, target = name.split("@")
        launched = launches[case]()
        compiled = compile_for(launched, target, **OPTIONS.get(case, {}))
        made[name] = {
            **compiled._asdict(),
            "as_launched": case in OPTIONS or target != "sm_90" or by_launch(launched) == compiled.assembly,
            "case": case,
            "stores": stores(launched.constants),
            "element_divisions": divisions(launched.constants.get("HOW")),
        }
    Path(out).write_text(json.dumps(made))


class OneGpu:
    """As much of a driver as Triton's just-in-time compiler asks for before it launches: a GPU of sm_90."""

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return device


def by_launch(launched: Launch) -> str:
    """The PTX that a launch would run, compiled by Triton's just-in-time compiler and not by `compile_for`."""
    driver.set_active(OneGpu())
    made = launched.kernel.warmup(*launched.arguments, grid=launched.grid, **launched.constants, **options(32))
    return made.asm["ptx"]


def stores(constants: dict[str, Any]) -> list[int]:
    """The widths that a kernel's stores must have: as wide as the layout allows; scales, narrower, at most 8."""
    if "OUT" in constants:
        return [16]  # rows one behind the other
    if "PLACE" in constants:
        return [constants["PLACE"].width]
    if "CODES" not in constants:
        return []  # sums and scales, not rows
    scales = constants["SCALES"]
    return [constants["CODES"].width, *([scales.word.size] if scales else [])]


def divisions(how: Any) -> int:
    """Divisions of an element in the recipe's program; those of a constant do not depend on it."""
    trials = getattr(how, "trials", None)
    words = ("_div", "_div_approx", "_reciprocal_product", "_plain_quotient")
    steps = trials[0].quotient.steps if trials else ()
    return sum(step.run.fn.__name__ in words and step.operands[0].place >= 0 for step in steps)


if __name__ == "__main__":
    main()

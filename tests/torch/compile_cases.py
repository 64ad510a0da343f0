"""Compiles cases for targets and writes what came out as JSON; run where TRITON_INTERPRET is not set.

    python -m tests.torch.compile_cases OUT.json "CASE@TARGET" ...
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from kvformat.torch.aot import compile_for
from tests.torch.cases import OPTIONS, cases


def main() -> None:
    out, *wanted = sys.argv[1:]
    launches, made = cases(), {}
    for name in wanted:
        case, target = name.split("@")
        launched = launches[case]()
        constants = launched.constants
        places = {key: constants.get(key) for key in ("CODES", "SCALES", "PLACE")}
        made[name] = {
            **compile_for(launched, target, **OPTIONS.get(case, {}))._asdict(),
            "widths": {key: place.width for key, place in places.items() if place is not None},
            "words": {key: place.word.size for key, place in places.items() if place is not None},
            "element_divisions": divisions(constants.get("HOW")),
        }
    Path(out).write_text(json.dumps(made))


def divisions(how: object) -> int:
    """Divisions in the recipe's program for an element."""
    trials = getattr(how, "trials", None)
    words = ("_div", "_div_approx", "_rcp", "_rcp_approx", "_reciprocal_product", "_plain_quotient")
    return sum(step.run.fn.__name__ in words for step in trials[0].quotient.steps) if trials else 0


if __name__ == "__main__":
    main()

"""Damage right pages at random, diagnose them, and print whether any diagnosis says more than is known.

    python tools/damages.py [--first 0] [--count 2000] [--log spec/evidence/damages.txt]

Damage is one bit to 64 bytes: flipped, replaced, one value, scattered, or bytes of another place; of any mode and
layout, 2 to 40 tokens (`tests/diagnose/damages.py`). Status 1 where another name costs more bits than the declared
recipe with its exceptions, a count is wrong, or a single wrong byte is not named by its place.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import kvformat
from kvformat import diagnose
from tests.diagnose.damages import damaged, faults


def main() -> int:
    """Run one command line and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=2000, help="damages")
    parser.add_argument("--log", type=Path, help="append the lines to this file as well")
    arguments = parser.parse_args()
    began = time.process_time()
    kinds, answers, modes, places = Counter[str](), Counter[str](), set[str](), set[str]()
    lines, wrong = [], 0
    for seed in range(arguments.first, arguments.first + arguments.count):
        damage = damaged(seed)
        found = diagnose(damage.dump)
        problems = faults(damage, found)
        wrong += bool(problems)
        best = found.explanations[0]
        kinds[damage.kind] += 1
        modes.add(damage.dump.mode)
        places.add(damage.dump.layout.name)
        answer = "within the bounds of an approximate recipe" if found.ok else "as declared, except ..."
        if best is not found.own:
            answer = f"named: {', '.join(best.faults) or best.recipe}"
            lines.append(f"seed {seed}, {damage}: {best.first}, {best.bits:,.0f} bits; declared {found.own.bits:,.0f}")
        answers[answer] += 1
        lines += [f"WRONG seed {seed}, {damage}: {problem}" for problem in problems]
        if (seed + 1) % 50 == 0:
            print(f"{seed + 1}: {wrong} wrong, {time.process_time() - began:.0f} s", file=sys.stderr, flush=True)
    head = [
        f"tools/damages.py --first {arguments.first} --count {arguments.count}",
        f"kvformat {kvformat.__version__}, {datetime.now(UTC):%Y-%m-%d}, {time.process_time() - began:.0f} s of a core",
        f"{sum(kinds.values()):,} damages in {len(modes)} modes and {len(places)} layouts: "
        + ", ".join(f"{count:,} {kind}" for kind, count in kinds.items()),
        *(f"{count:>6,} {answer}" for answer, count in answers.most_common()),
        f"{wrong} say what is not known",
    ]
    print("\n".join([*head, "", *lines]))
    if arguments.log:
        with arguments.log.open("a", encoding="utf-8") as file:
            file.write("\n".join([*head, "", *lines]) + "\n\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())

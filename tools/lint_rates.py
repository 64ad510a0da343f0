"""Lint right pages of every mode and writer, and print each rule's rate of false alarms.

    python tools/lint_rates.py [--pages 30000] [--mode MODE ...] [--log spec/evidence/lint.txt]

Numbers are real K and V, models of them, heads padded with zeros, every second dim zero, log-uniform, constant,
one-hot, sparse, of one sign (`tests/lint/corpus.py`), in three dtypes, in caches of 1 to 80 pages. Status 1 if any rule
says anything.
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
from kvformat.lint.rules import RULES
from kvformat.modes import MODES, RECORDS
from tests.lint import corpus


def rule_lines(judged: Counter[str], alarms: Counter[str]) -> list[str]:
    """A line a rule: caches judged, alarms, and the rate that 95 of 100 such runs would have seen an alarm at."""
    lines = [f"{'rule':<18} {'caches':>8} {'alarms':>7}   a rate above this would have shown (95 %)"]
    for name in RULES:
        if judged[name]:
            most = f"{3 / judged[name]:.1e}" if not alarms[name] else "-"
            lines.append(f"{name:<18} {judged[name]:>8,} {alarms[name]:>7,}   {most}")
    return lines


def main() -> int:
    """Run one command line and return its exit status."""
    every = [mode for mode in (*MODES, *RECORDS) if corpus.writers(mode)]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pages", type=int, default=30_000, help="right pages of each mode")
    parser.add_argument("--mode", action="append", choices=every, help="only this mode; may be repeated")
    parser.add_argument("--log", type=Path, help="write the lines to this file as well")
    arguments = parser.parse_args()
    lines = [
        f"tools/lint_rates.py --pages {arguments.pages}",
        f"kvformat {kvformat.__version__}, {datetime.now(UTC):%Y-%m-%d}",
        "",
        f"{'mode':<22} {'writers':>7} {'pages':>8} {'caches':>7} {'of one byte':>11} {'alarms':>7}",
    ]
    print("\n".join(lines), flush=True)
    judged, alarms, found = Counter[str](), Counter[str](), list[str]()
    for mode in arguments.mode or every:
        began = time.perf_counter()
        made = corpus.rates(mode, arguments.pages, seed=7, engine=True)
        writers = len(corpus.writers(mode))
        line = f"{mode:<22} {writers:>7} {made.pages:>8,} {made.caches:>7,} {made.blank:>11,} {len(made.found):>7,}"
        lines.append(line)
        print(line, f"{time.perf_counter() - began:.0f} s", flush=True)
        judged += made.judged
        alarms += made.alarms
        found += made.found
    lines += ["", *rule_lines(judged, alarms), "", *found, f"{len(found)} alarms in all"]
    print("\n".join(lines[-len(found) - len(RULES) - 2 :]))
    if arguments.log:
        arguments.log.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())

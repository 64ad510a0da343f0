"""Writes spec/proofs/: recipes compared on complete domains, with the counts, the smallest difference and the time.

    python tools/make_proofs.py             all of them; about an hour on two cores
    python tools/make_proofs.py NAME ...    single ones, by the names in PROOFS

Each proof leaves a log, `NAME.json`; the table is made from all logs that are there. A proof whose recipes have changed
since its log is made again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from time import perf_counter

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from kvformat.proofs import prove
from kvformat.proofs.listing import document, write
from kvformat.recipes import recipe
from kvformat.recipes.normal import normal

FOLDER = ROOT / "spec" / "proofs"


@dataclass(frozen=True)
class Plan:
    """Two recipes to compare. why: what the answer is good for. listed: every difference goes into a CSV file."""

    left: str
    right: str
    why: str
    dtype: str = "bfloat16"
    listed: bool = False

    @property
    def name(self) -> str:
        """The name of its log."""
        return f"{self.left}--{self.right}--{self.dtype}".replace("/", "_")

    @property
    def recipes(self) -> str:
        """A hash of what is compared, so that an old log is known."""
        text = "\n".join(repr(sorted(normal(recipe(name)).items())) for name in (self.left, self.right))
        return sha256(text.encode()).hexdigest()[:16]


_COST = "what binary32 arithmetic costs: golden rounds after each operation, exact once"
PROOFS = (
    Plan("golden/int8_per_token_head", "exact/int8_per_token_head", _COST, listed=True),
    Plan("golden/int8_per_token_head", "exact/int8_per_token_head", _COST, "float16"),
    Plan("golden/fp8_per_token_head", "exact/fp8_per_token_head", _COST),
    Plan("golden/fp8_per_token_head", "exact/fp8_per_token_head", _COST, "float16"),
    Plan("golden/nvfp4", "exact/nvfp4", _COST),
    Plan("golden/nvfp4", "torchao-0.18/nvfp4", "torchao floors its block scale"),
    Plan("golden/fp8_per_tensor", "exact/fp8_per_tensor", _COST),
    Plan(
        "vllm-0.33/csrc/fp8_per_tensor",
        "vllm-0.33/csrc-reciprocal/fp8_per_tensor",
        "whether multiplying by the reciprocal may stand for the division",
    ),
)


def main() -> int:
    """Make what is asked for, and the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="proofs by name; all that are not there if none")
    chosen = parser.parse_args().names
    known = {plan.name: plan for plan in PROOFS}
    unknown = [name for name in chosen if name not in known]
    if unknown:
        print(f"unknown proof {unknown[0]!r}; known: {', '.join(known)}", file=sys.stderr)
        return 2
    FOLDER.mkdir(exist_ok=True)
    for plan in PROOFS:
        if plan.name in chosen or (not chosen and not current(plan)):
            print(plan.name, flush=True)
            make(plan)
    (FOLDER / "README.md").write_text(page(), "utf-8")
    return 0


def log_of(plan: Plan) -> Path:
    """Where a proof's log is."""
    return FOLDER / f"{plan.name}.json"


def current(plan: Plan) -> bool:
    """Whether the log is there and is about the recipes as they are."""
    return log_of(plan).exists() and json.loads(log_of(plan).read_text("utf-8"))["recipes"] == plan.recipes


def make(plan: Plan) -> None:
    """Run a proof and write its log."""
    start = perf_counter()
    proof = prove(plan.left, plan.right, plan.dtype)
    seconds = perf_counter() - start
    if plan.listed:
        write(proof, FOLDER / f"{plan.name}.csv")
    command = f"kvformat recipes prove {plan.left} {plan.right} --dtype {plan.dtype}"
    machine = f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}"
    log = {
        "command": command,
        "date": datetime.now(tz=UTC).date().isoformat(),
        "seconds": round(seconds, 1),
        "machine": machine,
    }
    whole = {**log, "recipes": plan.recipes, **document(proof)}
    log_of(plan).write_text(json.dumps(whole, indent=1) + "\n", "utf-8")


def page() -> str:
    """The table of all proofs that have a log."""
    lines = [
        "# Proofs by enumeration",
        "",
        "Two recipes compared on a complete domain: not sampled, every input that decides their bytes.",
        "`kvformat recipes prove A B` does it for any two that can be enumerated, and refuses the others by name.",
        "",
        "A row with a scale of its own is decided by its largest magnitude and x: 2^30 pairs in bfloat16. A block",
        "scale of few bits is decided by (global scale, largest magnitude), its codes by (global scale, scale's code,",
        "x). A given scale and x count by their ratio alone where the program is homogeneous: each word is checked.",
        "",
        "| recipes | dtype | codes | scales | different codes | different scales | smallest difference | seconds |",
        "|---|---|---:|---:|---:|---:|---|---:|",
    ]
    plans = [plan for plan in PROOFS if log_of(plan).exists()]
    for plan in plans:
        log = json.loads(log_of(plan).read_text("utf-8"))
        numbers = [f"{log[name]:,}" for name in ("codes", "scales", "different_codes", "different_scales")]
        first = log["first"]
        smallest = "none: equal" if first is None else f"{first['what']} of `{first['x']}` at `{first['amax']}`"
        cells = [f"`{plan.left}`, `{plan.right}`", plan.dtype, *numbers, smallest, f"{log['seconds']:.0f}"]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "## What each is good for", ""]
    for plan in plans:
        log = json.loads(log_of(plan).read_text("utf-8"))
        lines.append(f"- `{plan.left}` and `{plan.right}`, {plan.dtype}: {plan.why}. {'; '.join(log['domain'])}.")
        lines.append(f"  [Log]({plan.name}.json): `{log['command']}`, {log['date']}, {log['machine']}.")
        if plan.listed:
            lines.append(f"  [Every difference]({plan.name}.csv).")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())

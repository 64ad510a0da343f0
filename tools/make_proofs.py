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

from kvformat.errors import InputError
from kvformat.proofs import prove
from kvformat.proofs.domains import domain
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
_NEAR = "each has no nearer neighbour in the catalogue"
_SAME = "they are written as the same operations"
_FLOOR = "how the exponent of a block's scale is chosen"
_RECIPROCAL = "whether multiplying by the reciprocal may stand for the division"
PROOFS = (
    Plan("golden/int8_per_token_head", "exact/int8_per_token_head", _COST, listed=True),
    Plan("golden/int8_per_token_head", "exact/int8_per_token_head", _COST, "float16"),
    Plan("golden/fp8_per_token_head", "exact/fp8_per_token_head", _COST),
    Plan("golden/fp8_per_token_head", "exact/fp8_per_token_head", _COST, "float16"),
    Plan("golden/fp8_per_tensor", "exact/fp8_per_tensor", _COST),
    Plan("golden/fp8_per_tensor", "exact/fp8_per_tensor", _COST, "float16"),
    Plan("golden/nvfp4", "exact/nvfp4", _COST),
    Plan("golden/nvfp4", "torchao-0.18/nvfp4", "torchao floors its block scale"),
    Plan("vllm-0.33/csrc/fp8_per_tensor", "vllm-0.33/csrc-reciprocal/fp8_per_tensor", _RECIPROCAL),
    Plan("vllm-0.33/csrc/fp8_per_tensor", "vllm-0.33/csrc-reciprocal/fp8_per_tensor", _RECIPROCAL, "float16"),
    Plan("golden/fp8_per_tensor", "vllm-0.33/csrc/fp8_per_tensor", _SAME),
    Plan("sglang-0.5/cpu/fp8_per_tensor", "sglang-0.5/pool/fp8_per_tensor", _SAME),
    *(
        Plan(left, right, _NEAR)
        for left, right in (
            ("sglang-0.5/commit-host-scalar/fp8_per_tensor", "vllm-0.33/csrc-reciprocal/fp8_per_tensor"),
            ("sglang-0.5/commit-host-scalar/fp8_per_tensor", "vllm-0.33/csrc-clamp/fp8_per_tensor"),
            ("sglang-0.5/commit-host-scalar/fp8_per_tensor", "vllm-0.33/cpu/fp8_per_tensor"),
            ("sglang-0.5/commit-host-scalar/fp8_per_tensor", "sglang-0.5/commit/fp8_per_tensor"),
            ("sglang-0.5/cpu/fp8_per_tensor", "vllm-0.33/rocm-fp16/fp8_per_tensor"),
            ("modelopt-0.47/fp8_per_tensor", "torchao-0.18/affine/fp8_per_tensor"),
            ("compressed-tensors-0.20/fp8_per_tensor", "torchao-0.18/affine/fp8_per_tensor"),
            ("lmcache-0.5/asym-k16-v8/fp8_per_tensor", "modelopt-0.47/fp8_per_tensor"),
            ("torchao-0.18/affine/fp8_per_token_head", "torchao-0.18/float8/fp8_per_token_head"),
            ("modelopt-0.47/fp8_per_token_head", "torchao-0.18/affine/fp8_per_token_head"),
            ("compressed-tensors-0.20/fp8_per_token_head", "modelopt-0.47/fp8_per_token_head"),
            ("compressed-tensors-0.20/int8_per_token_head", "modelopt-0.47/int8_per_token_head"),
            ("flashinfer-0.7/append-precise/nvfp4", "golden/nvfp4"),
            ("flashinfer-0.7/append-mla/nvfp4", "golden/nvfp4"),
            ("modelopt-0.47/nvfp4", "torchao-0.18/nvfp4"),
            ("vllm-0.33/csrc/nvfp4_ds_mla", "vllm-0.33/triton-v41/nvfp4_ds_mla"),
        )
    ),
    *(
        Plan(f"{family}/{other}/{mode}", f"{family}/floor/{mode}", _FLOOR)
        for mode in ("mxfp4", "mxfp8")
        for family, others in (("ocp-mx-1.0", ("ceil", "rceil", "even")), ("torchao-0.18", ("ceil", "even")))
        for other in others
    ),
)

#: near pairs that no enumeration decides; the page says why
REFUSED = (
    ("exact/fp8_per_tensor", "vllm-0.33/triton/fp8_per_tensor"),
    ("vllm-0.33/csrc/nvfp4", "vllm-0.33/csrc/nvfp4_4over6"),
    ("golden/fp8_per_tensor", "flashinfer-0.7/rope-quantize/fp8_per_tensor"),
    ("golden/fp8_per_tensor", "tensorrt-llm-snapshot/kv/fp8_per_tensor"),
    ("torchao-0.18/affine/fp8_per_tensor", "torchao-0.18/float8/fp8_per_tensor"),
    ("modelopt-0.47/nvfp4", "transformer-engine-d0067d0d/reference/nvfp4"),
    (
        "transformer-engine-d0067d0d/reference-4over6-mae/nvfp4",
        "transformer-engine-d0067d0d/reference-4over6-mse/nvfp4",
    ),
    ("compressed-tensors-0.20/mxfp4", "ocp-mx-1.0/even/mxfp4"),
    ("compressed-tensors-0.20/mxfp8", "ocp-mx-1.0/even/mxfp8"),
    ("modelopt-0.47/mxfp4", "ocp-mx-1.0/rceil/mxfp4"),
    ("torchao-0.18/rceil/mxfp8", "ocp-mx-1.0/rceil/mxfp8"),
    ("lmcache-0.5/serde/fp8_unscaled", "sglang-0.5/mla-store/fp8_unscaled"),
    ("golden/none", "exact/none"),
)


@dataclass(frozen=True)
class Cluster:
    """What takes more than one machine: what, and how many times the work of a proof that has a log."""

    what: str
    like: str
    times: float


#: 2^23 significands of g, by homogeneity; the exponents of g at which e4m3fn is neither 0 nor its largest are 2^5
_ALL_G = (1 << 23) / 64
CLUSTER = (
    Cluster(
        "`golden/nvfp4` and `exact/nvfp4`, every significand of the global scale", "golden_nvfp4--exact_nvfp4", _ALL_G
    ),
    Cluster(
        "`golden/nvfp4` and `torchao-0.18/nvfp4`, every significand of the global scale",
        "golden_nvfp4--torchao-0.18_nvfp4",
        _ALL_G,
    ),
    Cluster(
        "`golden/int8_per_token_head` and `exact/int8_per_token_head`, x in bfloat16, largest magnitudes in float32",
        "golden_int8_per_token_head--exact_int8_per_token_head",
        1 << 16,
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
        "Where it is monotone as well, the scales at which a code changes are found by bisection, and nothing changes",
        "between them.",
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
    lines += ["", "## What no enumeration decides", "", "These are near each other, and are refused by name:", ""]
    lines += [f"- `{left}`, `{right}`: {refusal(left, right)}." for left, right in REFUSED]
    lines += ["", "## What only a cluster can do", ""]
    lines += ["`--scheduler ADDRESS` gives the tasks to one, `--resume FOLDER` goes on after whatever stops it.", ""]
    lines += ["| domain | times the work of | core hours |", "|---|---|---:|"]
    lines += [cost(each) for each in CLUSTER if (FOLDER / f"{each.like}--bfloat16.json").exists()]
    return "\n".join(lines) + "\n"


def refusal(left: str, right: str) -> str:
    """Why two recipes are refused. Raises AssertionError where they are not."""
    try:
        domain(recipe(left), recipe(right))
    except InputError as error:
        return str(error)
    raise AssertionError(f"{left} and {right} can be enumerated: add a Plan")


def cost(each: Cluster) -> str:
    """A row of the table: what a log took, times the work. Seconds of a log are those of all its cores."""
    log = json.loads((FOLDER / f"{each.like}--bfloat16.json").read_text("utf-8"))
    cores = int(log["machine"].partition(", ")[2].split()[0])
    hours = log["seconds"] * cores * each.times / 3600
    like = f"[{log['seconds']:.0f} s on {cores} cores]({each.like}--bfloat16.json)"
    return f"| {each.what} | {each.times:,.0f} x {like} | {hours:,.0f} |"


if __name__ == "__main__":
    sys.exit(main())

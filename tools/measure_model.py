"""Measure every case of kvformat/simulate/model/cases.py on SmolLM2-135M and write spec/accuracy/measured.json.

    python tools/fetch_model.py
    python tools/measure_model.py --work DIR        about an hour on one core; goes on where it stopped

Each (chunk, case) is kept in DIR as it is done, under a digest of the model, the text, the sources and the case:
another one of these is measured again. The text is the excerpt that ships with the package, from its 2,000th token on:
chunks of 512 tokens in order, then one of 2,048 for the longest context; the scales that are calibrated come from the
512 tokens behind.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import sys
from pathlib import Path

import numpy as np

import kvformat
from kvformat.simulate.model import fetched
from kvformat.simulate.model.cases import BASE, CASES, Case
from kvformat.simulate.model.measure import Bench, Chunk, as_json, table_row
from kvformat.simulate.model.text import EXCERPT, chunks, excerpt, tokenize
from kvformat.simulate.model.weights import load

TARGET = Path(__file__).resolve().parents[1] / "spec" / "accuracy" / "measured.json"
#: another program has measured these chunks before, with fake quantization: tests/simulate/test_model.py holds both
START = 2000
CHUNKS, LENGTH, LONG = 4, 512, 2048
#: what the long context is measured for
LONG_CASES = ("INT8 per token head", "FP8 per token head", "FP8 per tensor, calibrated", "NVFP4, calibrated")
#: positions are reported in bins that double
EDGES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)


def keep(path: Path, chunk: Chunk) -> None:
    """Store one result; the file is there whole or not at all."""
    part = path.with_suffix(".part")
    with part.open("wb") as file:
        np.savez(
            file,
            kl=chunk.kl,
            nll=chunk.nll,
            base_nll=chunk.base_nll,
            same=chunk.same,
            layers=json.dumps(list(chunk.layers)),
        )
    part.replace(path)


def kept(path: Path) -> Chunk:
    """A result that `keep` stored."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in ("kl", "nll", "base_nll", "same")}
        return Chunk(**arrays, layers=json.loads(str(file["layers"])))


def inputs(model: Path, text: str) -> str:
    """A digest of what every result depends on: the model's file, the text, and all sources of the package."""
    digest = hashlib.sha256(hashlib.sha256(model.read_bytes()).digest() + hashlib.sha256(text.encode()).digest())
    package = Path(kvformat.__file__).parent
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package).as_posix()}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def place(work: Path, made_of: str, case: Case, length: int, index: int) -> Path:
    """Where a result is kept: its name holds the digest of what it was made of, the whole case (recipes) included."""
    key = hashlib.sha256(f"{made_of} {case!r}".encode()).hexdigest()[:16]
    return work / f"{length}-{index}-{case.name.replace(' ', '_').replace(',', '')}-{key}.npz"


def run(work: Path, made_of: str, bench: Bench, pieces: list, names: tuple[str, ...]) -> None:
    """Run the cases that `work` does not hold yet."""
    chosen = [case for case in CASES if case.name in names]
    for index, tokens in enumerate(pieces):

        def path(case: Case, index: int = index, tokens: np.ndarray = tokens) -> Path:
            return place(work, made_of, case, len(tokens), index)

        if all(path(case).exists() for case in (BASE, *chosen)):
            continue
        for case, chunk in bench.chunks(tokens, chosen, watch=index == 0, skip=lambda case: path(case).exists()):
            keep(path(case), chunk)
            print(f"{len(tokens)}-{index} {case.name}: KL {chunk.kl.mean():.5f}", flush=True)


def results(work: Path, made_of: str, name: str, length: int, count: int) -> list[Chunk]:
    """All chunks of a case."""
    (case,) = (case for case in (BASE, *CASES) if case.name == name)
    return [kept(place(work, made_of, case, length, index)) for index in range(count)]


def by_position(found: list[Chunk]) -> list[dict[str, float]]:
    """Mean KL in bins of positions; position p is that of the token whose successor is predicted."""
    kl = np.stack([chunk.kl for chunk in found])
    bins = []
    for start, stop in zip((0, *EDGES), EDGES, strict=False):
        part = kl[:, start:stop]
        if part.size:
            bins.append({"start": start, "stop": min(stop, kl.shape[1]), "kl": float(part.mean())})
    return bins


def by_layer(chunk: Chunk) -> list[dict[str, float]]:
    """What each layer's own K and V do to its attention, on the first chunk; four digits."""
    return [{name: float(f"{value:.4g}") for name, value in layer.items()} for layer in chunk.layers]


def main() -> int:
    """Run one command line and return its exit status."""
    parser = argparse.ArgumentParser(description="Measure the cases on SmolLM2-135M.")
    parser.add_argument("--work", type=Path, required=True, help="where results are kept while it runs")
    parser.add_argument("--model", type=Path, default=fetched.path(), help="the GGUF file")
    parser.add_argument("--output", type=Path, default=TARGET, help="instead of spec/accuracy/measured.json")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    model = load(arguments.model)
    text = excerpt()
    made_of = inputs(arguments.model, text)
    tokens = tokenize(arguments.model, text)[START:]
    pieces = chunks(tokens, CHUNKS, LENGTH)
    long = [tokens[:LONG]]
    bench = Bench(model, tokens[LONG : LONG + LENGTH])
    names = tuple(case.name for case in CASES)
    run(arguments.work, made_of, bench, pieces, names)
    run(arguments.work, made_of, bench, long, LONG_CASES)
    rows = [
        table_row(model, case, results(arguments.work, made_of, case.name, LENGTH, CHUNKS)) for case in (BASE, *CASES)
    ]
    document = {
        "command": "python tools/measure_model.py",
        "versions": {"kvformat": kvformat.__version__, "python": platform.python_version(), "numpy": np.__version__},
        "seed": "none: the text is teacher forced; the biases of profile qwen_edge are seeded by their layer",
        "model_file": {
            "name": arguments.model.name,
            "sha256": hashlib.sha256(arguments.model.read_bytes()).hexdigest(),
        },
        "text": {
            "name": EXCERPT,
            "sha256": hashlib.sha256(text.encode()).hexdigest(),
            "start": START,
            "chunks": CHUNKS,
            "tokens": LENGTH,
        },
        "rows": [as_json(row) for row in rows],
        "layers": {name: by_layer(results(arguments.work, made_of, name, LENGTH, 1)[0]) for name in LONG_CASES},
        "positions": {name: by_position(results(arguments.work, made_of, name, LENGTH, CHUNKS)) for name in LONG_CASES},
        "positions_long": {name: by_position(results(arguments.work, made_of, name, LONG, 1)) for name in LONG_CASES},
    }
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(document, indent=1) + "\n")
    print(f"{len(rows)} rows written to {arguments.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

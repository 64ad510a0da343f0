"""What recipes do to a model on a text: KL against the unquantized cache, paired dNLL, top-1, perplexity."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray

from kvformat import __version__
from kvformat.errors import InputError
from kvformat.modes import MODES
from kvformat.recipes.catalogue import recipe as find_recipe
from kvformat.simulate.eviction import Eviction
from kvformat.simulate.statistics import Mean, block_mean
from kvformat.transformers.cache import SimulatedCache
from kvformat.transformers.eviction import evicting
from kvformat.transformers.states import tokens_of

#: what every recipe is compared with: K and V in bfloat16, as engines hold them
BASE = "golden/none"
#: what is measured where nothing is asked for; a per-tensor scale is that of the text itself
GOLDEN = tuple(f"golden/{mode}" for mode in MODES if mode != "none")
#: positions of a context that are told apart: from 0, 64, 128, ...
_EDGES = (0, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)


@dataclass(frozen=True)
class Piece:
    """One recipe on one chunk of text, per predicted token: float64 (length - 1,); top1 is 0 or 1.

    layers: per layer that is simulated, the root mean square of the relative error per token, K and V.
    """

    kl: NDArray[np.float64]
    nll: NDArray[np.float64]
    base_nll: NDArray[np.float64]
    top1: NDArray[np.float64]
    layers: Mapping[int, tuple[float, float]]

    def to_json(self) -> dict[str, Any]:
        """As JSON values that give the same floats back."""
        arrays = {name: getattr(self, name).tolist() for name in ("kl", "nll", "base_nll", "top1")}
        return {**arrays, "layers": {str(layer): list(pair) for layer, pair in self.layers.items()}}

    @classmethod
    def of_json(cls, document: Mapping[str, Any]) -> Piece:
        """What `to_json` wrote."""
        arrays = {name: np.array(document[name], np.float64) for name in ("kl", "nll", "base_nll", "top1")}
        return cls(**arrays, layers={int(layer): tuple(pair) for layer, pair in document["layers"].items()})


@dataclass(frozen=True)
class Row:
    """One recipe on the whole text.

    ppl, base_ppl: of the quantized and the bf16 cache. positions: mean KL by position in the context, from each edge.
    """

    recipe: str
    kl: Mean
    dnll: Mean
    top1: Mean
    ppl: float
    base_ppl: float
    positions: Mapping[int, float]
    layers: Mapping[int, tuple[float, float]]

    def to_json(self) -> dict[str, Any]:
        """As JSON values; an interval that cannot be told is null."""
        means = {}
        for name in ("kl", "dnll", "top1"):
            mean = getattr(self, name)
            means[name] = {each: None if math.isnan(value) else value for each, value in asdict(mean).items()}
        layers = {str(layer): {"key": key, "value": value} for layer, (key, value) in self.layers.items()}
        positions = {str(start): mean for start, mean in self.positions.items()}
        whole = {"recipe": self.recipe, "ppl": self.ppl, "base_ppl": self.base_ppl}
        return {**whole, **means, "positions": positions, "layers": layers}

    @classmethod
    def of(cls, recipe: str, pieces: Sequence[Piece]) -> Row:
        """From the recipe's pieces, one per chunk."""
        length = max(len(piece.kl) for piece in pieces)
        edges = [edge for edge in _EDGES if edge < length]
        means = {}
        for start, stop in zip(edges, [*edges[1:], length], strict=True):
            there = np.concatenate([piece.kl[start:stop] for piece in pieces])
            means[start] = float(there.mean())
        nll, base = (np.concatenate([getattr(piece, name) for piece in pieces]) for name in ("nll", "base_nll"))
        layers = {layer: _root_mean_square([piece.layers[layer] for piece in pieces]) for layer in pieces[0].layers}
        return cls(
            recipe,
            kl=block_mean([piece.kl for piece in pieces]),
            dnll=block_mean([piece.nll - piece.base_nll for piece in pieces]),
            top1=block_mean([piece.top1 for piece in pieces]),
            ppl=float(np.exp(nll.mean())),
            base_ppl=float(np.exp(base.mean())),
            positions=means,
            layers=layers,
        )


@dataclass(frozen=True)
class Run:
    """A model, a text and how it is cut.

    name: tells this run from any other, for its journal.
    """

    model: str
    text_sha256: str
    context: int
    chunks: tuple[torch.Tensor, ...]
    eviction: Eviction | None = None

    @classmethod
    def of(
        cls, model: str, text: str, tokenizer: Any, context: int, chunks: int, eviction: Eviction | None = None
    ) -> Run:
        """The first chunks of a text. Raises InputError where the text is too short for them, or they are too short."""
        if context < 2 or chunks < 1:
            raise InputError(
                f"a context needs at least 2 tokens and a run at least 1 chunk; got {context} and {chunks}"
            )
        ids = tokens_of(tokenizer, text, context * chunks)
        return cls(model, sha256(text.encode()).hexdigest(), context, tuple(ids.split(context, dim=1)), eviction)

    @property
    def name(self) -> str:
        """What pieces of this run depend on, as one line."""
        ids = sha256(b"".join(each.numpy().tobytes() for each in self.chunks)).hexdigest()
        return f"{__version__} {Path(self.model).resolve()} {ids} {self.context}{self._evicts}"

    @property
    def _evicts(self) -> str:
        """What is evicted, in words; empty if nothing is."""
        if self.eviction is None:
            return ""
        budget = self.eviction.budget
        return f", {self.eviction.policy} keeps {budget.kept} and the last {budget.recent} tokens"

    @property
    def title(self) -> str:
        """The run in words."""
        text = f"text {self.text_sha256[:12]}{self._evicts}"
        return f"{Path(self.model).name}: {len(self.chunks)} x {self.context} tokens of {text}"

    def to_json(self) -> dict[str, Any]:
        """As JSON values, with the versions that decide."""
        versions = {"kvformat": __version__, "transformers": transformers.__version__, "torch": torch.__version__}
        chunks = {"context": self.context, "chunks": len(self.chunks)}
        evicts = None if self.eviction is None else asdict(self.eviction)
        return {
            "model": self.model,
            "text_sha256": self.text_sha256,
            **chunks,
            "eviction": evicts,
            "versions": versions,
        }


class Journal:
    """Finished pieces, a JSON line each, so that a run that was stopped goes on where it was.

    name: what the pieces depend on; a file of another run is refused.
    """

    def __init__(self, path: Path | None, name: str) -> None:
        self._path = path
        self._held: dict[tuple[int, str], Piece] = {}
        if path is None:
            return
        if path.exists():
            self._read(path, name)
        else:
            self._append({"kvformat_measure": "1", "run": name})

    def _read(self, path: Path, name: str) -> None:
        try:
            lines = path.read_text("utf-8").splitlines()
            head = json.loads(lines[0]) if lines else {}
        except (OSError, ValueError) as error:
            raise InputError(f"{path}: is no file of a run to resume: {error}") from error
        if not isinstance(head, dict) or head.get("run") != name:
            raise InputError(f"{path}: holds another run (other model, text, context or version); name another file")
        for line in lines[1:]:
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # the run was stopped while it wrote this line
            self._held[entry["chunk"], entry["recipe"]] = Piece.of_json(entry)

    def get(self, chunk: int, recipe: str) -> Piece | None:
        """A piece that is finished."""
        return self._held.get((chunk, recipe))

    def put(self, chunk: int, recipe: str, piece: Piece) -> None:
        """Keep a piece; it is on the disk when this returns."""
        self._held[chunk, recipe] = piece
        if self._path is not None:
            self._append({"chunk": chunk, "recipe": recipe, **piece.to_json()})

    def _append(self, entry: Mapping[str, Any]) -> None:
        assert self._path is not None
        try:
            with self._path.open("a", encoding="utf-8") as file:
                # a line that was cut off must not swallow this one
                cut = file.tell() > 0 and self._path.read_bytes()[-1:] != b"\n"
                file.write(("\n" if cut else "") + json.dumps(entry) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise InputError(f"{self._path}: cannot be written: {error.strerror or error}") from error


def measure(
    model: Any,
    chunks: Sequence[torch.Tensor],
    recipes: Sequence[str],
    journal: Journal,
    advance: Callable[[int, int], None] = lambda _done, _total: None,
    eviction: Eviction | None = None,
    **options: Any,
) -> list[Row]:
    """Run a model on chunks of text with each recipe's cache.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        A causal language model.
    chunks : sequence of int tensors (1, length)
        Each one is a context of its own.
    recipes : sequence of str
        Names of the catalogue, or modes.
    journal : Journal
        Where finished pieces are found and kept.
    advance : callable
        Told the pieces done and their number.
    eviction : Eviction, optional
        What the recipes' runs evict. What they are compared with evicts nothing.
    options
        Of `SimulatedCache`: `keep_first`, `k_scale`, ...

    Returns
    -------
    list of Row
        One per recipe, in order.

    """
    names = [find_recipe(each).name for each in recipes]
    total = len(chunks) * len(names)
    pieces: dict[str, list[Piece]] = {name: [] for name in names}
    done = 0
    for index, ids in enumerate(chunks):
        base = None
        for name in names:
            piece = journal.get(index, name)
            if piece is None:
                if base is None:
                    base, _ = _log_probabilities(model, ids, BASE)
                with nullcontext() if eviction is None else evicting(model, eviction):
                    piece = _piece(model, ids, name, base, options)
                journal.put(index, name, piece)
            pieces[name].append(piece)
            done += 1
            advance(done, total)
    return [Row.of(name, each) for name, each in pieces.items()]


def _piece(model: Any, ids: torch.Tensor, recipe: str, base: torch.Tensor, options: Mapping[str, Any]) -> Piece:
    other, cache = _log_probabilities(model, ids, recipe, **options)
    following = ids[0, 1:, None].to(base.device)
    kl = (base.exp() * (base - other)).sum(dim=-1)
    nll, base_nll = (-each.gather(1, following)[:, 0] for each in (other, base))
    top1 = (base.argmax(dim=-1) == other.argmax(dim=-1)).double()
    errors = {layer: cache.error(layer) for layer in cache.simulated_layers}
    layers = {
        layer: _root_mean_square(np.stack([each.key.ravel(), each.value.ravel()], axis=1))
        for layer, each in errors.items()
    }
    found = [np.asarray(each.cpu()) for each in (kl, nll, base_nll, top1)]
    return Piece(found[0], found[1], found[2], found[3], layers)


def _root_mean_square(pairs: Any) -> tuple[float, float]:
    """Of rows of two, K and V."""
    key, value = np.sqrt(np.mean(np.square(pairs), axis=0))
    return float(key), float(value)


def _log_probabilities(
    model: Any, ids: torch.Tensor, recipe: str, **options: Any
) -> tuple[torch.Tensor, SimulatedCache]:
    """Log p of each next token, float64 (length - 1, vocabulary), and the cache that it came from."""
    cache = SimulatedCache(model.config, recipe, **options)
    with torch.no_grad():
        logits = model(input_ids=ids.to(model.device), cache=cache, use_cache=True).logits
    return logits[0, :-1].double().log_softmax(dim=-1), cache

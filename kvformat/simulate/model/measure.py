"""The table on the real model: KL against the bf16 cache, paired dNLL, top-1 agreement and PPL, per case."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from kvformat.attention import definition as attention
from kvformat.recipes.quantizer import quantize
from kvformat.simulate.debias import Debias
from kvformat.simulate.model.cases import BASE, TENSOR_SCALED, Case
from kvformat.simulate.model.forward import hidden_states, log_probabilities
from kvformat.simulate.model.weights import LINEAR, Model
from kvformat.simulate.profiles import PROFILES
from kvformat.simulate.storage import Side

Array = NDArray[Any]

#: the layers that get a Qwen-like key bias in biased cases: an outer few, as in Qwen2.5 (L0, L1, L2 and L8 of 24)
BIASED_LAYERS = (0, 1, 2, 8)


@dataclass(frozen=True)
class Chunk:
    """What one case did on one chunk of text: per predicted token (length - 1), and per layer if it was watched.

    kl: KL(base || case). nll, base_nll: of the token that follows. same: the most probable token is the base's.
    layers: per layer the means of `attention.RowErrors` for this layer's own K and V, and the mass on token 0.
    """

    kl: Array
    nll: Array
    base_nll: Array
    same: NDArray[np.bool_]
    layers: Sequence[Mapping[str, float]] = ()


@dataclass(frozen=True)
class Row:
    """One row of the table. dnll_se: the standard error of the paired mean over tokens."""

    model: str
    mode: str
    recipe: str
    case: str
    scale: str
    profile: str
    debias: bool
    bytes_per_token_layer: float
    tokens: int
    kl: float
    kl_se: float
    dnll: float
    dnll_se: float
    top1: float
    ppl: float
    base_ppl: float


class Bench:
    """A model and the calibrated scales of each layer, ready to run cases.

    calibration: tokens from which `calibrated` scales are taken; no part of what is measured.
    """

    def __init__(self, model: Model, calibration: Array) -> None:
        self.model = model
        self._keys: list[tuple[Array, Array]] = []
        hidden_states(model, calibration, self._remember)
        self._weights: dict[str | None, Model] = {None: model}

    def _remember(self, _layer: int, _query: Array, key: Array, value: Array) -> tuple[Array, Array]:
        self._keys.append((_bfloat16(key), _bfloat16(value)))
        return key, value

    def chunks(
        self, tokens: Array, cases: Sequence[Case], *, watch: bool, skip: Callable[[Case], bool] = lambda _: False
    ) -> Iterator[tuple[Case, Chunk]]:
        """Run the cases on one chunk of text; each one is given as soon as it is there."""
        base = self._log_probabilities(tokens, BASE)
        for case in (BASE, *cases):
            if skip(case):
                continue
            layers: list[Mapping[str, float]] = []
            yield case, _judged(tokens, base, self._log_probabilities(tokens, case, layers if watch else None), layers)

    def _log_probabilities(self, tokens: Array, case: Case, layers: list[Mapping[str, float]] | None = None) -> Array:
        if case.weights not in self._weights:
            self._weights = {None: self.model, case.weights: quantized_weights(self.model, case.weights or "")}
        model = self._weights[case.weights]

        def cache(layer: int, query: Array, key: Array, value: Array) -> tuple[Array, Array]:
            stored = self._store(case, layer, key, value)
            if layers is not None:
                layers.append(_layer_errors(query, key, value, *stored))
            return stored

        return log_probabilities(model, hidden_states(model, tokens, cache))[:-1]

    def _store(self, case: Case, layer: int, key: Array, value: Array) -> tuple[Array, Array]:
        storage = case.storage(*self._scales(case, layer))
        if not case.profile or layer not in BIASED_LAYERS:
            return storage.through_pages(_bfloat16(key), _bfloat16(value))
        bias = self._bias(case.profile, layer)
        constant = bias.constant(len(key))
        back = storage.through_pages(key + constant, value, bias if case.debias else None)
        return back[0] - constant, back[1]

    def _bias(self, profile: str, layer: int) -> Debias:
        shape = (self.model.kv_heads, self.model.head_dim)
        bias = PROFILES[profile].bias(np.random.default_rng(layer), *shape)
        return Debias(bias.astype(np.float32), self.model.rope)

    def _scales(self, case: Case, layer: int) -> tuple[float | None, float | None]:
        if case.scale == "1.0":
            return 1.0, 1.0
        if case.scale != "calibrated":
            return None, None
        key, value = self._keys[layer]
        if case.profile and layer in BIASED_LAYERS and not case.debias:
            key = key.astype(np.float32) + self._bias(case.profile, layer).constant(len(key))
        return _calibrated(Side(case.key), key), _calibrated(Side(case.value), value)


def quantized_weights(model: Model, recipe: str) -> Model:
    """The model with its linear layers' weights through a recipe; a row is an output channel. Norms stay."""
    blocks = tuple(
        {name: _through(array, recipe) if name in LINEAR else array for name, array in block.items()}
        for block in model.blocks
    )
    return replace(model, blocks=blocks)


def table_row(model: Model, case: Case, results: Sequence[Chunk]) -> Row:
    """A case's chunks as one row of the table."""
    kl, nll, base, same = (
        np.concatenate([getattr(chunk, name) for chunk in results]) for name in ("kl", "nll", "base_nll", "same")
    )
    storage = case.storage(None, None)
    return Row(
        model=model.name,
        mode=Side(case.recipe).mode,
        recipe=case.recipe,
        case=case.name,
        scale=case.scale,
        profile=case.profile,
        debias=case.debias,
        bytes_per_token_layer=storage.bytes_per_token(model.kv_heads, model.head_dim),
        tokens=len(kl),
        kl=float(kl.mean()),
        kl_se=_standard_error(kl),
        dnll=float((nll - base).mean()),
        dnll_se=_standard_error(nll - base),
        top1=float(same.mean()),
        ppl=float(np.exp(nll.mean())),
        base_ppl=float(np.exp(base.mean())),
    )


def as_json(row: Row) -> dict[str, Any]:
    """A row as plain data."""
    return asdict(row)


def _judged(tokens: Array, base: Array, other: Array, layers: Sequence[Mapping[str, float]]) -> Chunk:
    following = tokens[1:, None]
    kl = np.einsum("ij,ij->i", np.exp(base), base - other, dtype=np.float64)
    nll, base_nll = (-np.take_along_axis(each, following, 1)[:, 0].astype(np.float64) for each in (other, base))
    return Chunk(kl, nll, base_nll, base.argmax(axis=1) == other.argmax(axis=1), layers)


def _layer_errors(query: Array, key: Array, value: Array, stored_key: Array, stored_value: Array) -> dict[str, float]:
    exact = attention.attend(query, key, value, dtype=np.float32)
    errors = attention.compare(exact, attention.attend(query, stored_key, stored_value, dtype=np.float32))
    later = exact.probabilities[:, 64:, 0]
    return errors.means() | {"mass_on_token_0": float(later.mean()) if later.size else float("nan")}


def _calibrated(side: Side, x: Array) -> float | None:
    if side.mode not in TENSOR_SCALED:
        return None
    made = quantize(x, side.recipe)
    return float(made.scales[0] if made.recipe.inner is None else made.global_scale)


def _through(weight: Array, recipe: str) -> Array:
    return quantize(weight[:, None], recipe).dequantize()[:, 0]


def _bfloat16(x: Array) -> Array:
    return x.astype(ml_dtypes.bfloat16)


def _standard_error(x: Array) -> float:
    return float(x.std(ddof=1) / np.sqrt(len(x)))

"""What is wrong with the scales of a checkpoint, and what each engine makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvformat.checkpoint.reading import Checkpoint, Scale
from kvformat.checkpoint.spellings import DEFAULT, ENGINES, SIDES, Loader, Side, loader

#: (layer, side) -> a bound on |x| of the K or V that the layer writes
Amaxes = Mapping[tuple[int, Side], float]


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong. kind: a word for programs; layers: where, all of them."""

    kind: str
    layers: tuple[int, ...]
    says: str

    def __str__(self) -> str:
        return f"{spans(self.layers)}: {self.says}"


@dataclass(frozen=True)
class Loaded:
    """What an engine uses for a layer and side. why: "" where it is the checkpoint's scale."""

    layer: int
    side: Side
    value: float | None
    why: str = ""


def problems(checkpoint: Checkpoint, amaxes: Amaxes | None = None) -> list[Problem]:
    """What no good checkpoint has: by its scales alone and, with amaxes, by what they must cover."""
    found = [*_missing(checkpoint), *_values(checkpoint), *_never_calibrated(checkpoint), *_spelling(checkpoint)]
    return [*found, *_swapped(checkpoint, amaxes)] if amaxes else found


def loaded(checkpoint: Checkpoint, engine: str) -> list[Loaded]:
    """The scale that an engine uses, for each layer and side."""
    how = loader(engine, checkpoint.method)
    if how is None:
        method = checkpoint.method or "none"
        why = f"quantization method {method}: {engine} loads no K and V scales"
        return [Loaded(layer, side, DEFAULT, why) for layer in range(checkpoint.layers) for side in SIDES]
    if how.needs and not any(checkpoint.quantization.get(key) for key in how.needs):
        why = f"quantization_config has no {' or '.join(how.needs)}: {engine} loads no K and V scales"
        return [Loaded(layer, side, DEFAULT, why) for layer in range(checkpoint.layers) for side in SIDES]
    return [each for layer in range(checkpoint.layers) for each in _of_layer(checkpoint, layer, how)]


def _of_layer(checkpoint: Checkpoint, layer: int, how: Loader) -> Iterator[Loaded]:
    held: dict[Side, tuple[float | None, str]] = {}
    for side in SIDES:
        scales = [each for each in checkpoint.of(layer, side) if each.spelling in how.loads]
        if scales:
            held[side] = _taken(scales[-1], how)
    for side in SIDES:
        if side in held:
            value, why = held[side]
            yield Loaded(layer, side, value, why)
        elif held and how.lone != "1.0":
            other, _ = next(iter(held.values()))
            yield Loaded(layer, side, other, "the other side's scale")
        else:
            unread = checkpoint.of(layer, side)
            yield Loaded(layer, side, DEFAULT, f"{unread[0].name} is not loaded" if unread else "no scale")


def _taken(scale: Scale, how: Loader) -> tuple[float | None, str]:
    if len(scale.values) > 1 and not how.per_head:
        return None, f"{len(scale.values)} values per layer are an error"
    value = float(scale.values.max())
    if value or how.zero == "0":
        return value, ""
    return (None, "a scale of 0 is an error") if how.zero == "an error" else (DEFAULT, "a scale of 0 counts as none")


def _missing(checkpoint: Checkpoint) -> Iterator[Problem]:
    if not checkpoint.scales:
        yield Problem("absent", tuple(range(checkpoint.layers)), "no K or V scale at all; every engine uses 1.0")
        return
    held = {layer: [len(checkpoint.of(layer, side)) for side in SIDES] for layer in range(checkpoint.layers)}
    tests: tuple[tuple[str, str, Callable[[int, int], bool]], ...] = (
        ("missing", "no scale", lambda k, v: not k and not v),
        ("unpaired", "K has a scale, V has none", lambda k, v: k > 0 and not v),
        ("unpaired", "V has a scale, K has none", lambda k, v: v > 0 and not k),
        ("twice", "a side has two scales, and engines take the one that is read last", lambda k, v: max(k, v) > 1),
    )
    for kind, says, holds in tests:
        layers = tuple(layer for layer, numbers in held.items() if holds(*numbers))
        if layers:
            yield Problem(kind, layers, says)
    beyond = [each for each in checkpoint.scales if each.layer >= checkpoint.layers]
    if beyond:
        yield Problem("beyond", _layers(beyond), f"the model has {checkpoint.layers} layers, and none of this number")


def _values(checkpoint: Checkpoint) -> Iterator[Problem]:
    tests: tuple[tuple[str, Any], ...] = (
        ("NaN", np.isnan),
        ("infinite", np.isinf),
        ("negative", lambda x: x < 0),
        ("0", lambda x: x == 0),
    )
    for what, holds in tests:
        bad = [each for each in checkpoint.scales if holds(each.values).any()]
        if bad:
            yield Problem("value", _layers(bad), f"{bad[0].name} is {what}; a scale is positive and finite")


def _never_calibrated(checkpoint: Checkpoint) -> Iterator[Problem]:
    scales = checkpoint.scales
    if scales and all((each.values == 1).all() for each in scales):
        yield Problem("ones", _layers(scales), "every scale is 1.0: the checkpoint was written, not calibrated")


def _spelling(checkpoint: Checkpoint) -> Iterator[Problem]:
    unknown = [each for each in checkpoint.scales if not each.spelling]
    if unknown:
        says = f"{unknown[0].name}: no engine known here ({', '.join(ENGINES)}) loads such a name"
        yield Problem("spelling", _layers(unknown), says)
    named = [each for each in checkpoint.scales if each.spelling == "projection"]
    crossed = [each for each in named if f".{each.side}_proj." not in each.name]
    if crossed:
        says = f"{crossed[0].name}: a scale of {crossed[0].side.upper()} at the other projection"
        yield Problem("crossed", _layers(crossed), says)


def _swapped(checkpoint: Checkpoint, amaxes: Amaxes) -> Iterator[Problem]:
    """K's scale fits V and V's fits K, each far better than its own, in a layer: exchanged."""
    layers = []
    for layer in range(checkpoint.layers):
        pairs = [checkpoint.of(layer, side) for side in SIDES]
        if not all(pairs) or not all((layer, side) in amaxes for side in SIDES):
            continue
        k, v = (float(pair[-1].values.max()) for pair in pairs)
        if not (k > 0 and v > 0 and np.isfinite(k) and np.isfinite(v)):
            continue
        covers_k, covers_v = (np.log2(amaxes[layer, side]) if amaxes[layer, side] > 0 else -149.0 for side in SIDES)
        # distances in octaves between what the scales cover and what is there, as they are and exchanged
        held = abs(np.log2(k) - covers_k - (np.log2(v) - covers_v))
        exchanged = abs(np.log2(v) - covers_k - (np.log2(k) - covers_v))
        if held > 1 and exchanged < held / 4:
            layers.append(layer)
    if layers:
        yield Problem("swapped", tuple(layers), "the scales of K and V are exchanged: each fits the other side")


@dataclass(frozen=True)
class Shares:
    """What a scale does to K or V. clipped: elements beyond the largest code; underflowed: not 0, and stored as 0."""

    clipped: float
    underflowed: float

    @classmethod
    def of(cls, x: NDArray[Any], scale: float, largest: float, smallest: float) -> Shares:
        """x: any floats. largest: the largest value of the format; smallest: half its smallest, what rounds to 0."""
        size = np.abs(x.astype(np.float64))
        size = size[np.isfinite(size)] / scale
        return cls(float((size > largest).mean()), float(((size > 0) & (size <= smallest)).mean()))


def unread(checkpoint: Checkpoint, uses: Mapping[str, tuple[Loaded, ...]]) -> list[Problem]:
    """Layers that have a scale which none of these engines takes."""
    there = {(each.layer, each.side) for each in checkpoint.scales if each.spelling}
    missed = [{(each.layer, each.side): each.why for each in loads if each.why} for loads in uses.values()]
    left = [place for place in sorted(there) if missed and all(place in engine for engine in missed)]
    if not left:
        return []
    reasons = " and ".join(f"{engine} ({each[left[0]]})" for engine, each in zip(uses, missed, strict=True))
    layers = tuple(sorted({layer for layer, _ in left}))
    return [Problem("unread", layers, f"there is a scale, and it is not used by {reasons}")]


def _layers(scales: Iterable[Scale]) -> tuple[int, ...]:
    return tuple(sorted({each.layer for each in scales}))


def spans(layers: tuple[int, ...]) -> str:
    """Layers in words: "layers 0..3, 7"."""
    parts: list[list[int]] = []
    for layer in layers:
        if parts and parts[-1][1] == layer - 1:
            parts[-1][1] = layer
        else:
            parts.append([layer, layer])
    text = ", ".join(f"{first}" if first == last else f"{first}..{last}" for first, last in parts)
    return f"layer{'s' if len(layers) > 1 else ''} {text}"

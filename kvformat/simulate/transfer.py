"""Transfer between engines of different modes: transcoding, when it equals direct quantization, and the handshake."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kvformat.errors import InputError
from kvformat.modes import mode as find_mode
from kvformat.recipes.catalogue import recipe as find_recipe
from kvformat.recipes.quantizer import Quantized, quantize
from kvformat.simulate.eviction import same_bytes

Array = NDArray[Any]


@dataclass(frozen=True)
class Peer:
    """One end of a transfer. k_scale, v_scale: the per-tensor scales of modes that have them, which no page holds."""

    recipe: str
    num_kv_heads: int
    head_size: int
    head_size_v: int
    k_scale: float | None = None
    v_scale: float | None = None


@dataclass(frozen=True)
class Plan:
    """How a transfer is done. copy: the consumer reads the producer's bytes as they are, up to their order in pages."""

    producer: str
    consumer: str
    copy: bool


def handshake(producer: Peer, consumer: Peer) -> Plan:
    """The plan of a transfer that can be done. Raises InputError, one line, for one that cannot.

    Refused: other heads or head sizes; a per-tensor mode without its scales on either side, since the codes alone mean
    nothing. Not refused: equal recipes whose per-tensor scales differ; their plan is to transcode, not to copy.
    """
    for name in ("num_kv_heads", "head_size", "head_size_v"):
        ours, theirs = getattr(producer, name), getattr(consumer, name)
        if ours != theirs:
            raise InputError(f"producer and consumer differ in {name}, {ours} and {theirs}: nothing can be converted")
    for role, peer in (("producer", producer), ("consumer", consumer)):
        mode = find_mode(find_recipe(peer.recipe).mode)
        if mode.tensor_scale and (peer.k_scale is None or peer.v_scale is None):
            raise InputError(f"the {role} runs {peer.recipe} and names no k_scale and v_scale; its codes need both")
    ours, theirs = find_recipe(producer.recipe), find_recipe(consumer.recipe)
    scales = (producer.k_scale, producer.v_scale) == (consumer.k_scale, consumer.v_scale)
    read_alike = ours.value == theirs.value and ours.element == theirs.element and ours.mode == theirs.mode
    return Plan(ours.name, theirs.name, copy=read_alike and scales)


def transcode(stored: Quantized, consumer: str, *, scale: ArrayLike | None = None) -> Quantized:
    """What the consumer stores of the producer's values: dequantized to float32, then quantized by its recipe."""
    return quantize(stored.dequantize(np.float32), consumer, scale=scale)


@dataclass(frozen=True)
class Comparison:
    """A transcoding beside direct quantization. added: the error it adds, over that of direct quantization; rms."""

    equal: bool
    different_codes: float
    direct_error: float
    transcoded_error: float

    @property
    def added(self) -> float:
        """How many times the direct error the transcoded one is; 1: nothing added."""
        return self.transcoded_error / self.direct_error if self.direct_error else float(self.transcoded_error > 0)


def compare(
    x: Array, producer: str, consumer: str, *, producer_scale: float | None = None, consumer_scale: float | None = None
) -> Comparison:
    """K or V (tokens, heads, head_dim) sent by a producer of one recipe to a consumer of another."""
    direct = quantize(x, consumer, scale=consumer_scale)
    sent = transcode(quantize(x, producer, scale=producer_scale), consumer, scale=consumer_scale)
    exact = x.astype(np.float64)
    errors = (float(np.sqrt(np.square(each.dequantize(np.float64) - exact).mean())) for each in (direct, sent))
    differ = float(np.mean(direct.codes.astype(np.float64) != sent.codes.astype(np.float64)))
    return Comparison(same_bytes(direct, sent), differ, *errors)

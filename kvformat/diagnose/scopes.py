"""Which elements a scale is made of: the right ones, and those that faulty writers take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvformat.verify.identify import SIDES, Side

if TYPE_CHECKING:
    from kvformat.diagnose.bench import Bench

Array = NDArray[Any]


class Scene(NamedTuple):
    """The tokens whose scales are made, `step` further than those of the bench; None: the first token for all."""

    bench: Bench
    side: Side
    step: int | None
    #: the right elements (tokens, heads, scales of a row, elements that share one)
    groups: Array


def _first_half(scene: Scene) -> Array | None:
    return scene.groups[..., : scene.groups.shape[-1] // 2]


def _row(scene: Scene) -> Array | None:
    groups = scene.groups
    return None if groups.shape[2] == 1 else groups.reshape(*groups.shape[:2], 1, -1)


def _two_blocks(scene: Scene) -> Array | None:
    tokens, heads, columns, _ = scene.groups.shape
    return None if columns % 2 else np.repeat(scene.groups.reshape(tokens, heads, columns // 2, -1), 2, axis=2)


def _token(scene: Scene) -> Array | None:
    tokens, heads, columns, _ = scene.groups.shape
    return None if heads == 1 else np.moveaxis(scene.groups, 1, 2).reshape(tokens, 1, columns, -1)


def _sides(scene: Scene) -> Array | None:
    both = [scene.bench.x(each, scene.step)[0] for each in SIDES]
    if both[0].shape != both[1].shape:
        return None
    return np.concatenate([each.reshape(scene.groups.shape) for each in both], axis=-1)


def _zero_lanes(scene: Scene) -> Array | None:
    """With lanes that pad a row to a power of two, as a kernel's mask fills them."""
    return np.concatenate([scene.groups, np.zeros_like(scene.groups[..., :1])], axis=-1)


def _head(scene: Scene) -> Array | None:
    return scene.bench.of_heads(scene.side)[:, :, None, :]


def _tensor(scene: Scene) -> Array | None:
    return scene.bench.extremes(scene.side).reshape(1, 1, 1, -1)


#: by name, the elements whose amax makes a scale within a row: all axes but the last broadcast to those of `groups`;
#: None where that is no departure
SCOPES: Mapping[str, Callable[[Scene], Array | None]] = {
    "first half": _first_half,
    "row": _row,
    "two blocks": _two_blocks,
    "token": _token,
    "sides": _sides,
    "zero lanes": _zero_lanes,
    "head": _head,
    "tensor": _tensor,
}
#: the names for the per-tensor scale
OUTER_SCOPES = ("", "both tensors", "written tokens")

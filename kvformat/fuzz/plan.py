"""What a candidate is to be tried on: its mode's recipe, the layouts it serves, the dtypes and sizes it takes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvformat.errors import InputError, unknown_name
from kvformat.fuzz.candidate import Candidate
from kvformat.fuzz.case import Case, sequence_slots
from kvformat.fuzz.strategies import DTYPES, allowed_head_sizes
from kvformat.layouts import LAYOUTS, Layout, layout
from kvformat.modes import mode as find_mode
from kvformat.recipes.catalogue import named_apart
from kvformat.recipes.catalogue import recipe as find_recipe
from kvformat.recipes.program import Recipe, needs_one_scale

Array = NDArray[Any]

#: what a writer or a reader may be told about a layout; one that it does not take stays as the layout has it
_CHOICES = ("order", "v_scales", "dtype")
_VALUES: Mapping[str, tuple[str, ...]] = {
    "order": ("NHD", "HND"),
    "v_scales": ("swizzled", "linear"),
    "dtype": ("bfloat16", "float16", "float32"),
}
#: where a quantizer's codes are shown
_SHOWN = "vllm-0.33"


@dataclass(frozen=True)
class Plan:
    """The bounds of a search."""

    candidate: Candidate
    recipe: Recipe
    #: a layout's name
    layout: str
    #: the values that each choice of the layout takes in turn
    choices: Mapping[str, tuple[str, ...]]
    head_sizes: tuple[int, ...]
    dtypes: tuple[np.dtype[Any], ...]
    #: whether a per-tensor scale is given: never, always, or both
    scale_given: tuple[bool, ...]
    #: whether the caller said which head sizes there are
    sizes_fixed: bool = False

    @property
    def mode(self) -> str:
        """The mode's name."""
        return self.recipe.mode

    @property
    def default_order(self) -> str:
        """The layout's order where nothing is said."""
        for size in self.head_sizes:
            with suppress(InputError):  # a swizzle does not take every size
                return self.layout_of(block_size=4, num_kv_heads=2, head_size=size).order
        raise InputError(f"layout {self.layout} has no page of mode {self.mode} with any of these head sizes")

    def layout_of(self, **sizes: Any) -> Layout:
        """The layout with these arguments. Raises InputError where it cannot have them."""
        return layout(self.layout, mode=self.mode, **sizes)

    def quantizer_case(self, x: Array, scale: float | None = None) -> Case:
        """A case for a quantizer: x as K of a page as long as it has tokens, V all zeros."""
        tokens, heads, dims = x.shape
        where = self.layout_of(block_size=tokens, num_kv_heads=heads, head_size=dims, **_linear(self.layout, self.mode))
        given = None if scale is None else np.float32(scale)
        return Case(x, np.zeros_like(x), np.arange(tokens), where, 1, given, given)

    def reader_case(self, key: Array, value: Array, where: Layout, blocks: NDArray[np.int64], **more: Any) -> Case:
        """A case for a reader: the sequence lies in these blocks."""
        slots = sequence_slots(blocks, len(key), where.block_size)
        return Case(key, value, slots, where, blocks=blocks, **more)


def make(
    candidate: Candidate,
    *,
    mode: str,
    recipe: str | Recipe | None = None,
    layout_name: str | None = None,
    order: str | None = None,
    v_scales: str | None = None,
    head_sizes: Sequence[int] | None = None,
    dtypes: Sequence[Any] | None = None,
) -> Plan:
    """The plan of a search. Raises InputError for names and sizes that do not go together."""
    kind = find_mode(mode)
    how = named_apart(find_recipe(kind.name if recipe is None else recipe))
    needs_one_scale(how, "fuzz")
    if how.mode != kind.name:
        raise InputError(f"recipe {how.name} is for mode {how.mode}, not for mode {kind.name}")
    if candidate.kind == "quantizer" and how.element is None:
        raise InputError(f"mode {kind.name} stores its input: there is nothing to quantize; fuzz a writer or a reader")
    if any(level.granularity.name != "per_tensor" for level in how.outer) and candidate.kind != "quantizer":
        raise InputError(f"recipe {how.name} has scales beside the pages that are not one per tensor")
    name = layout_name or _first_with(kind.name)
    if name not in LAYOUTS:
        raise unknown_name("layout", name, LAYOUTS)
    if not LAYOUTS[name].form(kind.name).uniform:
        raise InputError(f"layout {name} does not store K and V in one format each; fuzz takes layouts that do")
    choices = _choices(candidate, kind.name, name, {"order": order, "v_scales": v_scales})
    allowed = tuple(_sizes(candidate, how, name, choices, head_sizes))
    given = _scale_given(candidate, how)
    return Plan(candidate, how, name, choices, allowed, _dtypes(dtypes), given, head_sizes is not None)


def _first_with(mode: str) -> str:
    """The layout that is meant where none is named: the usual one, for a mode that it lacks the first that has it."""
    having = [name for name, entry in LAYOUTS.items() if mode in dict(entry.modes)]
    return _SHOWN if _SHOWN in having or not having else having[0]


def _choices(candidate: Candidate, mode: str, name: str, fixed: Mapping[str, str | None]) -> dict[str, tuple[str, ...]]:
    """Which values each choice of the layout takes; those it does not have are left out."""
    possible: dict[str, tuple[str, ...]] = {}
    for choice in _CHOICES:
        given = fixed.get(choice)
        values = (given,) if given is not None else _VALUES[choice]
        if given is None and not candidate.takes(choice):
            continue
        working = tuple(value for value in values if allowed_head_sizes(mode, name, **_sample({choice: value})))
        if given is not None and not working:
            layout(name, mode=mode, head_size=128, **_sample({choice: given}))  # raises, saying why
        if working:
            possible[choice] = working
    return possible


def _linear(name: str, mode: str) -> dict[str, str]:
    """Of two places for the V scales the one that every head size and any number of tokens has."""
    form = LAYOUTS[name].form(mode)
    linear = [choice for choice, swizzle in form.v_scales if swizzle == "linear"]
    return {"v_scales": linear[0]} if linear else {}


def _sample(choice: Mapping[str, str]) -> dict[str, Any]:
    return {"block_size": 4, "num_kv_heads": 2, **choice}


def _sizes(
    candidate: Candidate,
    how: Recipe,
    name: str,
    choices: Mapping[str, tuple[str, ...]],
    wanted: Sequence[int] | None,
) -> Sequence[int]:
    mode = how.mode
    first = {choice: values[0] for choice, values in choices.items()}
    shared = how.inner.granularity.dims if how.inner else 0
    if candidate.kind == "quantizer":
        first |= _linear(name, mode)
    if wanted is None:
        found = set(allowed_head_sizes(mode, name, **_sample(first)))
        for choice, values in choices.items():
            for value in values:
                found |= set(allowed_head_sizes(mode, name, **_sample({**first, choice: value})))
        return sorted(size for size in found if not shared or size % shared == 0)
    for size in wanted:
        layout(name, mode=mode, head_size=size, **_sample(first))
        if shared and size % shared:
            raise InputError(f"{how.name} needs a head_dim that is a multiple of {shared}; got {size}")
    return tuple(wanted)


def _dtypes(wanted: Sequence[Any] | None) -> tuple[np.dtype[Any], ...]:
    if wanted is None:
        return DTYPES
    by_name = {dtype.name: dtype for dtype in DTYPES}
    for each in wanted:
        if str(each) not in by_name and each not in DTYPES:
            raise unknown_name("dtype", each, by_name)
    return tuple(by_name.get(str(each), each) for each in wanted)


def _scale_given(candidate: Candidate, how: Recipe) -> tuple[bool, ...]:
    if not any(level.may_be_given for level in how.levels):
        return (False,)
    if candidate.kind != "quantizer":
        return (True,)
    if candidate.keywords is None or not candidate.keywords & {"scale", "global_scale"}:
        return (False,)
    named = [inspect.signature(candidate.function).parameters[name] for name in candidate.keywords]
    required = any(each.name in ("scale", "global_scale") and each.default is each.empty for each in named)
    return (True,) if required else (False, True)

"""`watch`: a cache writer in anybody's code, its calls judged as they happen."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, Literal

import torch

from kvformat.errors import InputError
from kvformat.layouts import Layout
from kvformat.recipes import Recipe
from kvformat.torch.verdict import Scale, dump, judged
from kvformat.verify.report import Report

#: the names that a writer's arguments go by, in the order of its signature where it has others
ARGUMENTS = ("key", "value", "kv_cache", "slot_mapping")


@dataclass
class Watched:
    """What `watch` has seen of one writer: its calls, those that were judged, and the reports that differ."""

    calls: int = 0
    judged: int = 0
    differing: list[Report] = field(default_factory=list)


def watch(
    writer: Callable[..., Any],
    *,
    layout: str | Layout,
    mode: str | None = None,
    recipe: str | Recipe | None = None,
    k_scale: Scale | str = None,
    v_scale: Scale | str = None,
    arguments: Sequence[str] = ARGUMENTS,
    every: int = 1,
    action: Literal["raise", "warn"] = "raise",
    save: str | Path | None = None,
    **options: Any,
) -> Callable[..., Any]:
    """The writer, with a sample of its calls judged bit for bit after they return.

    Parameters
    ----------
    writer : callable
        `writer(key, value, kv_cache, slot_mapping, ...)`: writes K and V of tokens into the cache.
    layout, mode, recipe, options
        As in `assert_pages`.
    k_scale, v_scale : tensor, float or str, optional
        The per-tensor scales, or the names of the writer's arguments that carry them.
    arguments : sequence of str
        What the writer calls key, value, cache and slots. A writer with other names is told them here.
    every : int
        Judge the first call and each so-manyth after it.
    action : {"raise", "warn"}
        What a difference does: AssertionError with the report, or a UserWarning.
    save : path, optional
        A folder; a call that differs is written there as a dump, `call-N.safetensors`.

    Returns
    -------
    callable
        The same signature and result. Its attribute `watched` counts what was seen; calls on which nothing was written
        (no slots, or padding alone) are not judged.

    Raises
    ------
    InputError
        At once for arguments that the writer does not have; at a call for tensors that cannot be judged.

    """
    signature = inspect.signature(writer)
    scales = {"k_scale": k_scale, "v_scale": v_scale}
    _check_arguments(writer, signature, [*arguments, *(name for name in scales.values() if isinstance(name, str))])
    if every < 1:
        raise InputError(f"every must be at least 1; got {every}")
    seen = Watched()

    @wraps(writer)
    def watching(*given: Any, **named: Any) -> Any:
        result = writer(*given, **named)
        call, seen.calls = seen.calls, seen.calls + 1
        if call % every:
            return result
        bound = signature.bind(*given, **named)
        bound.apply_defaults()
        key, value, cache, slots = (bound.arguments[name] for name in arguments)
        if not len(slots) or int(torch.as_tensor(slots).max()) < 0:
            return result
        how = {"layout": layout, "mode": mode, "recipe": recipe, **options}
        how |= {name: bound.arguments[each] if isinstance(each, str) else each for name, each in scales.items()}
        report = judged(key, value, cache, slots, **how)
        seen.judged += 1
        if not report.ok:
            seen.differing.append(report)
            if save is not None:
                Path(save).mkdir(parents=True, exist_ok=True)
                dump(Path(save) / f"call-{call}.safetensors", key, value, cache, slots, producer="watch", **how)
            _tell(report, call, action)
        return result

    watching.watched = seen  # type: ignore[attr-defined]
    return watching


def _tell(report: Report, call: int, action: str) -> None:
    said = f"call {call} of the writer: {report}"
    if action == "raise":
        raise AssertionError(said)
    warnings.warn(said, stacklevel=3)


def _check_arguments(writer: Any, signature: inspect.Signature, names: Sequence[str]) -> None:
    missing = [name for name in names if name not in signature.parameters]
    if missing:
        has = ", ".join(signature.parameters)
        raise InputError(f"{getattr(writer, '__name__', 'the writer')} has no argument {missing[0]!r}; it has: {has}")

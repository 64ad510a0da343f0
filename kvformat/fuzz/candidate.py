"""A candidate: what kind of kernel it is, how it is called, and what it does instead of answering."""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import inspect
import queue
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from kvformat.errors import InputError, unknown_name

Kind = Literal["quantizer", "writer", "reader"]
KINDS: tuple[Kind, ...] = get_args(Kind)

#: the arguments of each kind that are given by position, in order
ARGUMENTS: Mapping[Kind, tuple[str, ...]] = {
    "quantizer": ("x",),
    "writer": ("key", "value", "pages", "slot_mapping"),
    "reader": ("pages", "block_table", "seq_len"),
}
#: and how each is declared
SIGNATURES: Mapping[Kind, str] = {
    "quantizer": "(x) -> (codes, scales[, global_scale])",
    "writer": "(key, value, pages, slot_mapping, **meta) -> None",
    "reader": "(pages, block_table, seq_len, **meta) -> (key, value)",
}
_EXPECTED = "; ".join(f"a {kind} {signature}" for kind, signature in SIGNATURES.items())


@dataclass(frozen=True, eq=False)
class Arena:
    """Pages with memory around them: the candidate gets the rows from `start` to `stop`, the rest must not change."""

    memory: NDArray[np.uint8]
    start: int
    stop: int

    @property
    def pages(self) -> NDArray[np.uint8]:
        """What the candidate gets, uint8 (num_blocks, page_bytes)."""
        return self.memory[self.start : self.stop]


class CandidateError(Exception):
    """The candidate did something else than answer; its message says what, in one line."""


@dataclass(frozen=True)
class Candidate:
    """A kernel under test."""

    name: str
    function: Callable[..., Any]
    kind: Kind
    #: the names that it takes by keyword; None: all of them
    keywords: frozenset[str] | None
    #: the torch device whose tensors it takes; None: NumPy arrays
    device: str | None = None

    def takes(self, name: str) -> bool:
        """Whether a keyword of that name is passed to it."""
        return self.keywords is None or name in self.keywords

    def call(self, arguments: tuple[Any, ...], meta: Mapping[str, Any], limit: float) -> Any:
        """What it returns. Arrays go to its device, and what it wrote into them comes back.

        Raises CandidateError where it raises, or has not returned after `limit` seconds.
        """
        given = {name: value for name, value in meta.items() if self.takes(name)}
        if self.device is None:
            plain = [each.pages if isinstance(each, Arena) else each for each in arguments]
            return _guarded(lambda: self.function(*plain, **given), limit)
        return _guarded(lambda: self._on_device(arguments, given), limit)

    def _on_device(self, arguments: tuple[Any, ...], meta: Mapping[str, Any]) -> Any:
        arrays = [each.memory if isinstance(each, Arena) else each for each in arguments]
        tensors = [_to_torch(each, self.device) if isinstance(each, np.ndarray) else each for each in arrays]
        passed = [
            tensor[each.start : each.stop] if isinstance(each, Arena) else tensor
            for each, tensor in zip(arguments, tensors, strict=True)
        ]
        result = self.function(*passed, **meta)
        for array, tensor in zip(arrays, tensors, strict=True):
            if isinstance(array, np.ndarray):
                array[...] = _to_numpy(tensor)
        return tuple(map(_to_numpy, result)) if isinstance(result, tuple | list) else result


def recognise(
    function: Any, *, kind: str | None = None, name: str | None = None, device: str | None = None
) -> Candidate:
    """The candidate that a function is, by its signature or by `kind`. Raises InputError, saying what is expected."""
    name = name or getattr(function, "__qualname__", None) or type(function).__name__
    if not callable(function):
        raise InputError(f"{name} is no function; a candidate is {_EXPECTED}")
    if kind is not None and kind not in KINDS:
        raise unknown_name("kind of candidate", kind, KINDS)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []  # a built-in: its kind must be named
    found = next((each for each in KINDS if each == kind), None) or _kind_of(parameters)
    if found is None:
        taken = f"({', '.join(map(str, parameters))})"
        raise InputError(f"{name} takes {taken}, which is no signature of a candidate; it must be {_EXPECTED}")
    _check_arity(name, found, parameters)
    if device is not None:
        check_device(device)
    return Candidate(name, function, found, _keywords(parameters, found), device)


def load(target: str) -> Any:
    """The object that MODULE:FUNCTION or FILE.py:FUNCTION names. Raises InputError, one line, where there is none."""
    place, _, attribute = target.rpartition(":")
    if not place or not attribute:
        raise InputError(f"a target is MODULE:FUNCTION or FILE.py:FUNCTION; got {target!r}")
    try:
        module = _load_file(Path(place)) if place.endswith(".py") else _load_module(place)
    except InputError:
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        raise InputError(f"{place} cannot be imported: {described(error)}") from error
    found = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise unknown_name(f"function in {place}:", attribute, [each for each in dir(module) if each[:1] != "_"])
        found = getattr(found, part)
    return found


def check_device(device: str) -> None:
    """Raise InputError where torch or that device is missing."""
    try:
        import torch
    except ModuleNotFoundError as error:
        raise InputError("--torch needs torch: pip install 'kvformat[torch]'") from error
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(f"torch has no device {device!r} here: {described(error)}") from error


def described(error: BaseException) -> str:
    """An exception as one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:300]}" if text else type(error).__name__


def _load_module(name: str) -> Any:
    if "" not in sys.path:  # as `python -m` does: a kernel's repository is where the command is run
        sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise InputError(f"there is no module {error.name!r} here or among the installed ones") from error
        raise


def _load_file(path: Path) -> Any:
    if not path.is_file():
        raise InputError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # where dataclasses and pickles look
    spec.loader.exec_module(module)
    return module


def _positional(parameters: list[inspect.Parameter]) -> list[inspect.Parameter]:
    return [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]


def _kind_of(parameters: list[inspect.Parameter]) -> Kind | None:
    names = [each.name for each in _positional(parameters)]
    for kind in ("writer", "reader"):
        if names[: len(ARGUMENTS[kind])] == list(ARGUMENTS[kind]):
            return kind
    required = [each.name for each in _positional(parameters) if each.default is each.empty]
    counts = {len(arguments): kind for kind, arguments in ARGUMENTS.items()}
    extra = [name for name in required if name in ("scale", "global_scale")]
    return counts.get(len(required) - len(extra))


def _check_arity(name: str, kind: Kind, parameters: list[inspect.Parameter]) -> None:
    if not parameters or any(each.kind == each.VAR_POSITIONAL for each in parameters):
        return
    if len(_positional(parameters)) < len(ARGUMENTS[kind]):
        taken = f"({', '.join(map(str, parameters))})"
        raise InputError(f"{name} takes {taken}; a {kind} is {SIGNATURES[kind]}")


def _keywords(parameters: list[inspect.Parameter], kind: Kind) -> frozenset[str] | None:
    if any(each.kind == each.VAR_KEYWORD for each in parameters):
        return None
    by_position = {each.name for each in _positional(parameters)[: len(ARGUMENTS[kind])]}
    named = (each for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY))
    return frozenset(each.name for each in named) - by_position


# --- the call ------------------------------------------------------------------------------------------------------


class _Worker(threading.Thread):
    """Runs calls one after the other, so that whoever waits for one can stop waiting."""

    def __init__(self) -> None:
        super().__init__(daemon=True, name="kvformat-candidate")
        self.calls: queue.SimpleQueue[Callable[[], Any]] = queue.SimpleQueue()
        self.results: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
        self.start()

    def run(self) -> None:
        while True:
            call = self.calls.get()
            try:
                # what a kernel does with 0 / 0 is judged by its bytes
                with np.errstate(all="ignore"):
                    self.results.put((True, call()))
            except BaseException as error:  # noqa: BLE001 whatever it raises is reported
                self.results.put((False, error))

    def abandon(self) -> None:
        """Stop what runs, if it is Python; a call into a library goes on until it returns."""
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.ident or 0), ctypes.py_object(SystemExit))


_workers: list[_Worker] = []


def _guarded(call: Callable[[], Any], limit: float) -> Any:
    worker = _workers.pop() if _workers else _Worker()
    worker.calls.put(call)
    try:
        done, result = worker.results.get(timeout=limit)
    except queue.Empty:
        worker.abandon()
        raise CandidateError(f"has not returned after {limit:g} s") from None
    _workers.append(worker)
    if done:
        return result
    raise CandidateError(f"raises {described(result)}") from result


def _to_torch(array: NDArray[Any], device: str | None) -> Any:
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16).copy()).view(torch.bfloat16).to(device)
    return torch.from_numpy(array.copy()).to(device)


def _to_numpy(tensor: Any) -> Any:
    """A torch tensor as an array; its 8-bit floats as their bytes."""
    if not hasattr(tensor, "detach"):
        return tensor
    import ml_dtypes
    import torch

    whole = tensor.detach().cpu().contiguous()
    if whole.dtype == torch.bfloat16:
        return whole.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    if whole.dtype.is_floating_point and whole.dtype.itemsize == 1:
        return whole.view(torch.uint8).numpy()
    return whole.numpy()

"""A candidate: what kind of kernel it is, how it is called, and what it does instead of answering."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from kvformat.candidate import as_array, to_numpy
from kvformat.errors import InputError, unknown_name
from kvformat.files import regular
from kvformat.fuzz.calls import Caller, CandidateError, caller, described

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
#: the arguments alone: a complaint is one short line
_EXPECTED = ", ".join(f"a {kind} {signature.split(' -> ')[0]}" for kind, signature in SIGNATURES.items())


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
    #: whether it is called in a process of its own
    isolated: bool = False

    def takes(self, name: str) -> bool:
        """Whether a keyword of that name is passed to it."""
        return self.keywords is None or name in self.keywords

    def call(self, arguments: tuple[Any, ...], meta: Mapping[str, Any], limit: float) -> Any:
        """What it returns, as `readable` gives it. Arrays go to its device, and what it wrote into them comes back.

        Raises CandidateError where it raises, dies, or has not returned after `limit` seconds.
        """
        given = {name: value for name, value in meta.items() if self.takes(name)}
        answer, changed = self._caller.call((arguments, given), limit)
        for each, after in zip(arguments, changed, strict=True):
            if after is not None:
                _memory(each)[...] = after
        return answer

    def close(self) -> None:
        """It is not called any more: its process ends."""
        self._caller.close()

    @cached_property
    def _caller(self) -> Caller:
        return caller(self._perform, isolated=self.isolated)

    def _perform(self, arguments: tuple[Any, ...], meta: Mapping[str, Any]) -> tuple[Any, list[Any]]:
        """Where it is called: its answer, and the memory of the arguments that it changed."""
        before = [_memory(each).tobytes() if _is_memory(each) else None for each in arguments]
        if self.device is None:
            answer = self.function(*(each.pages if isinstance(each, Arena) else each for each in arguments), **meta)
        else:
            answer = self._on_device(arguments, meta)
        changed = [None if old is None or _memory(each).tobytes() == old else _memory(each)
                   for each, old in zip(arguments, before, strict=True)]  # fmt: skip
        return readable(answer), changed

    def _on_device(self, arguments: tuple[Any, ...], meta: Mapping[str, Any]) -> Any:
        tensors = [_to_torch(_memory(each), self.device) if _is_memory(each) else each for each in arguments]
        passed = [
            tensor[each.start : each.stop] if isinstance(each, Arena) else tensor
            for each, tensor in zip(arguments, tensors, strict=True)
        ]
        result = self.function(*passed, **meta)
        for each, tensor in zip(arguments, tensors, strict=True):
            if _is_memory(each):
                _memory(each)[...] = to_numpy(tensor)
        return tuple(map(to_numpy, result)) if isinstance(result, tuple | list) else result


def _is_memory(argument: Any) -> bool:
    return isinstance(argument, Arena | np.ndarray)


def _memory(argument: Any) -> NDArray[Any]:
    """The array of an argument, with the memory around it."""
    memory: NDArray[Any] = argument.memory if isinstance(argument, Arena) else argument
    return memory


def recognise(
    function: Any,
    *,
    kind: str | None = None,
    name: str | None = None,
    device: str | None = None,
    isolated: bool = False,
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
        raise InputError(f"{name} takes {taken}; expected is {_EXPECTED}")
    _check_arity(name, found, parameters)
    if device is not None:
        _check_device(device, isolated=isolated)
    return Candidate(name, function, found, _keywords(parameters, found), device, isolated)


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


def _check_device(device: str, *, isolated: bool) -> None:
    """Raise InputError where torch or that device is missing. The child looks: what is used here is lost to it."""
    check = caller(_missing_device, isolated=isolated)
    try:
        missing = check.call((device,), 300)
    except CandidateError as error:
        missing = f"torch has no device {device!r} here: it {error}"
    finally:
        check.close()
    if missing:
        raise InputError(missing)


def _missing_device(device: str) -> str | None:
    try:
        import torch
    except ModuleNotFoundError:
        return "--torch needs torch: pip install 'kvformat[torch]'"
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        return f"torch has no device {device!r} here: {described(error)}"
    return None


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
    regular(path)
    folder = str(path.parent.resolve())  # as `python FILE.py` does: a file may import its siblings
    if folder not in sys.path:
        sys.path.insert(0, folder)
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


@dataclass(frozen=True)
class NoArray:
    """Something that a candidate returned in the place of an array."""

    type: str


def readable(answer: Any) -> Any:
    """An answer as plain data: one array, or several (of a tuple, or of a list of two or three arrays).

    What is no array (a ragged list, an object) is told by its type. 8-bit floats of torch come as their bytes.
    """
    several = isinstance(answer, tuple) or (
        isinstance(answer, list) and len(answer) in (2, 3) and not any(map(np.isscalar, answer))
    )
    return tuple(map(_readable, answer)) if several else _readable(answer)


def _readable(given: Any) -> Any:
    if given is None:
        return None
    array = as_array(given)
    return NoArray(type(given).__name__) if array is None else array


def _to_torch(array: NDArray[Any], device: str | None) -> Any:
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16).copy()).view(torch.bfloat16).to(device)
    return torch.from_numpy(array.copy()).to(device)

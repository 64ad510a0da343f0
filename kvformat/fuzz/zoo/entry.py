"""What a kernel of the zoo says about itself."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvformat.fuzz.candidate import Kind

FP8_TENSOR = "fp8_per_tensor"
FP8_ROW = "fp8_per_token_head"
INT8 = "int8_per_token_head"
NVFP4 = "nvfp4"
NONE = "none"
ROWS = (FP8_TENSOR, FP8_ROW, INT8)
FP8 = (FP8_TENSOR, FP8_ROW)
SCALED = (FP8_ROW, INT8, NVFP4)
QUANTIZED = (*ROWS, NVFP4)
EVERY = (NONE, *QUANTIZED)


@dataclass(frozen=True)
class Kernel:
    """One kernel in one mode."""

    name: str
    kind: Kind
    mode: str
    function: Callable[..., Any]
    #: the fault's id; None: the kernel is right
    fault: str | None
    #: the public report or code that the fault is taken from
    source: str
    #: what it does wrong, one sentence
    meaning: str
    #: what `kvformat.fuzz` is told about it
    options: Mapping[str, Any] = field(default_factory=dict)
    #: an interpreter runs it: fewer examples, more time
    slow: bool = False


class Described:
    """A kernel as a class: its docstring says what is wrong, `fault` and `source` are its own, `modes` are where."""

    kind: Kind
    fault: str | None = None
    source: str = ""
    modes: tuple[str, ...] = ()

    def __init__(self, mode: str) -> None:
        self.mode = mode


def of_class(described: type[Described]) -> Iterator[Kernel]:
    """A class's kernels, one for each of its modes."""
    meaning = (inspect.getdoc(described) or "").split("\n\n")[0].replace("\n", " ")
    for mode in described.modes:
        function: Any = described(mode)
        fault, source = described.__dict__.get("fault"), described.source
        name = _spaced(described.__name__)
        yield Kernel(name, described.kind, mode, function, fault, source, meaning)


def _spaced(name: str) -> str:
    """`RoundHalfUp` as `round half up`."""
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in name).strip()

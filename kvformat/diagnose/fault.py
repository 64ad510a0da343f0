"""What a fault is: plain data that says its name, its meaning, where it was seen, and how a writer that has it acts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kvformat.diagnose.edits import Edit
from kvformat.diagnose.remaps import Remap

#: "elsewhere": no byte that tokens have in a dump shows it; `fuzz` finds it
Kind = Literal["content", "arithmetic", "scale", "layout", "elsewhere"]

#: the modes that store codes, those that store their scales in the page, and all of them
FP8 = ("fp8_per_tensor", "fp8_per_token_head")
ROWS = ("fp8_per_token_head", "int8_per_token_head")
SCALED = (*ROWS, "nvfp4")
CODED = ("fp8_per_tensor", *SCALED)
FLOATS = (*FP8, "nvfp4")
ALL = ("none", *CODED)
INT4 = ("int4_per_token_head",)


@dataclass(frozen=True)
class Borrow:
    """The scale of another place: `step` entries further along `axis`, or with step 0 that of the first entry.

    stage: what takes it. "stored": the page, the codes have their own. "used": the codes, the page has their own.
    "both": codes and page.
    """

    axis: Literal["token", "head", "block", "side"]
    step: int
    stage: Literal["stored", "used", "both"]


@dataclass(frozen=True)
class Source:
    """Whose K or V a writer takes: those of another token, head or side, in place of the right ones."""

    tokens: int = 0
    #: "": the right one; "next", "before"; "first half": that of a rank which holds the first half of the heads;
    #: "halves": the halves exchanged; "reversed"; "neighbour": heads 2i and 2i + 1 exchanged; "first"
    heads: str = ""
    other_side: bool = False

    @property
    def departs(self) -> bool:
        """Not the right place."""
        return self != Source()

    def heads_of(self, count: int) -> NDArray[np.int64]:
        """By head, the head whose numbers it gets."""
        heads = np.arange(count)
        half = max(count // 2, 1)
        places = {
            "next": (heads + 1) % count,
            "before": (heads - 1) % count,
            "first": heads * 0,
            "neighbour": np.minimum(heads ^ 1, count - 1),
            "halves": (heads + half) % count,
            "first half": heads % half,
            "repeated": heads // 2,
            "reversed": heads[::-1],
        }
        chosen: NDArray[np.int64] = places[self.heads]
        return chosen


@dataclass(frozen=True)
class Variant:
    """One way in which a fault shows. Every field that is not empty is a departure from the recipe.

    Expressions are in the words of recipes. In `used` and `stored`, `s` is the scale as it is stored and `exact` as it
    was before; in `tensor`, `s` is the per-tensor scale, given or computed.
    """

    label: str
    edit: Edit = field(default_factory=Edit)
    #: the elements that a scale is made of, a name in `bench.SCOPES` or `bench.OUTER_SCOPES`
    scope: str = ""
    borrow: Borrow | None = None
    #: what the codes are made with, in place of the stored scale
    used: str = ""
    #: what is stored in place of the scale; "?": anything
    stored: str = ""
    #: what takes the place of the per-tensor scale; "other": the other side's, "?": whatever number fits the codes
    tensor: str = ""
    #: the writer stores the values themselves, in this dtype, where the layout has them in mode none
    unquantized: str = ""
    #: where the writer puts things
    remap: Remap | None = None
    #: whose K and V are stored
    source: Source = field(default_factory=Source)
    #: nothing was stored: "constant": every byte is one and the same; "before": what the pages held before
    unwritten: Literal["", "constant", "before"] = ""
    #: of which bytes that holds, "" for all of them; the others are right
    unwritten_part: Literal["", "code", "scale"] = ""
    #: the value of each byte where nothing was stored
    fill: int = 0
    #: the modes of the fault in which this variant occurs, all of them if empty
    modes: tuple[str, ...] = ()
    #: why no input tells it from a right writer, where that is so
    never: str = ""

    def __hash__(self) -> int:
        return hash((self.label, self.fill))  # in which nearly all differ: writers are looked up by it all the time


@dataclass(frozen=True)
class Fault:
    """A named way in which a writer departs from a recipe or a layout."""

    id: str
    kind: Kind
    #: one line: what these bytes are
    meaning: str
    #: one line: why writers do that
    reason: str
    #: public reports or sources where it was seen
    source: str
    modes: tuple[str, ...]
    variants: tuple[Variant, ...]

    def variants_in(self, mode: str) -> tuple[Variant, ...]:
        """The variants that can occur in that mode."""
        if mode not in self.modes:
            return ()
        return tuple(each for each in self.variants if not each.modes or mode in each.modes)

    def __hash__(self) -> int:
        return hash(self.id)


#: no fault
RIGHT = Variant("")


def table(faults: Iterable[Fault]) -> Mapping[str, Fault]:
    """Faults by id, in order."""
    return MappingProxyType({fault.id: fault for fault in faults})

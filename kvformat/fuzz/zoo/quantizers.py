"""Every broken quantizer in NumPy."""

from __future__ import annotations

from kvformat.fuzz.zoo import row_codes
from kvformat.fuzz.zoo.blocks import Blocks
from kvformat.fuzz.zoo.entry import Described
from kvformat.fuzz.zoo.rows import Rows

__all__ = ["BROKEN", "Blocks", "Rows", "row_codes"]

#: those of rows, wherever they are defined, and those of blocks
BROKEN: tuple[type[Described], ...] = tuple(
    each for each in (*Rows.__subclasses__(), *Blocks.__subclasses__()) if each.__dict__.get("fault")
)

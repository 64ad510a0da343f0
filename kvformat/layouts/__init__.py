"""Codes and scales -> bytes: where everything in a page of a paged KV cache lies. Pure geometry, no arithmetic."""

from kvformat.layouts.build import layout
from kvformat.layouts.catalogue import LAYOUTS, load_layout, register
from kvformat.layouts.convert import join, rearrange, split
from kvformat.layouts.page import Explanation, Layout, Location, Segment
from kvformat.layouts.region import Digit, Region
from kvformat.layouts.stack import Stack

__all__ = [
    "LAYOUTS",
    "Digit",
    "Explanation",
    "Layout",
    "Location",
    "Region",
    "Segment",
    "Stack",
    "join",
    "layout",
    "load_layout",
    "rearrange",
    "register",
    "split",
]

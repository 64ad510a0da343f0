"""Codes and scales -> bytes: where everything in a page of a paged KV cache lies. Pure geometry, no arithmetic."""

from kvformat.layouts.build import layout
from kvformat.layouts.catalogue import LAYOUTS, load_layout, register
from kvformat.layouts.page import Explanation, Layout, Location
from kvformat.layouts.region import Digit, Region

__all__ = ["LAYOUTS", "Digit", "Explanation", "Layout", "Location", "Region", "layout", "load_layout", "register"]

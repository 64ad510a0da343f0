"""torch: the operators and their Triton kernels, and what a kernel's own tests need to reach the verdict.

Importing this registers `torch.ops.kvformat.write_pages`, `gather_pages`, `paged_attention`, `quantize` and
`dequantize`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvformat.torch.adapters import from_pages as from_pages
from kvformat.torch.adapters import to_pages as to_pages
from kvformat.torch.errors import check_errors as check_errors
from kvformat.torch.ops import dequantize as dequantize
from kvformat.torch.ops import gather_pages as gather_pages
from kvformat.torch.ops import paged_attention as paged_attention
from kvformat.torch.ops import quantize as quantize
from kvformat.torch.ops import write_pages as write_pages
from kvformat.torch.verdict import assert_pages as assert_pages
from kvformat.torch.verdict import dump as dump
from kvformat.torch.watch import watch as watch

if TYPE_CHECKING:
    from kvformat.torch.emulation import emulate as emulate


def __getattr__(name: str) -> Any:
    if name == "emulate":  # imported late: it needs Triton, the rest does not
        from kvformat.torch.emulation import emulate

        return emulate
    raise AttributeError(f"module 'kvformat.torch' has no attribute {name!r}")

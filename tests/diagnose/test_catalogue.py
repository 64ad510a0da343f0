"""The faults that diagnose names and the broken kernels of the zoo are of one vocabulary."""

from __future__ import annotations

from kvformat.diagnose.catalogue import FAULTS
from kvformat.fuzz.zoo.catalogue import kernels

#: what a reader does wrong, or a writer outside of the rows of its tokens: no byte that a dump's tokens have shows it
NO_BYTES = {
    "block-table", "input-changed", "nan-decode", "page-cleared", "row-overrun", "slot-padding", "subnormal-decode",
    "unwritten-slot",
}  # fmt: skip
#: kernels whose fault diagnose calls by another id
OTHER_NAMES = {"overflow-test": "top-binade", "zero-output": "never-written"}
#: kernels whose fault diagnose does not know yet
UNKNOWN = {"inf-in-amax", "nan-in-amax", "saturate", "tie-toward-zero"}
#: faults that the zoo has no kernel for
NO_KERNEL = {"block-size", "other-head", "other-side", "other-token", "saturate-nan", "tie-up"}


def test_each_fault_of_a_kernel_is_one_of_the_catalogue_or_says_why_not():
    planted = {kernel.fault for kernel in kernels() if kernel.fault is not None}
    assert planted - set(FAULTS) == NO_BYTES | set(OTHER_NAMES) | UNKNOWN
    assert set(FAULTS) - planted == NO_KERNEL | set(OTHER_NAMES.values())

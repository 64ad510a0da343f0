"""Every fault by its id."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kvformat.verify.diagnosis import arithmetic, geometric, scales
from kvformat.verify.diagnosis.fault import Fault, Kind, Variant, table

#: in the order in which they are tried: of two that explain the same bytes, the first is named first
FAULTS: Mapping[str, Fault] = table((*arithmetic.FAULTS, *scales.FAULTS, *geometric.FAULTS))


def variants(mode: str, *kinds: Kind) -> Iterator[tuple[Fault, Variant]]:
    """Every variant of every fault of these kinds that can occur in a mode."""
    for fault in FAULTS.values():
        if fault.kind in kinds:
            for variant in fault.variants_in(mode):
                yield fault, variant

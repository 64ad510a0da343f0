"""Every fault by its id."""

from __future__ import annotations

from collections.abc import Mapping

from kvformat.verify.diagnosis import arithmetic, geometric, scales
from kvformat.verify.diagnosis.fault import Fault, table

#: in the order in which they are tried: of two that explain the same bytes, the first is named first
FAULTS: Mapping[str, Fault] = table((*arithmetic.FAULTS, *scales.FAULTS, *geometric.FAULTS))

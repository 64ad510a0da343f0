"""One run of device_check: what it has found, and until when it may go on."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass
class Run:
    """What is known so far; a dry run compiles instead of running."""

    dry: bool
    deadline: float
    device: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    def add(self, part: str, what: str, **figures: Any) -> None:
        """A line of the table."""
        self.rows.append({"part": part, "what": what, **figures})
        shown = "  ".join(f"{name} {value}" for name, value in figures.items())
        print(f"{part:<13} {what:<58} {shown}", flush=True)

    def late(self, seconds: float) -> bool:
        """Whether a part that takes so long would end behind the deadline."""
        return not self.dry and time.monotonic() + seconds > self.deadline

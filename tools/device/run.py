"""One run of device_check: what it has found, and until when it may go on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any

import numpy as np

from kvformat.torch import launch
from kvformat.torch.aot import compile_for


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

    def compare(self, part: str, names: Sequence[str], judge: Callable[[int, str], dict[str, int]]) -> None:
        """Judge every configuration by its number, a line for each that is wrong or was not reached, one for all.

        `judge` (number, device) gives what it compared and how much of that was wrong. Nearly all of the time goes into
        compiling: there is one process per core, each with a share of the configurations.
        """
        compared = missed = 0
        with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
            tasks = [pool.submit(_judged, judge, number, self.device, self.deadline) for number in range(len(names))]
            for name, task in zip(names, tasks, strict=True):
                found = task.result()
                missed += found is None
                compared += found["compared"] if found else 0
                if found is None or found["wrong"]:
                    self.add(part, name, **(found or {"result": "not run: no time left"}))
        self.add(part, f"{len(names) - missed} of {len(names)} configurations run", compared=compared)


def _judged(
    judge: Callable[[int, str], dict[str, int]], number: int, device: str, deadline: float
) -> dict[str, int] | None:
    """In a process of the pool: one thread, and None if the time is up."""
    if time.monotonic() > deadline:
        return None
    os.environ["KVFORMAT_NUM_THREADS"] = "1"
    return judge(number, device)


def compiled(launch_all: Callable[..., None], *what: Any) -> int:
    """Compile for sm_90 every kernel that it would launch; how many they are."""
    with launch.recorded() as launches:
        launch_all(*what)
    for each in launches:
        compile_for(each, "sm_90")
    return len(launches)

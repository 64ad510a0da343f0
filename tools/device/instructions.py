"""(d) What approximate instructions give, so that the sets of admissible results can become exact."""

from __future__ import annotations

import numpy as np
import torch

from kvformat.torch import launch
from kvformat.torch.aot import compile_for
from tools.device.kernels import approximate_quotients, approximate_reciprocals, full_quotients
from tools.device.run import Run


def record_instructions(run: Run) -> None:
    """What rcp.approx.ftz, div.full and div.approx give, as the distance in ulp from the correctly rounded result."""
    count = 1 << 23
    jobs = [("rcp.approx.ftz", approximate_reciprocals, 127)]
    jobs += [("div.full 1/m", full_quotients, exponent) for exponent in (1, 64, 127, 190, 252)]
    for name, kernel, exponent in jobs:
        if run.dry:
            with launch.recorded() as launches:
                launch.start(kernel, (1,), (torch.empty(1024, dtype=torch.int32), exponent), {"TILE": 1024})
            compile_for(launches[0], "sm_90")
            run.add("instructions", f"{name}, exponent {exponent}", result="compiled")
            continue
        found = torch.empty(count, dtype=torch.int32, device=run.device)
        launch.start(kernel, (count // 1024,), (found, exponent), {"TILE": 1024})
        bits = (np.arange(count, dtype=np.uint32) | np.uint32(exponent << 23)).view(np.float32)
        exact = (np.float32(1) / bits).view(np.int32)
        off = found.cpu().numpy() - exact
        key = f"{name}, exponent {exponent}"
        small = np.abs(off).max() < 128
        run.arrays[key.replace("/", " by ")] = off.astype(np.int8 if small else np.int32)
        counts = {str(ulp): int(number) for ulp, number in zip(*np.unique(off, return_counts=True), strict=True)}
        run.add("instructions", key, ulps=dict(list(counts.items())[:9]))
    constants = np.array([127, 448, 224, 6], np.float32)
    if run.dry:
        with launch.recorded() as launches:
            launch.start(approximate_quotients, (1,), (torch.empty(4), torch.from_numpy(constants)), {"TILE": 4})
        compile_for(launches[0], "sm_90")
        run.add("instructions", "div.approx(1, c)", result="compiled")
        return
    found = torch.empty(4, device=run.device)
    launch.start(approximate_quotients, (1,), (found, torch.from_numpy(constants).to(run.device)), {"TILE": 4})
    given = found.cpu().numpy().view(np.uint32)
    wanted = (np.float32(1) / constants).view(np.uint32)
    patterns = {f"1/{c:g}": f"{a:#010x} (rounded {b:#010x})" for c, a, b in zip(constants, given, wanted, strict=True)}
    run.add("instructions", "div.approx(1, c)", **patterns)

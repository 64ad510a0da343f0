"""Times whole processes: `import kvformat`, the built-in check and a sweep."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

from bench_rates import Differs, Row

#: fresh interpreters per figure
STARTS = 15
#: what `import kvformat` must not load
HEAVY = ("numba", "torch", "hypothesis")
#: what the budget of a sweep is about
SWEEP_THREADS = 2


def importing(root: Path) -> Iterator[Row]:
    """The wall time of a fresh interpreter that imports kvformat; a bare one stands beside it."""
    loaded = f"import sys, json, kvformat; print(json.dumps([name for name in {HEAVY} if name in sys.modules]))"
    heavy = json.loads(_python(root, "-c", loaded).stdout)
    if heavy:
        raise Differs(f"import kvformat loads {', '.join(heavy)}")
    times = [(_wall(root, "import kvformat"), _wall(root, "pass")) for _ in range(STARTS)]
    whole, bare = median(kvformat for kvformat, _ in times), median(bare for _, bare in times)
    yield Row("python -c 'import kvformat'", whole, "s", "python -c pass", bare, below=0.15)
    yield Row("import kvformat, without the interpreter", median(a - b for a, b in times), "s")


def commands(root: Path, skip: Callable[[str], None]) -> Iterator[Row]:
    """The built-in check, with nothing compiled and then with everything, and one exhaustive sweep."""
    with tempfile.TemporaryDirectory(prefix="kvformat-bench-") as scratch:
        first = _command(root, scratch, skip, "check")
        if first is not None:
            yield Row("kvformat check, first run", first, "s", below=40)
            later = [_command(root, scratch, skip, "check") for _ in range(5)]
            yield Row("kvformat check, later runs", median(seconds for seconds in later if seconds), "s", below=4)
        sweep = _command(root, scratch, skip, "sweep", "e4m3fn", threads=SWEEP_THREADS)
        if sweep is not None:
            yield Row(f"kvformat sweep e4m3fn, {SWEEP_THREADS} threads", sweep, "s", below=60)


def _command(
    root: Path, scratch: str, skip: Callable[[str], None], *words: str, threads: int | None = None
) -> float | None:
    """The wall time of one kvformat command; None, said in one line, if there is no such command."""
    # compiled code and whatever a sweep remembers to resume from start empty
    places = {name: f"{scratch}/{name}" for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "XDG_STATE_HOME")}
    if threads is not None:
        places["KVFORMAT_NUM_THREADS"] = str(threads)
    start = time.perf_counter()
    ended = _python(root, "-m", "kvformat.cli", *words, folder=scratch, more=places)
    elapsed = time.perf_counter() - start
    if ended.returncode == 0:
        return elapsed
    last = (ended.stderr.strip() or ended.stdout.strip()).rpartition("\n")[2]
    if "Traceback" in ended.stderr and last.startswith(("ImportError", "ModuleNotFoundError")):
        skip(f"kvformat {' '.join(words)}: {last}")
        return None
    raise Differs(f"kvformat {' '.join(words)} ended with status {ended.returncode}: {last}")


def _wall(root: Path, code: str) -> float:
    start = time.perf_counter()
    _python(root, "-c", code)
    return time.perf_counter() - start


def _python(
    root: Path, *words: str, folder: str | None = None, more: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run this interpreter on this checkout."""
    environment = {**os.environ, "PYTHONPATH": str(root), **(more or {})}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )

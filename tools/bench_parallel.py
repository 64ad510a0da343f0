"""Times work cut into tasks: many dumps, the zoo, a proof; by one process, two, and a Dask cluster of two workers."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from statistics import median

import ml_dtypes
import numpy as np
from bench_rates import Row

import kvformat as kvf
from kvformat.tasks.runner import in_task
from kvformat.tasks.team import cores

#: dumps of 20 MB: 3,200 tokens of 8 heads of 128, bfloat16, and their int8 pages
DUMPS, TOKENS = 64, 3200
#: of the zoo: kernels whose searches take about a second each
ZOO, EXAMPLES = "right", 300
#: runs of each side, one after the other
RUNS = 3


def parallel(skip: Callable[[str], None]) -> Iterator[Row]:
    """Ratios of one core to two, and of a Dask cluster to processes; the seconds of a proof."""
    if cores() < 2:
        skip("work on two cores: there is one")
        return
    with tempfile.TemporaryDirectory(prefix="kvformat-bench-") as folder:
        path = _dump(Path(folder))
        for number in range(1, DUMPS):
            (Path(folder) / f"{number}.safetensors").hardlink_to(path)
        check = partial(_check, folder)
        alone, together = _interleaved(check, _one_core, partial(kvf.parallel, workers=2))
        yield Row(
            f"check of {DUMPS} dumps of 20 MB, 2 processes",
            together,
            "s",
            "one core",
            alone,
            alone / together,
            at_least=1.3,
        )
        yield from _on_dask(check, skip)
    alone, together = _interleaved(_zoo, _one_core, partial(kvf.parallel, workers=2))
    yield Row("right kernels of the zoo, 2 processes", together, "s", "one core", alone, alone / together, at_least=1.8)
    start = time.perf_counter()
    with kvf.parallel(workers=2):
        _prove()
    yield Row("2^30 pairs of fp8 per token head proved, 2 processes", time.perf_counter() - start, "s", below=30)


@contextmanager
def _one_core() -> Iterator[None]:
    token = in_task.set(True)
    try:
        yield
    finally:
        in_task.reset(token)


def _interleaved(work: Callable[[], None], *teams: Callable[[], AbstractContextManager[object]]) -> tuple[float, ...]:
    """The median seconds of the work by each team, starting it included; once before for what compiles."""
    work()
    times: list[list[float]] = [[] for _ in teams]
    for _ in range(RUNS):
        for team, seconds in zip(teams, times, strict=True):
            start = time.perf_counter()
            with team():
                work()
            seconds.append(time.perf_counter() - start)
    return tuple(median(seconds) for seconds in times)


def _on_dask(check: Callable[[], None], skip: Callable[[str], None]) -> Iterator[Row]:
    try:
        from distributed import Client, LocalCluster
    except ModuleNotFoundError:
        skip("a Dask cluster: distributed is not installed")
        return
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50) as cluster,
        Client(cluster) as client,
    ):

        def on_cluster() -> AbstractContextManager[object]:
            return kvf.parallel(client.get_executor(), in_flight=6)

        with on_cluster():
            check()  # imports and compiles, as a cluster that is there has done
        processes, dask = _interleaved(check, partial(kvf.parallel, workers=2), on_cluster)
        work = f"check of {DUMPS} dumps of 20 MB, Dask cluster of 2"
        # within 25 %: at least 0.8 of the speed of processes
        yield Row(work, dask, "s", "2 processes", processes, processes / dask, at_least=0.8)


def _dump(folder: Path) -> Path:
    layout = kvf.layout("vllm-0.33", mode="int8_per_token_head", block_size=16, num_kv_heads=8, head_size=128)
    key, value = np.random.default_rng(0).normal(size=(2, TOKENS, 8, 128)).astype(ml_dtypes.bfloat16)
    cache = kvf.PagedCache(layout, TOKENS // 16)
    cache.write(key, value, np.arange(TOKENS))
    path = folder / "0.safetensors"
    kvf.Dump.from_arrays(key, value, cache.pages, np.arange(TOKENS), layout=layout, recipe="int8_per_token_head").save(
        path
    )
    return path


def _check(folder: str) -> None:
    assert [verdict.status for verdict in kvf.check_files(folder)] == [0] * DUMPS


def _zoo() -> None:
    from kvformat.fuzz.zoo import scoreboard

    assert scoreboard.run(only=ZOO, examples=EXAMPLES).rows


def _prove() -> None:
    from kvformat.proofs import prove

    assert prove("fp8_per_token_head", "exact/fp8_per_token_head").found.codes == 32640 * 32641

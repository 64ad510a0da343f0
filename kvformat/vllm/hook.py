"""The hook in vLLM's worker. It is light: what judges is imported by load_model.

When a worker is made on a CPU, vLLM 0.32 looks for Triton kernels through the globals of all loaded modules and
stumbles over an object of llvmlite, which Numba brings. So what needs Numba is imported after the model is loaded.
"""

from __future__ import annotations

import atexit
import os
import sys
from functools import wraps
from typing import Any, NoReturn, TextIO

from kvformat.errors import InputError
from kvformat.vllm.settings import Settings, from_environment


def install() -> None:
    """Wrap load_model and execute_model of vLLM's worker, in this process. Status 2 for settings that are wrong."""
    try:
        settings = from_environment(os.environ)
    except InputError as error:
        _refuse(error)
    from vllm.v1.worker.gpu_worker import Worker
    from vllm.version import __version__

    hook(Worker, settings, __version__)


def hook(worker: Any, settings: Settings, version: str, out: TextIO | None = None) -> None:
    """Wrap a class of workers; a second time does nothing."""
    if getattr(worker, "kvformat_hooked", False):
        return
    load, execute = worker.load_model, worker.execute_model

    @wraps(load)
    def load_model(self: Any, *given: Any, **named: Any) -> Any:
        result = load(self, *given, **named)
        from kvformat.vllm.session import Session

        config = self.vllm_config
        session = Session(settings, version, _rank(self), out)
        try:
            layers, scheduling = config.compilation_config.static_forward_context, config.scheduler_config
            session.attach(layers, scheduling.max_num_batched_tokens, config.model_config.dtype, self.device)
        except InputError as error:
            _refuse(error)
        self.kvformat = session
        atexit.register(lambda: session.say(session.summary()))
        return result

    @wraps(execute)
    def execute_model(self: Any, scheduled: Any, *given: Any, **named: Any) -> Any:
        session = getattr(self, "kvformat", None)
        if session is None:
            return execute(self, scheduled, *given, **named)
        try:
            return session.run(lambda: execute(self, scheduled, *given, **named), whole=_is_whole(scheduled))
        except InputError as error:
            _refuse(error)

    worker.load_model, worker.execute_model, worker.kvformat_hooked = load_model, execute_model, True


def _rank(worker: Any) -> int | None:
    """The number of a worker among all of the engine's; None where it is the only one."""
    parallel = worker.vllm_config.parallel_config
    workers = parallel.world_size  # of tensor and pipeline parallelism
    if workers * parallel.data_parallel_size == 1:
        return None
    return int(parallel.data_parallel_rank * workers + worker.rank % workers)


def _is_whole(scheduled: Any) -> bool:
    """Whether a step computes all tokens of one request, and of no other."""
    new = getattr(scheduled, "scheduled_new_reqs", [])
    counts = getattr(scheduled, "num_scheduled_tokens", {})
    return len(counts) == 1 and len(new) == 1 and not new[0].num_computed_tokens


def _refuse(error: InputError) -> NoReturn:
    """One line, and status 2."""
    sys.stderr.write(f"kvformat: {error}\n")
    sys.exit(2)

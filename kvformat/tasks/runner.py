"""`run`: gives tasks to the team, keeps their results in the journal and hands them out in order."""

from __future__ import annotations

import contextvars
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from dataclasses import dataclass, field
from heapq import heappush, heappushpop
from time import monotonic, perf_counter
from typing import Any, Generic, TypeVar

from kvformat.errors import InputError
from kvformat.tasks.journal import Journal, code_digest
from kvformat.tasks.team import Team, current, is_lost

T = TypeVar("T")

#: slowest tasks that are remembered
_SLOWEST = 3
#: seconds after which those who watch are told again how far it is
_TELL = 1.0
#: workers that one task may lose, tried alone, before it is said to be the one that ends them
_LIVES = 2
#: times that a team may break without finishing a task
_RENEWALS = 5

#: whether a task of an executor runs here: it then has one core, and its kernels one thread
in_task: contextvars.ContextVar[bool] = contextvars.ContextVar("in_task", default=False)


class LostError(InputError):
    """A task ended the workers that it was given to, each time."""


@dataclass(frozen=True)
class Task(Generic[T]):
    """One piece of work. key: names it in the journal, everything that its result depends on; label: for people."""

    key: str
    argument: T
    label: str = ""


@dataclass
class Watch:
    """Told how far a run is. tell: called with it now and then."""

    tell: Callable[[Watch], None] = lambda _watch: None
    done: int = 0
    total: int = 0
    #: finished before, by the run that this one resumes
    resumed: int = 0
    #: of the slowest tasks, seconds and label, the slowest last
    slowest: list[tuple[float, str]] = field(default_factory=list)
    #: of the tasks that somebody has, the label and when it was given out
    running: dict[str, float] = field(default_factory=dict)
    _told: float = 0.0

    def finished(self, label: str, seconds: float) -> None:
        """Count a task."""
        self.done += 1
        self.running.pop(label, None)
        entry = (seconds, label)
        if len(self.slowest) < _SLOWEST:
            heappush(self.slowest, entry)
        else:
            heappushpop(self.slowest, entry)
        self.now(at_least=self.done == self.total)

    def now(self, *, at_least: bool = False) -> None:
        """Tell, unless somebody was told just now."""
        if at_least or monotonic() - self._told >= _TELL / 10:
            self._told = monotonic()
            self.tell(self)


def run(
    function: Callable[[T], Any],
    tasks: Sequence[Task[T]],
    journal: Journal | None = None,
    *,
    watch: Watch | None = None,
    lost: Callable[[T], Any] | None = None,
) -> Iterator[Any]:
    """The results of `function` on each task, in the order of the tasks.

    Parameters
    ----------
    function : callable
        Pure and picklable: the same argument gives the same JSON values, wherever and how often it runs.
    tasks : sequence of Task
        No two with one key.
    journal : Journal, optional
        Tasks whose results it holds are not done again.
    watch : Watch, optional
        Told how far it is.
    lost : callable, optional
        The result of a task whose workers were killed each time; without it, such a task ends the run.

    Raises
    ------
    InputError
        Of a task; for workers with other code; for a full disk. `LostError`, where a task ends its workers. What is
        finished is in the journal.

    """
    journal = Journal(None, "") if journal is None else journal
    watch = Watch() if watch is None else watch
    watch.total += len(tasks)
    missing = deque(task for task in tasks if task.key not in journal)
    watch.done += len(tasks) - len(missing)
    watch.resumed += len(tasks) - len(missing)
    work = _Work(function, missing, journal, watch, lost)
    try:
        for task in tasks:
            while task.key not in journal:
                work.step()
            yield journal.get(task.key)
    finally:
        work.stop()


class _Work(Generic[T]):
    """What is to do, and what of it is with the team."""

    def __init__(
        self,
        function: Callable[[T], Any],
        missing: deque[Task[T]],
        journal: Journal,
        watch: Watch,
        lost: Callable[[T], Any] | None,
    ) -> None:
        self._function, self._missing, self._journal, self._watch, self._lost = function, missing, journal, watch, lost
        self._team: Team | None = current()
        self._given: dict[Future[Any], Task[T]] = {}
        #: tasks that were with a team when it broke: each is tried alone, and lives are counted
        self._suspects: deque[Task[T]] = deque()
        self._deaths: dict[str, int] = {}
        self._here = 0.0
        #: times that the team broke since a task was finished
        self._broken = 0

    def step(self) -> None:
        """Get at least one task further."""
        if self._team is None or (self._here < self._team.warm_up and not self._given) or self._is_last():
            self._do_here()
            return
        self._give_out(self._team)
        finished, _ = wait(self._given, timeout=_TELL, return_when=FIRST_COMPLETED)
        self._watch.now()
        for future in finished:
            task = self._given.pop(future, None)
            if task is not None:  # else the team broke just now, and all of its tasks are to be done again
                self._take(future, task, self._team)

    def _is_last(self) -> bool:
        """One task alone is not worth a team that has to start."""
        assert self._team is not None
        return bool(self._team.warm_up) and self._here > 0 and not self._given and len(self._missing) == 1

    def _do_here(self) -> None:
        task = self._missing.popleft()
        start = perf_counter()
        self._watch.running[task.label] = monotonic()
        result = self._function(task.argument)
        seconds = perf_counter() - start
        self._here += seconds
        self._keep(task, result, seconds)

    def _give_out(self, team: Team) -> None:
        waiting = self._suspects or self._missing
        most = 1 if self._suspects else team.in_flight
        while waiting and len(self._given) < most:
            task = waiting.popleft()
            try:
                future = team.submit(work_on, self._function, task.argument, code_digest())
            except RuntimeError as error:  # broken, or shut down: BrokenExecutor is one too
                waiting.appendleft(task)
                self._renew(team, error)
                return
            self._given[future] = task
            self._watch.running[task.label] = monotonic()

    def _take(self, future: Future[Any], task: Task[T], team: Team) -> None:
        try:
            seconds, result = future.result()
        except (Exception, CancelledError) as error:
            if not is_lost(error):
                raise _explained(error) from error
            self._bury(task, team, error)
            return
        self._keep(task, result, seconds)

    def _bury(self, task: Task[T], team: Team, error: BaseException) -> None:
        """A worker is gone. All tasks that were out are under suspicion; one that was out alone did it."""
        alone = not self._given
        others = list(self._given.values())
        self._given.clear()
        if alone or type(error).__name__ == "KilledWorker":  # Dask has tried it on several workers by itself
            self._deaths[task.key] = self._deaths.get(task.key, 0) + 1
        if self._deaths.get(task.key, 0) >= _LIVES or type(error).__name__ == "KilledWorker":
            if self._lost is None:
                raise LostError(f"{task.label or task.key}: its worker was killed each time; is there enough memory?")
            self._keep(task, self._lost(task.argument), 0.0)
        else:
            self._suspects.append(task)
        if type(error).__name__ == "KilledWorker":
            self._missing.extendleft(others)
        else:
            self._suspects.extend(others)
            self._renew(team, error)

    def _renew(self, team: Team, error: BaseException) -> None:
        if not team.renew():
            raise InputError(
                f"the executor is broken: {' '.join(str(error).split()) or type(error).__name__}"
            ) from error

    def _keep(self, task: Task[T], result: Any, seconds: float) -> None:
        self._broken = 0
        self._journal.put(task.key, result, seconds)
        self._watch.finished(task.label, seconds)

    def stop(self) -> None:
        """Take back what is not done."""
        if self._team is not None:
            self._team.take_back(self._given)
        self._given.clear()
        self._watch.running.clear()


def work_on(function: Callable[[T], Any], argument: T, code: str) -> tuple[float, Any]:
    """A task, where it runs: the seconds it took and its result."""
    if code != code_digest():
        raise InputError("a worker has another version of kvformat; install the same one there")
    token = in_task.set(True)
    start = perf_counter()
    try:
        result = function(argument)
        return perf_counter() - start, result
    finally:
        in_task.reset(token)


def _explained(error: BaseException) -> BaseException:
    """The error of a task as it is raised here."""
    if isinstance(error, ModuleNotFoundError):
        return InputError(f"a worker has no {error.name}; install kvformat and what it needs there")
    if isinstance(error, CancelledError):
        return InputError("the executor gave tasks back unfinished: its scheduler is gone, or it was shut down")
    return error

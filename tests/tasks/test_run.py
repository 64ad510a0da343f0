"""Tasks: every one once, results in order, the same for any team; lost workers, errors and interruptions."""

from __future__ import annotations

import os
import signal
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor
from pathlib import Path

import pytest

import kvformat as kvf
from kvformat.elements import threads
from kvformat.tasks import Journal, LostError, parallel, run
from kvformat.tasks.runner import Task, Watch, work_on


def square(number):
    return {"square": number * number}


def tasks(count):
    return [Task(f"square {number}", number, f"number {number}") for number in range(count)]


class Reversed(Executor):
    """Finishes what it was given last first, when it has three tasks or none more come."""

    def __init__(self):
        self.waiting = []

    def submit(self, function, /, *arguments):
        future = Future()
        self.waiting.append((future, function, arguments))
        if len(self.waiting) == 3:
            for each, work, given in reversed(self.waiting):
                each.set_result(work(*given))
            self.waiting.clear()
        return future


def test_results_come_in_the_order_of_the_tasks_whoever_works():
    expected = [square(number) for number in range(9)]
    assert list(run(square, tasks(9))) == expected
    with parallel(Reversed(), in_flight=3):
        assert list(run(square, tasks(9))) == expected
    with ThreadPoolExecutor(2) as pool, parallel(pool):
        assert list(run(square, tasks(9))) == expected


def test_what_the_journal_holds_is_not_done_again(tmp_path):
    done = []

    def work(number):
        done.append(number)
        return number

    for count in (3, 5):
        journal = Journal(tmp_path, "a run")
        watch = Watch()
        assert list(run(work, tasks(count), journal, watch=watch)) == list(range(count))
        journal.finish()
    assert done == [0, 1, 2, 3, 4]
    assert (watch.resumed, watch.done, watch.total) == (3, 5, 5)


def test_the_slowest_tasks_are_known(monkeypatch):
    ticks = iter([0, 1, 1, 8, 8, 10, 10, 10.5])
    monkeypatch.setattr("kvformat.tasks.runner.perf_counter", lambda: next(ticks))
    watch = Watch()
    list(run(square, tasks(4), watch=watch))
    assert sorted(watch.slowest)[::-1] == [(7, "number 1"), (2, "number 2"), (1, "number 0")]


def test_a_run_that_is_left_keeps_what_is_finished(tmp_path):
    journal = Journal(tmp_path, "a run")
    results = run(square, tasks(5), journal)
    assert next(results) == {"square": 0}
    results.close()
    journal.finish()
    assert (tmp_path / "results.jsonl").read_text().count("\n") == 2  # the head and the first result


def fails(_number):
    raise kvf.InputError("what is wrong")


def test_the_error_of_a_task_ends_the_run_with_its_own_line():
    with pytest.raises(kvf.InputError, match=r"^what is wrong$"):
        list(run(fails, tasks(2)))
    with ThreadPoolExecutor(1) as pool, parallel(pool), pytest.raises(kvf.InputError, match=r"^what is wrong$"):
        list(run(fails, tasks(2)))


class Broken(Executor):
    def submit(self, *_work):
        raise BrokenExecutor("it is broken")


def test_a_broken_executor_of_the_users_is_one_line():
    with parallel(Broken()), pytest.raises(kvf.InputError, match="the executor is broken: it is broken"):
        list(run(square, tasks(2)))


def test_a_worker_with_other_code_is_refused():
    with pytest.raises(kvf.InputError, match="another version of kvformat"):
        work_on(square, 3, "0123456789abcdef")


def test_a_task_of_an_executor_has_one_thread(monkeypatch):
    monkeypatch.setenv("KVFORMAT_NUM_THREADS", "7")

    def counted(_number):
        return threads.count()

    with ThreadPoolExecutor(1) as pool, parallel(pool):
        assert list(run(counted, tasks(1))) == [1]
    assert threads.count() == 7


@pytest.mark.parametrize("options", [{"workers": 0}, {"in_flight": 0}, {"workers": 2, "executor": Reversed()}])
def test_a_team_that_cannot_be_is_refused(options):
    executor = options.pop("executor", None)
    with pytest.raises(kvf.InputError), parallel(executor, **options):
        pass


# --- processes: functions that a worker can import ---


def ends_worker_once(argument):
    """Kills the process that it runs in, the first time."""
    path, number = argument
    if number == 2 and not Path(path).exists():
        Path(path).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def ends_worker(number):
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.fixture
def _importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


@pytest.mark.slow
@pytest.mark.usefixtures("_importable")
def test_a_killed_worker_costs_nothing_and_a_task_that_kills_each_is_named(tmp_path, monkeypatch):
    import tests.tasks.test_run as here

    monkeypatch.setattr("kvformat.tasks.team.Processes.warm_up", 0.0, raising=False)
    with parallel(workers=2) as _:
        from kvformat.tasks.team import current

        current().warm_up = 0.0
        mine = [Task(str(number), (str(tmp_path / "flag"), number)) for number in range(6)]
        assert list(run(here.ends_worker_once, mine)) == list(range(6))
        assert (tmp_path / "flag").exists()
        lost = list(run(here.ends_worker, tasks(4), lost=lambda number: f"lost {number}"))
        assert lost == [0, 1, "lost 2", 3]
        with pytest.raises(LostError, match="number 2: its worker was killed each time"):
            list(run(here.ends_worker, tasks(4)))

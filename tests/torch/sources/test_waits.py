"""Waits of monitel's and of torch's wait counters that exceed a time limit: an event, and the activity ``stuck``."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from tests.support.checks import SetEnv
from tests.support.scripts import Run
from tests.torch.known_work import activity

import monitel
import monitel.torch
from monitel.testing import ManualClock

Guard = Callable[[], Any]
Passing = Callable[[float], None]

LIMIT = 300.0
_DEADLINE = 60


@contextmanager
def waiting(guard: Guard, within: str | None = None, *, trains: bool = True) -> Iterator[Callable[[], None]]:
    """Have another thread make a step, enter an activity, and wait; provide a function that ends the wait."""
    waits, end = threading.Event(), threading.Event()

    def wait() -> None:
        if trains:
            monitel.set_step(1)
        with nullcontext() if within is None else monitel.activity(within), guard():
            waits.set()
            assert end.wait(_DEADLINE)

    def end_wait() -> None:
        end.set()
        waited.result(_DEADLINE)

    with ThreadPoolExecutor(1) as thread:  # which lives on after the wait
        waited = thread.submit(wait)
        assert waits.wait(_DEADLINE)
        try:
            yield end_wait
        finally:
            end_wait()


def own() -> Any:
    return monitel.WaitCounter("barrier").guard()


def torchs() -> Any:
    return torch.monitor._WaitCounter("pytorch.wait_counter.test.stuck").guard()


@pytest.fixture
def pass_time(clock: ManualClock, only_flushes_poll: None) -> Iterator[Callable[[float], None]]:
    """Instrument, and provide a function that lets time pass, with a flush before, each minute, and at the end."""

    def pass_time(seconds: float) -> None:
        monitel.flush()
        while seconds > 0:
            clock.advance(min(seconds, 60))
            seconds -= 60
            monitel.flush()

    with monitel.torch.instrument(sources="-stages,-steps", stuck_after=LIMIT, window_size=float("inf")):
        yield pass_time


@pytest.mark.parametrize("guard", [own, torchs])
def test_wait_over_the_limit_is_stuck(pass_time: Passing, guard: Guard) -> None:
    """From the limit until the next poll after the wait."""
    with waiting(guard) as end_wait:
        pass_time(LIMIT - 1)
        assert "step" == activity()
        pass_time(1)
        assert "stuck" == activity()
        end_wait()
        monitel.flush()
        assert "step" == activity()


@pytest.mark.parametrize(("name", "found"), [("checkpoint.save", None), ("data", None), ("init", "stuck")])
def test_waits_of_other_activities_belong_to_them(pass_time: Passing, name: str, found: str | None) -> None:
    """A collective during a checkpoint is part of the checkpoint; a rank that never starts makes ``init`` stuck."""
    with waiting(own, name):
        pass_time(LIMIT * 3)
        assert (found or name) == activity()


def test_training_that_goes_on_is_not_stuck(pass_time: Passing) -> None:
    """A step begins the time limit again, and ends ``stuck`` even if the wait goes on, as a callback may train."""
    with waiting(own):
        for step in range(2, 8):
            pass_time(LIMIT / 2)
            assert "step" == activity()
            monitel.set_step(step)
        pass_time(LIMIT)
        assert "stuck" == activity()
        monitel.set_step(100)
        monitel.flush()
        assert "step" == activity()


def test_wait_of_another_thread_is_one_event_and_not_stuck(
    pass_time: Passing, setenv: SetEnv, events: list[monitel.Event]
) -> None:
    """The training thread works meanwhile: it executes other instructions from poll to poll."""
    setenv(RANK="3")
    monitel.set_step(12)
    for _ in range(2):
        with waiting(own, trains=False):
            for _ in range(3):
                pass_time(LIMIT)
                assert "step" == activity()
    stuck = [dict(event.data) for event in events if event.name == "wait.stuck"]
    assert all(" in wait\n" in str(each.pop("code.stacktrace")) for each in stuck)
    expected = {"message": "stuck in barrier for 300 s", "wait.key": "barrier", "wait.duration": LIMIT}
    assert [{**expected, "training.rank": 3, "training.step": 12}] * 2 == stuck


HANG = """\
import os
import monitel.torch
import torch.distributed as dist

def report(event):
    if event.name == "wait.stuck" and event.data["wait.key"].endswith("init_process_group"):
        print(event.severity.name, event.data["message"].rsplit(" for ")[0], event.data["training.rank"])
        print("in <module>" in event.data["code.stacktrace"], monitel.ledger().current, flush=True)
        os._exit(0)

monitel.register_event_handler(report)
monitel.torch.instrument(stuck_after=1.5)
dist.init_process_group("gloo")
"""


def test_hanging_process_reports_its_wait(run: Run) -> None:
    """Rank 0 waits for rank 1, which never starts. The polling thread reports it while the main thread hangs."""
    environment = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    ended = run("-W", "ignore", "-c", HANG, env=environment)
    assert ["WARN stuck in pytorch.wait_counter.c10d.init_process_group 0", "True stuck"] == ended.stdout.splitlines()

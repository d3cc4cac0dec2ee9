"""Waits of monitel's and of torch's wait counters that exceed a time limit: an event, and the activity ``stuck``."""

import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from tests.support.scripts import Run
from tests.torch.known_work import activity

import monitel
import monitel.torch
from monitel.testing import ManualClock

LIMIT = 300.0
_DEADLINE = 60


class Watch:
    """A training thread that waits, and this thread, which polls while the time of a manual clock passes."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self._waits, self._end, self._left, self._done = (threading.Event() for _ in range(4))
        self._thread: threading.Thread | None = None

    def train(self, guard: Callable[[], Any], within: str | None = None) -> None:
        """Start the training thread, which makes a step, enters an activity, and waits."""

        def run() -> None:
            monitel.set_step(1)
            with nullcontext() if within is None else monitel.activity(within):
                with guard():
                    self._waits.set()
                    assert self._end.wait(_DEADLINE)
                self._left.set()
                assert self._done.wait(_DEADLINE)

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()
        assert self._waits.wait(_DEADLINE)

    def pass_time(self, seconds: float) -> None:
        """Let time pass, with a flush before, each minute, and at the end."""
        monitel.flush()
        while seconds > 0:
            self._clock.advance(min(seconds, 60))
            seconds -= 60
            monitel.flush()

    def end_wait(self) -> None:
        self._end.set()
        assert self._left.wait(_DEADLINE)

    def close(self) -> None:
        self._end.set()
        self._done.set()
        if self._thread is not None:
            self._thread.join(_DEADLINE)


def own() -> Any:
    return monitel.WaitCounter("barrier").guard()


def torchs() -> Any:
    return torch.monitor._WaitCounter("pytorch.wait_counter.test.stuck").guard()


@pytest.fixture
def watch(clock: ManualClock, only_flushes_poll: None) -> Iterator[Watch]:
    """Instrument, and provide a training thread."""
    with monitel.torch.instrument(sources="-stages,-steps", stuck_after=LIMIT, window_size=float("inf")):
        watch = Watch(clock)
        yield watch
        watch.close()


@pytest.mark.parametrize("guard", [own, torchs])
def test_wait_over_the_limit_is_stuck(watch: Watch, guard: Callable[[], Any]) -> None:
    """From the limit until the next poll after the wait."""
    watch.train(guard)
    watch.pass_time(LIMIT - 1)
    assert "step" == activity()
    watch.pass_time(1)
    assert "stuck" == activity()
    watch.end_wait()
    monitel.flush()
    assert "step" == activity()


@pytest.mark.parametrize(("name", "stuck"), [("checkpoint.save", False), ("data", False), ("init", True)])
def test_waits_of_other_activities_belong_to_them(watch: Watch, name: str, stuck: bool) -> None:
    """A collective during a checkpoint is part of the checkpoint; a rank that never starts makes ``init`` stuck."""
    watch.train(own, name)
    watch.pass_time(LIMIT * 3)
    assert ("stuck" if stuck else name) == activity()


def test_training_that_goes_on_is_not_stuck(watch: Watch) -> None:
    """A step begins the time limit again, and ends ``stuck`` even if the wait goes on, as a callback may train."""
    watch.train(own)
    for step in range(2, 8):
        watch.pass_time(LIMIT / 2)
        assert "step" == activity()
        monitel.set_step(step)
    watch.pass_time(LIMIT)
    assert "stuck" == activity()
    monitel.set_step(100)
    monitel.flush()
    assert "step" == activity()


def test_wait_of_another_thread_is_an_event_and_not_stuck(watch: Watch, events: list[monitel.Event]) -> None:
    """The training thread works meanwhile: it executes other instructions from poll to poll."""
    waits, end = threading.Event(), threading.Event()

    def other() -> None:
        with own():
            waits.set()
            assert end.wait(_DEADLINE)

    monitel.set_step(1)
    thread = threading.Thread(target=other)
    thread.start()
    assert waits.wait(_DEADLINE)
    for _ in range(3):
        watch.pass_time(LIMIT)
        assert "step" == activity()
    end.set()
    thread.join(_DEADLINE)
    assert ["barrier"] == [event.data["wait.key"] for event in events if event.name == "wait.stuck"]


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

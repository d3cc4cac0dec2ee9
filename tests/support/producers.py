"""Producers of every kind of item, and a backend that answers at random with a seed."""

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import Barrier, Event, Lock, Thread
from typing import Any

import pytest
from tests.support.inbox import DEADLINE, Answer, Request
from tests.support.pipelines import check_accounts
from tests.support.receiver import Receiver, partial_success

import monitel
from monitel import COUNT, VALUE, Stat
from monitel.blackbox import box, disk, journal
from monitel.profiler import record_function
from monitel_otlp import Pipeline
from monitel_otlp.export import sender

_logger = logging.getLogger("application")
_SIGNAL_OF = {"window": "metrics", **dict.fromkeys(["event", "logging"], "logs"), "range": "traces"}


def close_windows(stat: Stat, clock: monitel.testing.ManualClock, *windows: list[float]) -> None:
    for samples in windows:
        for sample in samples:
            stat.add(sample)
        clock.advance(60)
    stat.flush()


def fill(stat: Any, *samples: Any) -> None:
    for sample in samples:
        stat.add(sample)
    stat.flush()


def record_window(name: str, aggregations: Sequence[monitel.Aggregation], *samples: float, **options: Any) -> None:
    fill(Stat(name, [*aggregations], 3600.0, **options), *samples)


def record_ranges(*names: str, args: Any = None) -> None:
    """Record ranges that contain nothing, one after the other."""
    for name in names:
        with record_function(name, args):
            pass


def wait(clock: monitel.testing.ManualClock, key: str, *seconds: float) -> None:
    for each in seconds:
        with monitel.WaitCounter(key).guard():
            clock.advance(each)


def emit_items(count: int, seed: int) -> Counter[str]:
    """Record items of all kinds in random order, and return their number by signal."""
    choose = random.Random(seed)
    stat = Stat(f"loss.{seed}", [COUNT, VALUE], 3600.0)
    handed_over: Counter[str] = Counter()
    for number in range(count):
        kind = choose.choice(list(_SIGNAL_OF))
        handed_over[_SIGNAL_OF[kind]] += 1
        if kind == "window":
            stat.add(number)
            stat.flush()
        elif kind == "event":
            monitel.emit("event", id=f"{seed}.{number}")
        elif kind == "range":
            record_ranges(f"range {seed}.{number}")
        else:
            _logger.warning("%d.%d", seed, number)
    return handed_over


@contextmanager
def running(*functions: Callable[[], object]) -> Iterator[None]:
    """Run functions in threads during the block, and wait for their ends; fail the test if one raises or hangs."""
    failed: list[BaseException] = []

    def guarded(function: Callable[[], object]) -> None:
        try:
            function()
        except BaseException as error:
            failed.append(error)

    threads = [Thread(target=guarded, args=[function], daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.join(DEADLINE)
    assert not any(thread.is_alive() for thread in threads), "deadlock"
    if failed:
        raise failed[0]


def run_together(*functions: Callable[[], object]) -> None:
    together = Barrier(len(functions))

    def begin(function: Callable[[], object]) -> None:
        together.wait(DEADLINE)
        function()

    with running(*(partial(begin, function) for function in functions)):
        pass


@contextmanager
def repeating(*functions: Callable[[], object], pause: float = 0.0) -> Iterator[None]:
    """Call each function in a thread, at least once, and again after each pause until the block ends."""
    over = Event()

    def repeat(function: Callable[[], object]) -> None:
        function()
        while not over.wait(pause):
            function()

    with running(*(partial(repeat, function) for function in functions)):
        try:
            yield
        finally:
            over.set()


@contextmanager
def checked_continuously(pipeline: Pipeline) -> Iterator[list[None]]:
    """Check in a thread that the accounts add up while the block runs; the list grows with each check."""
    checks: list[None] = []
    with repeating(lambda: checks.append(check_accounts(pipeline)), pause=0.0005):  # type: ignore[func-returns-value]
        yield checks


@dataclass
class RandomBackend:
    choose: random.Random  # the generator
    answers: list[str]  # HTTP status codes and faults to choose from
    # number of points, records or spans of accepted requests that it has left out, by signal
    left_out: Counter[str] = field(default_factory=Counter)
    lock: Any = field(default_factory=Lock)

    def __call__(self, request: Request) -> Answer:
        kind = {"metrics": "points", "logs": "records", "traces": "spans"}[request.signal]
        records = len(getattr(request, kind))
        with self.lock:
            answer = self.choose.choice(self.answers)
            left_out = self.choose.randint(0, records) if answer == "partial" else 0
            self.left_out[request.signal] += left_out
        if answer == "partial":
            return partial_success(request.signal, left_out, "left out")
        if answer == "drop unanswered":
            return Answer(fault="drop unanswered")
        if answer == "drop in answer":
            return Answer(503, fault="drop in answer")
        return Answer(int(answer))


#: Answers to choose from if the backend answers each request, and if it may also close connections.
ANSWERED = ["200", "200", "200", "400", "413", "429", "500", "503", "partial"]
ANY = [*ANSWERED, "drop unanswered", "drop in answer"]


def answer_at_random(receiver: Receiver, seed: int, answers: list[str]) -> RandomBackend:
    backend = RandomBackend(random.Random(seed), answers)
    receiver.rule(backend)
    return backend


def make_small(
    monkeypatch: pytest.MonkeyPatch, *, memory_bytes: int = 1 << 20, spool_bytes: int = 1 << 30, after_s: float = 0.05
) -> None:
    """Reduce requests, segments, pauses and optionally limits, so that every path of the delivery is taken."""
    monkeypatch.setattr(journal, "MEMORY_BYTES", memory_bytes)
    monkeypatch.setattr(box, "DISK_BYTES", spool_bytes)
    monkeypatch.setattr(box, "DISK_AFTER_S", after_s)
    monkeypatch.setattr(box, "SNAPSHOT_S", 0.05)
    monkeypatch.setattr(sender, "REQUEST_RECORDS", 16)
    monkeypatch.setattr(sender, "_LONGEST_PAUSE", 0.002)
    monkeypatch.setattr(journal, "_SMALL", 2_000)
    monkeypatch.setattr(journal, "_LARGE", 4_000)
    monkeypatch.setattr(disk, "_LARGEST", 4_000)

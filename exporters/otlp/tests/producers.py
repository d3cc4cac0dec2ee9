"""Producers of every kind of item, and a backend that answers at random, by seed."""

from __future__ import annotations

import logging
import random
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any

import monitel
import monitel_otlp.delivery.retry_queue
import monitel_otlp.delivery.sender
import monitel_otlp.engine
import monitel_otlp.open_request
import monitel_otlp.sdk.exporters
import monitel_otlp.spool.segment_writer
from monitel import COUNT, VALUE, Stat
from monitel.profiler import record_function
from monitel_otlp.leaves import LEVELS, count_leaves
from monitel_otlp.sdk._compat import SeverityNumber

from .conftest import check_law
from .inbox import DEADLINE, Answer
from .receiver import partial_success

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pytest

    from monitel_otlp import Pipeline

    from .inbox import Request
    from .receiver import Receiver

_logger = logging.getLogger("application")
_SIGNALS = {
    "window": "metrics",
    **dict.fromkeys(["event", "record", "logging"], "logs"),
    **dict.fromkeys(["range", "span"], "traces"),
}


def emit_items(pipeline: Pipeline, count: int, seed: int) -> Counter[str]:
    """Hand over items of all kinds, in random order, and return how many of each signal."""
    choose = random.Random(seed)
    stat = Stat(f"loss.{seed}", [COUNT, VALUE], 3600.0)
    logger = pipeline.logger_provider.get_logger("mine")
    tracer = pipeline.tracer_provider.get_tracer("mine")
    handed_over: Counter[str] = Counter()
    for number in range(count):
        kind = choose.choice(list(_SIGNALS))
        handed_over[_SIGNALS[kind]] += 1
        if kind == "window":
            stat.add(number)
            stat.flush()
        elif kind == "event":
            monitel.emit("event", id=f"{seed}.{number}")
        elif kind == "range":
            with record_function(f"range {seed}.{number}"):
                pass
        elif kind == "record":
            logger.emit(body=f"{seed}.{number}", severity_number=SeverityNumber.INFO)
        elif kind == "span":
            tracer.start_span(f"span {seed}.{number}").end()
        else:
            _logger.warning("%d.%d", seed, number)
    return handed_over


@contextmanager
def checked_all_the_time(pipeline: Pipeline) -> Iterator[list[int]]:
    """Check the law in a thread while the body runs; the list grows with each check."""
    stop, checks, broken = Event(), list[int](), list[BaseException]()

    def check() -> None:
        try:
            while not stop.wait(0.0005):
                check_law(pipeline)
                checks.append(1)
        except BaseException as error:
            broken.append(error)

    thread = Thread(target=check, daemon=True)
    thread.start()
    try:
        yield checks
    finally:
        stop.set()
        thread.join(DEADLINE)
    assert [] == broken
    assert checks


def run_together(*functions: Callable[[], object]) -> None:
    """Run functions in a thread each; the first exception is raised here."""
    failed: list[BaseException] = []

    def guarded(function: Callable[[], object]) -> None:
        try:
            function()
        except BaseException as error:
            failed.append(error)

    threads = [Thread(target=guarded, args=[function], daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
        assert not thread.is_alive()
    if failed:
        raise failed[0]


@dataclass
class Moody:
    """A backend whose answers are drawn by seed, and what it has left out.

    Attributes:
        left_out: For each signal the points, records or spans that it took and left out.
    """

    choose: random.Random
    answers: list[str]
    left_out: Counter[str] = field(default_factory=Counter)
    lock: Any = field(default_factory=Lock)

    def __call__(self, request: Request) -> Answer:
        """Draw an answer."""
        leaves = count_leaves(request.message, LEVELS[request.signal])
        with self.lock:
            answer = self.choose.choice(self.answers)
            left_out = self.choose.randint(0, leaves) if answer == "partial" else 0
            self.left_out[request.signal] += left_out
        if answer == "partial":
            return partial_success(request.signal, left_out, "left out")
        if answer == "drop unanswered":
            return Answer(fault="drop unanswered")
        if answer == "drop in answer":
            return Answer(503, fault="drop in answer")
        return Answer(int(answer))


ANSWERED = ["200", "200", "200", "400", "413", "429", "500", "503", "partial"]
ANY = [*ANSWERED, "drop unanswered", "drop in answer"]


def moody(receiver: Receiver, seed: int, answers: list[str]) -> Moody:
    """Make a receiver answer at random."""
    backend = Moody(random.Random(seed), answers)
    receiver.rule(backend)
    return backend


def make_small(
    monkeypatch: pytest.MonkeyPatch,
    *,
    queue: int = 100_000,
    memory_bytes: int = 1 << 20,
    spool_bytes: int = 1 << 30,
) -> None:
    """Make requests and pauses small, and limits if need be, so that every path of the delivery is taken."""
    monkeypatch.setattr(monitel_otlp.engine, "LIMIT", queue)
    monkeypatch.setattr(monitel_otlp.engine, "_SPOOL_BYTES", spool_bytes)
    monkeypatch.setattr(monitel_otlp.open_request, "RECORDS_PER_REQUEST", 16)
    monkeypatch.setattr(monitel_otlp.sdk.exporters, "RECORDS_PER_REQUEST", 16)
    monkeypatch.setattr(monitel_otlp.delivery.retry_queue, "_MEMORY_BYTES", memory_bytes)
    monkeypatch.setattr(monitel_otlp.delivery.retry_queue, "_OLDEST_IN_MEMORY", 0.05)
    monkeypatch.setattr(monitel_otlp.delivery.retry_queue, "_DISK_PAUSE", 0.02)
    monkeypatch.setattr(monitel_otlp.delivery.sender, "_LONGEST_PAUSE", 0.002)
    monkeypatch.setattr(monitel_otlp.spool.segment_writer, "SEGMENT_BYTES", 4_000)

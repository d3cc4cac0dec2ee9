"""Events that sources queue are part of each flush: of the core, of the exporters, and at exit."""

from __future__ import annotations

import logging
import math
import threading
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

import monitel

if TYPE_CHECKING:
    from collections.abc import Callable

torch: Any = pytest.importorskip("torch", reason="instruments torch: torch is not installed")

import monitel.torch  # noqa: E402  after the check for torch
from monitel.torch import instrumentation  # noqa: E402
from monitel.torch.poller import Poller  # noqa: E402
from monitel.torch.sources import out_of_memory  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning"),  # raised within torch
]

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678901)  # noqa: DTZ001  torch's events are naive


@pytest.fixture(autouse=True)
def _polling_thread_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the polling thread wait for an hour: only flushes poll."""
    monkeypatch.setattr(instrumentation, "Poller", lambda functions: Poller(functions, seconds=3600.0))


def log(name: str = "checkpoint") -> None:
    """Log an event through torch.monitor."""
    torch.monitor.log_event(torch.monitor.Event(name, MOMENT, {"bytes": 5}))


def add() -> None:
    """Close a window of a Stat of torch."""
    torch.monitor.Stat("torch.loss", [torch.monitor.MEAN], timedelta(hours=1), 1).add(0.5)


@pytest.mark.parametrize("flush", [monitel.flush, monitel.close_expired_windows])
def test_flush_logs_events_and_windows_of_torch_monitor(flush: Callable[[], object]) -> None:
    """Without a flush nothing is logged."""
    with monitel.torch.instrument(), monitel.testing.capture_events() as events:
        log()
        add()
        assert [] == events
        flush()
        assert {"checkpoint", "torch.monitor.Stat"} <= {event.name for event in events}
        assert ["torch.loss"] == [
            event.window.name for event in events if event.window and "torch" in event.window.name
        ]
        count = len(events)
        flush()
        assert count == len(events)


def test_flush_logs_compilations() -> None:
    """Their start and their end."""
    torch._dynamo.reset()
    with monitel.torch.instrument(), monitel.testing.capture_events() as events:
        torch.compile(lambda x: x * 2, backend="eager")(torch.ones(2))
        assert [] == events
        monitel.flush()
        assert ["torch.compile.started", "torch.compile"] == [event.name for event in events if not event.window]
    torch._dynamo.reset()


def test_flush_logs_failed_allocations_of_a_gpu() -> None:
    """The allocator's observer has queued the failure."""
    with monitel.torch.instrument(), monitel.testing.capture_events() as events:
        out_of_memory._observe(0, 4, 3, 2)
        monitel.flush()
        assert ["out_of_memory"] == [event.name for event in events if not event.window]


def test_flush_logs_stuck_waits() -> None:
    """The limit is exceeded between two flushes."""
    with (
        monitel.testing.ManualClock() as clock,
        monitel.torch.instrument(stuck_after=60.0),
        monitel.WaitCounter("test_flush.barrier").guard(),
        monitel.testing.capture_events() as events,
    ):
        monitel.flush()
        clock.advance(61)
        monitel.flush()
    assert ["wait.stuck"] == [event.name for event in events if not event.window]


def test_flush_after_uninstrument_calls_nothing() -> None:
    """The functions are unregistered."""
    monitel.torch.instrument().uninstrument()
    with monitel.testing.capture_events() as events:
        log()
        monitel.flush()
    assert [] == [event for event in events if not event.window]


def test_event_handler_may_flush() -> None:
    """A flush within a poll does not poll again, so events stay in order."""
    names: list[str] = []

    def handle(event: monitel.Event) -> None:
        if event.window is None:
            monitel.flush()
            names.append(event.name)

    with monitel.torch.instrument(), monitel.register_event_handler(handle):
        for number in range(3):
            log(f"event {number}")
        monitel.flush()
    assert ["event 0", "event 1", "event 2"] == names


def test_flush_waits_for_the_events_of_another_thread() -> None:
    """An event that another thread has taken from the queue is logged when the flush returns."""
    taken, names = threading.Event(), []

    def handle(event: monitel.Event) -> None:
        if event.window is None:
            taken.set()
            threading.Event().wait(0.02)
            names.append(event.name)

    with monitel.torch.instrument(), monitel.register_event_handler(handle):
        log()
        flushing = threading.Thread(target=monitel.flush)
        flushing.start()
        assert taken.wait(20)
        monitel.flush()
        assert ["checkpoint"] == names
        flushing.join(20)


def test_polling_thread_does_not_wait_for_a_flush_that_polls(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The warning about a flush that leaves out events would be wrong: this one includes them."""
    polls, release = threading.Event(), threading.Event()

    def wait() -> None:
        polls.set()
        release.wait(20)

    poller = Poller([wait], seconds=math.inf)
    flushing = threading.Thread(target=monitel.flush)
    flushing.start()
    assert polls.wait(20)
    rounds = iter([False, True])
    with monkeypatch.context() as patch:
        patch.setattr(poller._closed, "wait", lambda _seconds: next(rounds))
        poller._run()
    release.set()
    flushing.join(20)
    poller.close()
    assert [] == caplog.messages


def test_flush_does_not_hang_with_an_event_handler_of_another_thread(caplog: pytest.LogCaptureFixture) -> None:
    """The flush leaves out the events of torch, which is logged once. All Stats are flushed."""
    hangs, release = threading.Event(), threading.Event()

    def hang(event: monitel.Event) -> None:
        if event.name == "checkpoint":
            hangs.set()
            release.wait(60)

    stat = monitel.Stat("test_flush.loss", [monitel.COUNT], float("inf"))
    caplog.set_level(logging.WARNING, "monitel.torch")
    with monitel.torch.instrument(), monitel.register_event_handler(hang):
        log()
        flushing = threading.Thread(target=monitel.flush)
        flushing.start()
        assert hangs.wait(20)
        with monitel.testing.capture_events() as events:
            for _ in range(2):
                stat.add(1)
                monitel.flush()
        release.set()
        flushing.join(20)
    assert 2 == sum(event.window is not None and event.window.name == stat.name for event in events)
    assert 1 == sum("a flush does not include all events of torch" in message for message in caplog.messages)

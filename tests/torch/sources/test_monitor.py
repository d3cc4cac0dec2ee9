"""Events and Stats of torch.monitor reach monitel's handlers; what is queued is part of each flush."""

import logging
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
import torch
from tests.support.scripts import Run

import monitel
import monitel.torch
from monitel.stats import window_sinks
from monitel.stats.window import decode

HOURS = timedelta(hours=100)
MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678901)  # noqa: DTZ001  torch's events are naive


@pytest.fixture
def _monitored(only_flushes_poll: None) -> Iterator[None]:
    with monitel.torch.instrument(sources="monitor") as running:
        assert ("monitor",) == running.sources
        yield


@pytest.mark.usefixtures("_monitored")
def test_stat_events_become_windows() -> None:
    """A window has the numbers and the time of torch's event, and the current step; the event has torch's data."""
    monitel.set_step(7)
    wanted = [torch.monitor.Aggregation.MEAN, torch.monitor.COUNT, torch.monitor.SUM, torch.monitor.MAX]
    stat = torch.monitor.Stat("torch.loss", [*wanted, torch.monitor.MIN], HOURS, 3)
    before = datetime.now()  # noqa: DTZ005  naive, as torch's
    with monitel.testing.capture_events() as events:
        for sample in (1.0, 5.0, 3.0):
            stat.add(sample)
        monitel.flush()
    (event,) = events
    window = event.window
    assert window is not None
    assert (7, 7) == (event.step, window.last_step)
    assert ("torch.loss", 3, 9.0, 1.0, 5.0) == (window.name, window.count, window.sum, window.min, window.max)
    assert {"MEAN", "COUNT", "SUM", "MAX", "MIN"} == {each.name for each in window.definition.aggregations}
    assert window.start_ns < window.end_ns
    assert abs(window.end_ns / 1e9 - before.timestamp()) < 60
    assert {"mean": 3.0, "count": 3.0, "sum": 9.0, "max": 5.0, "min": 1.0} == {
        key.removeprefix("torch.loss."): value for key, value in event.data.items()
    }
    assert "torch.monitor.Stat" == event.name
    assert window.end_ns / 1e9 == pytest.approx(event.timestamp.timestamp(), abs=2e-6)


@pytest.mark.usefixtures("_monitored")
@pytest.mark.parametrize(
    ("wanted", "expected"),
    [(["MEAN", "COUNT"], (2, 4.0, 2.0, 2.0)), (["SUM"], (1, 4.0, 4.0, 4.0)), (["MIN", "COUNT"], (2, 2.0, 1.0, 1.0))],
)
def test_missing_aggregations_are_filled_in(wanted: list[str], expected: Any) -> None:
    """A missing number is computed from the others, or set to one of them. The event has only torch's numbers."""
    aggregations = [getattr(torch.monitor.Aggregation, name) for name in wanted]
    stat = torch.monitor.Stat("some", aggregations, HOURS, 2)
    with monitel.testing.capture_events() as events:
        stat.add(1.0)
        stat.add(3.0)
        monitel.flush()
    (event,) = events
    window = event.window
    assert window is not None
    assert expected == (window.count, window.sum, window.min, window.max)
    assert sorted(wanted) == sorted(each.name for each in window.definition.aggregations)
    assert len(wanted) == len(event.data)


@pytest.mark.usefixtures("_monitored")
@pytest.mark.parametrize(
    "data",
    [
        *({}, {"a.other": 1.0}, {"a.mean": 1.0, "b.mean": 1.0}, {"a.mean": "text"}, {"a.count": 0.0, "a.sum": 0.0}),
        *({"a.count": float("nan")}, {"a.count": 1e30}),
    ],
)
def test_other_events_with_the_name_of_stat_events_stay_events(data: dict[str, Any]) -> None:
    """An event that no Stat can have logged has no window, and is not lost."""
    with monitel.testing.capture_events() as events:
        torch.monitor.log_event(torch.monitor.Event("torch.monitor.Stat", MOMENT, data))
        monitel.flush()
    (event,) = events
    assert event.window is None
    assert repr(data) == repr(dict(sorted(event.data.items())))


def test_instrument_forwards_events_within_seconds() -> None:
    """The polling thread forwards them, and uninstrument() forwards the remaining ones."""
    received = threading.Event()
    handle = monitel.register_event_handler(lambda event: received.set() if event.name == "live" else None)
    with handle, monitel.torch.instrument(sources="monitor") as running:
        assert ("monitor",) == running.sources
        torch.monitor.log_event(torch.monitor.Event("live", MOMENT, {}))
        assert received.wait(60)
    with monitel.testing.capture_events() as events:
        with monitel.torch.instrument(sources="monitor"):
            torch.monitor.log_event(torch.monitor.Event("last", MOMENT, {}))
        torch.monitor.log_event(torch.monitor.Event("later", MOMENT, {}))
    assert ["last"] == [event.name for event in events]


FORK = """\
import os, sys
from datetime import datetime
import monitel.torch
from torch import monitor

def report(event):
    os.write(1, f"{event.name} {os.getpid() == main}\\n".encode())

main = os.getpid()
monitel.register_event_handler(report)
monitel.torch.instrument()
monitor.log_event(monitor.Event("before", datetime.now(), {}))
child = os.fork()
if not child:
    monitor.log_event(monitor.Event("after", datetime.now(), {}))
    sys.exit()
os.waitpid(child, 0)
"""


def test_forked_child_logs_only_its_events(run: Run) -> None:
    """The parent logs the events queued before the fork, at its exit, where a handler of torch would crash it."""
    assert ["after False", "before True"] == sorted(run("-c", FORK).stdout.splitlines())


def test_replace_puts_monitel_into_torch_monitor() -> None:
    """All names are replaced until restore(). Replacing is idempotent."""
    theirs = dict(vars(torch.monitor))
    ours = {*("Stat", "Event", "Aggregation", "MEAN", "log_event", "register_event_handler", "STAT_EVENT")}
    with monitel.torch.replace(), monitel.torch.replace():
        for name in ours | {"_WaitCounter", "TensorboardEventHandler"}:
            assert getattr(torch.monitor, name) is getattr(monitel, name)
    assert theirs == vars(torch.monitor)


def test_replace_before_instrument(only_flushes_poll: None) -> None:
    """Code that logs through monitel's names logs each event once, and torch's own events are forwarded."""
    theirs = torch.monitor.log_event, torch.monitor.Event
    with monitel.testing.capture_events() as events:
        with monitel.torch.replace() as replaced, monitel.torch.instrument(sources="monitor"):
            log("ours")
            theirs[0](theirs[1]("theirs", MOMENT, {}))
            for _ in range(3):
                monitel.flush()
            replaced.restore()
        log("later")
        monitel.flush()
    assert ["ours", "theirs"] == [event.name for event in events]


def log(name: str = "checkpoint") -> None:
    """Log an event through torch.monitor."""
    torch.monitor.log_event(torch.monitor.Event(name, MOMENT, {"bytes": 5}))


def add() -> None:
    """Close a window of a Stat of torch."""
    torch.monitor.Stat("torch.loss", [torch.monitor.MEAN], timedelta(hours=1), 1).add(0.5)


@pytest.mark.usefixtures("_monitored")
@pytest.mark.parametrize("flush", [monitel.flush, monitel.close_expired_windows])
def test_flush_logs_events_and_windows_of_torch_monitor(flush: Callable[[], object]) -> None:
    """Without a flush nothing is logged. The windows are stored by exporters, as those of monitel's Stats are."""
    stored: list[tuple[str, float]] = []

    def store(definition: monitel.StatDefinition, window: monitel.Window, content: bytes) -> None:
        stored.append((definition.name, decode(content).sum))
        assert window.sum == stored[-1][1]

    window_sinks.add(store)
    with monitel.testing.capture_events() as events:
        log()
        add()
        assert [] == events
        flush()
        assert [monitel.Event("checkpoint", MOMENT, {"bytes": 5})] == [
            each for each in events if each.name == "checkpoint"
        ]
        assert ["torch.loss"] == [
            event.window.name for event in events if event.window and "torch" in event.window.name
        ]
        count = len(events)
        flush()
        assert count == len(events)
    window_sinks.remove(store)
    assert [("torch.loss", 0.5)] == [each for each in stored if "torch" in each[0]]


@pytest.mark.usefixtures("_monitored")
def test_flush_does_not_hang_with_an_event_handler_of_another_thread(caplog: pytest.LogCaptureFixture) -> None:
    """The flush leaves out the events of torch, which is logged once. All Stats are flushed."""
    hangs, release = threading.Event(), threading.Event()

    def hang(event: monitel.Event) -> None:
        if event.name == "checkpoint":
            hangs.set()
            release.wait(120)

    stat = monitel.Stat("test_flush.loss", [monitel.COUNT], float("inf"))
    caplog.set_level(logging.WARNING, "monitel.torch")
    with monitel.register_event_handler(hang):
        log()
        flushing = threading.Thread(target=monitel.flush)
        flushing.start()
        assert hangs.wait(60)
        with monitel.testing.capture_events() as events:
            for _ in range(2):
                stat.add(1)
                monitel.flush()
        release.set()
        flushing.join(60)
    assert 2 == sum(event.window is not None and event.window.name == stat.name for event in events)
    assert 1 == sum("a flush does not include all events of torch" in message for message in caplog.messages)

"""Events and Stats of torch.monitor reach monitel's handlers; what is queued is part of each flush."""

import logging
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
import torch
from tests.support.receiver import Receiver
from tests.torch.known_work import windows_of

import monitel
import monitel.torch
import monitel_otlp

HOURS = timedelta(hours=100)
MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678901)  # noqa: DTZ001  torch's events are naive


@pytest.fixture
def _monitored(only_flushes_poll: None) -> Iterator[None]:
    with monitel.torch.instrument(sources="monitor") as running:
        assert ("monitor",) == running.sources
        yield


@pytest.mark.usefixtures("_monitored")
@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (["MEAN", "COUNT", "SUM", "MAX", "MIN"], (2, 4.0, 1.0, 3.0)),
        (["MEAN", "COUNT"], (2, 4.0, 2.0, 2.0)),
        (["SUM", "COUNT"], (2, 4.0, 2.0, 2.0)),
        (["SUM"], (1, 4.0, 4.0, 4.0)),
        (["MIN", "COUNT"], (2, 2.0, 1.0, 1.0)),
    ],
)
def test_stat_events_become_windows(wanted: list[str], expected: Any, events: list[monitel.Event]) -> None:
    """With the time of torch's event, and the current step; the event has torch's data.

    A missing number is computed from the others, or set to one of them.
    """
    monitel.set_step(7)
    stat = torch.monitor.Stat("torch.loss", [getattr(torch.monitor, name) for name in wanted], HOURS, 2)
    before = datetime.now()  # noqa: DTZ005  naive, as torch's
    stat.add(1.0)
    stat.add(3.0)
    monitel.flush()
    (event,) = events
    window = event.window
    assert window is not None
    assert ("torch.monitor.Stat", 7, 7, "torch.loss") == (event.name, event.step, window.last_step, window.name)
    assert expected == (window.count, window.sum, window.min, window.max)
    assert {*wanted} == {each.name for each in window.definition.aggregations}
    assert window.start_ns < window.end_ns
    assert abs(window.end_ns / 1e9 - before.timestamp()) < 60
    assert window.end_ns / 1e9 == pytest.approx(event.timestamp.timestamp(), abs=2e-6)
    torchs = {"mean": 2.0, "count": 2.0, "sum": 4.0, "max": 3.0, "min": 1.0}
    assert {f"torch.loss.{name.lower()}": torchs[name.lower()] for name in wanted} == event.data


@pytest.mark.usefixtures("_monitored")
@pytest.mark.parametrize(
    "data",
    [
        *({}, {"a.other": 1.0}, {"a.mean": 1.0, "b.mean": 1.0}, {"a.mean": "text"}, {"a.count": 0.0, "a.sum": 0.0}),
        *({"a.count": float("nan")}, {"a.count": 1e30}),
    ],
)
def test_other_events_with_the_name_of_stat_events_stay_events(data: Any, events: list[monitel.Event]) -> None:
    """An event that no Stat can have logged has no window, and is not lost."""
    torch.monitor.log_event(torch.monitor.Event("torch.monitor.Stat", MOMENT, data))
    monitel.flush()
    (event,) = events
    assert event.window is None
    assert repr(data) == repr(dict(sorted(event.data.items())))


def test_instrument_forwards_events_within_seconds() -> None:
    """The polling thread forwards them, and uninstrument() forwards the remaining ones."""
    received = threading.Event()
    handle = monitel.register_event_handler(lambda event: received.set() if event.name == "live" else None)
    with handle, monitel.torch.instrument(sources="monitor"):
        torch.monitor.log_event(torch.monitor.Event("live", MOMENT, {}))
        assert received.wait(60)
    with monitel.testing.capture_events() as events:
        with monitel.torch.instrument(sources="monitor"):
            torch.monitor.log_event(torch.monitor.Event("last", MOMENT, {}))
        torch.monitor.log_event(torch.monitor.Event("later", MOMENT, {}))
    assert ["last"] == [event.name for event in events]


def test_replace_puts_monitel_into_torch_monitor(only_flushes_poll: None, events: list[monitel.Event]) -> None:
    """All names, until restore(). Code that logs through them logs each event once; torch's own are forwarded."""
    before = dict(vars(torch.monitor))
    theirs = torch.monitor.log_event, torch.monitor.Event
    names = {"Stat", "Event", "Aggregation", "MEAN", "log_event", "register_event_handler", "STAT_EVENT"}
    with monitel.torch.replace(), monitel.torch.replace() as last, monitel.torch.instrument(sources="monitor"):
        for name in names | {"_WaitCounter", "TensorboardEventHandler"}:
            assert getattr(torch.monitor, name) is getattr(monitel, name)
        log("ours")
        theirs[0](theirs[1]("theirs", MOMENT, {}))
        for _ in range(3):
            monitel.flush()
        last.restore()
        assert torch.monitor.Stat is monitel.Stat  # the outer one lasts
    log("later")
    monitel.flush()
    assert before == vars(torch.monitor)
    assert ["ours", "theirs"] == [event.name for event in events]


def log(name: str = "checkpoint") -> None:
    torch.monitor.log_event(torch.monitor.Event(name, MOMENT, {"bytes": 5}))


@pytest.mark.usefixtures("_monitored")
@pytest.mark.parametrize("flush", [monitel.flush, monitel.close_expired_windows])
def test_flush_logs_events_and_windows_of_torch_monitor(
    flush: Callable[[], object], receiver: Receiver, events: list[monitel.Event]
) -> None:
    """Without a flush nothing is logged. The windows are delivered as those of monitel's Stats are."""
    with monitel_otlp.configure(endpoint=receiver.url, spool_dir="spool", export_interval=3600.0):
        log()
        torch.monitor.Stat("torch.loss", [torch.monitor.MEAN], HOURS, 1).add(0.5)
        assert [] == events
        for _ in range(2):
            flush()
            names = [each.window.name if each.window else each.name for each in events]
            assert ["checkpoint", "torch.loss"] == sorted(names)
        assert monitel.Event("checkpoint", MOMENT, {"bytes": 5}) in events
    assert ([0.5], ["checkpoint"]) == (receiver.values("torch.loss.mean"), receiver.record_names())


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
    assert 2 == len(windows_of(events, stat.name))
    assert 1 == sum("a flush does not include all events of torch" in message for message in caplog.messages)

"""TensorboardEventHandler: the same behaviour as torch's."""

from __future__ import annotations

import datetime as dt
from types import SimpleNamespace
from typing import Any

import pytest

import monitel
from monitel import Event, TensorboardEventHandler

MOMENT = dt.datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=dt.timezone.utc)


class Writer:
    """Records the calls of add_scalar."""

    def __init__(self) -> None:
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    def add_scalar(self, *args: Any, **kwargs: Any) -> None:
        """Record a call."""
        self.calls.append((args, kwargs))


@pytest.mark.parametrize("timestamp", [MOMENT, MOMENT.astimezone().replace(tzinfo=None)])
def test_one_scalar_for_each_value(timestamp: dt.datetime) -> None:
    """Each value becomes a scalar with its key, at the time of the event (aware or naive), without a global_step."""
    writer = Writer()
    TensorboardEventHandler(writer)(Event(monitel.STAT_EVENT, timestamp, {"a.sum": 1.5, "a.count": 2.0}))
    when = {"walltime": MOMENT.timestamp()}
    assert [(("a.sum", 1.5), when), (("a.count", 2.0), when)] == writer.calls


@pytest.mark.parametrize("name", ["epoch", "", "torch.monitor", "torch.monitor.stat", "torch.monitor.Stat2"])
def test_other_events(name: str) -> None:
    """Events with other names are ignored."""
    writer = Writer()
    TensorboardEventHandler(writer=writer)(Event(name, MOMENT, {"a": 1.0}))
    assert [] == writer.calls


def test_values_are_passed_unchanged() -> None:
    """Values are not checked; any object with name, data and timestamp is accepted as an event."""
    writer = Writer()
    values = {"a": "text", "b": None, "c": True}
    event: Any = SimpleNamespace(name="torch.monitor.Stat", timestamp=MOMENT, data=values)
    TensorboardEventHandler(writer)(event)
    assert values == {key: value for (key, value), _ in writer.calls}


def test_keeps_the_writer() -> None:
    """The writer is the parameter ``writer``, and the attribute of torch's handler."""
    writer = Writer()
    assert {"_writer": writer} == vars(TensorboardEventHandler(writer=writer))


def test_of_a_stat() -> None:
    """Ten samples with a limit of five give one sum and one count, as in torch's test."""
    writer = Writer()
    with (
        monitel.testing.ManualClock(epoch_ns=1_000_000_000),
        monitel.register_event_handler(TensorboardEventHandler(writer)),
    ):
        stat = monitel.Stat("loss", [monitel.COUNT, monitel.SUM], dt.timedelta(hours=100), 5)
        for sample in range(10):
            stat.add(sample)
    assert [("loss.count", 5.0), ("loss.sum", 10.0)] == sorted(args for args, _ in writer.calls)
    assert [{"walltime": 1.0}] * 2 == [keywords for _, keywords in writer.calls]


def test_writer_raises() -> None:
    """An exception of the writer is raised from Stat.add, after the sample was added and the window closed."""
    writer = SimpleNamespace(add_scalar=None)  # calling it is a TypeError
    stat = monitel.Stat("loss", [monitel.SUM], dt.timedelta(hours=100), 1)
    with (
        monitel.register_event_handler(TensorboardEventHandler(writer)),
        pytest.raises(TypeError, match="not callable"),
    ):
        stat.add(2)
    assert ({monitel.SUM: 2.0}, 0) == (stat.get(), stat.count)

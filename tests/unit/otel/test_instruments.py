"""Instruments of windows, counters, waits and numbers: while a reader collects, and when sources come and go."""

from __future__ import annotations

from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import monitel
import monitel_otel
from monitel import SUM, Stat, wait_counter
from monitel.aggregation import TORCHS

if TYPE_CHECKING:
    from tests.unit.otel.providers import Backend

    from monitel.testing import ManualClock

DEADLINE = 60.0


def close_windows(stat: Stat, clock: ManualClock, *windows: list[float]) -> None:
    """Fill and close one window per list of samples."""
    for samples in windows:
        for sample in samples:
            stat.add(sample)
        clock.advance(60)
    stat.flush()


def in_thread(function: Any) -> None:
    """Call a function in a thread, which must end in time."""
    thread = Thread(target=function, daemon=True)
    thread.start()
    thread.join(DEADLINE)
    assert not thread.is_alive(), "deadlock"


@pytest.mark.usefixtures("installed")
def test_first_window_of_a_stat_closes_in_a_collection(backend: Backend, clock: ManualClock) -> None:
    """Creating the instruments inside the callback does not deadlock, even for many Stats."""
    for number in range(50):
        Stat(f"loss.{number}", TORCHS, 60.0).add(1)  # destructed with an open window
        monitel.stat(f"registered.loss.{number}").add(1)
    clock.advance(60)
    in_thread(backend.collect)
    values = backend.values()
    assert {1} == {values[f"loss.{number}.count"] for number in range(50)}
    assert {1} == {values[f"registered.loss.{number}.count"] for number in range(50)}


@pytest.mark.usefixtures("installed")
def test_failing_handler_in_a_collection(
    backend: Backend, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """If another handler raises while a collection closes a window, the window is exported."""

    def broken(_event: monitel.Event) -> None:
        raise RuntimeError("broken handler")

    stat = Stat("loss", [SUM], 60.0)
    stat.add(1)
    clock.advance(60)
    with monitel.register_event_handler(broken):
        assert 1 == backend.values()["monitel.windows"]
    assert 1.0 == backend.values()["loss.sum"]
    caplog.clear()  # the traceback has the Stat


def collected(reader: InMemoryMetricReader, key: str) -> dict[str, float]:
    """Collect, and return value and unit of one key's metrics by the last part of their names."""
    data: Any = reader.get_metrics_data()
    metrics = [metric for scope in data.resource_metrics[0].scope_metrics for metric in scope.metrics]
    return {
        f"{metric.name.removeprefix(key)} {metric.unit}": metric.data.data_points[0].value
        for metric in metrics
        if metric.name.startswith(f"{key}.")
    }


def wait(clock: ManualClock, key: str, seconds: float) -> None:
    """Wait once."""
    with monitel.WaitCounter(key).guard():
        clock.advance(seconds)


def test_wait_counter_gives_four_metrics(clock: ManualClock) -> None:
    """Time, count and active are totals of the process; max is the longest wait since the last collection."""
    reader = InMemoryMetricReader()
    waits = monitel_otel.WaitInstruments(MeterProvider([reader]).get_meter("test"))
    wait(clock, "loading.one", 2.0)
    wait(clock, "loading.one", 0.5)
    waits.refresh()
    expected = {".wait.time s": 2.5, ".wait.count {wait}": 2, ".wait.active {wait}": 0, ".wait.max s": 2.0}
    assert expected == collected(reader, "loading.one")
    with monitel.WaitCounter("loading.one").guard():
        expected = {".wait.time s": 2.5, ".wait.count {wait}": 2, ".wait.active {wait}": 1}
        assert expected == collected(reader, "loading.one")
        clock.advance(1.0)
    expected = {".wait.time s": 3.5, ".wait.count {wait}": 3, ".wait.active {wait}": 0, ".wait.max s": 1.0}
    assert expected == collected(reader, "loading.one")


def test_collection_reads_the_sources_once_per_instrument() -> None:
    """Sources are not read for each key, because torch's source has a hundred keys. A removed key has no point."""
    asked: list[int] = []
    keys = list(range(20))

    def source() -> dict[str, monitel.WaitReading]:
        asked.append(1)
        return {f"theirs.{key}": monitel.WaitReading(len(asked), 2.0, 1.0, 0) for key in keys}

    reader = InMemoryMetricReader()
    waits = monitel_otel.WaitInstruments(MeterProvider([reader]).get_meter("test"))
    wait_counter.add_source(source)
    waits.refresh()
    for _ in range(2):
        asked.clear()
        found = collected(reader, "theirs.7").keys()
        assert {".wait.time s", ".wait.count {wait}", ".wait.active {wait}"} <= found
        assert 4 == len(asked)
    keys.clear()
    assert reader.get_metrics_data() is None
    wait_counter.remove_source(source)

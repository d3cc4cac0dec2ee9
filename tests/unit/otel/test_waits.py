"""Conversion of wait counters to instruments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

import monitel
import monitel_otel
from monitel import wait_counter

if TYPE_CHECKING:
    from monitel.testing import ManualClock


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


def test_install_observes_wait_counters(clock: ManualClock) -> None:
    """A counter that is created after install() is observed after the next window, even one closed by a collection."""
    reader = InMemoryMetricReader()
    with monitel_otel.install(meter_provider=MeterProvider([reader])):
        wait(clock, "loading.two", 1.0)
        stat = monitel.Stat("x", [monitel.COUNT], 60.0)
        stat.add(1.0)
        clock.advance(60)
        assert {} == collected(reader, "loading.two")  # closed by this collection, which creates no instruments
        stat.add(1.0)
        stat.flush()
        assert 1.0 == collected(reader, "loading.two")[".wait.time s"]


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

"""Requests without a chosen interval: the metrics of the process go with windows, or once a minute."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.inbox import DEADLINE

import monitel
from monitel import COUNT, MEAN, Stat
from monitel.wait_counter import add_source, remove_source
from monitel_otlp.config import settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.support.inbox import Request
    from tests.support.pipelines import Start
    from tests.support.receiver import Receiver

    from monitel.testing import ManualClock
    from monitel_otlp import Pipeline

ROUND = 5  # seconds


class Rounds:
    """A pipeline whose rounds the test runs, each five seconds after the last one by the manual clock."""

    def __init__(self, pipeline: Pipeline, receiver: Receiver, clock: ManualClock) -> None:
        assert pipeline.engine is not None
        self.pipeline = pipeline
        self._engine = pipeline.engine
        self._receiver = receiver
        self._clock = clock
        self._seen = 0

    def run(self, number: int = 1) -> list[set[str]]:
        """Run rounds, and return the names of the metrics in each request with metrics."""
        for _ in range(number):
            self._clock.advance(ROUND)
            self._engine.encoder.encode_here(DEADLINE)
            assert self._engine.delivery.flush(time.monotonic() + DEADLINE)
        found = self._receiver.of("metrics")[self._seen :]
        self._seen += len(found)
        return [names(request) for request in found]


def names(request: Request) -> set[str]:
    """Return the names of the metrics in a request."""
    (resource,) = request.message.resource_metrics
    return {metric.name for scope in resource.scope_metrics for metric in scope.metrics}


@pytest.fixture
def rounds(
    start: Start, receiver: Receiver, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Rounds]:
    """Return a function that starts a pipeline with the default intervals, and a thread that makes no round."""
    monkeypatch.delenv("OTEL_METRIC_EXPORT_INTERVAL", raising=False)
    monkeypatch.setattr(settings, "_DEFAULT_INTERVAL", 3600.0)

    def started(**arguments: Any) -> Rounds:
        return Rounds(start(export_interval=None, **arguments), receiver, clock)

    return started


def test_requests_of_a_rank_with_a_window_a_minute(
    rounds: Callable[..., Rounds], receiver: Receiver, clock: ManualClock
) -> None:
    """Ten minutes take a request with metrics and one with an event for each minute, and one at the start."""
    job = rounds()
    stats = [Stat("idle.loss", [COUNT, MEAN], 60.0, attributes={"layer": layer}) for layer in range(5)]
    steps = monitel.counter("idle.steps")
    sent: list[set[str]] = []
    for each in range(10 * 60 // ROUND):
        for stat in stats:
            stat.add(1.0)
        steps.add(ROUND)
        with monitel.WaitCounter("idle").guard():
            clock.advance(0)
        if each % 12 == 6:
            monitel.emit("epoch")
        sent += job.run()
    assert 11 == len(sent)
    assert 10 == len(receiver.of("logs"))
    each_time = {"monitel.queue.size", "monitel.spool.size", "monitel.stat.nonfinite", "idle.steps", "idle.wait.time"}
    assert [] == [found for found in sent if not found >= each_time]
    assert 10 == sum({"idle.loss.mean", "monitel.exporter.item.exported"} <= found for found in sent)
    assert [ROUND * 12 * minute for minute in range(1, 11)] == receiver.values("idle.steps")[-10:]
    exported = [
        point for point in receiver.points("monitel.exporter.item.exported") if point.attributes["signal"] == "metrics"
    ]
    assert [5 * minute for minute in range(1, 10)] == [point.value for point in exported]
    assert 50 == job.pipeline.account()["metrics"].delivered


def test_all_windows_of_a_minute_go_with_one_set_of_values(
    rounds: Callable[..., Rounds], receiver: Receiver, clock: ManualClock
) -> None:
    """The values of instruments are in one of the requests, even if there are windows for several."""
    job = rounds()
    assert 1 == len(job.run())
    stats = [Stat("idle.loss", [COUNT], 60.0, attributes={"layer": layer}) for layer in range(700)]
    for stat in stats:
        stat.add(1.0)
    assert 1 == sum("monitel.spool.size" in found for found in job.run(12))
    assert 700 == len(receiver.values("idle.loss.count"))
    assert [] == job.run(10)


def test_first_values_are_sent_soon(rounds: Callable[..., Rounds]) -> None:
    """The first round sends, and so does the first one with a new counter, wait counter or step."""
    job = rounds()
    assert 1 == len(job.run())
    assert [] == job.run(3)
    monitel.counter("idle.new").add()
    (found,) = job.run()
    assert "idle.new" in found
    with monitel.WaitCounter("idle.new").guard():
        pass
    (found,) = job.run()
    assert "idle.new.wait.count" in found
    monitel.counter("idle.new").add()
    assert [] == job.run(11)
    assert 1 == len(job.run())


def test_wait_that_gets_long_is_sent_soon(rounds: Callable[..., Rounds], receiver: Receiver) -> None:
    """A wait is sent in the first round in which it has lasted for five seconds, and in the first one after its end."""
    job = rounds()
    counter = monitel.WaitCounter("idle.stuck")
    job.run(2)
    with counter.guard():
        assert 1 == len(job.run())
        assert 1 == receiver.values("idle.stuck.wait.active")[-1]
        assert [] == job.run(11)
        assert 1 == len(job.run())
    (found,) = job.run()
    assert "idle.stuck.wait.max" in found
    assert 0 == receiver.values("idle.stuck.wait.active")[-1]
    assert [65.0] == receiver.values("idle.stuck.wait.max")
    assert [] == job.run(11)


def test_wait_of_a_source_that_gets_long_is_sent_soon(rounds: Callable[..., Rounds], receiver: Receiver) -> None:
    """A source tells no times: a wait of it is long if no wait of the key has ended since the previous round."""
    reading = monitel.WaitReading(3, 1.0, 0.5, 0)

    def source() -> Mapping[str, monitel.WaitReading]:
        return {"idle.source": reading}

    add_source(source)
    try:
        job = rounds()
        job.run(2)
        for count in range(4, 7):
            reading = monitel.WaitReading(count, 1.0, 0.5, 1)
            assert [] == job.run()
        assert 1 == len(job.run())
        assert 1 == receiver.values("idle.source.wait.active")[-1]
        assert [] == job.run()
        reading = monitel.WaitReading(7, 9.0, 8.0, 0)
        assert 1 == len(job.run())
        assert 9.0 == receiver.values("idle.source.wait.time")[-1]
    finally:
        remove_source(source)


def test_loss_is_sent_in_the_next_round(rounds: Callable[..., Rounds], receiver: Receiver) -> None:
    """A dropped item is reported within five seconds, and further ones as well."""
    job = rounds()
    assert job.pipeline.engine is not None
    job.run()
    for number in (1, 2):
        assert [] == job.run(2)
        job.pipeline.engine.accounting.lose("logs", "queue_full", 1)
        assert 1 == len(job.run())
        (*_, point) = receiver.points("monitel.exporter.item.dropped")
        assert (number, "queue_full") == (point.value, point.attributes["error.type"])


def test_flush_and_shutdown_send_the_final_values(rounds: Callable[..., Rounds], receiver: Receiver) -> None:
    """Neither waits for windows or for the minute."""
    job = rounds()
    steps = monitel.counter("idle.final")
    steps.add()
    job.run(2)
    steps.add()
    assert job.pipeline.force_flush(DEADLINE)
    assert 2 == receiver.values("idle.final")[-1]
    steps.add()
    assert job.pipeline.shutdown()
    assert 3 == receiver.values("idle.final")[-1]


def test_callbacks_of_instruments_are_called_only_to_be_sent(
    rounds: Callable[..., Rounds], receiver: Receiver, clock: ManualClock
) -> None:
    """A callback costs nothing in a round that sends nothing; its value in a request is that of the same round."""
    from opentelemetry.metrics import Observation

    calls: list[int] = []

    def observe(_options: object) -> list[Observation]:
        calls.append(len(calls) + 1)
        return [Observation(calls[-1])]

    job = rounds()
    assert job.pipeline.meter_provider is not None
    job.pipeline.meter_provider.get_meter("application").create_observable_gauge("idle.gauge", [observe])
    stat = Stat("idle.loss", [COUNT], 60.0)
    stat.add(1.0)
    job.run()
    assert [1] == receiver.values("idle.gauge")
    job.run(10)
    assert [1] == calls
    job.run()
    assert [1, 2] == receiver.values("idle.gauge")
    assert [1] == receiver.values("idle.loss.count")


@pytest.mark.parametrize("chosen", ["argument", "variable"])
def test_chosen_interval_is_kept(
    start: Start, receiver: Receiver, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, chosen: str
) -> None:
    """Whoever sets the interval gets the values of instruments in each round."""
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "3600000")
    job = Rounds(start(export_interval=3600.0 if chosen == "argument" else None), receiver, clock)
    assert 6 == len(job.run(6))


def test_deltas_add_up(rounds: Callable[..., Rounds], receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """With delta temporality nothing is lost in the rounds that send nothing."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta")
    job = rounds()
    assert job.pipeline.meter_provider is not None
    steps = monitel.counter("idle.delta")
    calls = job.pipeline.meter_provider.get_meter("application").create_counter("idle.calls")
    for _ in range(60):
        steps.add()
        calls.add(1)
        job.run()
    assert job.pipeline.force_flush(DEADLINE)
    assert 60 == sum(receiver.values("idle.delta")) == sum(receiver.values("idle.calls"))
    assert 6 == len(receiver.values("idle.delta"))

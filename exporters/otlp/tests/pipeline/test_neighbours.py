"""A pipeline among others: a second one, a handler, a provider or a record that is not as it should be."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from opentelemetry import context

import monitel
from monitel import COUNT, Stat
from monitel_otlp.transport.http import HttpTransport

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from monitel.testing import ManualClock
    from monitel_otlp.transport.answer import Answer

    from .conftest import Start
    from .receiver import Receiver


def test_a_second_configure_shuts_the_first_down(
    receiver: Receiver, start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a notebook a cell runs twice: what the first has is delivered, and nothing is sent twice."""
    first = start(service_name="first")
    stat = Stat("loss", [COUNT], 60.0)
    stat.add(1)
    stat.flush()
    second = start(service_name="second")
    stat.add(1)
    stat.flush()
    assert second.force_flush(10)
    assert [("first", 1), ("second", 1)] == [
        (point.resource["service.name"], point.value) for point in receiver.points("loss.count")
    ]
    assert first.force_flush(1)
    assert first.shutdown()
    assert 1 == capsys.readouterr().err.count("monitel: exported")


def test_each_pipeline_has_a_folder_of_its_own(start: Start) -> None:
    """Also two of one second, or the second would write into what the first has left."""
    assert start().spool_dir != start().spool_dir


def test_after_shutdown_everything_is_quiet(receiver: Receiver, start: Start) -> None:
    """Stats, events and providers can still be used; nothing is sent, and nobody waits."""
    pipeline = start()
    assert pipeline.shutdown()
    assert pipeline.shutdown()
    sent = len(receiver.requests)
    monitel.emit("late")
    pipeline.meter_provider.get_meter("mine").create_counter("late").add(1)
    pipeline.logger_provider.get_logger("mine").emit(event_name="late")
    begin = time.monotonic()
    assert pipeline.force_flush(10)
    assert time.monotonic() - begin < 5
    assert sent == len(receiver.requests)


def test_a_provider_that_is_shut_down_costs_no_window(receiver: Receiver, start: Start) -> None:
    """The global MeterProvider is everybody's: a framework that shuts it down does not take the windows along."""
    pipeline = start()
    providers: list[Any] = [pipeline.meter_provider, pipeline.logger_provider, pipeline.tracer_provider]
    for provider in providers:
        provider.shutdown()
    stat = Stat("loss", [COUNT], 60.0)
    stat.add(1)
    stat.flush()
    monitel.emit("epoch")
    assert pipeline.force_flush(10)
    assert ([1], 1) == (receiver.values("loss.count"), len(receiver.records("epoch")))


def _unencodable_record(provider: Any) -> None:
    provider.logger_provider.get_logger("mine").emit(event_name="bad", body="\ud800")


def _unencodable_metric(provider: Any) -> None:
    provider.meter_provider.get_meter("mine").create_counter("bad", description="\ud800").add(1)


def test_what_cannot_be_encoded_costs_itself_only(
    receiver: Receiver, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """A record or an instrument of the user's with half a character in it, as file names may have."""
    makers: list[Callable[[Any], None]] = [_unencodable_record, _unencodable_metric]
    pipeline = start()
    for make in makers:
        make(pipeline)
    monitel.emit("epoch")
    stat = Stat("loss", [COUNT], 60.0)
    stat.add(1)
    stat.flush()
    assert not pipeline.force_flush(10)
    assert {"encoding": 1} == pipeline.dropped
    assert (1, [1]) == (len(receiver.records("epoch")), receiver.values("loss.count"))
    assert any(record.levelno >= logging.WARNING for record in caplog.records)


def test_a_handler_that_raises_keeps_nothing_back(receiver: Receiver, start: Start, clock: ManualClock) -> None:
    """Somebody's broken handler hears of windows in the pipeline's thread: everything is delivered all the same."""
    pipeline = start(export_interval=0.02)
    stat = Stat("loss", [COUNT], 60.0)
    calls = []

    def broken(event: monitel.Event) -> None:
        calls.append(event)
        clock.advance(60)
        stat.add(1)  # so that there is an expired window in every round
        clock.advance(60)
        raise RuntimeError("broken handler")

    with monitel.register_event_handler(broken):
        stat.add(1)
        clock.advance(60)
        receiver.wait_until(lambda: len(receiver.values("loss.count")) >= 3)
    assert pipeline.shutdown()
    assert [1, 2, 3] == receiver.values("loss.count")[:3]


def test_own_requests_are_not_instrumented(receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are sent with OpenTelemetry's suppression, so that instrumentation of HTTP leaves them alone."""
    keys: list[Any] = []
    send = HttpTransport.send

    def look(self: HttpTransport, *arguments: Any) -> Answer:
        keys.append(context.get_value(context._SUPPRESS_INSTRUMENTATION_KEY))
        return send(self, *arguments)

    monkeypatch.setattr(HttpTransport, "send", look)
    pipeline = start()
    monitel.emit("event")
    assert pipeline.force_flush(10)
    assert {True} == set(keys)


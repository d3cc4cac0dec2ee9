"""A pipeline beside others: a second ``configure()``, providers that are shut down, and broken records and handlers."""

from functools import partial
from threading import Event as Signal
from threading import current_thread, main_thread
from typing import Any

import pytest
from opentelemetry import context
from tests.support.checks import in_time, wait_until, warnings_with
from tests.support.inbox import DEADLINE
from tests.support.pipelines import Start
from tests.support.producers import has_arrived, record_one_of_each
from tests.support.receiver import Receiver

import monitel
from monitel import COUNT, Stat
from monitel.testing import ManualClock
from monitel_otlp.transport.answer import Answer
from monitel_otlp.transport.http import HttpTransport


def test_nothing_is_sent_after_shutdown(receiver: Receiver, start: Start) -> None:
    """Stats, events and providers can still be used, and a flush returns at once."""
    pipeline = start()
    assert pipeline.shutdown(DEADLINE)
    assert pipeline.shutdown(DEADLINE)
    sent = len(receiver.requests)
    monitel.emit("late")
    pipeline.meter_provider.get_meter("mine").create_counter("late").add(1)
    pipeline.logger_provider.get_logger("mine").emit(event_name="late")
    with in_time(5):
        assert pipeline.force_flush(60)
    assert sent == len(receiver.requests)


def test_requests_of_the_pipeline_are_not_instrumented(
    receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests are sent with OpenTelemetry's suppression key, which instrumentation of HTTP libraries respects."""
    keys: list[Any] = []
    send = HttpTransport.send

    def look(self: HttpTransport, *arguments: Any) -> Answer:
        keys.append(context.get_value(context._SUPPRESS_INSTRUMENTATION_KEY))
        return send(self, *arguments)

    monkeypatch.setattr(HttpTransport, "send", look)
    pipeline = start()
    monitel.emit("event")
    assert pipeline.force_flush(60)
    assert {True} == set(keys)


@pytest.mark.parametrize("fault", ["hangs", "raises"])
def test_faulty_event_handler_stops_nothing_else(
    *, receiver: Receiver, start: Start, clock: ManualClock, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    """The thread that closes expired windows calls it: everything is still delivered, and so is its window."""
    release, called = Signal(), Signal()

    def handle(event: monitel.Event) -> None:
        if event.window is None or event.window.definition.name != "idle" or current_thread() is main_thread():
            return
        called.set()
        if fault == "raises":
            raise OSError("no space left")
        release.wait(DEADLINE)

    pipeline = start(export_interval=0.02, spans=True)
    with monitel.register_event_handler(handle):
        idle = Stat("idle", [COUNT], 60.0)
        idle.add(1)
        clock.advance(60)
        assert called.wait(DEADLINE)
        for number in range(3):
            record_one_of_each(number)
            receiver.wait_until(partial(has_arrived, receiver, number))
        wait_until(lambda: warnings_with(caplog, "event handler"), "a warning")
        assert pipeline.shutdown(3.0)  # a third of it for the handler
    release.set()
    assert 1 == len(warnings_with(caplog, "event handler"))
    caplog.clear()  # its traceback keeps the Stat
    assert [1] == receiver.values("idle.count")

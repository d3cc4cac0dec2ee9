"""Delivery: flushes, refusals, requests that are too large, faulty neighbours, and the end."""

import gc
import math
import random
import time
from functools import partial
from threading import Event as Signal
from threading import current_thread, main_thread
from typing import Any

import pytest
from opentelemetry import context
from tests.support.checks import wait_until, warnings_with
from tests.support.inbox import DEADLINE, Answer, Request, points_of
from tests.support.pipelines import Start, delivered_by, emit
from tests.support.producers import record_ranges, run_together, running
from tests.support.receiver import Receiver

import monitel
from monitel import COUNT, SUM, VALUE, Stat
from monitel.testing import ManualClock
from monitel_otlp.transport.http import HttpTransport


def test_flush_delivers_items_recorded_during_another_flush(receiver: Receiver, start: Start) -> None:
    """An export that is in progress does not include later items, so the flush waits for the next one."""
    pipeline = start()
    receiver.answer("metrics", Answer(delay=0.3))
    with running(partial(pipeline.force_flush, DEADLINE)):
        receiver.wait_until(lambda: receiver.requests)
        assert emit(pipeline, "event")
        assert ["event"] == receiver.record_names()


def test_garbage_collected_stats_lose_nothing(receiver: Receiver, start: Start) -> None:
    """Stats in reference cycles log their last windows from the garbage collector, in any thread and at any line."""
    pipeline = start(export_interval=0.01)

    def work() -> None:
        for _ in range(300):
            cycle: list[Any] = [Stat("loss", [COUNT, SUM], 60.0)]
            cycle[0].add(1)
            cycle.append(cycle)
            monitel.emit("event")

    before = gc.get_threshold()
    gc.set_threshold(5)
    try:
        run_together(*[work] * 3)
    finally:
        gc.set_threshold(*before)

    def is_complete() -> bool:
        gc.collect()  # does nothing while another thread collects, so that no window may have arrived yet
        assert pipeline.force_flush(DEADLINE)
        return [900] == receiver.values("loss.count")[-1:] and [900.0] == receiver.values("loss.sum")[-1:]

    wait_until(is_complete)
    assert 900 == len(receiver.records("event"))


def test_requests_are_not_instrumented(receiver: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are sent with OpenTelemetry's suppression key, which instrumentation of HTTP libraries respects."""
    keys, send = set[Any](), HttpTransport.send

    def look(self: HttpTransport, *arguments: Any) -> Any:
        keys.add(context.get_value(context._SUPPRESS_INSTRUMENTATION_KEY))
        return send(self, *arguments)

    monkeypatch.setattr(HttpTransport, "send", look)
    assert emit(start(), "event")
    assert {True} == keys


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
        for number in range(1, 4):
            monitel.emit("event")
            monitel.log({"number": number})
            record_ranges("range")
            wait_until(lambda: min(each.delivered for each in pipeline.account().values()) >= number)  # noqa: B023
        wait_until(lambda: warnings_with(caplog, "event handler"), "a warning")
        assert pipeline.shutdown(3.0)  # a third of it for the handler
    release.set()
    assert 1 == len(warnings_with(caplog, "event handler"))
    caplog.clear()  # its traceback keeps the Stat
    assert [1] == receiver.values("idle.count")


def test_request_that_the_exit_leaves_for_the_disk_is_not_sent(receiver: Receiver, start: Start) -> None:
    """The backend comes back after the last attempt: what is sent and written to disk would arrive twice.

    Retries draw nothing from the random generator that a seeded program uses.
    """
    receiver.rule(lambda _: Answer(503))
    pipeline = start()
    assert pipeline.engine is not None
    state = random.getstate()
    monitel.emit("before")
    pipeline.force_flush(0.1)
    receiver.wait_until(lambda: receiver.of("logs"))
    assert state == random.getstate()
    sender = pipeline.engine._senders["logs"]
    sender.finish(time.monotonic())
    assert sender.finished.wait(DEADLINE)
    receiver.forget_rules()
    sender._send_waiting()  # as after a wake that the thread has not seen
    pipeline.shutdown()
    assert [] == receiver.records("before")
    assert 1 == pipeline.account()["logs"].on_disk


def test_poisoned_window_is_the_only_one_lost(receiver: Receiver, start: Start, clock: ManualClock) -> None:
    """If the backend refuses NaN, the other windows of the request arrive, once, in order, and with right totals."""
    pipeline = start()

    def refuse_nan(request: Request) -> Answer | None:
        nan = request.signal == "metrics" and any(math.isnan(point.value) for point in points_of(request.message))
        return Answer(400) if nan else None

    receiver.rule(refuse_nan)
    stat = Stat("loss", [COUNT, VALUE], 60.0)
    for value in [*range(10), math.nan, *range(11, 20)]:
        stat.add(value)
        clock.advance(60)
    assert not pipeline.force_flush(DEADLINE)
    assert {"rejected": 1} == pipeline.dropped
    assert [*range(10), *range(11, 20)] == receiver.values("loss.value")
    assert [*range(1, 11), *range(12, 21)] == receiver.values("loss.count")


def test_requests_fit_the_default_limit_of_grpc_servers(receiver: Receiver, start: Start) -> None:
    """10 MB of events are sent in order, in requests of at most 3.5 MiB, and of at most 500 events."""
    with delivered_by(start()):
        for number in range(1200):
            monitel.emit("event", number=number, text="x" * 100_000 * (number < 100))
    assert max(len(request.body) for request in receiver.of("logs")) <= 3.5 * 2**20
    assert max(len(request.records) for request in receiver.of("logs")) <= 500
    assert list(range(1200)) == [record.attributes["number"] for record in receiver.records()]

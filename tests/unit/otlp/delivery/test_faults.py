"""A backend with faults: unacknowledged requests are kept in order, and losses are counted."""

from __future__ import annotations

import random
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.support.checks import warnings_with
from tests.support.inbox import DEADLINE, Answer, Request, records_of
from tests.support.pipelines import deliver, emit_and_flush, reported_drops
from tests.support.receiver import Receiver

import monitel
from monitel import COUNT, Stat

if TYPE_CHECKING:
    from tests.support.pipelines import Start


@pytest.mark.parametrize(
    "fault",
    [
        Answer(408),
        Answer(429),
        Answer(502),
        Answer(503, {"Retry-After": "0"}),
        Answer(504, {"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}),
        Answer(503, {"Retry-After": "soon"}),
        Answer(fault="drop unread"),
        Answer(500),
    ],
    ids=str,
)
def test_short_fault_loses_neither_items_nor_order(
    receiver: Receiver, start: Start, caplog: pytest.LogCaptureFixture, fault: Answer
) -> None:
    """The failed request is sent before later ones, and the fault is logged once."""
    pipeline = start()
    receiver.answer("logs", fault, fault)
    monitel.emit("first")
    assert pipeline.force_flush(DEADLINE)
    assert deliver(pipeline, "second", "third")
    assert ["first", "second", "third"] == receiver.record_names()
    assert 1 == len(warnings_with(caplog, receiver.url, "everything is kept"))


def test_windows_keep_their_order_and_times_during_an_outage(
    receiver: Receiver, start: Start, clock: monitel.testing.ManualClock
) -> None:
    """Windows of many intervals arrive after the outage, complete and in order."""
    pipeline = start()
    receiver.rule(lambda _request: Answer(503))
    stat = Stat("loss", [COUNT], 60.0)
    for _ in range(5):
        stat.add(1)
        clock.advance(60)
        assert not pipeline.force_flush(0.05)
    receiver.forget_rules()
    assert pipeline.force_flush(DEADLINE)
    points = receiver.points("loss.count")
    assert [1, 2, 3, 4, 5] == [point.value for point in points]
    assert [60 * 10**9] * 4 == [b.time_ns - a.time_ns for a, b in pairwise(points)]


def test_request_is_sent_again_when_its_answer_is_lost(receiver: Receiver, start: Start) -> None:
    """A request is delivered at least once."""
    pipeline = start()
    receiver.answer("logs", Answer(fault="drop unanswered"))
    monitel.emit("first")
    assert pipeline.force_flush(DEADLINE)
    assert {"first"} == set(receiver.record_names())
    assert 2 == len(receiver.of("logs"))


def test_retry_after_is_honoured(receiver: Receiver, start: Start) -> None:
    """The delivery thread waits for the requested time, although its interval is 20 ms."""
    start(export_interval=0.02)
    receiver.answer("logs", Answer(503, {"Retry-After": "1"}))
    monitel.emit("first")
    receiver.wait_until(receiver.record_names)
    first, second = receiver.of("logs")
    assert 1.0 <= second.arrived - first.arrived < 3.0


def test_retries_do_not_use_the_global_random_generator(receiver: Receiver, start: Start) -> None:
    """A seeded program draws the same numbers with a healthy backend and with a faulty one."""
    pipeline = start()
    receiver.rule(lambda _request: Answer(503))
    state = random.getstate()
    monitel.emit("first")
    assert not pipeline.force_flush(0.2)
    assert receiver.of("logs")
    assert state == random.getstate()


def test_flush_honours_retry_after(receiver: Receiver, start: Start) -> None:
    """Repeated flushes make one attempt, and the next one only after the time that the backend asked for."""
    pipeline = start()
    receiver.answer("logs", Answer(503, {"Retry-After": "1"}))
    monitel.emit("first")
    for _ in range(5):
        assert not pipeline.force_flush(0.1)
    assert 1 == len(receiver.of("logs"))
    assert pipeline.force_flush(DEADLINE)
    first, second = receiver.of("logs")
    assert 1.0 <= second.arrived - first.arrived


def test_repeated_flushes_do_not_flood_a_backend_that_is_away(receiver: Receiver, start: Start) -> None:
    """Two seconds of flushes make at most four attempts."""
    pipeline = start()
    receiver.rule(lambda _request: Answer(503))
    monitel.emit("first")
    for _ in range(20):
        assert not pipeline.force_flush(0.1)
    assert 1 <= len(receiver.of("logs")) <= 4


@pytest.mark.parametrize("header", ["inf", "1e9", "99999999999999999999", "nan", "-5"])
def test_nonsensical_retry_after_does_not_end_delivery(receiver: Receiver, start: Start, header: str) -> None:
    """The request is sent again within seconds."""
    pipeline = start(export_interval=0.02)
    receiver.answer("logs", Answer(503, {"Retry-After": header}))
    monitel.emit("first")
    receiver.wait_until(lambda: receiver.of("logs"))
    assert pipeline.force_flush(DEADLINE)
    assert ["first"] == receiver.record_names()


def test_signals_do_not_wait_for_each_other(receiver: Receiver, start: Start) -> None:
    """Metrics are delivered while the endpoint of logs is away."""
    pipeline = start()
    receiver.rule(lambda request: Answer(503) if request.signal == "logs" else None)
    stat = Stat("loss", [COUNT], 60.0)
    for _ in range(3):
        monitel.emit("event")
        stat.add(1)
        stat.flush()
        assert not pipeline.force_flush(0.1)
    assert [1, 2, 3] == receiver.values("loss.count")
    receiver.forget_rules()
    assert pipeline.force_flush(DEADLINE)
    assert ["event"] * 3 == receiver.record_names()


@pytest.mark.parametrize(
    ("status", "hint"),
    [
        (401, "OTEL_EXPORTER_OTLP_HEADERS"),
        (403, "OTEL_EXPORTER_OTLP_HEADERS"),
        (404, "to which /v1/... is appended"),
        (301, "https://elsewhere"),
        (307, "https://elsewhere"),
    ],
)
def test_refusal_is_logged_once_and_everything_is_kept(
    receiver: Receiver, start: Start, caplog: pytest.LogCaptureFixture, status: int, hint: str
) -> None:
    """Missing permission, a wrong path or a redirection: the warning contains what to change."""
    pipeline = start()
    receiver.rule(
        lambda request: Answer(status, {"Location": "https://elsewhere"}) if request.signal == "logs" else None
    )
    assert not emit_and_flush(pipeline, "first", "second", "third")
    assert 1 == len(warnings_with(caplog, str(status), hint))
    receiver.forget_rules()
    assert pipeline.force_flush(DEADLINE)
    assert ["first", "second", "third"] == receiver.record_names()


def test_refused_request_is_not_retried_in_every_interval(receiver: Receiver, start: Start) -> None:
    """The request is retried after a minute."""
    start(export_interval=0.02)
    receiver.answer("logs", Answer(401))
    monitel.emit("first")
    receiver.wait_until(lambda: receiver.of("logs"))
    receiver.wait_until(lambda: len(receiver.of("metrics")) > 20)
    assert 1 == len(receiver.of("logs"))


def test_rejected_request_is_set_aside_and_others_are_delivered(
    receiver: Receiver, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """The request and the answer are in ``rejected/``, readable only for the owner; the path is logged."""
    pipeline = start()

    def refuse_poison(request: Request) -> Answer | None:
        poisoned = request.signal == "logs" and any(record.name == "poison" for record in records_of(request.message))
        return Answer(400, body=b"out of bounds") if poisoned else None

    receiver.rule(refuse_poison)
    emit_and_flush(pipeline, "first", "poison", "last")
    assert not pipeline.force_flush(DEADLINE)
    assert ["first", "last"] == receiver.record_names()
    (message,) = Path(pipeline.spool_dir).glob("rejected/*.binpb")
    request = type(receiver.of("logs")[0].message).FromString(message.read_bytes())
    assert ["poison"] == [record.name for record in records_of(request)]
    assert "out of bounds" in message.with_suffix(".txt").read_text()
    assert {0o600} == {path.stat().st_mode & 0o777 for path in message.parent.iterdir()}
    assert 1 == len(warnings_with(caplog, "400", str(message)))
    assert {"logs": 1} == reported_drops(receiver, pipeline, "rejected")
    pipeline.shutdown()
    assert message.exists()


@pytest.mark.parametrize("body", [b"", b"\xff\xff\xff\xff", b"<html>ok</html>", b"{}"])
def test_answer_without_otlp_counts_by_its_status(receiver: Receiver, start: Start, body: bytes) -> None:
    """A proxy's page with status 200 is a success, so the request is not sent again."""
    pipeline = start()
    receiver.answer("logs", Answer(200, {"Content-Type": "text/html"}, body))
    monitel.emit("event")
    assert pipeline.force_flush(60)
    assert (1, ["event"]) == (len(receiver.of("logs")), receiver.record_names())


def test_backend_that_comes_back_receives_everything(start: Start) -> None:
    """Requests made while connections are refused are delivered when the backend listens again."""
    with Receiver() as before:
        pipeline = start(endpoint=before.url)
        assert deliver(pipeline, "first")
    assert not emit_and_flush(pipeline, "second", "third")
    with Receiver(before.port) as after:
        assert pipeline.force_flush(DEADLINE)
        assert ["second", "third"] == after.record_names()


def test_request_that_the_exit_leaves_for_the_disk_is_not_sent(receiver: Receiver, start: Start) -> None:
    """The backend comes back after the last attempt: a request that is sent and written to disk would arrive twice."""
    receiver.rule(lambda _: Answer(503))
    pipeline = start()
    assert pipeline.engine is not None
    monitel.emit("before")
    pipeline.force_flush(0.1)
    delivery = pipeline.engine.delivery
    delivery.finish(time.monotonic() + DEADLINE)
    receiver.forget_rules()
    delivery._senders["logs"]._send_waiting()  # as after a wake that the thread has not seen
    pipeline.shutdown()
    assert [] == receiver.records("before")
    assert 1 == pipeline.account()["logs"].on_disk


def test_force_flush_returns_in_time(receiver: Receiver, start: Start) -> None:
    """The timeout holds even if the backend never answers."""
    pipeline = start()
    receiver.rule(lambda _request: Answer(fault="hang"))
    monitel.emit("event")
    for timeout in (0.0, 0.1, 0.3):
        begin = time.monotonic()
        assert not pipeline.force_flush(timeout)
        assert timeout <= time.monotonic() - begin < timeout + 2

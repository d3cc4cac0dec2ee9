"""A backend that is ill: what it has not acknowledged is kept, in order, and what is lost is counted."""

from __future__ import annotations

import logging
import random
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import monitel
from monitel import COUNT, Stat

from .inbox import DEADLINE, Answer, Request, records_of
from .receiver import Receiver

if TYPE_CHECKING:

    from monitel_otlp import Pipeline

    from .conftest import Start
    from .inbox import Inbox

DOWN = Answer(503)


def flushed(pipeline: Pipeline, *names: str) -> bool:
    """Emit events in a request each, and say whether all was acknowledged."""
    outcome = True
    for name in names:
        monitel.emit(name)
        outcome = pipeline.force_flush(0.2)
    return outcome


def told(caplog: pytest.LogCaptureFixture, *words: str) -> list[str]:
    """The warnings that hold all these words."""
    messages = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    return [message for message in messages if all(word in message for word in words)]


def names(receiver: Inbox) -> list[str]:
    """The names of the records that were taken, in order of arrival."""
    return [record.name for record in receiver.records()]


def dropped(receiver: Inbox, pipeline: Pipeline, reason: str) -> dict[str, int | float]:
    """What the pipeline itself has counted, by signal."""
    pipeline.force_flush(DEADLINE)  # False: something was lost
    pipeline.force_flush(DEADLINE)
    points = receiver.points("monitel.exporter.item.dropped")
    return {point.attributes["signal"]: point.value for point in points if point.attributes["error.type"] == reason}


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
def test_a_short_illness_costs_nothing_and_no_order(
    receiver: Receiver, start: Start, caplog: pytest.LogCaptureFixture, fault: Answer
) -> None:
    """The request that failed comes before those that were made later; trouble and recovery are told once each."""
    pipeline = start()
    receiver.answer("logs", fault, fault)
    monitel.emit("first")
    assert pipeline.force_flush(DEADLINE)
    assert flushed(pipeline, "second", "third")
    assert ["first", "second", "third"] == names(receiver)
    assert 1 == len(told(caplog, receiver.url, "everything is kept"))


def test_windows_keep_their_order_and_times_over_an_outage(
    receiver: Receiver, start: Start, clock: monitel.testing.ManualClock
) -> None:
    """What could not be sent for many intervals arrives later, complete and ascending."""
    pipeline = start()
    receiver.rule(lambda _request: DOWN)
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
    assert {"first"} == set(names(receiver))
    assert 2 == len(receiver.of("logs"))


def test_retry_after_is_honoured(receiver: Receiver, start: Start) -> None:
    """By the rounds of the thread, though they come every 20 ms."""
    start(export_interval=0.02)
    receiver.answer("logs", Answer(503, {"Retry-After": "1"}))
    monitel.emit("first")
    receiver.wait_until(lambda: names(receiver))
    first, second = receiver.of("logs")
    assert 1.0 <= second.arrived - first.arrived < 3.0


def test_retries_leave_the_generator_of_the_application_alone(receiver: Receiver, start: Start) -> None:
    """A seeded run draws the same numbers whether the backend is healthy or not."""
    pipeline = start()
    receiver.rule(lambda _request: DOWN)
    state = random.getstate()
    monitel.emit("first")
    assert not pipeline.force_flush(0.2)
    assert receiver.of("logs")
    assert state == random.getstate()


def test_flush_honours_retry_after(receiver: Receiver, start: Start) -> None:
    """Flushes in a row make one attempt, and none before the time that the backend asked for."""
    pipeline = start()
    receiver.answer("logs", Answer(503, {"Retry-After": "1"}))
    monitel.emit("first")
    for _ in range(5):
        assert not pipeline.force_flush(0.1)
    assert 1 == len(receiver.of("logs"))
    assert pipeline.force_flush(DEADLINE)
    first, second = receiver.of("logs")
    assert 1.0 <= second.arrived - first.arrived


def test_flushes_in_a_row_do_not_press_a_backend_that_is_away(receiver: Receiver, start: Start) -> None:
    """Two seconds of flushes make three attempts at most."""
    pipeline = start()
    receiver.rule(lambda _request: DOWN)
    monitel.emit("first")
    for _ in range(20):
        assert not pipeline.force_flush(0.1)
    assert 1 <= len(receiver.of("logs")) <= 4


@pytest.mark.parametrize("header", ["inf", "1e9", "99999999999999999999", "nan", "-5"])
def test_a_retry_after_that_makes_no_sense_does_not_end_delivery(
    receiver: Receiver, start: Start, header: str
) -> None:
    """Such a proxy is asked again before the run is over, and nothing breaks."""
    pipeline = start(export_interval=0.02)
    receiver.answer("logs", Answer(503, {"Retry-After": header}))
    monitel.emit("first")
    receiver.wait_until(lambda: receiver.of("logs"))
    assert pipeline.force_flush(DEADLINE)
    assert ["first"] == names(receiver)


def test_signals_do_not_wait_for_each_other(receiver: Receiver, start: Start) -> None:
    """Metrics go on while the logs' endpoint is away."""
    pipeline = start()
    receiver.rule(lambda request: DOWN if request.signal == "logs" else None)
    stat = Stat("loss", [COUNT], 60.0)
    for _ in range(3):
        monitel.emit("event")
        stat.add(1)
        stat.flush()
        assert not pipeline.force_flush(0.1)
    assert [1, 2, 3] == receiver.values("loss.count")
    receiver.forget_rules()
    assert pipeline.force_flush(DEADLINE)
    assert ["event"] * 3 == names(receiver)


@pytest.mark.parametrize(
    ("status", "hint"),
    [
        (401, "OTEL_EXPORTER_OTLP_HEADERS"),
        (403, "OTEL_EXPORTER_OTLP_HEADERS"),
        (404, "/v1/... is appended"),
        (301, "https://elsewhere"),
        (307, "https://elsewhere"),
    ],
)
def test_what_somebody_must_mend_is_said_once_and_everything_is_kept(
    receiver: Receiver, start: Start, caplog: pytest.LogCaptureFixture, status: int, hint: str
) -> None:
    """Also a redirection, which the official exporters take for success."""
    pipeline = start()
    receiver.rule(
        lambda request: Answer(status, {"Location": "https://elsewhere"}) if request.signal == "logs" else None
    )
    assert not flushed(pipeline, "first", "second", "third")
    assert 1 == len(told(caplog, str(status), hint))
    receiver.forget_rules()
    assert pipeline.force_flush(DEADLINE)
    assert ["first", "second", "third"] == names(receiver)


def test_what_somebody_must_mend_is_not_asked_all_the_time(receiver: Receiver, start: Start) -> None:
    """Each minute, not each interval."""
    start(export_interval=0.02)
    receiver.answer("logs", Answer(401))
    monitel.emit("first")
    receiver.wait_until(lambda: receiver.of("logs"))
    receiver.wait_until(lambda: len(receiver.of("metrics")) > 20)
    assert 1 == len(receiver.of("logs"))


def test_a_rejected_request_is_set_aside_and_the_queue_goes_on(
    receiver: Receiver, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """It is in ``rejected/`` with the answer, its owner's alone; it is said where, and counted."""
    pipeline = start()

    def refuse_poison(request: Request) -> Answer | None:
        poisoned = request.signal == "logs" and any(record.name == "poison" for record in records_of(request.message))
        return Answer(400, body=b"out of bounds") if poisoned else None

    receiver.rule(refuse_poison)
    flushed(pipeline, "first", "poison", "last")
    assert not pipeline.force_flush(DEADLINE)
    assert ["first", "last"] == names(receiver)
    (message,) = Path(pipeline.spool_dir).glob("rejected/*.binpb")
    request = type(receiver.of("logs")[0].message).FromString(message.read_bytes())
    assert ["poison"] == [record.name for record in records_of(request)]
    assert "out of bounds" in message.with_suffix(".txt").read_text()
    assert {0o600} == {path.stat().st_mode & 0o777 for path in message.parent.iterdir()}
    assert 1 == len(told(caplog, "400", str(message)))
    assert {"logs": 1} == dropped(receiver, pipeline, "rejected")
    pipeline.shutdown()
    assert message.exists()


@pytest.mark.parametrize("body", [b"", b"\xff\xff\xff\xff", b"<html>ok</html>", b"{}"])
def test_an_answer_that_is_no_otlp_counts_by_its_status(receiver: Receiver, start: Start, body: bytes) -> None:
    """A proxy's page with 200 is a success; the request is not sent again."""
    pipeline = start()
    receiver.answer("logs", Answer(200, {"Content-Type": "text/html"}, body))
    monitel.emit("event")
    assert pipeline.force_flush(10)
    assert (1, ["event"]) == (len(receiver.of("logs")), names(receiver))


def test_a_backend_that_comes_back_gets_everything(start: Start) -> None:
    """Connections are refused for a while, then somebody listens there again."""
    with Receiver() as before:
        pipeline = start(endpoint=before.url)
        assert flushed(pipeline, "first")
    assert not flushed(pipeline, "second", "third")
    with Receiver(before.port) as after:
        assert pipeline.force_flush(DEADLINE)
        assert ["second", "third"] == names(after)


def test_force_flush_returns_in_time(receiver: Receiver, start: Start) -> None:
    """Whatever the backend does."""
    pipeline = start()
    receiver.rule(lambda _request: Answer(fault="hang"))
    monitel.emit("event")
    for timeout in (0.0, 0.1, 0.3):
        begin = time.monotonic()
        assert not pipeline.force_flush(timeout)
        assert timeout <= time.monotonic() - begin < timeout + 2

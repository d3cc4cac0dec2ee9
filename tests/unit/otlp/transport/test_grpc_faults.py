"""A gRPC backend with faults: the meaning of each status, without unreported losses."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from grpc import StatusCode
from tests.support.checks import in_time, warnings_with
from tests.support.grpc_receiver import GrpcAnswer, GrpcReceiver
from tests.support.inbox import DEADLINE, Request, records_of
from tests.support.pipelines import deliver, emit_and_flush, reported_drops
from tests.support.receiver import MESSAGES, partial_success

import monitel

if TYPE_CHECKING:
    from tests.support.pipelines import Start

    from monitel_otlp import Pipeline


@pytest.fixture
def pipeline(start: Start, grpc_receiver: GrpcReceiver) -> Pipeline:
    """A pipeline that sends to the gRPC backend when it is flushed."""
    return start(endpoint=grpc_receiver.url, protocol="grpc")


def answer_logs(receiver: GrpcReceiver, code: StatusCode, details: str = "") -> None:
    """Answer all logs requests with this status."""
    receiver.rule(lambda request: GrpcAnswer(code=code, details=details) if request.signal == "logs" else None)


def set_aside(pipeline: Pipeline) -> list[str]:
    """Return the names of the events in ``rejected/``."""
    messages = sorted(Path(pipeline.spool_dir).glob("rejected/*.binpb"))
    return [name for message in messages for name in event_names(message.read_bytes())]


def event_names(body: bytes) -> list[str]:
    """Return the names of the events in an encoded request."""
    return [record.name for record in records_of(MESSAGES["logs"][0].FromString(body))]


@pytest.mark.parametrize(
    "code",
    [
        StatusCode.UNAVAILABLE,
        StatusCode.DEADLINE_EXCEEDED,
        StatusCode.ABORTED,
        StatusCode.CANCELLED,
        StatusCode.OUT_OF_RANGE,
        StatusCode.DATA_LOSS,
        StatusCode.INTERNAL,
        StatusCode.UNKNOWN,
    ],
    ids=lambda code: code.name,
)
def test_short_fault_loses_neither_items_nor_order(
    grpc_receiver: GrpcReceiver, pipeline: Pipeline, caplog: pytest.LogCaptureFixture, code: StatusCode
) -> None:
    """The failed request is sent before later ones, and the fault is logged once."""
    grpc_receiver.answer("logs", GrpcAnswer(code=code), GrpcAnswer(code=code))
    monitel.emit("first")
    assert pipeline.force_flush(DEADLINE)
    assert deliver(pipeline, "second", "third")
    assert ["first", "second", "third"] == grpc_receiver.record_names()
    assert 1 == len(warnings_with(caplog, f"{grpc_receiver.url} (logs)", code.name, "everything is kept"))


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        (StatusCode.UNAUTHENTICATED, "set OTEL_EXPORTER_OTLP_HEADERS"),
        (StatusCode.PERMISSION_DENIED, "check OTEL_EXPORTER_OTLP_HEADERS"),
        (StatusCode.UNIMPLEMENTED, "no OTLP receiver for this signal"),
    ],
    ids=lambda each: getattr(each, "name", ""),
)
def test_refusal_is_logged_once_and_everything_is_kept(
    *,
    grpc_receiver: GrpcReceiver,
    pipeline: Pipeline,
    caplog: pytest.LogCaptureFixture,
    code: StatusCode,
    hint: str,
) -> None:
    """The warning has what to change; afterwards everything arrives in order."""
    answer_logs(grpc_receiver, code)
    assert not emit_and_flush(pipeline, "first", "second", "third")
    assert 1 == len(warnings_with(caplog, code.name, hint))
    assert 1 == len(warnings_with(caplog, "everything is kept"))
    grpc_receiver.forget_rules()
    assert pipeline.force_flush(DEADLINE)
    assert ["first", "second", "third"] == grpc_receiver.record_names()


def test_refused_request_is_not_retried_in_every_interval(grpc_receiver: GrpcReceiver, start: Start) -> None:
    """The request is retried after a minute."""
    start(endpoint=grpc_receiver.url, protocol="grpc", export_interval=0.02)
    grpc_receiver.answer("logs", GrpcAnswer(code=StatusCode.UNAUTHENTICATED))
    monitel.emit("first")
    grpc_receiver.wait_until(lambda: grpc_receiver.of("logs"))
    grpc_receiver.wait_until(lambda: len(grpc_receiver.of("metrics")) > 20)
    assert 1 == len(grpc_receiver.of("logs"))


def test_invalid_event_is_isolated_and_set_aside(
    grpc_receiver: GrpcReceiver, pipeline: Pipeline, caplog: pytest.LogCaptureFixture
) -> None:
    """The other seven events of the request are delivered; the path of the rejected one is logged."""

    def refuse_poison(request: Request) -> GrpcAnswer | None:
        if request.signal == "logs" and "poison" in event_names(request.body):
            return GrpcAnswer(code=StatusCode.INVALID_ARGUMENT, details="out of bounds")
        return None

    grpc_receiver.rule(refuse_poison)
    for number in range(8):
        monitel.emit("poison" if number == 5 else f"event {number}")
    assert not pipeline.force_flush(DEADLINE)
    assert {f"event {number}" for number in range(8) if number != 5} == set(grpc_receiver.record_names())
    assert ["poison"] == set_aside(pipeline)
    (path,) = Path(pipeline.spool_dir).glob("rejected/*.txt")
    assert "INVALID_ARGUMENT: out of bounds" in path.read_text()
    assert 1 == len(warnings_with(caplog, "INVALID_ARGUMENT", str(path.with_suffix(".binpb"))))
    assert {"logs": 1} == reported_drops(grpc_receiver, pipeline, "rejected")


@pytest.mark.parametrize("code", [StatusCode.INTERNAL, StatusCode.UNKNOWN], ids=lambda code: code.name)
def test_request_that_breaks_the_backend_is_tried_three_times(
    grpc_receiver: GrpcReceiver, pipeline: Pipeline, code: StatusCode
) -> None:
    """After the third attempt the request is set aside, and later requests are delivered."""

    def broken(request: Request) -> GrpcAnswer | None:
        poisoned = request.signal == "logs" and "poison" in event_names(request.body)
        return GrpcAnswer(code=code) if poisoned else None

    grpc_receiver.rule(broken)
    emit_and_flush(pipeline, "poison", "last")
    assert not pipeline.force_flush(DEADLINE)
    assert 3 == len([request for request in grpc_receiver.of("logs") if "poison" in event_names(request.body)])
    assert (["last"], ["poison"]) == (grpc_receiver.record_names(), set_aside(pipeline))


def test_resource_exhausted_without_retry_info_means_too_large(grpc_receiver: GrpcReceiver, pipeline: Pipeline) -> None:
    """The request is halved until it fits, and everything arrives in order."""

    def at_most_three(request: Request) -> GrpcAnswer | None:
        large = request.signal == "logs" and len(event_names(request.body)) > 3
        return GrpcAnswer(code=StatusCode.RESOURCE_EXHAUSTED, details="message larger than max") if large else None

    grpc_receiver.rule(at_most_three)
    for number in range(10):
        monitel.emit(f"event {number}")
    assert pipeline.force_flush(DEADLINE)
    assert [f"event {number}" for number in range(10)] == grpc_receiver.record_names()
    assert [10, 5, 2, 3, 5, 2, 3] == [len(event_names(request.body)) for request in grpc_receiver.of("logs")]


def test_single_event_that_is_too_large_is_set_aside(grpc_receiver: GrpcReceiver, pipeline: Pipeline) -> None:
    """Later events are delivered."""
    grpc_receiver.answer("logs", GrpcAnswer(code=StatusCode.RESOURCE_EXHAUSTED))
    emit_and_flush(pipeline, "huge", "last")
    assert not pipeline.force_flush(DEADLINE)
    assert (["last"], ["huge"]) == (grpc_receiver.record_names(), set_aside(pipeline))


@pytest.mark.parametrize("code", [StatusCode.RESOURCE_EXHAUSTED, StatusCode.UNAVAILABLE], ids=lambda code: code.name)
def test_retry_info_is_honoured(grpc_receiver: GrpcReceiver, start: Start, code: StatusCode) -> None:
    """The delivery thread waits for the requested time, although its interval is 20 ms, and sends the same request."""
    start(endpoint=grpc_receiver.url, protocol="grpc", export_interval=0.02)
    grpc_receiver.answer("logs", GrpcAnswer(code=code, retry_delay=0.3))
    monitel.emit("first")
    grpc_receiver.wait_until(grpc_receiver.record_names)
    first, second = grpc_receiver.of("logs")
    assert 0.3 <= second.arrived - first.arrived < 1.5  # the usual pause is 1.6 and more
    assert first.body == second.body


def test_partial_success_is_counted_and_never_sent_again(
    grpc_receiver: GrpcReceiver, pipeline: Pipeline, caplog: pytest.LogCaptureFixture
) -> None:
    """A retry would duplicate the accepted items."""
    grpc_receiver.answer("logs", partial_success("logs", 2, "attribute too long"))
    for _ in range(5):
        monitel.emit("event")
    assert not pipeline.force_flush(DEADLINE)
    assert 1 == len(grpc_receiver.of("logs"))
    assert 1 == len(warnings_with(caplog, "2", "attribute too long"))
    assert {"logs": 2} == reported_drops(grpc_receiver, pipeline, "partial_success")


def test_rejection_after_a_lost_answer_is_counted_as_unconfirmed(
    grpc_receiver: GrpcReceiver, pipeline: Pipeline
) -> None:
    """The backend may have accepted the first attempt and refused its repetition."""
    invalid = GrpcAnswer(code=StatusCode.INVALID_ARGUMENT)
    grpc_receiver.answer("logs", GrpcAnswer(code=StatusCode.DEADLINE_EXCEEDED), invalid)
    monitel.emit("event")
    assert not pipeline.force_flush(DEADLINE)
    assert {"logs": 1} == reported_drops(grpc_receiver, pipeline, "unconfirmed")


def test_backend_that_comes_back_receives_everything(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """The client reconnects within seconds, although gRPC's own pauses grow to minutes."""
    with GrpcReceiver() as before:
        pipeline = start(endpoint=before.url, protocol="grpc")
        assert deliver(pipeline, "first")
    assert not emit_and_flush(pipeline, *["while away"] * 10)
    assert 1 == len(warnings_with(caplog, f"{before.url} (logs)", "UNAVAILABLE", "everything is kept"))
    with GrpcReceiver(before.port) as after:
        with in_time(5):
            assert pipeline.force_flush(DEADLINE)
        assert ["while away"] * 10 == after.record_names()


def test_force_flush_returns_in_time(grpc_receiver: GrpcReceiver, pipeline: Pipeline) -> None:
    """The timeout holds even if the backend never answers."""
    grpc_receiver.rule(lambda _request: GrpcAnswer(fault="hang"))
    monitel.emit("event")
    for timeout in (0.0, 0.1, 0.3):
        begin = time.monotonic()
        assert not pipeline.force_flush(timeout)
        assert timeout <= time.monotonic() - begin < timeout + 2


def test_attempt_ends_in_time(
    grpc_receiver: GrpcReceiver, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """OTEL_EXPORTER_OTLP_TIMEOUT is the deadline of a call; an unanswered request is sent again."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    pipeline = start(endpoint=grpc_receiver.url, protocol="grpc")
    grpc_receiver.answer("logs", GrpcAnswer(fault="hang"), GrpcAnswer(delay=0.05))
    monitel.emit("event")
    assert pipeline.force_flush(DEADLINE)
    assert (2, ["event"]) == (len(grpc_receiver.of("logs")), grpc_receiver.record_names())
    assert 1 == len(warnings_with(caplog, "DEADLINE_EXCEEDED", "everything is kept"))

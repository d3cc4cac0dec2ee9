"""A gRPC backend that is ill: each status has its meaning, and nothing is lost silently."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from grpc import StatusCode

import monitel

from .grpc_receiver import GrpcAnswer, GrpcReceiver
from .inbox import DEADLINE, Request, records_of
from .receiver import MESSAGES, partial_success
from .test_faults import dropped, flushed, names, told

if TYPE_CHECKING:
    from monitel_otlp import Pipeline

    from .conftest import Start


@pytest.fixture
def pipeline(start: Start, grpc_receiver: GrpcReceiver) -> Pipeline:
    """A pipeline that sends to the gRPC backend when it is flushed."""
    return start(endpoint=grpc_receiver.url, protocol="grpc")


def logs_get(receiver: GrpcReceiver, code: StatusCode, details: str = "") -> None:
    """Answer so to every request for logs."""
    receiver.rule(lambda request: GrpcAnswer(code=code, details=details) if request.signal == "logs" else None)


def set_aside(pipeline: Pipeline) -> list[str]:
    """The names of the events in ``rejected/``."""
    messages = sorted(Path(pipeline.spool_dir).glob("rejected/*.binpb"))
    return [name for message in messages for name in event_names(message.read_bytes())]


def event_names(body: bytes) -> list[str]:
    """The names of the events in an encoded request."""
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
def test_a_short_illness_costs_nothing_and_no_order(
    grpc_receiver: GrpcReceiver, pipeline: Pipeline, caplog: pytest.LogCaptureFixture, code: StatusCode
) -> None:
    """The request that failed comes before those that were made later; trouble is told once."""
    ill = GrpcAnswer(code=code)
    grpc_receiver.answer("logs", ill, ill)
    monitel.emit("first")
    assert pipeline.force_flush(DEADLINE)
    assert flushed(pipeline, "second", "third")
    assert ["first", "second", "third"] == names(grpc_receiver)
    assert 1 == len(told(caplog, f"{grpc_receiver.url} (logs)", code.name, "everything is kept"))


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        (StatusCode.UNAUTHENTICATED, "set OTEL_EXPORTER_OTLP_HEADERS"),
        (StatusCode.PERMISSION_DENIED, "check OTEL_EXPORTER_OTLP_HEADERS"),
        (StatusCode.UNIMPLEMENTED, "no OTLP receiver for this signal"),
    ],
    ids=lambda each: getattr(each, "name", ""),
)
def test_what_somebody_must_mend_is_said_once_and_everything_is_kept(
    *,
    grpc_receiver: GrpcReceiver,
    pipeline: Pipeline,
    caplog: pytest.LogCaptureFixture,
    code: StatusCode,
    hint: str,
) -> None:
    """With what to do; mended, all of it arrives in order."""
    logs_get(grpc_receiver, code)
    assert not flushed(pipeline, "first", "second", "third")
    assert 1 == len(told(caplog, code.name, hint))
    assert 1 == len(told(caplog, "everything is kept"))
    grpc_receiver.forget_rules()
    assert pipeline.force_flush(DEADLINE)
    assert ["first", "second", "third"] == names(grpc_receiver)


def test_what_somebody_must_mend_is_not_asked_all_the_time(grpc_receiver: GrpcReceiver, start: Start) -> None:
    """Each minute, not each interval."""
    start(endpoint=grpc_receiver.url, protocol="grpc", export_interval=0.02)
    grpc_receiver.answer("logs", GrpcAnswer(code=StatusCode.UNAUTHENTICATED))
    monitel.emit("first")
    grpc_receiver.wait_until(lambda: grpc_receiver.of("logs"))
    grpc_receiver.wait_until(lambda: len(grpc_receiver.of("metrics")) > 20)
    assert 1 == len(grpc_receiver.of("logs"))


def test_what_is_invalid_is_isolated_and_set_aside(
    grpc_receiver: GrpcReceiver, pipeline: Pipeline, caplog: pytest.LogCaptureFixture
) -> None:
    """One poisoned event of eight in a request: the others are taken; where the one lies is said, and counted."""

    def refuse_poison(request: Request) -> GrpcAnswer | None:
        if request.signal == "logs" and "poison" in event_names(request.body):
            return GrpcAnswer(code=StatusCode.INVALID_ARGUMENT, details="out of bounds")
        return None

    grpc_receiver.rule(refuse_poison)
    for number in range(8):
        monitel.emit("poison" if number == 5 else f"event {number}")
    assert not pipeline.force_flush(DEADLINE)
    assert {f"event {number}" for number in range(8) if number != 5} == set(names(grpc_receiver))
    assert ["poison"] == set_aside(pipeline)
    (path,) = Path(pipeline.spool_dir).glob("rejected/*.txt")
    assert "INVALID_ARGUMENT: out of bounds" in path.read_text()
    assert 1 == len(told(caplog, "INVALID_ARGUMENT", str(path.with_suffix(".binpb"))))
    assert {"logs": 1} == dropped(grpc_receiver, pipeline, "rejected")


@pytest.mark.parametrize("code", [StatusCode.INTERNAL, StatusCode.UNKNOWN], ids=lambda code: code.name)
def test_what_breaks_the_backend_is_tried_three_times(
    grpc_receiver: GrpcReceiver, pipeline: Pipeline, code: StatusCode
) -> None:
    """Then it is set aside, and the queue goes on."""

    def broken(request: Request) -> GrpcAnswer | None:
        poisoned = request.signal == "logs" and "poison" in event_names(request.body)
        return GrpcAnswer(code=code) if poisoned else None

    grpc_receiver.rule(broken)
    flushed(pipeline, "poison", "last")
    assert not pipeline.force_flush(DEADLINE)
    assert 3 == len([request for request in grpc_receiver.of("logs") if "poison" in event_names(request.body)])
    assert (["last"], ["poison"]) == (names(grpc_receiver), set_aside(pipeline))


def test_resource_exhausted_alone_means_too_large(grpc_receiver: GrpcReceiver, pipeline: Pipeline) -> None:
    """The request is halved until it fits, in order."""

    def at_most_three(request: Request) -> GrpcAnswer | None:
        large = request.signal == "logs" and len(event_names(request.body)) > 3
        return GrpcAnswer(code=StatusCode.RESOURCE_EXHAUSTED, details="message larger than max") if large else None

    grpc_receiver.rule(at_most_three)
    for number in range(10):
        monitel.emit(f"event {number}")
    assert pipeline.force_flush(DEADLINE)
    assert [f"event {number}" for number in range(10)] == names(grpc_receiver)
    assert [10, 5, 2, 3, 5, 2, 3] == [len(event_names(request.body)) for request in grpc_receiver.of("logs")]


def test_one_event_that_is_too_large_is_set_aside(grpc_receiver: GrpcReceiver, pipeline: Pipeline) -> None:
    """It cannot be halved, and does not keep the others."""
    grpc_receiver.answer("logs", GrpcAnswer(code=StatusCode.RESOURCE_EXHAUSTED))
    flushed(pipeline, "huge", "last")
    assert not pipeline.force_flush(DEADLINE)
    assert (["last"], ["huge"]) == (names(grpc_receiver), set_aside(pipeline))


@pytest.mark.parametrize("code", [StatusCode.RESOURCE_EXHAUSTED, StatusCode.UNAVAILABLE], ids=lambda code: code.name)
def test_retry_info_is_honoured(grpc_receiver: GrpcReceiver, start: Start, code: StatusCode) -> None:
    """By the rounds of the thread, though they come every 20 ms; the request stays whole."""
    start(endpoint=grpc_receiver.url, protocol="grpc", export_interval=0.02)
    grpc_receiver.answer("logs", GrpcAnswer(code=code, retry_delay=0.3))
    monitel.emit("first")
    grpc_receiver.wait_until(lambda: names(grpc_receiver))
    first, second = grpc_receiver.of("logs")
    assert 0.3 <= second.arrived - first.arrived < 1.5  # the usual pause is 1.6 and more
    assert first.body == second.body


def test_a_partial_success_is_counted_and_never_sent_again(
    grpc_receiver: GrpcReceiver, pipeline: Pipeline, caplog: pytest.LogCaptureFixture
) -> None:
    """As over HTTP."""
    grpc_receiver.answer("logs", partial_success("logs", 2, "attribute too long"))
    for _ in range(5):
        monitel.emit("event")
    assert not pipeline.force_flush(DEADLINE)
    assert 1 == len(grpc_receiver.of("logs"))
    assert 1 == len(told(caplog, "2", "attribute too long"))
    assert {"logs": 2} == dropped(grpc_receiver, pipeline, "partial_success")


def test_what_may_have_been_taken_and_is_rejected_then_is_unconfirmed(
    grpc_receiver: GrpcReceiver, pipeline: Pipeline
) -> None:
    """The backend took it without answering; that it does not like it twice is no proof of a loss."""
    invalid = GrpcAnswer(code=StatusCode.INVALID_ARGUMENT)
    grpc_receiver.answer("logs", GrpcAnswer(code=StatusCode.DEADLINE_EXCEEDED), invalid)
    monitel.emit("event")
    assert not pipeline.force_flush(DEADLINE)
    assert {"logs": 1} == dropped(grpc_receiver, pipeline, "unconfirmed")


def test_a_backend_that_comes_back_gets_everything(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    """Connections are refused for a while, then somebody listens there again: within seconds, not gRPC's minutes."""
    with GrpcReceiver() as before:
        pipeline = start(endpoint=before.url, protocol="grpc")
        assert flushed(pipeline, "first")
    assert not flushed(pipeline, *["while away"] * 10)
    assert 1 == len(told(caplog, f"{before.url} (logs)", "UNAVAILABLE", "everything is kept"))
    with GrpcReceiver(before.port) as after:
        begin = time.monotonic()
        assert pipeline.force_flush(DEADLINE)
        assert time.monotonic() - begin < 5
        assert ["while away"] * 10 == names(after)


def test_force_flush_returns_in_time(grpc_receiver: GrpcReceiver, pipeline: Pipeline) -> None:
    """Whatever the backend does."""
    grpc_receiver.rule(lambda _request: GrpcAnswer(fault="hang"))
    monitel.emit("event")
    for timeout in (0.0, 0.1, 0.3):
        begin = time.monotonic()
        assert not pipeline.force_flush(timeout)
        assert timeout <= time.monotonic() - begin < timeout + 2


def test_an_attempt_ends_in_time(
    grpc_receiver: GrpcReceiver, start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """OTEL_EXPORTER_OTLP_TIMEOUT is the call's deadline; what was not answered is sent again."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    pipeline = start(endpoint=grpc_receiver.url, protocol="grpc")
    grpc_receiver.answer("logs", GrpcAnswer(fault="hang"), GrpcAnswer(delay=0.05))
    monitel.emit("event")
    assert pipeline.force_flush(DEADLINE)
    assert (2, ["event"]) == (len(grpc_receiver.of("logs")), names(grpc_receiver))
    assert 1 == len(told(caplog, "DEADLINE_EXCEEDED", "everything is kept"))

"""The message of an error in an answer: a Status in protobuf or JSON, text, or anything else."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]  # no stubs
from grpc import StatusCode
from hypothesis import given
from hypothesis import strategies as st
from tests.support.grpc_receiver import GrpcAnswer, GrpcReceiver
from tests.support.inbox import Answer as Given
from tests.unit.otlp.commands.spooled_run import events_request, span_request

from monitel_otlp.config.settings import resolve
from monitel_otlp.transport.answer import Verdict, one_line
from monitel_otlp.transport.error_body import error_text
from monitel_otlp.transport.factory import make_transports
from monitel_otlp.transport.partial_success import count_rejected

if TYPE_CHECKING:
    from tests.support.receiver import Receiver

    from monitel_otlp.messages.request import FrozenRequest
    from monitel_otlp.transport.answer import Answer

TOO_OLD = "entry for stream '{service_name=\"a\"}' has timestamp too old: 2026-10-13T17:50:06Z, oldest acceptable ..."
TOO_NEW = "entry for stream '{service_name=\"a\"}' has timestamp too new: 2026-11-25T17:50:06Z"
TOO_LONG = (
    "max entry size '262144' bytes exceeded for stream '{service_name=\"c\"}' while adding an entry with length "
    "'300000' bytes"
)
TOO_LARGE = "stream '{service_name=\"a\"}' has structured metadata too large: '70055' bytes, limit: '65536' ..."
TOO_MANY = "stream '{service_name=\"a\"}' has too many structured metadata labels: '302', limit: '256'. Please see ..."
BEHIND = (
    "entry with timestamp 2026-10-28 17:50:06.95338661 +0000 UTC ignored, reason: 'entry too far behind, entry "
    "timestamp is: 2026-10-28T17:50:06Z, oldest acceptable timestamp is: 2026-11-21T17:50:06Z',\n"
)
IGNORED = "user 'fake', total ignored: {} out of {} for stream: {{service_name=\"b\"}}"
COLLECTOR = (
    "Permanent error: rpc error: code = InvalidArgument desc = error exporting items, request to "
    "http://127.0.0.1:22291/otlp/v1/logs responded with HTTP Status Code 400, Message={}, Details=[]"
)


def status(message: str, code: int = 0) -> bytes:
    """Return a Status in protobuf: that of Loki has no code."""
    return bytes(Status(code=code, message=message).SerializeToString())


def answered(
    url: str, request: FrozenRequest, protocol: str = "http/protobuf", headers: dict[str, str] | None = None
) -> Answer:
    """Make one attempt, and return its answer."""
    transport = make_transports(resolve(url, headers, protocol=protocol))[request.signal]
    try:
        return transport.send(request, 5.0)
    finally:
        transport.close()


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (status("out of bounds"), "out of bounds"),
        (status("wrong temporality", 3), "wrong temporality"),
        (status("", 3), "status code 3, without a message"),
        (Status(code=3, message="with details", details=[{"value": b"\xff\x00"}]).SerializeToString(), "with details"),
        (json.dumps({"code": 3, "message": "in JSON", "details": []}).encode(), "in JSON"),
        (json.dumps({"error": "not a Status"}).encode(), '\'{"error": "not a Status"}\''),
        (json.dumps({"message": {"not": "text"}}).encode(), '\'{"message": {"not": "text"}}\''),
        (b'{"message":' * 20_000, None),
        (b'{"message": "truncated', '\'{"message": "truncated\''),
        (b'["message"]', "'[\"message\"]'"),
        (b"plain text\r\n", r"'plain text\r\n'"),
        (b"", "''"),
        (b"\xff\xfe\x00\x01" * 5, "a body of 20 bytes that is not text"),
        (b"\x12\xff\xff\xff", "a body of 4 bytes that is not text"),
        (b"\x12\x02\xff\xfe", "\ufffd\ufffd"),
        (status("x" * 100_000)[:65_536], "x" * (65_536 - 4)),
    ],
    ids=lambda value: repr(value)[:40],
)
def test_error_is_printed_as_its_message(body: bytes, text: str | None) -> None:
    """A body that is not a Status is printed as text, or as its size."""
    assert text in {None, error_text(body)}
    assert len(one_line(error_text(body))) <= 500


@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda body: b"\x12" + body) | st.text().map(str.encode))
def test_any_body_has_a_text_of_one_line(body: bytes) -> None:
    """No content raises, and none is printed as bytes."""
    shown = one_line(error_text(body))
    assert shown.isprintable()
    assert shown
    assert not shown.startswith("b'") or b"b'" in body


@pytest.mark.parametrize("content_type", ["application/x-protobuf", "application/octet-stream", "text/plain"])
def test_status_is_recognised_by_its_content(receiver: Receiver, content_type: str) -> None:
    """Loki declares its Status as application/octet-stream; the reason is one line, without secrets."""
    body = status("bad\nrecord of Bearer sesame-1234567")
    receiver.answer("logs", Given(400, {"Content-Type": content_type}, body))
    answer = answered(receiver.url, events_request([1]), headers={"authorization": "Bearer sesame-1234567"})
    assert Verdict.REJECTED is answer.verdict
    assert answer.reason.startswith(r"HTTP 400: bad\nrecord of ")
    assert "sesame" not in answer.reason


@pytest.mark.parametrize("wrap", ["{}", COLLECTOR], ids=["loki", "collector"])
@pytest.mark.parametrize(
    ("text", "rejected"),
    [
        (TOO_OLD, 1),
        (TOO_NEW, 1),
        (TOO_LONG, 1),
        (TOO_LARGE, 1),
        (f"1 errors like: {TOO_LARGE}; 2 errors like: {TOO_MANY}", 3),
        (f"30 errors like: {TOO_OLD}", 30),
        (f"1 errors like: {TOO_OLD}; 3 errors like: {TOO_NEW}; 2 errors like: {TOO_LONG}", 6),
        (f"1 errors like: {TOO_OLD}; 3 errors like: stream has 16 label names; limit 15", 0),
        (f"41 errors like: {TOO_OLD}", 0),
        (f"0 errors like: {TOO_OLD}", 0),
        (3 * BEHIND + IGNORED.format(3, 40), 3),
        (3 * BEHIND + IGNORED.format(3, 5), 38),
        (BEHIND + IGNORED.format(5, 3), 0),
        (BEHIND + IGNORED.format(3, 50), 0),
        (BEHIND + IGNORED.format("9" * 30, 40), 0),
        ("out of order sample", 0),
        ("", 0),
    ],
)
def test_refused_records_are_counted_from_the_text_of_loki(wrap: str, text: str, rejected: int) -> None:
    """The records that are not in the total of the ingester were refused before; a text that does not fit counts 0."""
    assert rejected == count_rejected(events_request(range(40)), wrap.format(text))
    assert 0 == count_rejected(span_request(1), wrap.format(text))


def test_incomplete_text_counts_nothing(receiver: Receiver) -> None:
    """A text beyond 64 KiB may have omitted a number."""
    receiver.answer("logs", Given(400, {}, status("; ".join([f"1 errors like: {TOO_OLD}"] * 3 + ["x" * 70_000]))))
    receiver.answer("logs", Given(400, {}, status("; ".join([f"1 errors like: {TOO_OLD}"] * 3))))
    assert 0 == answered(receiver.url, events_request(range(40))).rejected
    assert 3 == answered(receiver.url, events_request(range(40))).rejected


def test_refused_records_are_counted_over_grpc(grpc_receiver: GrpcReceiver) -> None:
    """The Collector passes the text on in the details."""
    details = COLLECTOR.format(BEHIND + IGNORED.format(3, 40))
    grpc_receiver.answer("logs", GrpcAnswer(code=StatusCode.INVALID_ARGUMENT, details=details))
    answer = answered(grpc_receiver.url, events_request(range(40)), "grpc")
    assert (Verdict.REJECTED, 3) == (answer.verdict, answer.rejected)

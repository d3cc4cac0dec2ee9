"""The answer to an attempt: its verdict, the text of an error, and the records that a backend has rejected."""

from __future__ import annotations

import json
import math
import os
import re
import ssl
import sys
import time
from dataclasses import dataclass, replace
from datetime import timezone
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from google.protobuf.message import DecodeError

import monitel
from monitel.attributes import fits_int64
from monitel_otlp.messages.request import LEVELS, RESPONSES, count_records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from monitel_otlp.messages.request import FrozenRequest

RESPONSE_BYTES = 65_536  #: Maximum size of a gRPC answer, and maximum number of bytes read of an HTTP body.
#: Product and language with their versions, as OpenTelemetry's specification asks exporters to say.
USER_AGENT = f"monitel-otlp/{monitel.__version__} Python/{'.'.join(map(str, sys.version_info[:3]))}"
_REASON_LENGTH = 500
_SEARCHED_LENGTH = 8_192  # characters of a reason in which secrets are masked; the rest is cut off


class Verdict(Enum):
    """The verdict of an attempt, which decides about the request."""

    DELIVERED = "delivered"
    RETRY = "retry"  #: The backend is unreachable or busy: keep the request and retry soon.
    REFUSED = "refused"  #: Address or credentials are wrong: keep the request and retry every minute.
    FAILED = "failed"  #: The backend failed with the request: try three times, then treat it as REJECTED.
    REJECTED = "rejected"  #: The backend will never accept a part of the request.
    TOO_LARGE = "too_large"  #: Split the request.


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of an attempt.

    Attributes:
        verdict: The verdict about the request.
        reason: The cause in one line, for a log message: at most 500 characters, escaped, without secrets.
        retry_after: The pause that the backend has requested, seconds; None if it has not.
        rejected: Number of points, log records or spans that the backend has rejected while it has stored the others:
            of an accepted request (partial success), or of a rejected one if its text reports the number; else 0.
        answered: False if no answer arrived, so that the backend may have accepted the request.
    """

    verdict: Verdict
    reason: str = ""
    retry_after: float | None = None
    rejected: int = 0
    answered: bool = True


class Transport(Protocol):
    """Makes attempts for one signal, one at a time."""

    @property
    def url(self) -> str:
        """The address for log messages, without secrets."""

    def send(self, request: FrozenRequest, timeout: float | None = None) -> Answer:
        """Make one attempt within the time limit. Never raises an ``Exception``.

        Args:
            request: The request.
            timeout: Seconds for the whole attempt, if less than the configured time limit.
        """

    def close(self) -> None:
        """Close the connection. Idempotent."""


def guarded(attempt: Callable[[], Answer], mask: Callable[[str], str]) -> Answer:
    """Make an attempt, turn an exception into an answer, and make the reason safe to log.

    Args:
        attempt: Makes the attempt. An exception means that the backend may have accepted the request.
        mask: Replaces secrets in a text.
    """
    try:
        answer = attempt()
    except Exception as error:
        answer = Answer(Verdict.RETRY, describe(error), answered=False)
    return replace(answer, reason=one_line(mask(answer.reason[:_SEARCHED_LENGTH])))


def one_line(text: str) -> str:
    """Return text for a log message: unprintable characters are escaped, and long text is truncated."""
    shown = "".join(each if each.isprintable() else repr(each)[1:-1] for each in text[: _REASON_LENGTH + 1])
    return shown if len(shown) <= _REASON_LENGTH else f"{shown[: _REASON_LENGTH - 3]}..."


def describe(error: BaseException) -> str:
    """Describe an exception by its type and error number, because its message may contain an address."""
    name = type(error).__name__
    if isinstance(error, ssl.SSLError):
        return f"{name}: {error.reason or 'TLS failed'}"
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, OSError) and error.errno:
        return f"{name}: {os.strerror(error.errno)}"
    return name


def parse_retry_after(value: str | None) -> float | None:
    """Parse a Retry-After header (seconds or a date); None if it is missing or malformed."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        seconds = _seconds_until(value)
    return None if math.isnan(seconds) else max(0.0, seconds)


def _seconds_until(date: str) -> float:
    try:
        moment = parsedate_to_datetime(date)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=timezone.utc)
        return moment.timestamp() - time.time()
    except Exception:  # malformed dates raise ValueError, TypeError, OverflowError or IndexError
        return math.nan


_VARINT, _TEXT = 0, 2  # wire types of protobuf
_VARINT_BYTES = 10


def fields(content: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a protobuf message, up to its end or to the first field that is neither varint nor text.

    A text at the end of a truncated message is shorter than its length field.

    Args:
        content: The encoded message.

    Returns:
        Number and value of each field.
    """
    position = 0
    while position < len(content):
        tag, position = _varint(content, position)
        value, position = _varint(content, position)
        if position < 0 or tag & 7 not in {_VARINT, _TEXT}:
            return
        if tag & 7 == _VARINT:
            yield tag >> 3, value
        else:
            yield tag >> 3, content[position : position + value]
            position += value


def _varint(content: bytes, position: int) -> tuple[int, int]:
    """Return the number at a position and the next position, which is negative if there is no number."""
    value = 0
    for index, byte in enumerate(content[position : position + _VARINT_BYTES] if position >= 0 else b""):
        value |= (byte & 127) << (7 * index)
        if byte < 128:  # noqa: PLR2004  the last byte of a varint
            return value, position + index + 1
    return 0, -1


_CODE, _MESSAGE = 1, 2  # field numbers of google.rpc.Status
_BEGINS = {b"\x08", b"\x12"}  # tags of these fields: control characters, with which no text begins
_EXAMINED = 1000  # characters by which text is distinguished from binary content


def error_text(body: bytes) -> str:
    """Return the message of a ``google.rpc.Status`` in protobuf or JSON, or another text in quotation marks.

    The type of the content is found by its first bytes: Loki declares its Status as ``application/octet-stream``.

    Args:
        body: The body, which may be truncated. Content that is neither a Status nor text is described by its size.
    """
    if body[:1] in _BEGINS:
        found = dict(fields(body))
        message = found.get(_MESSAGE)
        if isinstance(message, bytes) and message:
            return message.decode(errors="replace")
        if isinstance(code := found.get(_CODE), int):
            return f"status code {code}, without a message"
    if body[:1] == b"{" and (text := _json_message(body)):
        return text
    text = body.decode(errors="replace")
    examined = text[:_EXAMINED]
    readable = sum(each != "\ufffd" and (each.isprintable() or each.isspace()) for each in examined)
    return repr(text) if 2 * readable >= len(examined) else f"a body of {len(body)} bytes that is not text"


def _json_message(body: bytes) -> str:
    try:
        message = json.loads(body)["message"]
    except (ValueError, KeyError, RecursionError):
        return ""
    return message if isinstance(message, str) else ""


_REJECTED_FIELD = {"metrics": "rejected_data_points", "logs": "rejected_log_records", "traces": "rejected_spans"}
_PARTIAL_SUCCESS, _REJECTED, _MESSAGE = 1, 1, 2  # field numbers, the same for all signals
# Texts of Loki: the entries of a stream that its ingester has ignored, groups of equal errors of its distributor, and
# the errors of the distributor that concern one entry each. A single error is not in a group.
_IGNORED = re.compile(r"total ignored: (\d{1,9}) out of (\d{1,9}) for stream")
_GROUP = re.compile(r"(\d{1,9}) errors like: ")
_ENTRY_ERROR = re.compile(
    r"has timestamp too (?:old|new)|max entry size \S+ bytes exceeded"
    r"|has structured metadata too large|has too many structured metadata labels"
)


def delivered(signal: str, content: bytes, *, complete: bool = True) -> Answer:
    """Return the answer to a request that was accepted, completely or in part.

    Args:
        signal: Signal of the request.
        content: The body of the response. If it is not an OTLP response (e.g. the page of a proxy), it is ignored.
        complete: False if the body is truncated. Then its readable part is used.
    """
    if not complete:
        return _from_beginning(content)
    try:
        partial = RESPONSES[signal].FromString(content).partial_success
    except DecodeError:
        return Answer(Verdict.DELIVERED)
    rejected = getattr(partial, _REJECTED_FIELD[signal])
    return Answer(Verdict.DELIVERED, partial.error_message, rejected=max(0, rejected))


def count_rejected(request: FrozenRequest, text: str) -> int:
    """Return the number of records of a rejected request that the backend has not stored; 0 if that is unknown.

    Loki stores the valid log records of a request, and answers 400 because of the others. Its text arrives unchanged
    inside the answer of a Collector.

    Args:
        request: The rejected request.
        text: The complete message of the backend.
    """
    if request.signal != "logs":
        return 0
    ignored = [(int(count), int(total)) for count, total in _IGNORED.findall(text)]
    entries, groups = len(_ENTRY_ERROR.findall(text)), _GROUP.findall(text)
    if not (ignored or 0 < entries == (len(groups) or 1)):
        return 0
    records = count_records(request.message(), LEVELS["logs"])
    if ignored:  # the records that are not in the totals were rejected before they came to the ingester
        stored = sum(total - count for count, total in ignored)
        rejected = records - stored if all(count <= total for count, total in ignored) else 0
    else:
        rejected = sum(map(int, groups)) if groups else 1
    return rejected if 0 < rejected <= records else 0


def _from_beginning(content: bytes) -> Answer:
    """Read the number of rejected records and the beginning of the message from a truncated body."""
    rejected, message = 0, b""
    for outer, partial in fields(content):
        if outer != _PARTIAL_SUCCESS or not isinstance(partial, bytes):
            break
        for number, value in fields(partial):
            if number == _REJECTED and isinstance(value, int):
                rejected = value if fits_int64(value) else 0
            elif number == _MESSAGE and isinstance(value, bytes):
                message = value
    return Answer(Verdict.DELIVERED, message.decode(errors="replace"), rejected=rejected)

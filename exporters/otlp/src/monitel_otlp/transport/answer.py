"""The answer to an attempt: its consequence, the text of an error, and the records that a backend has rejected."""

from __future__ import annotations

import json
import math
import os
import re
import ssl
import sys
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timezone
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsPartialSuccess, ExportLogsServiceResponse

import monitel
from monitel_otlp.config.endpoint import Address, Endpoint

if TYPE_CHECKING:
    from monitel_otlp.messages.request import Request

RESPONSE_BYTES = 65_536  #: Maximum number of bytes that are read of an answer, over HTTP with its headers.
#: Product and language with their versions, as OpenTelemetry's specification asks exporters to say.
USER_AGENT = f"monitel-otlp/{monitel.__version__} Python/{'.'.join(map(str, sys.version_info[:3]))}"
AUTHORITY, CLIENT = "OTEL_EXPORTER_OTLP_CERTIFICATE", "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE"
#: What to do about a status of HTTP or a code of gRPC.
ADVICE: dict[int | str, str] = {
    401: "the endpoint requires credentials: set OTEL_EXPORTER_OTLP_HEADERS",
    403: "the credentials do not permit writing: check OTEL_EXPORTER_OTLP_HEADERS",
    407: "the proxy requires credentials: check HTTPS_PROXY, HTTP_PROXY and NO_PROXY",
}
ADVICE |= {"UNAUTHENTICATED": ADVICE[401], "PERMISSION_DENIED": ADVICE[403]}
#: A setting to change, by the text of an answer that would otherwise be about the items, or about the address.
_SETTINGS = {
    "^'Client sent an HTTP request to an HTTPS|HTTP request was sent to HTTPS port|to an SSL-enabled server": (
        "this port expects TLS: begin the endpoint with https://"
    ),
    "(?i)^'?unsupported compression|decompressor is not installed": (
        "the backend does not support this compression: check OTEL_EXPORTER_OTLP_COMPRESSION"
    ),
    "native histograms are disabled": (
        "start Prometheus with --enable-feature=native-histograms, or set MONITEL_DISTRIBUTIONS=percentiles"
    ),
}
_REASON_LENGTH = 500
_SEARCHED_LENGTH = 8_192  # characters of a reason in which secrets are masked; the rest is cut off


class Consequence(Enum):
    """The consequence of an attempt for its request, as in docs/reference/failure-modes.md."""

    DELIVERED = "delivered"
    RETRY = "retry"  #: The backend is unreachable or busy: keep the request and retry soon.
    REFUSED = "refused"  #: The reason is not in the items, such as credentials: keep the request, retry in minutes.
    FAILED = "failed"  #: The backend failed with the request: try three times, then treat it as REJECTED.
    REJECTED = "rejected"  #: The backend will never accept a part of the request.
    TOO_LARGE = "too_large"  #: Split the request.


@dataclass(frozen=True, slots=True)
class Answer:
    consequence: Consequence
    reason: str = ""  #: In one line, for a log message: at most 500 characters, escaped, without secrets.
    retry_after: float | None = None  #: The pause that the backend has requested, seconds.
    #: Number of records that the backend has rejected while it has stored the others: of an accepted request (partial
    #: success), or of a rejected one if its text reports the number.
    rejected: int = 0
    answered: bool = True  #: False if no answer arrived, so that the backend may have accepted the request.
    closed: bool = False  #: The backend has closed a connection that was idle, perhaps just then: try again at once.


class FailedError(Exception):
    def __init__(self, reason: str, consequence: Consequence = Consequence.REFUSED) -> None:
        super().__init__(reason)
        self.answer = Answer(consequence, reason)


class Transport(ABC):
    """Makes attempts for one signal, one at a time."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.url = endpoint.address.public  # for log messages
        self.host = endpoint.address.netloc
        self.proxy: Address | None = None  # over HTTP
        self._endpoint = endpoint

    def send(self, request: Request, timeout: float | None = None) -> Answer:
        """Make one attempt within ``timeout`` seconds and the configured limit. Never raises an ``Exception``."""
        limit = self._endpoint.timeout
        try:
            answer = self._attempt(request, limit if timeout is None else max(0.0, min(timeout, limit)))
        except FailedError as error:
            answer = error.answer
        except Exception as error:
            answer = Answer(Consequence.RETRY, describe(error), answered=False)
        return replace(answer, reason=one_line(self._endpoint.mask(answer.reason[:_SEARCHED_LENGTH])))

    @abstractmethod
    def _attempt(self, request: Request, timeout: float) -> Answer:
        """Make one attempt. An exception other than FailedError: the backend may have accepted the request."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection; no attempt may follow. Idempotent."""


def one_line(text: str) -> str:
    """Return text for a log message: unprintable characters are escaped, and long text is truncated."""
    shown = "".join(each if each.isprintable() else repr(each)[1:-1] for each in text[: _REASON_LENGTH + 1])
    return shown if len(shown) <= _REASON_LENGTH else f"{shown[: _REASON_LENGTH - 3]}..."


def setting_to_change(text: str) -> str | None:
    """Return the advice for an answer that is about a setting, by its text."""
    return next((advice for pattern, advice in _SETTINGS.items() if re.search(pattern, text)), None)


def tls_failed(cause: str, variable: str) -> Answer:
    """Return the answer to a failed handshake. Advise to check ``variable``, unless the port does not speak TLS."""
    advice = "begin the endpoint with http://" if "WRONG_VERSION_NUMBER" in cause else f"check {variable}"
    return Answer(Consequence.REFUSED, f"TLS failed, {advice}: {cause}")


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
    try:
        seconds = float(value or "nan")
    except ValueError:
        try:
            moment = parsedate_to_datetime(value or "")
            seconds = moment.replace(tzinfo=moment.tzinfo or timezone.utc).timestamp() - time.time()
        except Exception:  # malformed dates raise ValueError, TypeError, OverflowError or IndexError
            return None
    return None if math.isnan(seconds) else max(0.0, seconds)


_BEGINS = {b"\x08", b"\x12"}  # tags of code and message of a google.rpc.Status: no text begins with them


def error_text(body: bytes) -> str:
    """Return the message of a ``google.rpc.Status`` in protobuf or JSON, or another text in quotation marks."""
    with suppress(ValueError, KeyError, TypeError, RecursionError, DecodeError):
        if body[:1] == b"{" and isinstance(message := json.loads(body)["message"], str):
            return message
        if body[:1] in _BEGINS:
            status = ExportLogsPartialSuccess.FromString(body)  # its fields have the numbers of those of a Status
            return status.error_message or f"status code {status.rejected_log_records}, without a message"
    return repr(body.decode(errors="replace"))


# Texts of Loki: the entries of a stream that its ingester has ignored, groups of equal errors of its distributor, and
# the errors of the distributor that concern one entry each. A single error is not in a group.
_IGNORED = re.compile(r"total ignored: (\d{1,9}) out of (\d{1,9}) for stream")
_GROUP = re.compile(r"(\d{1,9}) errors like: ")
_ENTRY_ERROR = re.compile(
    r"has timestamp too (?:old|new)|max entry size \S+ bytes exceeded"
    r"|has structured metadata too large|has too many structured metadata labels"
)


def delivered(content: bytes) -> Answer:
    """Return the answer to a request that was accepted, completely or in part. A body that is not OTLP is ignored."""
    try:
        partial = ExportLogsServiceResponse.FromString(content).partial_success  # numbered equally for all signals
    except DecodeError:
        is_page = b"<html" in content[:1000].lower()
        return Answer(Consequence.DELIVERED, "a page of HTML: check the endpoint, and proxies" if is_page else "")
    return Answer(Consequence.DELIVERED, partial.error_message, rejected=max(0, partial.rejected_log_records))


def count_rejected(request: Request, text: str) -> int:
    """Return the number of records of a rejected request that the backend has not stored; 0 if that is unknown.

    Loki stores the valid log records of a request, and answers 400 because of the others.
    """
    if request.signal != "logs":
        return 0
    ignored = [(int(count), int(total)) for count, total in _IGNORED.findall(text)]
    entries, groups = len(_ENTRY_ERROR.findall(text)), _GROUP.findall(text)
    if not (ignored or 0 < entries == (len(groups) or 1)):
        return 0
    records = request.records
    if ignored:  # the records that are not in the totals were rejected before they came to the ingester
        stored = sum(total - count for count, total in ignored)
        rejected = records - stored if all(count <= total for count, total in ignored) else 0
    else:
        rejected = sum(map(int, groups)) if groups else 1
    return rejected if 0 < rejected <= records else 0

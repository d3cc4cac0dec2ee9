"""One attempt to deliver one request over HTTP, and what an answer means."""

from __future__ import annotations

import gzip
import re
import ssl
import time
import zlib
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import TYPE_CHECKING, Protocol

import requests
from google.protobuf.message import DecodeError
from requests.adapters import HTTPAdapter

from monitel_otlp.request import RESPONSES

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitel_otlp.sdk.encoder import Route
    from monitel_otlp.request import FrozenRequest


class Verdict(Enum):
    """What to do with a request after an attempt."""

    DELIVERED = "delivered"
    RETRY = "retry"  #: the backend is away or busy: keep it, try again soon
    REFUSED = "refused"  #: somebody has to mend address or credentials: keep it, try again each minute
    FAILED = "failed"  #: the backend broke on it: try three times, then as REJECTED
    REJECTED = "rejected"  #: something in this request will never be taken
    TOO_LARGE = "too_large"  #: take it apart


@dataclass(frozen=True, slots=True)
class Answer:
    """How an attempt ended.

    Attributes:
        verdict: What to do with the request.
        reason: Why, in words for a log line; it never holds a header.
        retry_after: Seconds that the backend asked to wait, None when it did not say.
        rejected: Items that the backend left out of a request it took (partial success).
        answered: False when the backend may have taken the request without our hearing of it.
    """

    verdict: Verdict
    reason: str = ""
    retry_after: float | None = None
    rejected: int = 0
    answered: bool = True


class Sender(Protocol):
    """Makes attempts for one signal, one at a time."""

    @property
    def url(self) -> str:
        """Where to, for log lines."""

    def send(self, request: FrozenRequest, timeout: float | None = None) -> Answer:
        """Make one attempt, in ``timeout`` seconds at most, or the configured ones where these are fewer."""

    def close(self) -> None:
        """Close the connection."""


_COMPRESS: dict[str, Callable[[bytes], bytes]] = {"none": bytes, "gzip": gzip.compress, "deflate": zlib.compress}
_CLIENT = "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE"
_OF_CLIENT = re.compile("PEM lib|alert.*(certificate|unknown ca)")  # OpenSSL's words: our file, and the other side's no
_RETRY = {408, 429, 502, 503, 504}
_REFUSED = {
    401: "the endpoint wants credentials: set OTEL_EXPORTER_OTLP_HEADERS",
    403: "the credentials are not allowed to write: check OTEL_EXPORTER_OTLP_HEADERS",
    404: "there is no OTLP receiver at this path: the endpoint is a base URL, /v1/... is appended",
}
#: What backends say of data that is older than they take (Prometheus says some of it with 500): it only gets older.
TOO_OLD = re.compile("out[ -]of[ -](order|bounds)|too[ -]old", re.IGNORECASE)
_REJECTED_FIELD = {"metrics": "rejected_data_points", "logs": "rejected_log_records", "traces": "rejected_spans"}


class HttpSender:
    """Sends over HTTP what the official exporter prepared, on a connection that is kept open."""

    def __init__(self, route: Route, compression: str = "none") -> None:
        self._route = route
        self._compression = compression
        self._connection = HTTPAdapter(max_retries=0)

    @property
    def url(self) -> str:
        """Where to."""
        return self._route.url

    def send(self, request: FrozenRequest, timeout: float | None = None) -> Answer:
        """Make one attempt."""
        prepared = self._route.prepared.copy()
        body = _COMPRESS[self._compression](request.body)
        prepared.body = body
        prepared.headers["Content-Length"] = str(len(body))
        if body is not request.body:
            prepared.headers["Content-Encoding"] = self._compression
        options = dict(self._route.options)
        if timeout is not None:
            options["timeout"] = min(timeout, options["timeout"] or timeout)
        try:
            with self._connection.send(prepared, **options) as response:
                return _answer(request.signal, response)
        except requests.exceptions.SSLError as error:
            return _tls_failed(_innermost(error))
        except requests.exceptions.ConnectTimeout:
            return Answer(Verdict.RETRY, "no connection in time")
        except requests.exceptions.RequestException as error:
            cause = _innermost(error)
            answered = "NewConnectionError" in type(cause).__name__ or isinstance(cause, ConnectionRefusedError)
            return Answer(Verdict.RETRY, f"{type(error).__name__}: {cause}", answered=answered)
        except OSError as error:  # requests looks for the files by itself
            return Answer(Verdict.REFUSED, f"check OTEL_EXPORTER_OTLP_CERTIFICATE, {_CLIENT} and _CLIENT_KEY: {error}")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def partial_success(signal: str, content: bytes) -> Answer:
    """The answer to a request that was taken, perhaps not all of it."""
    try:
        partial = RESPONSES[signal].FromString(content).partial_success
    except DecodeError:  # a proxy's page instead of an OTLP answer: the status counts
        return Answer(Verdict.DELIVERED)
    return Answer(Verdict.DELIVERED, partial.error_message, rejected=max(0, getattr(partial, _REJECTED_FIELD[signal])))


def _tls_failed(cause: BaseException) -> Answer:
    if isinstance(cause, ssl.SSLEOFError):  # a backend that goes away; some do so where they miss a certificate
        return Answer(Verdict.RETRY, f"TLS connection closed ({cause}); if this stays, check {_CLIENT}", answered=False)
    variable = _CLIENT if _OF_CLIENT.search(str(cause)) else "OTEL_EXPORTER_OTLP_CERTIFICATE"
    return Answer(Verdict.REFUSED, f"TLS failed, check {variable}: {cause}")


def _answer(signal: str, response: requests.Response) -> Answer:
    status = response.status_code
    reason = f"HTTP {status}"
    if 200 <= status < 300:  # noqa: PLR2004  the success class
        return partial_success(signal, response.content)
    if status in _RETRY:
        return Answer(Verdict.RETRY, reason, _retry_after(response.headers.get("Retry-After")))
    if 300 <= status < 400:  # noqa: PLR2004  the redirection class
        location = response.headers.get("Location")
        return Answer(Verdict.REFUSED, f"{reason}: redirected to {location!r}, set that endpoint")
    if status in _REFUSED:
        return Answer(Verdict.REFUSED, f"{reason}: {_REFUSED[status]}")
    reason = f"{reason}: {response.text[:200]!r}"
    if status == requests.codes.request_entity_too_large:
        return Answer(Verdict.TOO_LARGE, reason)
    failed = status >= 500 and not TOO_OLD.search(reason)  # noqa: PLR2004  the server's fault
    return Answer(Verdict.FAILED if failed else Verdict.REJECTED, reason)


def _retry_after(value: str | None) -> float | None:
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError):
        return None


def _innermost(error: BaseException) -> BaseException:
    """What requests and urllib3 have wrapped: the line that tells a user something."""
    wrapped = getattr(error, "reason", None) or next(iter(error.args), None)
    return _innermost(wrapped) if isinstance(wrapped, BaseException) else error

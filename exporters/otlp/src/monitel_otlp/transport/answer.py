"""The answer to an attempt, and the contract of a transport."""

from __future__ import annotations

import math
import os
import ssl
import time
from dataclasses import dataclass, replace
from datetime import timezone
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from monitel_otlp.request import FrozenRequest

RESPONSE_BYTES = 65_536  #: Bytes of an answer's body that are read, or that a gRPC answer may have.
_REASON_LENGTH = 500
_FOREIGN_LENGTH = 8_192  # characters that are looked at for a reason


class Verdict(Enum):
    """What to do with a request after an attempt."""

    DELIVERED = "delivered"
    RETRY = "retry"  #: The backend is away or busy: keep the request and try again soon.
    REFUSED = "refused"  #: Address or credentials are wrong: keep the request and try again each minute.
    FAILED = "failed"  #: The backend broke on the request: try three times, then treat it as REJECTED.
    REJECTED = "rejected"  #: Something in the request is never accepted.
    TOO_LARGE = "too_large"  #: Split the request.


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of an attempt.

    Attributes:
        verdict: What to do with the request.
        reason: The cause in one line for a log: at most 500 characters, escaped, and free of secrets.
        retry_after: Seconds that the backend asked to wait; None if it did not.
        rejected: Points, log records or spans that the backend left out of a request it accepted (partial success).
        answered: False if the backend may have accepted the request although no answer arrived.
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
        """The address for log lines, without secrets."""

    def send(self, request: FrozenRequest, timeout: float | None = None) -> Answer:
        """Make one attempt. It ends in time, and never raises an ``Exception``.

        Args:
            request: What to send.
            timeout: Seconds for the whole attempt, if fewer than those that are configured.
        """

    def close(self) -> None:
        """Close the connection. Idempotent."""


def guarded(attempt: Callable[[], Answer], mask: Callable[[str], str]) -> Answer:
    """Make an attempt such that it does not raise, and its reason is safe to log.

    Args:
        attempt: Makes the attempt. An exception is a failed attempt: the backend may have accepted the request.
        mask: Replaces secrets in a text.
    """
    try:
        answer = attempt()
    except Exception as error:
        answer = Answer(Verdict.RETRY, describe(error), answered=False)
    return replace(answer, reason=one_line(mask(answer.reason[:_FOREIGN_LENGTH])))


def one_line(text: str) -> str:
    """Return text for a log line: what cannot be printed is escaped, and what is too long is cut off."""
    shown = "".join(each if each.isprintable() else repr(each)[1:-1] for each in text[: _REASON_LENGTH + 1])
    return shown if len(shown) <= _REASON_LENGTH else f"{shown[: _REASON_LENGTH - 3]}..."


def describe(error: BaseException) -> str:
    """Describe an exception by its type and error number: its message may hold an address, or anything else."""
    name = type(error).__name__
    if isinstance(error, ssl.SSLError):
        return f"{name}: {error.reason or 'TLS failed'}"
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, OSError) and error.errno:
        return f"{name}: {os.strerror(error.errno)}"
    return name


def parse_retry_after(value: str | None) -> float | None:
    """Parse a Retry-After header, seconds or a date; None if there is none, or it cannot be read."""
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
    except Exception:  # dates of strangers raise ValueError, TypeError, OverflowError, IndexError
        return math.nan

"""Partial success: the number of records that a backend has rejected while it has stored the others of a request."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from monitel.attributes import fits_int64
from monitel_otlp.messages.request import LEVELS, RESPONSES, count_records
from monitel_otlp.transport.answer import Answer, Verdict, fields

if TYPE_CHECKING:
    from monitel_otlp.messages.request import FrozenRequest

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

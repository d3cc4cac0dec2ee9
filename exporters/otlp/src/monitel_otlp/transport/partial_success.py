"""Partial success: the records of an accepted request that a backend has rejected."""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from monitel.attributes import fits_int64
from monitel_otlp.messages.request import RESPONSES
from monitel_otlp.transport.answer import Answer, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator

_REJECTED_FIELD = {"metrics": "rejected_data_points", "logs": "rejected_log_records", "traces": "rejected_spans"}
_VARINT, _TEXT = 0, 2  # wire types of protobuf
_VARINT_BYTES = 10
_PARTIAL_SUCCESS, _REJECTED, _MESSAGE = 1, 1, 2  # field numbers, the same for all signals


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


def _from_beginning(content: bytes) -> Answer:
    """Read the number of rejected records and the beginning of the message from a truncated body."""
    rejected, message = 0, b""
    for outer, partial in _fields(content):
        if outer != _PARTIAL_SUCCESS or not isinstance(partial, bytes):
            break
        for number, value in _fields(partial):
            if number == _REJECTED and isinstance(value, int):
                rejected = value if fits_int64(value) else 0
            elif number == _MESSAGE and isinstance(value, bytes):
                message = value
    return Answer(Verdict.DELIVERED, message.decode(errors="replace"), rejected=rejected)


def _fields(content: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a protobuf message, up to its end or to the first field that is neither varint nor text."""
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

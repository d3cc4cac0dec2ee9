"""Fields of a protobuf message that may be truncated or damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

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

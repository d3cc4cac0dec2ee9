"""The form of open windows in a black box: windows as bytes.

It is a sequence of windows, each of them in the byte order of the machine: nine integers and five floats of 64 bits
(see ``_FIELDS``), and for a histogram three integers, three floats, and for each side of zero the index of the first
bucket, the number of buckets and their counts. ``_window_c.c`` writes the same.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from monitel.histogram import Histogram
from monitel.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

__all__ = ["OpenWindow", "decode", "encode"]

# Serial number, flags, end of the previous window, start, end, count, discarded, first step, last step; sum, min, max,
# last, standard deviation.
_FIELDS = struct.Struct("=9q5d")
_HEAD = struct.Struct("=2q")
_HISTOGRAM = struct.Struct("=3q3d")
_SIDE = struct.Struct("=2q")
_CLOSED, _STDDEV, _HAS_HISTOGRAM = 1, 2, 4
_MAX_BUCKETS = 160


class OpenWindow(NamedTuple):
    """A window that was open, or closed and not passed to the handlers yet, at the moment of the reading.

    Attributes:
        serial: Number of the Stat in its process.
        closed: The window is closed, and is being passed to the handlers.
        previous_end_ns: End of the Stat's previous window, or its creation, Unix ns; 0 for a closed window.
        snapshot: The numbers as if the window had been closed at that moment.
    """

    serial: int
    closed: bool
    previous_end_ns: int
    snapshot: Snapshot


def decode(content: bytes, serials: Container[int] | None = None) -> Iterator[OpenWindow]:
    """Yield the windows in a result of :func:`monitel.open_windows.open_windows`.

    Args:
        content: The bytes.
        serials: The serial numbers of the Stats whose windows are decoded; None for all. The others are skipped, which
            takes a fifth of the time.

    Raises:
        ValueError: The bytes are not such a result.

    Example:
        >>> import monitel
        >>> from monitel.open_windows import decode, open_windows
        >>> loss = monitel.Stat("loss", [monitel.MEAN], 60.0)
        >>> loss.add(0.5)
        >>> windows, serials = open_windows()
        >>> [window.snapshot.sum for window in decode(windows) if window.serial == serials[-1]]
        [0.5]
    """
    offset = 0
    while offset < len(content):
        try:
            if serials is not None:
                serial, flags = _HEAD.unpack_from(content, offset)
                end = offset + _FIELDS.size
                if serial not in serials and not flags & _HAS_HISTOGRAM and end <= len(content):
                    offset = end
                    continue
            found, offset = _window(content, offset)
        except struct.error as error:
            raise ValueError(f"open windows end in the middle: {error}") from None
        if serials is None or found.serial in serials:
            yield found


def encode(window: OpenWindow) -> bytes:
    """Return the form of one window. The C code writes the same bytes."""
    serial, closed, previous_end_ns, snapshot = window
    flags = _CLOSED * closed | _STDDEV * (snapshot.stddev is not None)
    flags |= _HAS_HISTOGRAM * (snapshot.histogram is not None)
    found = _FIELDS.pack(
        serial,
        flags,
        previous_end_ns,
        snapshot.start_ns,
        snapshot.end_ns,
        snapshot.count,
        snapshot.discarded,
        -1 if snapshot.first_step is None else snapshot.first_step,
        -1 if snapshot.last_step is None else snapshot.last_step,
        snapshot.sum,
        snapshot.min,
        snapshot.max,
        snapshot.last,
        snapshot.stddev or 0.0,
    )
    histogram = snapshot.histogram
    if histogram is None:
        return found
    numbers = _HISTOGRAM.pack(
        histogram.scale, histogram.zero_count, histogram.nonfinite, histogram.sum, histogram.min, histogram.max
    )
    sides = [
        _SIDE.pack(offset, len(counts)) + struct.pack(f"={len(counts)}Q", *counts)
        for offset, counts in (
            (histogram.positive_offset, histogram.positive),
            (histogram.negative_offset, histogram.negative),
        )
    ]
    return b"".join((found, numbers, *sides))


def _window(content: bytes, offset: int) -> tuple[OpenWindow, int]:
    fields = _FIELDS.unpack_from(content, offset)
    serial, flags, previous_end, start, end, count, discarded, first_step, last_step, *values = fields
    total, smallest, largest, last, stddev = values
    offset += _FIELDS.size
    histogram = None
    if flags & _HAS_HISTOGRAM:
        scale, zeros, nonfinite, finite_sum, low, high = _HISTOGRAM.unpack_from(content, offset)
        positive_offset, positive, offset = _side(content, offset + _HISTOGRAM.size)
        negative_offset, negative, offset = _side(content, offset)
        histogram = Histogram(
            scale,
            zeros,
            positive_offset,
            positive,
            negative_offset,
            negative,
            finite_sum,
            low,
            high,
            nonfinite,
        )
    snapshot = Snapshot(
        start,
        end,
        count,
        total,
        smallest,
        largest,
        last,
        discarded,
        None if first_step < 0 else first_step,
        None if last_step < 0 else last_step,
        stddev if flags & _STDDEV else None,
        histogram,
    )
    return OpenWindow(serial, bool(flags & _CLOSED), previous_end, snapshot), offset


def _side(content: bytes, offset: int) -> tuple[int, tuple[int, ...], int]:
    first, number = _SIDE.unpack_from(content, offset)
    if not 0 <= number <= _MAX_BUCKETS:
        raise ValueError(f"expected at most {_MAX_BUCKETS} buckets, got {number}")
    counts = struct.unpack_from(f"={number}Q", content, offset + _SIDE.size)
    return first, counts, offset + _SIDE.size + 8 * number

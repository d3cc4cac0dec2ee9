"""Windows as bytes: the only form in which the collecting code passes them on, open and closed ones.

It is a sequence of windows, each of them in the byte order of the machine: numbers of 64 bits (see ``_FIELDS``), and
for a histogram three integers, three floats, and for each side of zero the index of the first bucket, the number of
buckets and their counts. ``_window_c.c`` writes the same.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from monitel.stats.histogram import Histogram

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["OpenWindow", "Snapshot", "decode", "encode", "key", "numbers", "split"]

# Serial number of the Stat, number of the window, flags, end of the previous window; then the fields of Snapshot in its
# order, without the histogram. A step that was not set is -1.
_FIELDS = struct.Struct("=7q4d3qd")
_KEY = struct.Struct("=2q")
_HISTOGRAM = struct.Struct("=3q3d")
_SIDE = struct.Struct("=2q")
_CLOSED, _STDDEV, _HAS_HISTOGRAM = 1, 2, 4
_MAX_BUCKETS = 160


class Snapshot(NamedTuple):
    """The samples with known values: the fields of :class:`monitel.Window` after its definition, in the same order.

    ``count`` is 0 in a window of pending samples only; ``min`` and ``max`` are infinite then.
    """

    start_ns: int
    end_ns: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody needs
    sum: float
    min: float
    max: float
    last: float
    discarded: int
    first_step: int | None
    last_step: int | None
    stddev: float | None
    histogram: Histogram | None


class OpenWindow(NamedTuple):
    """A window that was open, or closed and not forgotten yet, at the moment of the reading.

    Attributes:
        serial: Number of the Stat in its process.
        number: Number of the window, from 1 on; with the serial number the key of the window in its process.
        closed: The window is closed.
        previous_end_ns: End of the Stat's previous window, or its creation, Unix ns; 0 if values of the window came
            after its end.
        snapshot: The numbers as if the window had been closed at that moment.
    """

    serial: int
    number: int
    closed: bool
    previous_end_ns: int
    snapshot: Snapshot


def decode(content: bytes) -> Iterator[OpenWindow]:
    """Yield the windows in a result of :func:`monitel.stats.window_sinks.open_windows`.

    Raises:
        ValueError: The bytes are not such a result.

    Example:
        >>> import monitel
        >>> from monitel.stats.window_bytes import decode
        >>> from monitel.stats.window_sinks import open_windows
        >>> loss = monitel.Stat("loss", [monitel.MEAN], 60.0)
        >>> loss.add(0.5)
        >>> windows, serials = open_windows()
        >>> [window.snapshot.sum for window in decode(windows) if window.serial == serials[-1]]
        [0.5]
    """
    for found, values, _, _ in _windows(content):
        yield OpenWindow(*found, Snapshot(*values))


def split(content: bytes) -> Iterator[tuple[tuple[int, int], bytes]]:
    """Yield the key and the bytes of each window.

    Raises:
        ValueError: As :func:`decode`.
    """
    for found, _, begin, end in _windows(content):
        yield found[:2], content[begin:end]


def key(content: bytes) -> tuple[int, int]:
    """Return the key of the first window: the serial number of its Stat, and its number."""
    return _KEY.unpack_from(content)


def numbers(content: bytes) -> list[Any]:
    """Return the fields of the first window's :class:`Snapshot`, in less time."""
    return _unpack(content, 0)[1]


def encode(window: OpenWindow) -> bytes:
    """Return the form of one window. The C code writes the same bytes."""
    serial, number, closed, previous_end_ns, snapshot = window
    *known, first_step, last_step, stddev, histogram = snapshot
    flags = _CLOSED * closed | _STDDEV * (stddev is not None) | _HAS_HISTOGRAM * (histogram is not None)
    steps = (-1 if step is None else step for step in (first_step, last_step))
    found = _FIELDS.pack(serial, number, flags, previous_end_ns, *known, *steps, stddev or 0.0)
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


def _windows(content: bytes) -> Iterator[tuple[tuple[int, int, bool, int], list[Any], int, int]]:
    """Yield the first fields of each window, those of its snapshot, and where it begins and ends."""
    end = 0
    while (begin := end) < len(content):
        try:
            found, values, end = _unpack(content, begin)
        except struct.error as error:
            raise ValueError(f"windows end in the middle: {error}") from None
        yield found, values, begin, end


def _unpack(content: bytes, offset: int) -> tuple[tuple[int, int, bool, int], list[Any], int]:
    serial, number, flags, previous_end, *values = _FIELDS.unpack_from(content, offset)
    offset += _FIELDS.size
    if values[8] < 0:
        values[8] = None
    if values[9] < 0:
        values[9] = None
    if not flags & _STDDEV:
        values[10] = None
    histogram = None
    if flags & _HAS_HISTOGRAM:
        scale, zeros, nonfinite, total, low, high = _HISTOGRAM.unpack_from(content, offset)
        positive, offset = _side(content, offset + _HISTOGRAM.size)
        negative, offset = _side(content, offset)
        histogram = Histogram(scale, zeros, *positive, *negative, total, low, high, nonfinite)
    values.append(histogram)
    return (serial, number, bool(flags & _CLOSED), previous_end), values, offset


def _side(content: bytes, offset: int) -> tuple[tuple[int, tuple[int, ...]], int]:
    first, number = _SIDE.unpack_from(content, offset)
    if not 0 <= number <= _MAX_BUCKETS:
        raise ValueError(f"expected at most {_MAX_BUCKETS} buckets, got {number}")
    counts = struct.unpack_from(f"={number}Q", content, offset + _SIDE.size)
    return (first, counts), offset + _SIDE.size + 8 * number

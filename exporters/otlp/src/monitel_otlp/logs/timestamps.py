"""Fast conversion of datetimes to Unix nanoseconds, with a cached UTC offset."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone

from monitel_otel.records import timestamp_ns

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_LOCAL_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  subtracted from naive datetimes
_MICROSECOND = timedelta(microseconds=1)
_BLOCK = timedelta(minutes=15)
_LATEST_NS = 2**64 - 1  # the field of the protocol is unsigned, 64 bits


class Timestamps:
    """Converts datetimes to Unix ns, like :func:`monitel_otel.records.timestamp_ns` but ten times as fast.

    Naive datetimes are local time. Their offset from UTC is cached for a quarter of an hour if the offset is the same
    at both ends and for both values of ``fold``; otherwise the clocks change in between. :func:`time.tzset` invalidates
    the cache.
    """

    def __init__(self) -> None:
        nothing = datetime.min  # noqa: DTZ901  an empty block
        self._block: tuple[datetime, datetime, int, object] = nothing, nothing, 0, None

    def ns(self, timestamp: datetime) -> int:
        """Return nanoseconds since the Unix epoch, limited to the range of the protocol."""
        try:
            if timestamp.tzinfo is not None:
                elapsed_ns = (timestamp - _EPOCH) // _MICROSECOND * 1000
            else:
                begin, end, offset_ns, zone = self._block
                if zone is not time.tzname or not begin <= timestamp < end:  # tzset() makes a new tuple
                    return self._uncached(timestamp)
                elapsed_ns = (timestamp - _LOCAL_EPOCH) // _MICROSECOND * 1000 - offset_ns
        except (TypeError, OverflowError, ValueError):  # a zone without an offset is local time
            return timestamp_ns(timestamp)
        if elapsed_ns < 0:
            return 0
        return elapsed_ns if elapsed_ns <= _LATEST_NS else _LATEST_NS

    def _uncached(self, timestamp: datetime) -> int:
        zone = time.tzname
        begin = timestamp.replace(minute=timestamp.minute // 15 * 15, second=0, microsecond=0, fold=0)
        offsets = {_offset_ns(each.replace(fold=fold)) for each in (begin, begin + _BLOCK) for fold in (0, 1)}
        if len(offsets) == 1:
            self._block = begin, begin + _BLOCK, offsets.pop(), zone
        return timestamp_ns(timestamp)


def _offset_ns(timestamp: datetime) -> int:
    utc = timestamp.astimezone(timezone.utc).replace(tzinfo=None)
    return (timestamp - utc) // _MICROSECOND * 1000

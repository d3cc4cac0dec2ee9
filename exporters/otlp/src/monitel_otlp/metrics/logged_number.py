"""A logged number in the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from monitel.os_threads import RLock
    from monitel_otlp.metrics.series import Series

_MILLISECOND_NS = 1_000_000


class LoggedNumber:
    """A number of ``monitel.log()`` in the queue. Later values of the same millisecond replace its value.

    Args:
        series: The series of the number.
        value: The number.
        time_ns: Time of the call, Unix ns.
        lock: Held while the value is replaced or taken.
    """

    __slots__ = ("_lock", "_taken", "_value", "series", "time_ns")

    def __init__(self, series: Series, value: Any, time_ns: int, lock: RLock) -> None:
        self.series = series
        self.time_ns = time_ns
        self._value = value
        self._lock = lock
        self._taken = False

    @property
    def value(self) -> Any:
        """The value so far."""
        return self._value

    def replace(self, value: Any, time_ns: int) -> bool:
        """Replace the value by one of the next millisecond, and return True, unless the value is taken already.

        The time stays, so that queued numbers of a series are at least a millisecond apart. Hold the lock.
        """
        if self._taken or not 0 <= time_ns - self.time_ns < _MILLISECOND_NS:
            return False
        self._value = value
        return True

    def take(self) -> Any:
        """Return the value, which is final from now on."""
        with self._lock:
            self._taken = True
        return self._value

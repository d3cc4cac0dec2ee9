"""Tools for tests of code that uses monitel: a manual clock, and captured events."""

from __future__ import annotations

from array import array
from contextlib import contextmanager
from typing import TYPE_CHECKING

from monitel import clock
from monitel.handlers import register_event_handler

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monitel.event import Event

__all__ = ["ManualClock", "capture_events"]


class ManualClock:
    """A clock that moves only by :meth:`advance`; inside ``with``, monitel uses it.

    Stats keep the clock they were created with, so create them inside ``with``. The monotonic clock starts at 0, where
    a window of any size begins.

    Args:
        epoch_ns: Unix time in nanoseconds to start at; by default 2026-01-01T00:00:00Z.

    Example:
        >>> from datetime import timedelta
        >>> import monitel
        >>> with monitel.testing.ManualClock() as clock:
        ...     loss = monitel.Stat("loss", [monitel.COUNT], timedelta(seconds=60))
        ...     loss.add(0.5)
        ...     clock.advance(60)
        ...     monitel.close_expired_windows()
        1
    """

    def __init__(self, epoch_ns: int = 1_767_225_600_000_000_000) -> None:
        self._readings = memoryview(array("q", (0, epoch_ns)))  # monotonic and Unix time; Stats read this memory
        self._previous: list[ManualClock | None] = []

    def monotonic_ns(self) -> int:
        """Return nanoseconds since the clock was created."""
        return self._readings[0]

    def time_ns(self) -> int:
        """Return nanoseconds since the Unix epoch."""
        return self._readings[1]

    def advance(self, seconds: float) -> None:
        """Advance both the monotonic and the wall clock by ``seconds``."""
        if seconds < 0:
            raise ValueError(f"a monotonic clock never goes back: advance() takes seconds >= 0, got {seconds}")
        passed_ns = round(seconds * 1e9)
        self._readings[:] = array("q", [each + passed_ns for each in self._readings])  # at once: threads read both

    def set_wall_clock(self, seconds: float) -> None:
        """Adjust the wall clock by ``seconds``, forwards or (negative) back, as NTP or an operator does."""
        self._readings[1] += round(seconds * 1e9)

    def __enter__(self) -> ManualClock:  # noqa: PYI034  typing.Self is 3.11's
        self._previous.append(clock.inject(self))
        return self

    def __exit__(self, *_exception: object) -> None:
        clock.inject(self._previous.pop())


@contextmanager
def capture_events() -> Iterator[list[Event]]:
    """Collect the events that are logged inside ``with``, including Stat events.

    Example:
        >>> import monitel
        >>> with monitel.testing.capture_events() as events:
        ...     monitel.emit("epoch", epoch=3)
        >>> events[0].data
        {'epoch': 3}
    """
    events: list[Event] = []
    with register_event_handler(events.append):
        yield events

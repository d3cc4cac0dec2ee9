"""Counters and wait counters as exporters read them: without a lock, and apart from sources that may hang."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monitel import clock, wait_counter
from monitel.counter import first_of_names

if TYPE_CHECKING:
    from collections.abc import Iterator, KeysView

__all__ = [
    "began_ns",
    "counter_names",
    "monotonic_ns",
    "own_waits",
    "source_waits",
    "wait_keys",
    "waits_in_flight",
]


def counter_names() -> KeysView[str]:
    """Return the names of all counters, the oldest one first, as a view that includes later ones.

    Example:
        >>> import monitel
        >>> from monitel.readings import counter_names
        >>> samples = monitel.counter("example.names")
        >>> "example.names" in counter_names()
        True
    """
    return first_of_names().keys()


def wait_keys() -> KeysView[str]:
    """Return the keys of the wait counters that this process counts itself, as :func:`counter_names` does."""
    return wait_counter._waits.keys()


def own_waits() -> Iterator[tuple[str, wait_counter.WaitReading]]:
    """Yield key and totals of each wait counter that this process counts itself, without those of sources.

    Takes no lock, so that a thread that hangs stops nothing. A wait that ends at the same time may be in ``count`` of
    one reading and in ``total`` of the next one.

    Example:
        >>> import monitel
        >>> from monitel.readings import own_waits
        >>> with monitel.WaitCounter("example.wait").guard():
        ...     pass
        >>> dict(own_waits())["example.wait"].count
        1
    """
    for waits in list(wait_counter._waits.values()):
        yield waits.key, waits.reading()


def source_waits() -> dict[str, wait_counter.WaitReading]:
    """Return the totals of every key of a source, such as torch's. Calls the sources, which may hang."""
    return wait_counter._from_sources()


def waits_in_flight() -> list[tuple[str, int, int]]:
    """Return key, thread and start of each wait in progress, without those of sources. Takes no lock.

    The start is by :func:`monotonic_ns`.

    Example:
        >>> import monitel
        >>> from monitel.readings import waits_in_flight
        >>> with monitel.WaitCounter("example.wait").guard():
        ...     [key for key, _, _ in waits_in_flight()]
        ['example.wait']
    """
    return [
        (waits.key, thread, start_ns)
        for waits in list(wait_counter._waits.values())
        for thread, start_ns in waits.in_flight.copy().values()
    ]


def began_ns() -> int:
    """Return the time at which the process imported monitel, or was forked, in nanoseconds since the Unix epoch.

    The totals of a source that provides no start began at zero before this time.
    """
    return wait_counter._began_ns


def monotonic_ns() -> int:
    """Return the current time of the clock by which waits begin, which a test may have replaced, in ns.

    Example:
        >>> from monitel.readings import monotonic_ns
        >>> monotonic_ns() <= monotonic_ns()
        True
    """
    return clock.monotonic_ns()

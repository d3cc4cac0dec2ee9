"""Counters and wait counters as exporters read them: without a lock, and apart from sources that may hang."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monitel import wait_counter
from monitel.counter import _first_of_name

if TYPE_CHECKING:
    from collections.abc import Iterator, KeysView

__all__ = ["began_ns", "counter_names", "own_waits", "source_waits", "unit_of_counter", "wait_keys"]


def counter_names() -> KeysView[str]:
    """Return the names of all counters, the oldest one first, as a view that includes later ones.

    Example:
        >>> import monitel
        >>> from monitel.readings import counter_names
        >>> samples = monitel.counter("example.names")
        >>> "example.names" in counter_names()
        True
    """
    return _first_of_name.keys()


def unit_of_counter(name: str) -> str:
    """Return the unit of the counters with this name; the empty text if there is none.

    Example:
        >>> import monitel
        >>> from monitel.readings import unit_of_counter
        >>> read = monitel.counter("example.unit", unit="By")
        >>> unit_of_counter("example.unit")
        'By'
    """
    first = _first_of_name.get(name)
    return "" if first is None else first.unit


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


def began_ns() -> int:
    """Return the time at which the process imported monitel, or was forked, in nanoseconds since the Unix epoch.

    The totals of a source that provides no start began at zero before this time.
    """
    return wait_counter._began_ns

"""Counters: totals that only rise, such as the number of training samples."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from monitel import clock
from monitel.attributes import (
    INT64_MAX,
    AttributeValue,
    checked_attributes,
    checked_text,
    checked_unit,
    fits_int64,
    typed_items,
)
from monitel.process.failures import ignored, warn_once
from monitel.process.fork import Chain, chained, register_at_fork, unchained
from monitel.process.os_threads import RLock

PlainCounter = tuple[str, dict[str, AttributeValue], float]

_log = logging.getLogger("monitel")

_lock = RLock()
_all: Chain[Counter] = None  # read by a forked child, where a dict may stay locked
_counters: dict[Hashable, Counter] = {}  # by name and attributes
_first_of_name: dict[str, Counter] = {}
_read_source: Callable[[], Iterable[CounterReading]] = tuple


class CounterReading(NamedTuple):
    """The total of one counter at one moment.

    Attributes:
        counter: The counter.
        total: The sum of all amounts: an int if all amounts are ints and the sum has at most 64 bits, otherwise a
            float.
        start_ns: Time at which the total was zero, in nanoseconds since the Unix epoch.
    """

    counter: Counter
    total: float
    start_ns: int


class Counter:
    """A total that only rises; :func:`monitel.counter` returns it.

    Exporters send the total at each of their intervals, and when the process ends, so that a backend's ``rate()`` is
    the true rate over time. A counter exists until the process ends.

    Thread-safe; no amount is lost. A forked child starts at zero. The lock is held only while an amount is added.

    Attributes:
        name: The name, and that of the metric.
        unit: The UCUM unit.
        description: The counted quantity, in words.
        attributes: Attributes of each point. Read-only.
    """

    __slots__ = ("_lock", "_start_ns", "_total", "attributes", "description", "name", "unit")

    def __init__(self, name: str, unit: str, description: str, attributes: Mapping[str, AttributeValue]) -> None:
        self.name = name
        self.unit = unit
        self.description = description
        self.attributes = attributes
        self._reset()

    def _reset(self) -> None:
        self._lock = RLock()
        self._total: float = 0
        self._start_ns = clock.time_ns()

    @property
    def total(self) -> float:
        """The sum of all amounts so far; beyond 64 bits a float."""
        total = self._total
        return total if total <= INT64_MAX else min(float(total), sys.float_info.max)

    def add(self, amount: float = 1) -> None:
        """Add an amount. Never raises: what is not a number from 0 on is left out.

        It is counted in ``monitel.log.left_out``, and the first one is logged.

        Args:
            amount: An int, a float or a NumPy number. A tensor is left out, because its value may have to be waited
                for: add the size of its shape instead.

        Example:
            >>> import monitel
            >>> tokens = monitel.counter("example.tokens", unit="{token}")
            >>> tokens.add(4096)
            >>> tokens.total
            4096
        """
        if type(amount) is not int or not 0 <= amount <= INT64_MAX:
            number = _checked(amount)
            if number is None:
                leave_out("Counter.add()", self.name, amount)
                return
            amount = number
        with self._lock:
            self._total += amount  # no call in between, so no signal handler either

    def _follow(self, total: float, start_ns: int) -> CounterReading:
        """Set the total to that of a source, unless it would fall, and the time at which it was zero."""
        with self._lock:  # no call in between, so that a signal handler that reads counters waits for none
            self._start_ns = start_ns
            if total > self._total:
                self._total = total
        return CounterReading(self, total, start_ns)

    def reading(self) -> CounterReading:
        """Return the total and its start. Takes no lock, so that a signal handler may call it."""
        return CounterReading(self, self.total, self._start_ns)

    def __repr__(self) -> str:
        attributes = "".join(f" {name}={value!r}" for name, value in self.attributes.items())
        return f"<Counter {self.name!r}{attributes}: {self.total}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what makes a copy this object, and in another process the counter of this name there."""
        unit, description = self.unit or None, self.description or None
        return partial(counter, self.name, unit=unit, description=description, attributes=dict(self.attributes)), ()


def counter(
    name: str,
    *,
    unit: str | None = None,
    description: str | None = None,
    attributes: Mapping[str, AttributeValue] | None = None,
) -> Counter:
    """Return the counter with this name and these attributes; create it at the first call.

    The metric has the bare name: ``training.samples``, and ``training_samples_total`` in Prometheus. A
    :class:`monitel.Stat` is better where single samples matter, such as durations.

    Args:
        name: Name of the metric.
        unit: UCUM unit such as ``"{sample}"``, as of a :class:`monitel.Stat`. The first call with this name decides;
            None accepts its unit.
        description: The counted quantity, in words. The first call with this name decides.
        attributes: Part of the counter's identity: str, int, float or bool.

    Returns:
        The same object for the same name and attributes.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: The name is empty, or unit or description differ from those of the first call with this name.

    Example:
        >>> import monitel
        >>> samples = monitel.counter("tutorial.samples", unit="{sample}")
        >>> for batch in ([1, 2, 3], [4, 5]):
        ...     samples.add(len(batch))
        >>> samples.total
        5
    """
    global _all
    name = checked_text("counter name", name)
    if not name:
        raise ValueError("a counter's name must not be empty")
    unit = unit if unit is None else checked_unit(unit)
    description = description if description is None else checked_text("description", description)
    checked = checked_attributes(attributes)
    identity = _identity(name, checked)
    known = _counters.get(identity)
    if known is None:
        with _lock:
            if (first := _first_of_name.get(name)) is not None:
                _compare(first, unit, description)
                unit, description = first.unit, first.description
            made = Counter(name, unit or "", description or "", checked)
            known = _counters.setdefault(identity, made)
            if known is made:  # else a signal handler has made it
                _all = made, _all
                _first_of_name.setdefault(name, made)
    _compare(known, unit, description)
    return known


def _identity(name: str, attributes: Mapping[str, AttributeValue]) -> Hashable:
    return (name, typed_items(attributes)) if attributes else name


def own_counter(
    name: str, unit: str, description: str, attributes: Mapping[str, AttributeValue] | None = None
) -> Counter:
    """Return a counter of monitel. If the application has created it with another unit or description, theirs stay."""
    try:
        return counter(name, unit=unit, description=description, attributes=attributes)
    except ValueError:
        return counter(name, attributes=attributes)


def counters() -> list[CounterReading]:
    """Return the readings of all counters of this process, the oldest counter first.

    Waits for no call of another thread, so that a signal handler may call it.

    Example:
        >>> import monitel
        >>> monitel.counter("example.batches").add(3)
        >>> [reading.total for reading in monitel.counters() if reading.counter.name == "example.batches"]
        [3]
    """
    followed = {reading.counter: reading for reading in _read_source()}
    return [followed.get(each) or each.reading() for each in unchained(_all)]


def plain_counters(readings: Iterable[CounterReading | tuple[Counter, float]]) -> list[PlainCounter]:
    """Return name, attributes and total of counters, as plain values."""
    return [(each.name, dict(each.attributes), total) for each, total, *_ in readings]


def before_reading(read: Callable[[], Iterable[CounterReading]]) -> None:
    """Call a function at each :func:`counters`, which sets the totals of its counters, and returns their readings.

    It is fast, holds no lock during a call, and never raises.
    """
    global _read_source
    _read_source = read


def forget_counters(name: str) -> None:
    """Remove all counters with this name. Their objects stay, but are no longer exported."""
    global _all
    with _lock:
        _all = chained(each for each in unchained(_all) if each.name != name)
        _index()


def _index() -> None:
    global _counters, _first_of_name
    found = unchained(_all)
    _counters = {_identity(each.name, each.attributes): each for each in found}
    _first_of_name = {each.name: each for each in reversed(found)}


def find_counter(name: str) -> Counter | None:
    """Return the counter with this name and without attributes; None if it does not exist."""
    return _counters.get(name)


def first_of_names() -> dict[str, Counter]:
    """Return the first counter of each name. The dict includes later ones; do not change it."""
    return _first_of_name


def _compare(first: Counter, unit: str | None, description: str | None) -> None:
    for key, given, decided in (("unit", unit, first.unit), ("description", description, first.description)):
        if given is not None and given != decided:
            raise ValueError(f"counter {first.name!r} was created with {key}={decided!r}, got {key}={given!r}")


def _checked(amount: object) -> float | None:
    """Return an amount as an exact int of 64 bits or a float; None if it cannot be added."""
    number: Any = amount
    with ignored:  # it is too large for a float, or its class raises
        if type(amount) is not float and type(amount) is not int:  # these checks are slower, and take locks
            from numbers import Integral, Real  # late: whoever has other numbers has loaded it

            if not isinstance(amount, Real):  # a tensor is not one; float() would wait for its device
                return None
            number = int(amount) if isinstance(amount, Integral) else float(amount)
        number = number if number <= INT64_MAX else float(number)
        return number if 0 <= number <= sys.float_info.max else None  # which NaN is not
    return None


def leave_out(call: str, name: object, value: object) -> None:
    """Count a value that cannot be recorded in ``monitel.log.left_out``; log the first one of each ``call``."""
    own_counter("monitel.log.left_out", "{value}", "Values that cannot be recorded").add()
    shown = type(value) is float or (type(value) is int and fits_int64(value))
    warn_once(
        _log,
        "%s leaves out values that it cannot record: %r is %s (further values are only counted, in %s)",
        *(call, name if isinstance(name, str) else type(name).__qualname__),
        *(repr(value) if shown else f"of the type {type(value).__qualname__}", "monitel.log.left_out"),
        key=call,
    )


def _start_at_zero() -> None:
    """Start all counters at zero in a forked child."""
    global _lock
    _lock = RLock()
    _index()
    for each in _counters.values():
        each._reset()


register_at_fork(after_in_child=_start_at_zero)

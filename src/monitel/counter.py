"""Counters: totals that only rise, such as the number of training samples."""

from __future__ import annotations

import logging
import sys
from numbers import Integral, Real
from typing import TYPE_CHECKING, NamedTuple

from monitel import clock
from monitel.attributes import INT64_MAX, checked_attributes, checked_text, checked_unit, fits_int64, typed_items
from monitel.process.failures import warn_once
from monitel.process.fork import register_at_fork
from monitel.process.os_threads import RLock

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping

    from monitel.attributes import AttributeValue

_log = logging.getLogger("monitel")

_lock = RLock()
_counters: dict[Hashable, Counter] = {}
_items: tuple[tuple[Hashable, Counter], ...] = ()  # of _counters, for a forked child: a tuple has no lock
_first_of_name: dict[str, Counter] = {}
_names: tuple[tuple[str, Counter], ...] = ()  # items of _first_of_name
_followers: tuple[Callable[[], Iterable[CounterReading]], ...] = ()


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
    """

    __slots__ = ("_attributes", "_description", "_lock", "_name", "_start_ns", "_total", "_unit")

    def __init__(self, name: str, unit: str, description: str, attributes: Mapping[str, AttributeValue]) -> None:
        self._name = name
        self._unit = unit
        self._description = description
        self._attributes = attributes
        self._reset()

    def _reset(self) -> None:
        self._lock = RLock()
        self._total: float = 0
        self._start_ns = clock.time_ns()

    @property
    def name(self) -> str:
        """The name, and that of the metric."""
        return self._name

    @property
    def unit(self) -> str:
        """The UCUM unit."""
        return self._unit

    @property
    def description(self) -> str:
        """The counted quantity, in words."""
        return self._description

    @property
    def attributes(self) -> Mapping[str, AttributeValue]:
        """Attributes of each point. Read-only."""
        return self._attributes

    @property
    def total(self) -> float:
        """The sum of all amounts so far; beyond 64 bits a float."""
        total = self._total
        return total if total <= INT64_MAX else min(float(total), sys.float_info.max)

    def add(self, amount: float = 1) -> None:
        """Add an amount. Never raises: what is not a number from 0 on is left out, see :func:`leave_out`.

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
                leave_out("Counter.add()", self._name, amount)
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
        attributes = "".join(f" {name}={value!r}" for name, value in self._attributes.items())
        return f"<Counter {self._name!r}{attributes}: {self.total}>"


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
    global _items, _names
    name = checked_text("counter name", name)
    if not name:
        raise ValueError("a counter's name must not be empty")
    unit = unit if unit is None else checked_unit(unit)
    description = description if description is None else checked_text("description", description)
    checked = checked_attributes(attributes)
    identity = (name, typed_items(checked)) if checked else name
    known = _counters.get(identity)
    if known is None:
        with _lock:
            first = _first_of_name.get(name)
            if first is not None:
                _compare(first, unit, description)
            decided = (unit or "", description or "") if first is None else (first.unit, first.description)
            made = Counter(name, *decided, checked)
            known = _counters.setdefault(identity, made)
            if known is made:
                _items = (*_items, (identity, made))
            if first is None:
                _first_of_name[name] = known
                _names = (*_names, (name, known))
    _compare(known, unit, description)
    return known


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
    followed = {reading.counter: reading for follow in _followers for reading in follow()}
    return [followed.get(each) or each.reading() for each in _counters.copy().values()]


def before_reading(follow: Callable[[], Iterable[CounterReading]]) -> None:
    """Call a function at the beginning of each :func:`counters`, for totals that are read together from a source.

    Args:
        follow: Sets the totals of its counters, and returns their readings. Fast, holds no lock during a call, and
            never raises.
    """
    global _followers
    with _lock:
        _followers = (*_followers, follow)


def forget(name: str) -> None:
    """Remove all counters with this name. Their objects stay, but are no longer exported. The name keeps its unit."""
    global _items
    with _lock:
        for identity in [known for known, each in _counters.items() if each.name == name]:
            del _counters[identity]
        _items = tuple(item for item in _items if item[1].name != name)


def find(name: str) -> Counter | None:
    """Return the counter with this name and without attributes; None if it does not exist."""
    return _counters.get(name)


def first_of_names() -> dict[str, Counter]:
    """Return the first counter of each name, the oldest name first. The dict includes later ones; do not change it."""
    return _first_of_name


def number_of_counters() -> int:
    """Return the number of counters of this process."""
    return len(_counters)


def _compare(first: Counter, unit: str | None, description: str | None) -> None:
    for key, given, decided in (("unit", unit, first.unit), ("description", description, first.description)):
        if given is not None and given != decided:
            raise ValueError(f"counter {first.name!r} was created with {key}={decided!r}, got {key}={given!r}")


def _checked(amount: object) -> float | None:
    """Return an amount as an exact int of 64 bits or a float; None if it cannot be added."""
    number: float
    try:
        if type(amount) is float:  # the checks of NumPy numbers are slower, and take locks
            number = amount
        elif isinstance(amount, Integral):
            number = int(amount)
            number = number if number <= INT64_MAX else float(number)
        elif isinstance(amount, Real):  # a tensor is not one; float() would wait for its device
            number = float(amount)
        else:
            return None
    except Exception:  # too large for a float, or raised by the class of the amount
        return None
    return number if 0 <= number <= sys.float_info.max else None  # which NaN is not


def leave_out(call: str, name: object, value: object) -> None:
    """Count a value that cannot be recorded in the counter ``monitel.log.left_out``; log the first one of each call.

    Args:
        call: The call that leaves it out, such as ``"log()"``.
        name: Its name.
        value: The value.
    """
    own_counter("monitel.log.left_out", "{value}", "Values that cannot be recorded").add()
    shown = type(value) is float or (type(value) is int and fits_int64(value))
    warn_once(
        _log,
        "%s leaves out values that it cannot record: %r is %s (further values are only counted, in %s)",
        *(call, name if isinstance(name, str) else type(name).__qualname__),
        *(repr(value) if shown else f"of the type {type(value).__qualname__}", "monitel.log.left_out"),
        key=call,
    )


def _start_in_child() -> None:
    """Start all counters at zero in a forked child.

    The dicts are replaced, because another thread of the parent may have held their locks at the fork.
    """
    global _lock, _counters, _first_of_name
    _lock = RLock()
    _counters, _first_of_name = dict(_items), dict(_names)
    for _, each in _items:
        each._reset()


register_at_fork(after_in_child=_start_in_child)

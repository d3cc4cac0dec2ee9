"""Calls whose results are compared between torch.monitor and monitel."""

import datetime as dt
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Call = Callable[[Any], Any]

HOURS = dt.timedelta(hours=100)  # the windows of both are on the real clock: none of these ends
MOMENT = dt.datetime(2026, 1, 2, 3, 4, 5, 678901)  # noqa: DTZ001  torch's events are naive


def plain(value: Any) -> Any:
    """Make a result comparable: 1, 1.0 and True differ, and NaN equals itself."""
    if type(value).__name__ == "Aggregation":
        return f"Aggregation.{value.name}"
    if isinstance(value, dict):
        return {plain(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value if isinstance(value, type) else f"{type(value).__name__} {value!r}"


def outcome(call: Call, monitor: Any) -> Any:
    """Return the comparable result of a call, or the type of its exception."""
    try:
        return plain(call(monitor))
    except Exception as error:
        return type(error)


@contextmanager
def recorded(monitor: Any) -> Iterator[list[Any]]:
    """Collect the events. The handler is unregistered, because torch crashes at exit otherwise."""
    events: list[Any] = []
    handle = monitor.register_event_handler(events.append)
    try:
        yield events
    finally:
        monitor.unregister_event_handler(handle)


def five(m: Any) -> list[Any]:
    return [m.MEAN, m.COUNT, m.SUM, m.MAX, m.MIN]


def make(m: Any, max_samples: Any = 2**63 - 1, **changes: Any) -> Any:
    given = {"name": "x", "aggregations": five(m), "window_size": HOURS, "max_samples": max_samples}
    return m.Stat(**{**given, **changes})


def fill(m: Any, *samples: Any, **changes: Any) -> Any:
    """Fill a Stat with samples; return its name, results and count, and its events."""
    with recorded(m) as events:
        stat = make(m, **{"max_samples": len(samples), **changes})
        for sample in samples:
            assert stat.add(sample) is None
        return stat.name, stat.get(), stat.count, [(each.name, each.data) for each in events]


def event(m: Any, **changes: Any) -> Any:
    return m.Event(**{"name": "n", "timestamp": MOMENT, "data": {"a": 1}, **changes})


def special(base: Any, *arguments: Any, **methods: Any) -> Any:
    """Create an object of a subclass whose ``__method__`` returns a value, or raises it if it is an exception type."""

    def method(result: Any) -> Callable[[Any], Any]:
        def call(_self: object) -> Any:
            if isinstance(result, type):
                raise result
            return result

        return call

    namespace = {f"__{name}__": method(result) for name, result in methods.items()}
    return type(f"Special {base.__name__} {methods}", (base,), namespace)(*arguments)


def weak(made: Any) -> bool:
    return weakref.ref(made)() is made


def with_handle(m: Any, use: Callable[[Any], Any]) -> Any:
    handle = m.register_event_handler(print)
    try:
        return use(handle)
    finally:
        m.unregister_event_handler(handle)

"""torch.monitor: what torch code logs there as monitel's events and windows, and monitel's names in its place."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from datetime import datetime
from itertools import count
from typing import Any

from torch import monitor

import monitel
from monitel import clock
from monitel.event import STAT_EVENT, Event
from monitel.handlers import log_event
from monitel.process.failures import call_each, warn_once
from monitel.process.fork import register_at_fork
from monitel.stats import window_sinks
from monitel.stats._window import get_step
from monitel.stats.definition import Aggregation, StatDefinition
from monitel.stats.window import OpenWindow, Window, encode
from monitel.torch.hooks import Source

_log = logging.getLogger("monitel.torch")
_MAX_QUEUED = 100_000
_MAX_SAMPLES = 2.0**63
_BY_SUFFIX = {aggregation.suffix: aggregation for aggregation in Aggregation}
_queue: deque[Any] = deque(maxlen=_MAX_QUEUED)
# torch's, while replace() has monitel's in their place: monitel's would give the queue what is logged from it
_register, _unregister = monitor.register_event_handler, monitor.unregister_event_handler
_serials, _numbers = count(-1, -1), count(1)  # of torch's Stats and their windows; those of monitel are positive


class TorchMonitor(Source):
    """Forwards torch.monitor's events to monitel's handlers, Stat events as windows.

    torch calls handlers with a lock held, and a thread that waits for it keeps the GIL: a handler in Python can hang
    the process. So it is ``deque.append``, and the polling thread, or one that flushes, logs the queued events.
    """

    def install(self) -> None:
        self._ended_ns: dict[str, int] = {}
        self._serials: dict[tuple[str, tuple[Aggregation, ...]], int] = {}
        self._since_ns = _unix_ns(clock.now())
        self._handle = _register(_queue.append)

    def end(self) -> None:
        """Unregister the handler, as torch requires before the process ends."""
        _unregister(self._handle)

    def remove(self) -> None:
        self.end()
        self.poll()

    def poll(self) -> None:
        if len(_queue) == _MAX_QUEUED:
            warn_once(_log, "torch.monitor logged more than %d events in a second: the oldest were lost", _MAX_QUEUED)
        call_each(self._forward, _queued())

    def _forward(self, event: Any) -> None:
        log_event(self._window_event(event) if event.name == STAT_EVENT else _copy(event))

    def _window_event(self, event: Any) -> Event:
        names = {key.rpartition(".")[0] for key in event.data}
        values = {_BY_SUFFIX.get(key.rpartition(".")[2]): value for key, value in event.data.items()}
        given = ((each, value) for each, value in values.items() if not isinstance(value, str))
        known = {each.suffix: float(value) for each, value in given if each is not None}
        samples = known.get("count", 1.0)
        # else it is some other event with the name of Stat events
        if len(names) != 1 or len(known) != len(event.data) or not 1 <= samples < _MAX_SAMPLES:
            return _copy(event)
        name, samples = names.pop(), int(samples)
        if "sum" in known:
            typical = known["sum"] / samples
        else:
            typical = next((known[suffix] for suffix in ("mean", "value", "max", "min") if suffix in known), 0.0)
        end_ns = _unix_ns(event.timestamp)
        start_ns = min(self._ended_ns.get(name, self._since_ns), end_ns - 1)
        self._ended_ns[name] = end_ns
        asked = tuple(member for member in Aggregation if member in values)
        definition = StatDefinition(name, asked, "", "", {}, monotonic=False)
        total = known.get("sum", typical * samples)
        smallest, largest, last = (known.get(suffix, typical) for suffix in ("min", "max", "value"))
        step = get_step()  # at most a second after the window's end
        window = Window(definition, start_ns, end_ns, samples, total, smallest, largest, last, 0, None, step)
        series = name, definition.aggregations
        serial = self._serials.get(series) or self._serials.setdefault(series, next(_serials))
        content = encode(OpenWindow(serial, next(_numbers), True, 0, *window[1:]))
        window_sinks.send(definition, window, content)
        converted = Event.of_window(window)
        converted.timestamp, converted.data = event.timestamp, event.data
        return converted


def _queued() -> Iterator[Any]:
    """Yield the events queued now. If one thread is slow, another one forwards the rest."""
    for _ in range(len(_queue)):
        try:
            yield _queue.popleft()
        except IndexError:  # another thread was faster
            return


def _copy(event: Any) -> Event:
    return Event(event.name, event.timestamp, event.data)


def _unix_ns(timestamp: datetime) -> int:
    return int(timestamp.timestamp() * 1e6) * 1000


register_at_fork(after_in_child=_queue.clear)  # the parent logs the events queued before the fork


_NAMES = (
    *("Aggregation", "VALUE", "MEAN", "COUNT", "SUM", "MAX", "MIN"),
    *("Stat", "Event", "data_value_t", "STAT_EVENT"),
    *("EventHandlerHandle", "register_event_handler", "unregister_event_handler", "log_event"),
    *("TensorboardEventHandler", "_WaitCounter", "_WaitCounterTracker"),
)
_originals: dict[str, object] = {}
_lasting: set[Replacement] = set()


class Replacement:
    """The result of :func:`monitel.torch.replace`; leaving ``with replacement:`` restores torch's names."""

    def restore(self) -> None:
        """Restore torch's names, unless another replacement lasts. Idempotent."""
        _lasting.discard(self)
        while _originals and not _lasting:
            setattr(monitor, *_originals.popitem())

    def __enter__(self) -> Replacement:  # noqa: PYI034  typing.Self requires Python 3.11
        return self

    def __exit__(self, *_exception: object) -> None:
        self.restore()


def replace() -> Replacement:
    """Replace the names in the module ``torch.monitor`` by monitel's, so that code written for it runs on monitel.

    Call it before that code is imported: a module that has already run ``from torch.monitor import Stat`` keeps torch's
    Stat. The names last until each replacement is restored.

    Example:
        >>> import monitel.torch
        >>> from torch import monitor
        >>> with monitel.torch.replace():
        ...     monitor.Stat is monitel.Stat
        True
    """
    if not _originals:
        for name in _NAMES:
            if hasattr(monitor, name):
                _originals[name] = getattr(monitor, name)
                setattr(monitor, name, getattr(monitel, name))
    _lasting.add(replacement := Replacement())
    return replacement

"""Foreign code, called where it can hang nothing: observable callbacks and event handlers."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Generator
from threading import Condition, Thread, current_thread
from typing import TYPE_CHECKING, Any
from weakref import ref

from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.sdk.metrics import MeterProvider

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_log = logging.getLogger("monitel.otlp")

_PATIENCE = 1.0  # seconds that a callback may take
_SHORT_PATIENCE = 0.1  # seconds, for the one that runs when another one is to be called at once
_MOST_ABANDONED = 3
_TICK = 0.005  # seconds


class Callback:
    """Foreign code that the collector calls.

    Args:
        what: Names it in a log line.
        function: Called without arguments; its result is kept until it is taken.

    Attributes:
        queued: It waits for its call, or is being called.
        returned: Its last call has ended.
    """

    def __init__(self, what: str, function: Callable[[], list[Any]]) -> None:
        self.queued = False
        self.returned = False
        self._what = what
        self._function = function
        self._warned = False
        self._result: list[Any] | None = None

    def take(self, _options: object = None) -> list[Any]:
        """Return the result of the last call, once."""
        result, self._result = self._result, None
        return result or []

    def run(self) -> None:
        """Call it; an exception is logged once."""
        self.returned = False
        try:
            self._result = self._function()
        except BaseException:  # not even a SystemExit may stop the delivery
            self.warn("%s failed; telemetry goes on", exc_info=True)
        self.returned = True

    def warn(self, message: str, **options: Any) -> None:
        """Log a message that names it, once. This may hang as well: it is logged by handlers of the application."""
        if not self._warned:
            self._warned = True
            _log.warning(message, self._what, **options)


class Collector:
    """Runs foreign code in a thread of its own, without the locks of the SDK: observable callbacks, event handlers.

    A call that takes more than a second is left alone with its thread, at most three times at once; it is skipped
    until it returns, and logged once. While three hang, only callbacks whose last call has returned are called. A
    result is exported once at most: a late one in the next round, unless a newer one is there. The thread starts with
    the first callback.
    """

    def __init__(self) -> None:
        self._callbacks: list[Callback] = []
        self._queue: deque[Callback] = deque()
        self._changed = Condition()
        self._abandoned = 0
        self._thread: Thread | None = None
        self._current: Callback | None = None
        self._began = 0.0  # monotonic, of the current callback

    def add(self, callback: Callback) -> None:
        """Call this from now on."""
        with self._changed:
            self._callbacks.append(callback)
            if self._thread is None:
                self._start()

    def refresh(self, timeout: float, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Call everything, and wait for the results.

        Args:
            timeout: Seconds at most; a later result is there at the next time.
            meanwhile: Called again and again while this waits. The wait ends when it returns True.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            for callback in self._callbacks:
                if not callback.queued:
                    callback.queued = True
                    self._queue.append(callback)
            self._changed.notify_all()
        while not meanwhile() and (left := deadline - time.monotonic()) > 0:
            with self._changed:
                if not self._goes_on():
                    break
                self._changed.wait(min(left, _TICK))

    def call(self, callback: Callback, timeout: float) -> bool:
        """Call this once, before everything else, and wait for it.

        Args:
            callback: Called even if three hang.
            timeout: Seconds at most.

        Returns:
            False if there is no thread to call it.
        """
        deadline = time.monotonic() + timeout
        with self._changed:
            callback.queued = callback.returned = True
            self._queue.appendleft(callback)
            self._changed.notify_all()
            while callback.queued and (left := deadline - time.monotonic()) > 0:
                if callback in self._queue and not self._goes_on(_SHORT_PATIENCE):
                    self._queue.remove(callback)
                    return False
                self._changed.wait(min(left, _TICK))
        return True

    def goes_on(self) -> None:
        """Begin the second of the present call anew; for a call of many steps, in its thread."""
        if current_thread() is self._thread:
            self._began = time.monotonic()

    def stop(self) -> None:
        """End the thread after the present call."""
        with self._changed:
            self._callbacks.clear()
            self._thread = None
            self._changed.notify_all()

    def _goes_on(self, patience: float = _PATIENCE) -> bool:
        """Return True while results are to be expected; abandon a callback that takes too long."""
        if self._thread is None:
            return False
        if self._current is None:
            return self._next() is not None
        if time.monotonic() - self._began <= patience:
            return True
        if self._abandoned >= _MOST_ABANDONED:
            return False
        self._abandoned += 1
        self._start(self._current)
        return True

    def _start(self, hung: Callback | None = None) -> None:
        """Start the thread; where there was one, it stays with a callback that hangs."""
        self._current = None
        self._thread = Thread(target=self._run, args=(hung,), name="monitel-otlp-collector", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # the process ends
            self._thread = None

    def _next(self) -> Callback | None:
        """Return what is to be called next."""
        return next((each for each in self._queue if each.returned or self._abandoned < _MOST_ABANDONED), None)

    def _run(self, hung: Callback | None) -> None:
        own = current_thread()
        if hung is not None:
            hung.warn(f"%s takes more than {_PATIENCE:g} s; it is skipped until it returns")
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._next() or self._thread is not own)
                callback = self._next()
                if self._thread is not own or callback is None:
                    return
                self._current = callback
                self._queue.remove(callback)
                self._began = time.monotonic()
            callback.run()
            with self._changed:
                callback.queued = False
                if self._thread is not own:
                    self._abandoned -= 1
                    return
                self._current = None
                self._changed.notify_all()


def _observe(function: Any) -> Callable[[], list[Observation]]:
    """Return what calls an observable callback as the SDK does; a generator is sent the options."""
    options = CallbackOptions(_PATIENCE * 1e3)
    if not isinstance(function, Generator):
        return lambda: _observations(function(options))
    next(function)

    def send() -> list[Observation]:
        try:
            return _observations(function.send(options))
        except StopIteration:
            return []

    return send


def _observations(found: Iterable[Any]) -> list[Observation]:
    """Return the result of a callback; the SDK would log anything else in each round.

    Raises:
        TypeError: It is something else.
    """
    observations = list(found)
    for each in observations:
        if not isinstance(each, Observation):
            raise TypeError(f"expected Observations from a callback, got {type(each).__qualname__}")
    return observations


class CollectedMeterProvider(MeterProvider):
    """The SDK's MeterProvider, with the application's observable callbacks in the hands of a collector.

    Args:
        collector: Runs them.
        flush: Delivers everything, given seconds, for :meth:`force_flush`.
        *positional: The SDK's own arguments.
        **named: Likewise.
    """

    def __init__(
        self, collector: Collector, flush: Callable[[float], bool], *positional: Any, **named: Any
    ) -> None:
        super().__init__(*positional, **named)
        self._collector = collector
        self._flush_pipeline = flush

    def get_meter(self, name: str, *positional: Any, **named: Any) -> Meter:
        """Return a meter whose observable instruments are collected by the collector."""
        return _CollectedMeter(super().get_meter(name, *positional, **named), self._collector)

    def own_meter(self, name: str, version: str) -> Meter:
        """Return a meter for callbacks of the pipeline itself, which read numbers and cannot hang."""
        return super().get_meter(name, version)

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Deliver everything, the values of all instruments included."""
        return self._flush_pipeline(timeout_millis / 1e3)


class _CollectedMeter(Meter):
    """Passes everything on to the SDK's meter; callbacks are wrapped on the way."""

    def __init__(self, meter: Meter, collector: Collector) -> None:
        super().__init__(meter.name, meter.version, meter.schema_url)
        self._meter = meter
        self._collector = collector

    def create_counter(self, name: str, unit: str = "", description: str = "") -> Any:
        """Create a counter."""
        return self._meter.create_counter(name, unit, description)

    def create_up_down_counter(self, name: str, unit: str = "", description: str = "") -> Any:
        """Create an up-down counter."""
        return self._meter.create_up_down_counter(name, unit, description)

    def create_gauge(self, name: str, unit: str = "", description: str = "") -> Any:
        """Create a gauge."""
        return self._meter.create_gauge(name, unit, description)

    def create_histogram(self, name: str, unit: str = "", description: str = "", **advisory: Any) -> Any:
        """Create a histogram."""
        return self._meter.create_histogram(name, unit, description, **advisory)

    def create_observable_counter(
        self, name: str, callbacks: Sequence[Any] | None = None, unit: str = "", description: str = ""
    ) -> Any:
        """Create a counter that is read by callbacks."""
        return self._create(self._meter.create_observable_counter, name, callbacks, unit, description)

    def create_observable_up_down_counter(
        self, name: str, callbacks: Sequence[Any] | None = None, unit: str = "", description: str = ""
    ) -> Any:
        """Create an up-down counter that is read by callbacks."""
        return self._create(self._meter.create_observable_up_down_counter, name, callbacks, unit, description)

    def create_observable_gauge(
        self, name: str, callbacks: Sequence[Any] | None = None, unit: str = "", description: str = ""
    ) -> Any:
        """Create a gauge that is read by callbacks."""
        return self._create(self._meter.create_observable_gauge, name, callbacks, unit, description)

    def _create(
        self, create: Callable[..., Any], name: str, functions: Sequence[Any] | None, unit: str, description: str
    ) -> Any:
        """Create an instrument that reads what the collector has called.

        Callbacks that the SDK does not keep, since there is an instrument of that name already, are not called.
        """
        callbacks = [Callback(f"the callback of instrument {name!r}", _observe(each)) for each in functions or ()]
        references = [ref(callback) for callback in callbacks]
        wrapped = [callback.take for callback in callbacks]
        del callbacks
        instrument = create(name, wrapped, unit, description)
        del wrapped
        for reference in references:
            if (kept := reference()) is not None:
                self._collector.add(kept)
        return instrument

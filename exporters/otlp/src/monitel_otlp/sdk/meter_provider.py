"""The SDK's MeterProvider, with observable callbacks that run in the callback thread."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any
from weakref import ref

from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.sdk.metrics import MeterProvider

from monitel_otlp.threads.callbacks import CALLBACK_TIMEOUT, Callback

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from monitel_otlp.threads.callbacks import CallbackThread


class CallbackMeterProvider(MeterProvider):
    """The SDK's MeterProvider, with observable callbacks that run in the callback thread.

    Args:
        callbacks: The callback thread.
        flush: Delivers all items within so many seconds, for :meth:`force_flush`.
        *positional: Arguments of the SDK's MeterProvider.
        **named: Arguments of the SDK's MeterProvider.
    """

    def __init__(
        self, callbacks: CallbackThread, flush: Callable[[float], bool], *positional: Any, **named: Any
    ) -> None:
        self._callbacks = callbacks  # before the SDK's constructor, which asks for a meter of its internal metrics
        self._flush_pipeline = flush
        super().__init__(*positional, **named)

    def get_meter(self, name: str, *positional: Any, **named: Any) -> Meter:
        """Return a meter whose observable callbacks run in the callback thread."""
        return _CallbackMeter(super().get_meter(name, *positional, **named), self._callbacks)

    def own_meter(self, name: str, version: str, schema_url: str) -> Meter:
        """Return a meter of the SDK, for callbacks of the pipeline itself, which cannot hang."""
        return super().get_meter(name, version, schema_url)

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Deliver all items, including the values of all instruments."""
        return self._flush_pipeline(timeout_millis / 1e3)


class _CallbackMeter(Meter):
    """Passes all calls to a meter of the SDK, with wrapped callbacks."""

    def __init__(self, meter: Meter, callbacks: CallbackThread) -> None:
        super().__init__(meter.name, meter.version, meter.schema_url)
        self._meter = meter
        self._callbacks = callbacks

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
        """Create an instrument that reads the results of the callback thread.

        Callbacks that the SDK discards, because the instrument exists already, are not called.
        """
        callbacks = [Callback(f"the callback of instrument {name!r}", _observe(each)) for each in functions or ()]
        references = [ref(callback) for callback in callbacks]
        wrapped = [callback.take for callback in callbacks]
        del callbacks
        instrument = create(name, wrapped, unit, description)
        del wrapped
        for reference in references:
            if (kept := reference()) is not None:
                self._callbacks.add(kept)
        return instrument


def _observe(function: Any) -> Callable[[], list[Observation]]:
    """Return a function that calls an observable callback like the SDK: a generator receives the options by send()."""
    options = CallbackOptions(CALLBACK_TIMEOUT * 1e3)
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
    """Return the observations of a callback. The SDK would log a wrong type in every round.

    Raises:
        TypeError: The callback has returned something else.
    """
    observations = list(found)
    for each in observations:
        if not isinstance(each, Observation):
            raise TypeError(f"expected Observations from a callback, got {type(each).__qualname__}")
    return observations

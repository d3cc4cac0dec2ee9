"""install: registers monitel's handlers for the providers of an application."""

from __future__ import annotations

import atexit
import logging
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from opentelemetry.metrics import get_meter_provider
from opentelemetry.trace import get_tracer_provider

import monitel
from monitel import run_events
from monitel.process.exit import without_interruption
from monitel.process.failures import warn_once
from monitel.variables import Group, at_least
from monitel_otel._compat import get_logger_provider
from monitel_otel.instruments import instruments_of
from monitel_otel.log_records import count_failure, write_event
from monitel_otel.scope import SCOPE

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from monitel_otel._compat import LoggerProvider
    from monitel_otel.spans import Spans

    Given = tuple[MeterProvider | None, LoggerProvider | None]

_TWICE = (
    "monitel_otel.install() writes to the providers of monitel_otlp.configure(), which delivers everything itself: "
    "values arrive twice. Remove one of them, or give install() other providers"
)
_SPANS = Group({"budget": ("budget", None), "steps": ("every", 1)})
_LIMITS = dict.fromkeys(("budget", "every"), at_least(1))


class Installation:
    """The registration of one :func:`install`; leaving ``with install():`` uninstalls."""

    def __init__(self, given: Given, spans: Spans | None) -> None:
        self.given = given
        meter_provider, logger_provider = _in_use(given)
        self._instruments = instruments_of(meter_provider)
        self._logger = logger_provider.get_logger(*SCOPE)
        self._spans = spans
        if spans is not None:
            spans.listen()
        self._handle = monitel.register_event_handler(self._write)
        run_events.enter(self)
        atexit.register(self._write_last)  # before the providers shut down, which were made earlier

    def _write(self, event: monitel.Event) -> None:
        """Write an event. Never raises: a provider that fails must not stop the training."""
        for write in (self._write_metrics, self._write_record):
            try:
                write(event)
            except Exception:
                count_failure()

    def _sharing(self) -> list[Installation]:
        """Return the installations with the same instruments, of which the first one writes."""
        return [each for each in _installed if each._instruments is self._instruments]

    def _write_metrics(self, event: monitel.Event) -> None:
        if next(iter(self._sharing()), self) is not self:
            return
        if event.window is not None:
            self._instruments.write(event.window)
            return
        self._instruments.refresh()
        if isinstance(event, monitel.LoggedNumbers):
            self._instruments.write_numbers(event)

    def _write_record(self, event: monitel.Event) -> None:
        if event.window is None:
            context = None if self._spans is None else self._spans.context()
            write_event(self._logger, event, context)

    def uninstall(self) -> None:
        """Stop writing. Open windows are not closed. Idempotent.

        Counters, waits, step and goodput are still observed: OpenTelemetry's API cannot remove their instruments.
        """
        run_events.leave(self, sys.exc_info()[1])
        run_events.end_if_due()
        monitel.unregister_event_handler(self._handle)
        atexit.unregister(self._write_last)
        if self._spans is not None:
            self._spans.close()
        if self in _installed:
            _installed.remove(self)
        if not self._sharing():
            self._instruments.stop()

    @without_interruption(raises=False)
    def _write_last(self) -> None:
        try:
            monitel.flush()
        finally:  # an event handler of the application has raised
            if self._spans is not None:
                self._spans.close()

    def __enter__(self) -> Installation:  # noqa: PYI034  typing.Self is 3.11's
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        try:
            monitel.flush()
        finally:  # an event handler of the application has raised
            run_events.leave(self, error)
            self.uninstall()


def install(
    meter_provider: MeterProvider | None = None,
    logger_provider: LoggerProvider | None = None,
    tracer_provider: TracerProvider | None = None,
    *,
    spans: bool | Mapping[str, int] = False,
) -> Installation:
    """Write closed windows and logged numbers to instruments, events to log records and, on request, ranges to spans.

    A second call with the same providers replaces the first, so that a notebook's cell can run again. Instruments are
    written in the thread that closes the window. Before a reader collects, expired windows are closed. A forked child
    writes to the same providers, except its ranges.

    Args:
        meter_provider: Creates the instruments; the global one by default, even if it is set later.
        logger_provider: Receives the log records; the global one by default, even if it is set later.
        tracer_provider: Enables spans of ranges, and creates them. Spans are started and ended in the thread that runs
            the range, with the times of the range.
        spans: Enable spans of ranges; without a ``tracer_provider``, with the global one. A mapping also enables them,
            and has any of these keys. ``"budget"``: the most spans of a step, by default 1,000; the other ranges of the
            step are folded into one span, with their number and duration. ``"steps"``: create spans only in steps that
            are multiples of this number.

    Returns:
        The registration, with ``uninstall()``; it is also a context manager.

    Raises:
        TypeError: ``spans`` is neither a bool nor such a mapping of ints.
        ValueError: The budget or the steps of spans are below 1.

    Example:
        >>> import monitel
        >>> import monitel_otel
        >>> from opentelemetry.sdk.metrics import MeterProvider
        >>> from opentelemetry.sdk.metrics.export import InMemoryMetricReader
        >>> reader = InMemoryMetricReader()
        >>> with monitel_otel.install(meter_provider=MeterProvider([reader])):
        ...     monitel.stat("train.loss").add(0.5)
        >>> metrics = reader.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics
        >>> [metric.name for metric in metrics if metric.name.startswith("train.loss.m")]
        ['train.loss.mean', 'train.loss.max', 'train.loss.min']
    """
    options: dict[str, Any] = _SPANS.flat("spans", spans, _LIMITS)
    range_spans = None
    if options.pop("spans") or tracer_provider is not None:
        from monitel_otel.spans import Spans  # imported on demand: it loads the profiler

        range_spans = Spans(tracer_provider or get_tracer_provider(), **options)
    given = meter_provider, logger_provider
    for earlier in [each for each in _installed if _in_use(each.given) == _in_use(given)]:
        earlier.uninstall()
    installation = Installation(given, range_spans)
    _installed.append(installation)
    warn_of_copies()
    return installation


def warn_of_copies() -> None:
    """Log a warning if an installation writes to providers of a pipeline, which delivers what it writes, too."""
    used = [each for installed in _installed for each in _in_use(installed.given)]
    if any(each is own for each in used for own in pipeline_providers):
        warn_once(logging.getLogger("monitel.otel"), _TWICE)


def _in_use(given: Given) -> tuple[MeterProvider, LoggerProvider]:
    """Return the providers; for None the global one, which the application may have set since the last call."""
    return given[0] or get_meter_provider(), given[1] or get_logger_provider()


_installed: list[Installation] = []
pipeline_providers: list[object] = []  #: The global providers that :func:`monitel_otlp.configure` has set.

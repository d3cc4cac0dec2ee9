"""Exporters that attach monitel to the readers and processors of an application's OpenTelemetry pipeline.

They are the entry points ``monitel`` for OTEL_METRICS_EXPORTER, OTEL_LOGS_EXPORTER and OTEL_TRACES_EXPORTER, and for a
declarative configuration. The first exporter registers monitel's event handler, once per process.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from inspect import signature
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics.export import MetricExporter as SDKMetricExporter
from opentelemetry.sdk.metrics.export import MetricExportResult
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace.export import SpanExporter as SDKSpanExporter
from opentelemetry.sdk.trace.export import SpanExportResult

import monitel
from monitel.launcher import is_rank_zero, launch_attributes
from monitel.os_threads import Lock, RLock
from monitel.run_events import end_if_due, enter
from monitel.variables import reads_variables
from monitel_otlp._compat import LogRecordExporter, LogRecordExportResult, get_logger_provider
from monitel_otlp.automatic import hand_over, replace_automatic
from monitel_otlp.choices import BOX_SIZE, CHOICES, box_settings
from monitel_otlp.config.environment import sdk_is_disabled
from monitel_otlp.config.launcher import rank_on_points
from monitel_otlp.config.launchers import is_launcher
from monitel_otlp.config.settings import resolve
from monitel_otlp.ledger.run_ledger import RunLedger
from monitel_otlp.metrics.series import SERIES_LIMIT
from monitel_otlp.pipeline import EXIT_TIMEOUT, Pipeline
from monitel_otlp.sdk.providers import reader_preferences

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opentelemetry.sdk.metrics.export import MetricsData
    from opentelemetry.sdk.trace import ReadableSpan

    from monitel_otlp._compat import ReadableLogRecord
    from monitel_otlp.engine.engine import Engine

_log = logging.getLogger("monitel.otlp")

_HAND_OVER = 0.3  # seconds of the exit's time

_lock = RLock()
_attached: Pipeline | None = None
_open: WeakSet[_Attached] = WeakSet()  # exporters whose provider has not shut down


@atexit.register  # at import: it runs after the functions that the application's providers register later
def _end() -> None:
    if _attached is not None:
        for kind, get_provider in _PROVIDERS.items():
            # A provider that was created before this import shuts down after this function.
            if any(isinstance(exporter, kind) for exporter in _open):
                _flush(get_provider())
        _attached.shutdown(EXIT_TIMEOUT - 2 * _HAND_OVER)


def _flush(provider: object) -> None:
    """Have a provider of the application hand over what it holds."""
    try:
        getattr(provider, "force_flush", lambda _milliseconds: None)(_HAND_OVER * 1e3)
    except Exception:
        _log.debug("a provider of the application could not be flushed at exit", exc_info=True)


@reads_variables(CHOICES)
def _attach(
    *,
    ranks: str = "all",
    rank_attribute: bool = False,
    workers: bool = False,
    series_limit: int = SERIES_LIMIT,
    run_events: bool = True,
    spool_dir: str | os.PathLike[str] | None = None,
    distributions: str | None = None,
    endpoint: str | None = None,
    headers: Mapping[str, str] | None = None,
    export_interval: float | None = None,
    protocol: str | None = None,
    black_box: bool = True,
    black_box_dir: str | os.PathLike[str] | None = None,
    black_box_size: int = BOX_SIZE,
) -> Pipeline:
    """Return the pipeline of all exporters. The first one makes it; its arguments are those of ``configure()``."""
    global _attached
    box = box_settings(black_box, black_box_dir, black_box_size)
    with _lock:
        if _attached is None or _attached.ended is not None:
            settings = resolve(
                endpoint, headers, export_interval, spool_dir, protocol, distributions=distributions, black_box=box
            )
            launch = launch_attributes()
            silent = sdk_is_disabled() or (ranks == "zero" and not is_rank_zero(launch))
            early = replace_automatic()
            resource = Resource.create(launch)
            kept = not silent and not is_launcher(sys.orig_argv)
            _attached = Pipeline(
                settings,
                resource,
                point_attributes=rank_on_points(launch, resource, always=rank_attribute),
                workers=workers,
                attached=True,
                silent=silent,
                series_limit=series_limit,
                run_ledger=RunLedger(settings.spool_root, resource.attributes) if kept else None,
            )
            if not silent:
                atexit.unregister(_attached.shutdown)  # it would run before the shutdown of an earlier provider
                _hand_over_at_exit(_attached, run_events=run_events)
                hand_over(early, _attached)
        return _attached


def _hand_over_at_exit(pipeline: Pipeline, *, run_events: bool) -> None:
    """Hand over waiting items to the application's providers before those shut down.

    The function below must be registered after the providers, because atexit calls the last function first. It is
    registered with the first event, or after the end of the main thread: Python then waits for other threads before it
    calls the registered functions. The registered functions may log events, too.
    """
    once = Lock()

    def register(event: monitel.Event | None = None) -> None:
        if once.acquire(blocking=False):
            monitel.unregister_event_handler(handle)
            atexit.register(hand_over)
            if event is not None and not is_launcher(sys.orig_argv):  # a program that records nothing has no run
                enter(pipeline, enabled=run_events, ends_run=True)

    def hand_over() -> None:
        end_if_due()
        monitel.flush()
        pipeline.force_flush(_HAND_OVER)
        monitel.register_event_handler(hand_over_late)

    def hand_over_late(event: monitel.Event) -> None:
        if event.window is None and pipeline.engine is not None:  # windows need no provider
            pipeline.engine.encoder.encode_here(_HAND_OVER)

    handle = monitel.register_event_handler(register)
    try:
        threading._register_atexit(register)  # type: ignore[attr-defined]  # private, see monitel.run_events
    except RuntimeError:  # the main thread has ended already
        register()


class _Attached:
    """Base class of the three exporters.

    In a forked child the inherited readers and processors of the SDK deliver nothing, because their data belongs to the
    parent. There, and after the end of the pipeline, an export fails.
    """

    def __init__(self, **arguments: Any) -> None:
        for unknown in arguments.keys() - signature(_attach).parameters.keys():
            raise TypeError(f"{type(self).__qualname__}() has no argument {unknown!r:.40}")
        self._pipeline = _attach(**arguments)
        self._silent = self._pipeline.ended is not None  # this rank exports nothing
        self._pid = os.getpid()
        _open.add(self)

    def _engine(self) -> Engine | None:
        return self._pipeline.engine if os.getpid() == self._pid and self._pipeline.ended is None else None

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        """Deliver the items that were handed over."""
        return self._engine() is None or self._pipeline.force_flush(timeout_millis / 1e3)

    def shutdown(self, timeout_millis: float = 30_000, **_kwargs: Any) -> None:  # noqa: ARG002  it does not wait
        """Deliver the items that were handed over, in the background or when the process ends."""
        _open.discard(self)
        if (engine := self._engine()) is not None:
            engine.wake()


class MetricExporter(_Attached, SDKMetricExporter):
    """Adds monitel's windows to the requests of its reader, and delivers them.

    Args:
        **arguments: ``endpoint``, ``headers``, ``export_interval``, ``spool_dir``, ``protocol``, ``distributions``,
            ``ranks``, ``rank_attribute``, ``workers``, ``series_limit`` and ``run_events``, with the same variables,
            as for :func:`monitel_otlp.configure`; the arguments of the black box have no effect. All exporters use the
            arguments of the first one.

    Example:
        >>> from opentelemetry.sdk.metrics import MeterProvider
        >>> from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        >>> from monitel_otlp import MetricExporter
        >>> reader = PeriodicExportingMetricReader(MetricExporter(spool_dir="runs"), export_interval_millis=5_000)
        >>> provider = MeterProvider([reader])
        >>> provider.shutdown()
    """

    def __init__(self, **arguments: Any) -> None:
        _Attached.__init__(self, **arguments)
        SDKMetricExporter.__init__(self, **reader_preferences())

    def export(
        self,
        metrics_data: MetricsData,
        timeout_millis: float = 10_000,  # noqa: ARG002  the reader's
        **kwargs: Any,  # noqa: ARG002  the reader's
    ) -> MetricExportResult:
        """Encode the collected metrics and all queued windows."""
        if (engine := self._engine()) is None:
            return MetricExportResult.SUCCESS if self._silent else MetricExportResult.FAILURE
        engine.export(metrics_data)
        return MetricExportResult.SUCCESS

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        """Encode the open windows as well; see :meth:`LogExporter.shutdown`."""
        engine = self._engine()
        if engine is not None:
            monitel.flush()
            engine.flush_windows()  # the reader will not ask for them
        super().shutdown(timeout_millis, **kwargs)


class LogExporter(_Attached, LogRecordExporter):
    """Delivers log records, including monitel's events; see :class:`MetricExporter`."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        if (engine := self._engine()) is not None and engine.application_events is not None:
            engine.application_events.returned = True

    def export(self, batch: Sequence[ReadableLogRecord]) -> LogRecordExportResult:
        """Encode one batch."""
        if (engine := self._engine()) is None:
            return LogRecordExportResult.SUCCESS if self._silent else LogRecordExportResult.FAILURE
        engine.export_records(batch)
        return LogRecordExportResult.SUCCESS


class SpanExporter(_Attached, SDKSpanExporter):
    """Delivers spans; see :class:`MetricExporter`."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Encode one batch."""
        if (engine := self._engine()) is None:
            return SpanExportResult.SUCCESS if self._silent else SpanExportResult.FAILURE
        engine.export_spans(spans)
        return SpanExportResult.SUCCESS


_PROVIDERS: dict[type[_Attached], Callable[[], object]] = {
    LogExporter: get_logger_provider,
    MetricExporter: metrics.get_meter_provider,
    SpanExporter: trace.get_tracer_provider,
}

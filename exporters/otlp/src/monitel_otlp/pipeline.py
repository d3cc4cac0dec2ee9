"""configure(): the whole pipeline in one call, and what it promises at fork and exit."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import weakref
from typing import TYPE_CHECKING

from opentelemetry import metrics, trace
from opentelemetry.sdk.resources import Resource

import monitel
from monitel_otlp._compat import get_logger_provider, is_set, set_logger_provider
from monitel_otlp.engine import Engine
from monitel_otlp.settings import Settings, resolve

if TYPE_CHECKING:
    from collections.abc import Mapping

_log = logging.getLogger("monitel.otlp")

_EXIT_TIMEOUT = 2.0
_BEFORE_QUEUES = 50  # multiprocessing's priority: after monitel's own flush (100), before its Queues close (10)
_FORK_PATIENCE = 1.0


class Pipeline:
    """What :func:`configure` returns: monitel's windows and events on their way to an OTLP endpoint.

    Windows and events wait in bounded queues (100,000 each; the oldest is dropped and counted) until the delivery
    thread encodes and sends them. What a backend does not take is kept, first in memory, then in the spool.
    Thread-safe. A forked child exports nothing of its parent, and nothing at all until a window or an event is logged
    there; it then has a thread and a spool of its own.

    Attributes:
        meter_provider: For instruments of your own; they travel with the windows. Not in a forked child.
        logger_provider: For log records of your own; likewise.
        tracer_provider: For spans of your own; likewise.
    """

    def __init__(self, settings: Settings, attributes: Mapping[str, str | int | float | bool]) -> None:
        self._settings = settings
        self._attributes = dict(attributes)
        self._engine: Engine | None = Engine(settings, Resource.create(self._attributes))
        self.meter_provider = self._engine.meter_provider
        self.logger_provider = self._engine.logger_provider
        self.tracer_provider = self._engine.tracer_provider
        self._ended: bool | None = None
        self._handle = monitel.register_event_handler(self._take)
        self._end_with_the_process()

    @property
    def spool_dir(self) -> os.PathLike[str]:
        """Where this process's spool is, or will be."""
        return self._settings.spool_dir

    def force_flush(self, timeout: float = 10.0) -> bool:
        """Close the windows whose time is over, and deliver everything that is queued.

        Windows still open stay open: ``monitel.flush()`` closes them.

        Args:
            timeout: Seconds at most.

        Returns:
            True if all of it was acknowledged, or is on disk where no endpoint is set.
        """
        if self._ended is not None:
            return self._ended
        return self._engine is None or self._engine.delivery.force_flush(timeout)

    def shutdown(self, timeout: float = _EXIT_TIMEOUT) -> bool:
        """Flush every live Stat, deliver what can be delivered, put the rest into the spool, and stop.

        Runs by itself at exit. A second time does nothing.

        Args:
            timeout: Seconds at most, whatever the backend does.

        Returns:
            As :meth:`force_flush`.
        """
        if self._ended is not None:
            return self._ended
        try:
            monitel.flush()
        except Exception:
            _log.exception("a handler failed while Stats were flushed at the end")
        monitel.unregister_event_handler(self._handle)
        self._ended = self._engine is None or self._engine.shutdown(timeout)
        if self._engine is not None:
            _say_goodbye(self._engine)
        return self._ended

    def __enter__(self) -> Pipeline:  # noqa: PYI034  typing.Self is 3.11's
        return self

    def __exit__(self, *_exception: object) -> None:
        self.shutdown()

    def _take(self, event: monitel.Event) -> None:
        (self._engine or self._revive()).take(event)

    def _revive(self) -> Engine:
        """The first window or event of a forked child: an engine of its own."""
        self._settings = self._settings.for_this_process()
        self._engine = Engine(self._settings, Resource.create(self._attributes))
        _finalize(self)
        return self._engine

    def _end_with_the_process(self) -> None:
        atexit.register(self.shutdown)
        _finalize(self)
        reference = weakref.ref(self)

        def call(method: str) -> None:
            if (pipeline := reference()) is not None:
                getattr(pipeline, method)()

        os.register_at_fork(
            before=lambda: call("_before_fork"),
            after_in_parent=lambda: call("_after_fork"),
            after_in_child=lambda: call("_in_child"),
        )

    def _before_fork(self) -> None:
        self._held = self._engine is not None and self._engine.encoding.acquire(timeout=_FORK_PATIENCE)

    def _after_fork(self) -> None:
        if self._held and self._engine is not None:
            self._engine.encoding.release()

    def _in_child(self) -> None:
        self._engine = None


def configure(
    *,
    service_name: str | None = None,
    endpoint: str | None = None,
    protocol: str | None = None,
    headers: Mapping[str, str] | None = None,
    export_interval: float | None = None,
    resource_attributes: Mapping[str, str | int | float | bool] | None = None,
    spool_dir: str | os.PathLike[str] | None = None,
) -> Pipeline:
    """Deliver every closed window, every event and the user's own OpenTelemetry data to an OTLP endpoint.

    What is left out comes from the standard OTEL_* variables. The providers become the global ones where none is set.
    A second call shuts the first pipeline down.

    Args:
        service_name: ``service.name``; else OTEL_SERVICE_NAME.
        endpoint: Base URL such as ``"http://localhost:4318"``; ``/v1/metrics`` and so on are appended. Without it and
            without a variable, everything goes to the spool under ``monitel-runs/``.
        protocol: ``"http/protobuf"`` or ``"grpc"``; else OTEL_EXPORTER_OTLP_PROTOCOL, else HTTP.
        headers: Sent with each request, e.g. a token; never written to disk or a log.
        export_interval: Seconds between two rounds of delivery; else OTEL_METRIC_EXPORT_INTERVAL, else 5.
        resource_attributes: Added to OTEL_RESOURCE_ATTRIBUTES.
        spool_dir: Where the folder of this process's spool is made; else ``$XDG_STATE_HOME/monitel``.

    Returns:
        The pipeline, a context manager. It shuts down by itself at exit.

    Raises:
        TypeError: An argument of a wrong type.
        ValueError: An endpoint that is no base URL, an interval that is not positive, an unknown protocol.

    Example:
        >>> import monitel
        >>> import monitel_otlp
        >>> with monitel_otlp.configure(service_name="train", spool_dir="runs") as pipeline:
        ...     monitel.stat("train.loss").add(0.25)
        >>> pipeline.force_flush(timeout=1.0)
        True
    """
    global _current
    settings = resolve(endpoint, headers, export_interval, spool_dir, protocol)
    attributes = dict(resource_attributes or {})
    if service_name is not None:
        attributes["service.name"] = service_name
    if _current is not None:
        _current.shutdown()
    if settings.offline:
        _log.warning(
            "no OTLP endpoint is set: telemetry goes to %s; set OTEL_EXPORTER_OTLP_ENDPOINT to send it",
            settings.spool_dir,
        )
    _current = Pipeline(settings, attributes)
    if not is_set(metrics.get_meter_provider()):
        metrics.set_meter_provider(_current.meter_provider)
    if not is_set(get_logger_provider()):
        set_logger_provider(_current.logger_provider)
    if not is_set(trace.get_tracer_provider()):
        trace.set_tracer_provider(_current.tracer_provider)
    return _current


_current: Pipeline | None = None


def _finalize(pipeline: Pipeline) -> None:
    """Shut down at the end of a child of multiprocessing, which leaves without atexit."""
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.Finalize(None, pipeline.shutdown, exitpriority=_BEFORE_QUEUES)


def _say_goodbye(engine: Engine) -> None:
    line = f"monitel: exported {engine.tally.total('metrics')} windows, {engine.tally.total('logs')} events"
    if dropped := engine.tally.total_dropped():
        line += f", dropped {dropped}"
    if spooled := engine.delivery.spooled_items:
        folder = engine.settings.spool_dir
        line += f"; {spooled} in {folder}, replay with: python -m monitel_otlp replay {folder}"
    print(line, file=sys.stderr)  # noqa: T201  the one line that a run says at its end

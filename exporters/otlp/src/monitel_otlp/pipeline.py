"""What configure() returns, and what it promises at fork and exit."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from opentelemetry import metrics, trace
from opentelemetry.sdk.resources import Resource

import monitel
from monitel_otlp.sdk._compat import NoOpLoggerProvider
from monitel_otlp.sdk.encoder import public_url
from monitel_otlp.engine import LIMIT, Engine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from monitel_otlp.sdk._compat import APILoggerProvider
    from monitel_otlp.config.settings import Settings
    from monitel_otlp.traces.span_queue import QueuedSpans, SpanSettings

_log = logging.getLogger("monitel.otlp")

EXIT_TIMEOUT = 2.0
_BEFORE_QUEUES = 50  # multiprocessing's priority: after monitel's own flush (100), before its Queues close (10)
_FORK_PATIENCE = 1.0


class Pipeline:
    """monitel's windows, events and ranges on their way to an OTLP endpoint; :func:`configure` makes it.

    They wait in bounded queues (100,000 each; the oldest is dropped and counted) until the delivery thread encodes
    and sends them. What a backend does not take is kept, first in memory, then in the spool. Thread-safe.

    A forked child exports nothing of its parent, and nothing at all until a window or an event is logged there, or a
    range ends; it then has a thread and a spool of its own. In a worker of torch's DataLoader all that is dropped,
    counted as ``worker`` and said once, unless ``workers=True``.

    Attributes:
        meter_provider: For instruments of your own; they travel with the windows. Not in a forked child.
        logger_provider: For log records of your own; likewise.
        tracer_provider: For spans of your own; likewise.
    """

    meter_provider: MeterProvider = metrics.NoOpMeterProvider()
    logger_provider: APILoggerProvider = NoOpLoggerProvider()
    tracer_provider: TracerProvider = trace.NoOpTracerProvider()

    def __init__(
        self,
        settings: Settings,
        resource: Resource,
        *,
        point_attributes: Mapping[str, str | int],
        spans: SpanSettings | None = None,
        workers: bool = False,
        attached: bool = False,
        silent: bool = False,
    ) -> None:
        self._settings = settings
        self._resource = resource
        self._point_attributes = point_attributes
        self._workers = workers
        self._spans = spans
        self._ranges: QueuedSpans | None = None
        self._engine: Engine | None = None
        self._dropped_in_worker = 0
        self.at_end: list[Callable[[], object]] = []  # what configure() has to take back
        self.ended: bool | None = True if silent else None
        if silent:
            return
        self._ranges = spans.queue(LIMIT, self._take_ranges) if spans is not None else None
        self._engine = Engine(settings, point_attributes, resource, self._ranges, attached=attached)
        if self._engine.providers is not None:
            self.meter_provider = self._engine.providers.meter_provider
            self.logger_provider = self._engine.providers.logger_provider
            self.tracer_provider = self._engine.providers.tracer_provider
        self._handle = monitel.register_event_handler(self._take)
        if self._ranges is not None:
            self._ranges.listen()
        self._end_with_the_process()

    @property
    def engine(self) -> Engine | None:
        """What works for this process; None in a forked child until something is logged there."""
        return self._engine

    @property
    def endpoints(self) -> dict[str, str]:
        """Where each signal goes; one that is missing here goes to the spool."""
        return {signal: public_url(endpoint.url) for signal, endpoint in self._settings.endpoints.items()}

    @property
    def spool_dir(self) -> os.PathLike[str]:
        """Where this process's spool is, or will be."""
        return self._settings.spool_dir

    @property
    def dropped(self) -> dict[str, int]:
        """What this process has lost so far: windows, events and spans by reason."""
        found = self._engine.tally.dropped_by_reason() if self._engine is not None else {}
        return found | {"worker": self._dropped_in_worker} if self._dropped_in_worker else found

    def force_flush(self, timeout: float = 10.0) -> bool:
        """Close the windows whose time is over, and deliver everything that is queued.

        Windows still open stay open: ``monitel.flush()`` closes them.

        Args:
            timeout: Seconds at most.

        Returns:
            True if all of it was acknowledged, or is on disk where no endpoint is set.
        """
        if self.ended is not None:
            return self.ended
        return self._engine is None or self._engine.force_flush(timeout)

    def shutdown(self, timeout: float = EXIT_TIMEOUT) -> bool:
        """Flush every live Stat, deliver what can be delivered, put the rest into the spool, and stop.

        Runs by itself at exit. A second time does nothing.

        Args:
            timeout: Seconds at most, whatever the backend does.

        Returns:
            As :meth:`force_flush`.
        """
        if self.ended is None:
            try:
                monitel.flush()
            except Exception:
                _log.exception("a handler failed while Stats were flushed at the end")
            self._end(timeout)
        return bool(self.ended)

    def terminate(self, timeout: float) -> None:
        """Shut down from a signal handler: the delivery thread does what may need a lock."""
        if self.ended is None:
            self._end(timeout, in_signal_handler=True)

    def __enter__(self) -> Pipeline:  # noqa: PYI034  typing.Self is 3.11's
        return self

    def __exit__(self, *_exception: object) -> None:
        self.shutdown()

    def _end(self, timeout: float, **how: Any) -> None:
        if self._ranges is not None:
            self._ranges.close()
        engine = self._engine
        self.ended = engine is None or engine.shutdown(timeout, **how)
        monitel.unregister_event_handler(self._handle)
        for action in self.at_end:
            action()
        if engine is not None:
            _say_goodbye(engine)

    def _take(self, event: monitel.Event) -> None:
        engine = self._engine or self._revive()
        if engine is not None:
            engine.take(event)

    def _take_ranges(self, waiting: int) -> None:
        """Ranges wait: the first, or half a queue."""
        engine = self._engine or self._revive()
        if engine is not None and waiting > 1:
            engine.delivery.wake()
        elif engine is None and self._ranges is not None:
            self._dropped_in_worker += len(self._ranges.queue.take(LIMIT)) - 1  # one is counted already

    def _revive(self) -> Engine | None:
        """The first window, event or range of a forked child: an engine of its own, but for a DataLoader's worker."""
        if self.ended is not None:
            return None
        if not self._workers and _is_worker():
            self._dropped_in_worker += 1
            if self._dropped_in_worker == 1:
                _log.warning("what DataLoader workers record is dropped; configure(workers=True) exports it")
            return None
        self._settings = self._settings.for_forked_child()
        self._resource = _of_this_process(self._resource)
        self._engine = Engine(self._settings, self._point_attributes, self._resource, self._ranges, attached=False)
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
        if self._engine is not None:
            self._engine.abandon()
            self._engine = None
        if self._ranges is not None and self._spans is not None and self.ended is None:
            self._ranges.abandon()
            self._spans = self._spans.for_forked_child()
            self._ranges = self._spans.queue(LIMIT, self._take_ranges, self._ranges.sampler)
            self._ranges.listen()


def _of_this_process(resource: Resource) -> Resource:
    """The resource of a forked child: its parent's, which is not detected anew, for at exit the SDK cannot."""
    own: dict[str, str | int] = {"service.instance.id": str(uuid4()), "process.pid": os.getpid()}
    return resource.merge(Resource({name: value for name, value in own.items() if name in resource.attributes}))


def _is_worker() -> bool:
    """Whether this is a worker process of torch's DataLoader."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


def _finalize(pipeline: Pipeline) -> None:
    """Shut down at the end of a child of multiprocessing, which leaves without atexit."""
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.Finalize(None, pipeline.shutdown, exitpriority=_BEFORE_QUEUES)


def _say_goodbye(engine: Engine) -> None:
    windows, events, spans = (engine.tally.total(signal) for signal in ("metrics", "logs", "traces"))
    dropped, spooled = engine.tally.total_dropped(), engine.delivery.spooled_items
    if engine.providers is None and not any([windows, events, spans, dropped, spooled]):
        return  # attached: a launcher, or any other program that runs in the same environment
    parts = []
    if engine.settings.endpoints:
        parts.append(f"exported {windows} windows, {events} events" + (f", {spans} spans" if spans else ""))
    if dropped:
        parts.append(f"dropped {dropped}")
    if spooled:
        folder = engine.settings.spool_dir
        where = "" if engine.settings.endpoints else " --endpoint http://HOST:4318"
        parts.append(f"{spooled} in {folder}, replay with: python -m monitel_otlp replay {folder}{where}")
    last_line = f"monitel: {'; '.join(parts) or 'nothing was recorded'}\n"  # at once: other ranks write theirs now
    with suppress(RuntimeError):  # a signal handler may have interrupted a print
        print(last_line, end="", file=sys.stderr)  # noqa: T201  that of a run

"""What configure() returns, and what it promises at fork and exit."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
import weakref
from collections import Counter
from contextlib import suppress
from threading import Event, Lock, RLock, get_ident
from typing import TYPE_CHECKING
from uuid import uuid4

from opentelemetry import metrics, trace
from opentelemetry.sdk.resources import Resource

import monitel
from monitel.sigterm import check as check_sigterm
from monitel_otlp.accounting import Account, Accounting
from monitel_otlp.engine import LIMIT, LIMIT_BYTES, Engine
from monitel_otlp.gil import in_a_hurry
from monitel_otlp.metrics.window_queue import SERIES_LIMIT
from monitel_otlp.sdk._compat import NoOpLoggerProvider

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from monitel_otlp.config.settings import Settings
    from monitel_otlp.sdk._compat import APILoggerProvider
    from monitel_otlp.traces.span_queue import QueuedSpans, SpanSettings

_log = logging.getLogger("monitel.otlp")

EXIT_TIMEOUT = 2.0
_BEFORE_QUEUES = 50  # multiprocessing's priority: after monitel's own flush (100), before its Queues close (10)
_LEAST_SHARE = 0.4  # of the time to shut down, for the delivery, however long the Stats take
_LEAST_FLUSH = 0.2  # seconds, even where there is no time to shut down
_FORK_PATIENCE = 1.0
_WORKER = "worker"
_DAY = 86_400.0  # seconds; the system cannot wait for an infinite timeout


class Pipeline:
    """monitel's windows, events and ranges on their way to an OTLP endpoint; :func:`configure` makes it.

    They wait in bounded queues (100,000 items and 128 MiB each; the oldest is dropped and counted) until the encoder
    makes requests of them. What a backend does not accept is kept, first in memory, then in the spool. Thread-safe.

    A forked child exports nothing of its parent, and nothing at all until a window or an event is logged there, or a
    range ends; it then has threads, a spool and an account of its own. In a worker of torch's DataLoader all that is
    dropped, counted as ``worker`` and logged once, unless ``workers=True``.

    Attributes:
        meter_provider: For instruments of the application; they travel with the windows. Not in a forked child.
        logger_provider: For log records of the application; likewise.
        tracer_provider: For spans of the application; likewise.
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
        series_limit: int = SERIES_LIMIT,
    ) -> None:
        self._settings = settings
        self._resource = resource
        self._point_attributes = point_attributes
        self._workers = workers
        self._spans = spans
        self._series_limit = series_limit
        self._accounting = Accounting()
        self._ranges: QueuedSpans | None = None
        self._engine: Engine | None = None
        self._is_worker = False
        self._reviving = RLock()
        self._ending = Lock()  # taken once, by the thread that ends the pipeline
        self._ending_thread: int | None = None
        self._over = Event()
        self._held = False
        self.at_end: list[Callable[[], object]] = []  # undoes what configure() has done
        self.ended: bool | None = True if silent else None
        if silent:
            return
        self._ranges = self._queue_ranges()
        self._engine = self._make_engine(attached=attached, leftovers=not attached)
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
        """The address of each signal, without secrets; a signal that is missing here goes to the spool."""
        return {signal: endpoint.public_url for signal, endpoint in self._settings.endpoints.items()}

    @property
    def spool_dir(self) -> os.PathLike[str]:
        """The folder of this process's spool; it is made when it is needed."""
        return self._settings.spool_dir

    @property
    def dropped(self) -> dict[str, int]:
        """Items that this process has lost so far, all signals together, by reason."""
        found: Counter[str] = Counter()
        for account in self.account().values():
            found.update(account.dropped)
        return dict(found)

    def account(self) -> dict[str, Account]:
        """Return what became of every item so far, for ``"metrics"``, ``"logs"`` and ``"traces"``.

        In each account ``recorded`` is the sum of all other numbers, read at one moment. It is available after the
        shutdown as well; then nothing waits. A forked child begins at zero.

        Example:
            >>> import monitel, monitel_otlp
            >>> with monitel_otlp.configure(spool_dir="runs") as pipeline:
            ...     _ = monitel.emit("epoch.ended")
            >>> account = pipeline.account()["logs"]
            >>> account.recorded, account.on_disk, account.waiting
            (1, 1, 0)
        """
        return self._accounting.account()

    def force_flush(self, timeout: float = 10.0) -> bool:
        """Close expired windows, and deliver everything that is queued. Never raises.

        Windows still open stay open: ``monitel.flush()`` closes them. A pause that the backend asked for by
        Retry-After is kept.

        Args:
            timeout: Seconds at most.

        Returns:
            True if all of it was acknowledged, or is on disk where no endpoint is set, and the pipeline has lost
            nothing so far.
        """
        if self.ended is not None:
            return self.ended
        try:
            return not self.dropped if self._engine is None else self._engine.force_flush(_bounded(timeout))
        except Exception:
            _log.exception("the flush of telemetry failed")
            return False

    def shutdown(self, timeout: float = EXIT_TIMEOUT) -> bool:
        """Flush every live Stat, deliver what can be delivered, put the rest into the spool, and stop.

        Runs by itself at exit. Idempotent. Never raises.

        Args:
            timeout: Seconds at most, whatever the backend does.

        Returns:
            True if all of it was acknowledged, or is on disk where no endpoint is set, and the pipeline has lost
            nothing.
        """
        return self._shut_down(_bounded(timeout))

    def terminate(self, timeout: float) -> None:
        """Shut down from a signal handler: other threads do whatever may need a lock."""
        self._shut_down(timeout, in_signal_handler=True)

    def __enter__(self) -> Pipeline:  # noqa: PYI034  typing.Self is 3.11's
        return self

    def __exit__(self, *_exception: object) -> None:
        self.shutdown()

    def _shut_down(self, timeout: float, *, in_signal_handler: bool = False) -> bool:
        if self.ended is not None:
            return self.ended
        if not self._ending.acquire(blocking=False):
            if self._ending_thread != get_ident():  # else a signal has interrupted it, and it goes on afterwards
                self._over.wait(timeout)
            return bool(self.ended)
        self._ending_thread = get_ident()
        complete = False
        begin = time.monotonic()
        try:
            with in_a_hurry():
                if not in_signal_handler:
                    self._flush_stats(max((1 - _LEAST_SHARE) * timeout, _LEAST_FLUSH))
                left = max(_LEAST_SHARE * timeout, timeout - (time.monotonic() - begin))
                complete = self._end(left, in_signal_handler=in_signal_handler)
        except Exception:
            _log.exception("the shutdown of telemetry failed")
        finally:
            self._accounting.close(encoded=False)
            self.ended = complete
            self._over.set()
        return complete

    def _flush_stats(self, timeout: float) -> None:
        if self._engine is not None:
            self._engine.flush_stats(timeout)
            return
        try:
            monitel.flush()  # a forked child may record for the first time
        except Exception:
            _log.exception("an event handler failed while Stats were flushed; telemetry goes on")

    def _end(self, timeout: float, *, in_signal_handler: bool) -> bool:
        if self._ranges is not None:
            self._ranges.close()
        if not in_signal_handler:  # there, the Stats are flushed by another thread
            monitel.unregister_event_handler(self._handle)
        engine = self._engine
        complete = engine is None or engine.shutdown(timeout, in_signal_handler=in_signal_handler)
        monitel.unregister_event_handler(self._handle)
        if engine is not None:
            self._print_last_line(engine)
        for action in self.at_end:  # after a SIGTERM the last of them does not return
            action()
        return complete and not self.dropped

    def engine_for(self, signal: str) -> Engine | None:
        """Return the engine that takes an item of this signal now; None where the item is dropped, and counted."""
        engine = self._engine or self._revive()
        if engine is None and self._is_worker:
            self._accounting.lose(signal, _WORKER, 1)
        return engine

    def _take(self, event: monitel.Event) -> None:
        engine = self.engine_for("metrics" if event.window is not None else "logs")
        if engine is not None:
            engine.take(event)

    def _first_range(self) -> bool:
        """Make the engine of a forked child when a range ends; True if there is one now."""
        if self._engine is None and self._revive() is None and self._ranges is not None:
            self._accounting.lose("traces", _WORKER, self._ranges.discard())
        return self._engine is not None

    def _revive(self) -> Engine | None:
        """Make the engine of a forked child, unless that is a worker of torch's DataLoader."""
        with self._reviving:  # threads of the child may record their first items at the same time
            if self._engine is not None or self.ended is not None or self._is_worker:
                return self._engine
            if not self._workers and _is_data_loader_worker():
                self._is_worker = True
                _log.warning("what DataLoader workers record is dropped; configure(workers=True) exports it")
                return None
            self._settings = self._settings.for_forked_child()
            self._resource = _of_this_process(self._resource)
            self._engine = self._make_engine(attached=False)
            _finalize(self)
            return self._engine

    def _make_engine(self, *, attached: bool, leftovers: bool = False) -> Engine:
        return Engine(
            self._settings,
            self._accounting,
            self._point_attributes,
            self._resource,
            self._ranges,
            attached=attached,
            series_limit=self._series_limit,
            leftovers=leftovers,
            each_round=check_sigterm,
        )

    def _queue_ranges(self) -> QueuedSpans | None:
        if self._spans is None:
            return None
        sampler = {} if self._ranges is None else {"sampler": self._ranges.sampler}
        return self._spans.queue(LIMIT, LIMIT_BYTES, first=self._first_range, wake=self._wake, **sampler)

    def _wake(self) -> None:
        if (engine := self._engine) is not None:
            engine.wake()

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
        self._held = self._engine is not None and self._engine.collecting.acquire(timeout=_FORK_PATIENCE)

    def _after_fork(self) -> None:
        if self._held and self._engine is not None:
            self._engine.collecting.release()

    def _in_child(self) -> None:
        if self._engine is not None:
            self._engine.abandon()
            self._engine = None
        self._accounting = Accounting()
        self._ending, self._over, self._reviving = Lock(), Event(), RLock()
        if self._ranges is not None and self._spans is not None and self.ended is None:
            self._ranges.abandon()
            self._spans = self._spans.for_forked_child()
            self._ranges = self._queue_ranges()
            assert self._ranges is not None  # there are settings for it
            self._ranges.listen()

    def _print_last_line(self, engine: Engine) -> None:
        accounts = self.account()
        spooled = sum(each.on_disk for each in accounts.values())
        dropped = self.dropped
        recorded = any(each.recorded for each in accounts.values())
        if engine.providers is None and not recorded:
            return  # attached: a launcher, or any other program that runs in the same environment
        parts = []
        if self._settings.endpoints:
            windows, events, spans = (accounts[signal].delivered for signal in ("metrics", "logs", "traces"))
            parts.append(f"exported {windows} windows, {events} events" + (f", {spans} spans" if spans else ""))
        if dropped:
            reasons = ", ".join(f"{reason} {items}" for reason, items in sorted(dropped.items()))
            parts.append(f"dropped {sum(dropped.values())} ({reasons})")
        if spooled or engine.delivery.stored:
            folder = self._settings.spool_dir
            where = "" if self._settings.endpoints else " --endpoint http://HOST:4318"
            what = spooled or "values of instruments"
            parts.append(f"{what} in {folder}, replay with: python -m monitel_otlp replay {folder}{where}")
        last_line = f"monitel: {'; '.join(parts) or 'nothing was recorded'}\n"  # in one write: other ranks print too
        with suppress(Exception):  # a signal handler may have interrupted a print; stderr may be closed
            print(last_line, end="", file=sys.stderr)  # noqa: T201  that of a run


def _bounded(timeout: float) -> float:
    """Return a timeout between 0 and a day; NaN is 0."""
    return max(0.0, min(timeout, _DAY))


def _of_this_process(resource: Resource) -> Resource:
    """Return the resource of a forked child: its parent's, which is not detected anew, for at exit the SDK cannot."""
    own: dict[str, str | int] = {"service.instance.id": str(uuid4()), "process.pid": os.getpid()}
    return resource.merge(Resource({name: value for name, value in own.items() if name in resource.attributes}))


def _is_data_loader_worker() -> bool:
    """Return True in a worker process of torch's DataLoader."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


def _finalize(pipeline: Pipeline) -> None:
    """Shut down at the end of a child of multiprocessing, which leaves without atexit."""
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        util.Finalize(None, pipeline.shutdown, exitpriority=_BEFORE_QUEUES)

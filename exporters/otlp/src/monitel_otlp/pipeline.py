"""The pipeline that configure() returns, its behaviour at fork and exit, and the inlet through which it takes items."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import monitel
from monitel.blackbox.forms import LogRecord
from monitel.blackbox.journal import Account
from monitel.blackbox.record import SIGNALS
from monitel.blackbox.recorder import Series
from monitel.blackbox.silent import hold, release
from monitel.process.exit import EXIT_TIMEOUT, LEAST, exit_timeout, finalize, without_interruption
from monitel.process.failures import warn_once
from monitel.process.fork import register_at_fork
from monitel.process.launcher import is_data_loader_worker, sdk_is_disabled
from monitel.process.os_threads import Event, Lock, RLock, get_ident
from monitel.process.sigterm import check as check_sigterm
from monitel.process.worker import low_latency
from monitel.run_events import leave, preempt, withdraw
from monitel.runs.ended import store_end
from monitel.runs.shares import print_last_line
from monitel.runs.values import RunValues, latest
from monitel.stats import window_sinks
from monitel.stats.before_flush import register as call_before_flush
from monitel.stats.before_flush import unregister as stop_before_flush
from monitel.text import replay_command, warn
from monitel.training.activities import activity
from monitel.wait_counter import own_waits
from monitel_otlp._compat import APILoggerProvider
from monitel_otlp.application import ApplicationTelemetry
from monitel_otlp.config.resource import check_rank, child_resource
from monitel_otlp.config.settings import Settings
from monitel_otlp.export.engine import STORED, Engine
from monitel_otlp.export.recorder import ExportRecorder
from monitel_otlp.messages.attributes import plain_attributes
from monitel_run.folder import announce_child

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.trace import TracerProvider

    from monitel.runs.ledger import RunLedger
    from monitel_otlp.traces.span_queue import QueuedSpans, SpanSettings

_log = logging.getLogger("monitel.otlp")

_BEFORE_QUEUES = 50  # priority of the finalizer: after the flush of monitel (100), before Queues are closed (10)
_REPORTED = 0.95  # share of the time to shut down that has passed when the end of the process is stored
_CUT_SHORT = "monitel could not send all that the application has recorded by OpenTelemetry's API"
_DAY = 86_400.0  # seconds; the system does not accept an infinite timeout


class Inlet:
    """Takes what the process records for the pipeline that records. Between two of them it waits for the second one."""

    def __init__(self) -> None:
        self.pipeline: Pipeline | None = None
        self.recorder: ExportRecorder | None = None  # None, too, in a forked child that has not recorded anything
        self._handle: monitel.EventHandlerHandle | None = None
        self._kept: deque[tuple[Any, ...]] = deque()  # a method of a recorder, and its arguments

    def lead_to(self, pipeline: Pipeline, recorder: ExportRecorder) -> None:
        """Let a pipeline record from now on, beginning with what waits."""
        self.pipeline, self.recorder = pipeline, recorder
        if self._handle is None:
            self._kept.clear()
            self._handle = monitel.register_event_handler(self._take)
            window_sinks.add(self._take_window)
        self._pass_on()

    def wait(self) -> None:
        """Keep what is recorded from now on for the next pipeline."""
        self.pipeline = self.recorder = None

    def close(self) -> None:
        """Take nothing any more, and forget what waits, unless a pipeline records. Idempotent."""
        if self.pipeline is None and self._handle is not None:
            monitel.unregister_event_handler(self._handle)
            window_sinks.remove(self._take_window)
            self._handle = None
            self._kept.clear()

    def take_record(self, record: LogRecord | None) -> None:
        """Take one record of Python's ``logging``; None for one that cannot be converted, which is counted as lost."""
        if (recorder := self.recorder or self._recorder_for(ExportRecorder.record, record)) is not None:
            recorder.record(record)

    def _take(self, event: monitel.Event) -> None:
        """Take one event, in the thread that logs it; a handler of monitel. Windows are recorded already."""
        if event._window is None:
            recorder = self.recorder or self._recorder_for(ExportRecorder.event, event)
            if recorder is not None:
                recorder.event(event)

    def _take_window(self, definition: monitel.StatDefinition, window: monitel.Window, content: bytes) -> None:
        recorder = self.recorder or self._recorder_for(ExportRecorder.window, definition, window, content)
        if recorder is not None:
            recorder.window(definition, window, content)

    def _recorder_for(self, *item: Any) -> ExportRecorder | None:
        """Return the recorder of an item, which may be the first one of a forked child; None: it waits, or is lost."""
        if (pipeline := self.pipeline) is not None:
            engine = pipeline._start_in_child()
            return None if engine is None else engine.recorder
        self._kept.append(item)
        self._pass_on()  # the next pipeline may be there already
        return None

    def _pass_on(self) -> None:
        while (recorder := self.recorder) is not None and self._kept:
            with suppress(IndexError):  # another thread has taken it
                take, *item = self._kept.popleft()
                take(recorder, *item)


inlet = Inlet()


class Pipeline:
    """Exports windows, events and ranges to an OTLP endpoint; made by :func:`configure`. Thread-safe.

    Items are in the journals of the process until a backend has acknowledged them: in the black box, and later in the
    spool. Beyond the limits of both the oldest items are dropped and counted.

    A forked child exports nothing of its parent. It exports its items with separate threads, a separate record and a
    separate account, which are created when the first window or event is logged, or the first range ends, in the
    child. If it only adds to counters or waits in wait counters, they are created when the child flushes or ends. In a
    worker of torch's DataLoader nothing is recorded, and a warning is logged once, unless ``workers=True``.

    Attributes:
        ended: The result of the shutdown; None before it has ended. For a rank that does not export, always True.
        meter_provider, logger_provider, tracer_provider: Those for the application's instruments, log records and
            spans.
    """

    def __init__(
        self,
        settings: Settings,
        resource: Resource,
        *,
        point_attributes: Mapping[str, str | int],
        spans: SpanSettings | None,
        workers: bool,
        silent: bool,
        automatic: bool,
        application: Collection[str],
        series_limit: int,
        run_ledger: RunLedger | None,
    ) -> None:
        self._settings = settings
        self._resource = resource
        self._point_attributes = point_attributes
        self._workers = workers
        self._spans = spans
        self._series_limit = series_limit
        self._final: dict[str, Account] | None = None
        self._ranges: QueuedSpans | None = None
        #: None: silent, discarded, ended, or a forked child that has recorded nothing.
        self.engine: Engine | None = None
        self._spool_dir: os.PathLike[str] = settings.spool_root
        self._starting = RLock()
        self._ending = Lock()  # acquired once, by the thread that shuts down
        self._ending_thread: int | None = None
        self._over = Event()
        self._is_automatic = automatic
        self._begun = 0  # items, such as the start of the run, that another pipeline would record again
        self.at_end: list[Callable[[], object]] = []  # undo the effects of configure() on the process
        rank = resource.attributes.get("training.rank", point_attributes.get("training.rank"))
        self.each_round: list[Callable[[], object]] = [check_sigterm, partial(check_rank, rank)]
        self.ended: bool | None = True if silent else None
        self._gives_way = False  # another pipeline takes its place
        self._run_ledger = run_ledger
        self._application = ApplicationTelemetry(settings, resource, application)
        self.meter_provider: MeterProvider = self._application.meter_provider
        self.logger_provider: APILoggerProvider = self._application.logger_provider
        self.tracer_provider: TracerProvider = self._application.tracer_provider
        if silent:
            if not sdk_is_disabled():
                hold(self, settings=settings.box, attributes=plain_attributes(resource.attributes))
                self._shut_down_at_exit()
            return
        self._queue_ranges()
        self.engine = self._make_engine(leftovers=True)
        inlet.lead_to(self, self.engine.recorder)
        if self._ranges is not None:
            self._ranges.listen()
        self._shut_down_at_exit()
        register_at_fork(after_in_child=_weakly(self._in_child))
        self._start_ledger()

    @property
    def is_recording(self) -> bool:
        """True until the shutdown has recorded everything."""
        return inlet.pipeline is self

    @property
    def endpoints(self) -> dict[str, str]:
        """The address of each signal, without secrets. One without an address goes to the spool, unless it is off."""
        endpoints, off = self._settings.endpoints.items(), self._settings.off
        return {signal: endpoint.address.public for signal, endpoint in endpoints if signal not in off}

    @property
    def spool_dir(self) -> os.PathLike[str]:
        """The spool folder of this process. It is made when it is needed."""
        return self._spool_dir if self.engine is None else self.engine.spool_dir

    @property
    def dropped(self) -> dict[str, int]:
        """The number of items of all signals that this process has lost so far, by reason."""
        return dict(_dropped(self.account()))

    def account(self) -> dict[str, Account]:
        """Return the account of every item recorded so far, for ``"metrics"``, ``"logs"`` and ``"traces"``.

        In each account ``recorded`` is the sum of the other numbers, except ``synthetic``; all are read at the same
        moment. After the shutdown no item waits. The accounts of a forked child start at zero.

        Example:
            >>> import monitel, monitel_otlp
            >>> with monitel_otlp.configure(spool_dir="runs") as pipeline:
            ...     monitel.log({"accuracy": 0.9})
            >>> account = pipeline.account()["metrics"]
            >>> account.recorded, account.on_disk, account.waiting
            (1, 1, 0)
        """
        if self._final is not None:
            return dict(self._final)
        return dict.fromkeys(SIGNALS, Account()) if self.engine is None else self.engine.account()

    def force_flush(self, timeout: float = 10.0) -> bool:
        """Close expired windows, and deliver all queued items and what the application's providers hold. Never raises.

        Open windows stay open; ``monitel.flush()`` closes them. A pause after a failed attempt is kept.

        Args:
            timeout: Seconds at most.

        Returns:
            True if all queued items were acknowledged, or are on disk because no endpoint is set, and if the pipeline
            has lost no item so far; and if the flush of the application's providers has ended.
        """
        if self.ended is not None:
            return self.ended
        deadline = time.monotonic() + _bounded(timeout)
        try:
            flushing = self._application.begin("force_flush")
            done = not self.dropped if self.engine is None else self.engine.force_flush(_bounded(timeout))
            return self._application.wait(flushing, deadline) and done
        except Exception:
            _log.exception("the flush of telemetry failed")
            return False

    def shutdown(self, timeout: float = EXIT_TIMEOUT) -> bool:
        """Flush every live Stat, deliver all items or write them to the spool, and stop.

        Called automatically at exit. Idempotent. Never raises. In the ledger the time is ``shutdown``.

        Args:
            timeout: Seconds at most, whatever the backend does.

        Returns:
            True if all items were acknowledged, or are on disk because no endpoint is set, and if the pipeline has lost
            no item.
        """
        self._end_silent(_bounded(timeout))
        if self.ended is not None:
            return self.ended
        with activity("shutdown"):
            return self._shut_down(_bounded(timeout))

    def _terminate(self, timeout: float) -> bool:
        """Shut down from a signal handler: locks that the interrupted code may hold are released, or have a limit.

        Returns False if the signal has interrupted a shutdown in this thread, which will resume.
        """
        preempt()
        self._end_silent(timeout)
        with nullcontext() if self.engine is None else self.engine.box.unlocked():
            self._shut_down(timeout, in_signal_handler=True)
        return self.ended is not None or self._ending_thread != get_ident()

    def _end_silent(self, timeout: float) -> None:
        """End the record of a rank that does not export."""
        if (series := release(self)) is not None:
            self._report(series, {}, self.spool_dir, stored=False, timeout=timeout)

    def _give_way(self) -> bool:
        """End, because the program makes another pipeline: what is recorded from now on waits for that one.

        What there is so far is delivered, and the open windows are closed. But one that was made without code, and has
        recorded nothing but the start of the run, ends without a trace. Returns True if this one was made without code:
        the other one continues the run.
        """
        self._gives_way = True
        discarded = self._is_automatic and self._discard()
        if self._is_automatic:
            withdraw(self, again=discarded)
        if discarded:
            self._shut_down(0.0)
        else:
            self.shutdown()
        return self._is_automatic

    def _discard(self) -> bool:
        """End without a trace; return False if there is something to deliver."""
        if self.engine is None:
            return False
        inlet.wait()
        if self._recorded() == self._begun and self.engine.discard():
            self.engine = None
            return True
        inlet.lead_to(self, self.engine.recorder)
        return False

    def _recorded(self) -> int:
        return sum(each.recorded for each in self.account().values())

    def __enter__(self) -> Pipeline:  # noqa: PYI034  typing.Self is 3.11's
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        leave(self, error)
        self.shutdown()

    def _shut_down(self, timeout: float, *, in_signal_handler: bool = False) -> bool:
        if self.ended is not None:
            return self.ended
        if not self._ending.acquire(blocking=False):
            if self._ending_thread != get_ident():  # else a signal has interrupted it, and it resumes afterwards
                self._over.wait(timeout)
            return bool(self.ended)
        self._ending_thread = get_ident()
        complete = False
        try:
            with without_interruption(), low_latency():
                if not in_signal_handler:
                    leave(self, sys.exc_info()[1])
                complete = self._end(timeout)
        except Exception:
            _log.exception("the shutdown of telemetry failed")
        finally:
            self._spool_dir, self._final = self.spool_dir, self.account()
            self.engine = None  # the collections of garbage at the exit need not look at its series
            self.ended = complete
            self._over.set()
        return complete

    def _end(self, timeout: float) -> bool:
        begin = time.monotonic()
        if self._ranges is not None:
            self._ranges.close()
        if self.engine is None and self.is_recording:  # a forked child, which may record its first item here
            try:
                monitel.flush()
            except Exception:
                _log.exception("an event handler failed while Stats were flushed; telemetry continues")
        ending = self._application.begin("shutdown")
        engine = self.engine
        complete = engine is None or engine.shutdown(timeout, before=self._stop_taking)
        self._stop_taking()
        in_time = self._application.wait(ending, begin + STORED * timeout)
        if self._run_ledger is not None:
            self._run_ledger.finish(max(LEAST, begin + STORED * timeout - time.monotonic()))
        if engine is not None:
            left = max(LEAST, begin + _REPORTED * timeout - time.monotonic())
            given = engine.recorder.series, self.account(), engine.left
            self._report(*given, stored=engine.stored, timeout=left, cut_short=not in_time)
        for undo in self.at_end:  # the last one may be SIGTERM's, which does not return after a SIGTERM
            undo()
        return complete and not self.dropped

    def _stop_taking(self) -> None:
        if self.is_recording:
            inlet.wait()
            if not self._gives_way:
                inlet.close()

    def _report(
        self,
        series: Iterable[Series],
        accounts: Mapping[str, Account],
        left: os.PathLike[str],
        *,
        stored: bool,
        timeout: float,
        cut_short: bool = False,
    ) -> None:
        """Store the end of this process for ``monitel run``; print it without that, and if something was lost.

        ``cut_short``: the application's providers have not ended in time. It is printed, because a log may hang.
        """
        run_time, store = None, None
        if (ledger := self._run_ledger) is not None:
            run_time, store = ledger.run_time(), ledger.store
        given = self._resource.attributes, series, accounts, run_time
        is_stored = store_end(*given, spool=left, stored=stored, store=store, timeout=timeout)
        if accounts and not (self._is_automatic and self._gives_way):  # the other one reports
            if cut_short:
                warn(_CUT_SHORT, "")
            if not is_stored or self.dropped:
                warn(exit_summary(accounts, left, offline=not self._settings.endpoints, stored=stored))
            if not is_stored and run_time is not None:
                print_last_line(run_time)

    def _start_in_child(self) -> Engine | None:
        """Make the engine of a forked child, unless the child is a worker of torch's DataLoader."""
        with self._starting:  # threads of the child may record their first items at the same time
            if self.engine is not None or not self.is_recording:
                return self.engine
            if not self._workers and is_data_loader_worker():
                message = "telemetry of DataLoader workers is dropped; use configure(workers=True) to export it"
                warn_once(_log, message)
                return None
            stop_before_flush(self._start_to_count)
            self._settings = self._settings.for_forked_child()
            self._resource = child_resource(self._resource)
            self.engine = self._make_engine()
            inlet.lead_to(self, self.engine.recorder)
            finalize(_weakly(self._shut_down_in_time), _BEFORE_QUEUES)
            return self.engine

    def _start_to_count(self) -> None:
        """Make the engine of a forked child if it has counted something; before a flush, thus at its end, too."""
        if any(each.total for each in monitel.counters()) or any(each.count for _, each in own_waits()):
            self._start_in_child()

    def _make_engine(self, *, leftovers: bool = False) -> Engine:
        announce_child()
        return Engine(
            self._settings,
            self._point_attributes,
            self._resource,
            self._ranges,
            series_limit=self._series_limit,
            leftovers=leftovers,
            each_round=self.each_round,
            ledger=self._run_ledger,
        )

    def _start_ledger(self) -> None:
        if self._run_ledger is not None:
            stages = lambda: {} if self.engine is None else self.engine.recorder.stage_times()  # noqa: E731
            self._run_ledger.start(self._latest, stages)

    def _latest(self) -> RunValues | None:
        """Return the last values; a forked child that makes steps gets its engine and its box here."""
        if self.engine is None and (engine := self._start_in_child()) is not None:
            engine.recorder.begin_to_count()
        return None if self.engine is None else latest(self.engine.recorder)

    def _queue_ranges(self) -> None:
        if self._spans is not None:
            from monitel_otlp.traces.span_queue import QueuedSpans  # late: it loads the profiler

            first, sampler = lambda: self._start_in_child() is not None, self._application.sampler
            self._ranges = QueuedSpans(self._spans, first=first, sampler=sampler)

    def _shut_down_at_exit(self) -> None:
        at_exit = _weakly(self._shut_down_in_time)
        atexit.register(at_exit)
        finalize(at_exit, _BEFORE_QUEUES)

    def _shut_down_in_time(self) -> None:
        with exit_timeout() as left:
            self.shutdown(left)

    def _in_child(self) -> None:
        """Leave everything inherited to the parent, and start with empty accounts."""
        if self.engine is not None:
            self.engine.box.abandon()
            self.engine = None
        if self._run_ledger is not None:
            own = self._run_ledger.in_child()
            self._run_ledger = own if self.ended is None and self.is_recording else None
            self._start_ledger()
        self._final = None
        if self.is_recording:
            inlet.recorder = None
        inlet.close()  # where things wait for another pipeline, a thread of the parent makes it
        self._ending, self._over, self._starting = Lock(), Event(), RLock()
        if self.ended is None:
            call_before_flush(self._start_to_count)
        if self._ranges is not None and self._spans is not None and self.ended is None:
            self._ranges.abandon()
            self._spans = self._spans.for_forked_child()
            self._queue_ranges()
            self._ranges.listen()


def exit_summary(accounts: Mapping[str, Account], spool_dir: os.PathLike[str], *, offline: bool, stored: bool) -> str:
    """Return one line: what was exported, dropped and spooled, and how to replay the spool.

    ``offline``: no signal has an endpoint. ``stored``: something is on disk, even if it is not an item.
    """
    parts = []
    if not offline:
        numbers, events, spans = (accounts[signal].delivered for signal in ("metrics", "logs", "traces"))
        more = f", {spans} spans" if spans else ""
        parts.append(f"exported {numbers} windows and numbers, {events} events{more}")
    if dropped := _dropped(accounts):
        reasons = ", ".join(f"{reason} {items}" for reason, items in sorted(dropped.items()))
        parts.append(f"dropped {dropped.total()} ({reasons})")
    spooled = sum(account.on_disk for account in accounts.values())
    if spooled or stored:
        what, command = f"{spooled} {'item' if spooled == 1 else 'items'}", replay_command(str(spool_dir))
        if not spooled and dropped["rejected"] + dropped["unconfirmed"]:
            what, command = "rejected requests", f"{command} --rejected"
        elif not spooled:
            what = "values of counters"
        parts.append(f"{what} in {spool_dir}, replay with: {command}")
    return "; ".join(parts) or "nothing was recorded"


def _dropped(accounts: Mapping[str, Account]) -> Counter[str]:
    found = Counter[str]()
    for account in accounts.values():
        found.update(account.dropped)
    return found


def _bounded(timeout: float) -> float:
    """Return a timeout limited to the range from 0 to one day; NaN becomes 0."""
    return max(0.0, min(timeout, _DAY))


def _weakly(method: Callable[[], object]) -> Callable[[], None]:
    """Return a function that calls a method as long as its object is alive, which it does not keep."""
    found = weakref.WeakMethod(method)

    def call() -> None:
        if (alive := found()) is not None:
            alive()

    return call

"""The metric part of a round: expired windows are closed, instruments are read, and both are encoded."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from opentelemetry import metrics

import monitel
from monitel.os_threads import Event, start_thread
from monitel.readings import counter_names, monotonic_ns, wait_keys
from monitel.run_events import end_if_due
from monitel_otel.observed import WaitInstruments
from monitel_otel.scope import SCOPE
from monitel_otlp.threads.callbacks import Callback
from monitel_otlp.threads.worker import yield_gil

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from opentelemetry.metrics import Meter

    from monitel.os_threads import RLock
    from monitel_otlp.engine.encoder import Encoder, Source
    from monitel_otlp.metrics.wait_readings import WaitReadings
    from monitel_otlp.metrics.window_queue import WindowQueue
    from monitel_otlp.sdk.metric_requests import MetricRequests
    from monitel_otlp.sdk.providers import Providers
    from monitel_otlp.threads.callbacks import CallbackThread

_LONG_NS = 5_000_000_000  # a wait that lasts longer is sent soon


class Occasion:
    """Decides in which rounds the metrics of the process are sent: self-metrics, instruments, counters and waits.

    They go with windows. Without windows they are sent once in so many seconds, and soon if:

    * an item was lost;
    * a wait has been in flight for five seconds, or such a wait has ended;
    * a counter, a wait counter or the step is there for the first time.

    Use it in one thread at a time.

    Args:
        idle_interval: Seconds between two sendings without windows; 0 for one in each round.
        lost: Returns the number of items lost so far.
        waits: Reads the wait counters; None in an attached pipeline.
    """

    def __init__(self, idle_interval: float, lost: Callable[[], int], waits: WaitReadings | None) -> None:
        self._idle_ns = round(idle_interval * 1e9)
        self._lost = lost
        self._waits = waits
        self._due_ns = 0  # monotonic time
        self._seen: Hashable = None  # state of the process when its metrics were last sent
        self._now: Hashable = None

    @property
    def is_due(self) -> bool:
        """True if the metrics were not sent for the idle interval, or never."""
        return self._seen is None or monotonic_ns() >= self._due_ns

    @property
    def is_urgent(self) -> bool:
        """True if something has happened that has to be seen soon. Read it once in each round."""
        lasting = frozenset() if self._waits is None else self._waits.lasting(monotonic_ns() - _LONG_NS)
        names = len(counter_names()), len(wait_keys()), monitel.get_step() is not None
        self._now = self._lost(), lasting, names
        return self._now != self._seen

    def sent(self) -> None:
        """Note that this round sends the metrics."""
        self._seen = self._now
        self._due_ns = monotonic_ns() + self._idle_ns


_log = logging.getLogger("monitel.otlp")

_CALLBACKS = 1.5  # seconds that a round waits for callbacks of the application; each may take one second
_LAST_CALLBACKS = 0.3  # seconds of the exit's time
_AHEAD = 200  # windows that are closed or encoded at a time
_AHEAD_TIMEOUT = 0.05  # seconds that the callback thread waits for the encoder
_PATIENCE = 0.3  # seconds, if the code that a signal has interrupted may hold a lock
_PROGRESS = 0.1  # seconds in which windows must arrive while Stats are flushed


class MetricRound:
    """Encodes windows and the values of instruments, once in each round of the encoder.

    Event handlers and observable callbacks of the application run in the callback thread, where a hang stops no
    telemetry.

    Args:
        encoder: The encoder that calls :meth:`run`.
        callbacks: Runs code of the application.
        queue: The queue of closed windows.
        source: The same queue as a source of the encoder.
        requests: Encodes windows and the values of instruments.
        providers: The pipeline's own providers; None in an attached pipeline, where the application's reader collects.
        collecting: Held while the SDK collects.
        register: Creates the instruments of the pipeline itself.
        waits: Writes the wait counters; None in an attached pipeline, where they are instruments.
        occasion: Decides whether instruments are read without windows.
        is_used: Returns True once the application has recorded something.

    Attributes:
        interrupted: A signal handler waits for the encoder.
    """

    def __init__(
        self,
        encoder: Encoder,
        callbacks: CallbackThread,
        *,
        queue: WindowQueue,
        source: Source,
        requests: MetricRequests,
        providers: Providers | None,
        collecting: RLock,
        register: Callable[[Meter], object],
        waits: WaitReadings | None,
        occasion: Occasion,
        is_used: Callable[[], bool],
    ) -> None:
        self._encoder = encoder
        self._windows = queue
        self._source = source
        self._requests = requests
        self._providers = providers
        self._callbacks = callbacks
        self._collecting: Any = collecting
        self._register = register
        self._occasion = occasion
        self._is_used = is_used
        self._instruments: WaitInstruments | None = None
        self._last = False
        self._drained = Event()
        self._failed = False
        self.interrupted = False
        callbacks.add(Callback("an event handler, while windows were closed,", self._close_windows, often=True))
        if waits is not None:
            callbacks.add(Callback("reading the longest waits", waits.refresh_own))
            callbacks.add(Callback("a source of wait counters", waits.refresh_sources, often=True))
        if providers is not None:
            register(providers.meter_provider.own_meter(*SCOPE))
        else:
            callbacks.add(Callback("a source of wait counters", self._create_instruments, often=True))

    def run(self, *, last: bool) -> None:
        """Close expired windows, collect the values of instruments if they are to be sent, and encode both.

        Call it in the encoder's thread.

        Args:
            last: The round is the last one.
        """
        self._last = last
        if self.interrupted:  # a signal handler waits for this thread: encode what is queued first
            self._drain_windows()
            self.flush_stats(_LAST_CALLBACKS)
            self._drain_windows()
            if self._providers is not None:
                self._requests.read()
                self._requests.flush()
            self._encoder.commit()
        if not self._refresh(_LAST_CALLBACKS if last else _CALLBACKS):
            return
        if self.interrupted:
            self._collect_apart()
        else:
            self._collect()
        self._drain_windows()
        if self._providers is not None:
            self._requests.read()
            self._requests.flush()

    def _refresh(self, timeout: float) -> bool:
        """Run the callbacks; return False if this round sends neither windows nor the values of instruments."""
        deadline = time.monotonic() + timeout
        whole = self._providers is None or self._last or self._encoder.asked or self._occasion.is_due
        self._callbacks.refresh(timeout, self._drain_windows, often=None if whole else True)
        urgent = self._occasion.is_urgent
        if not whole:
            if not (urgent or self._requests.has_windows or len(self._windows)):
                return False
            self._callbacks.refresh(max(0.0, deadline - time.monotonic()), self._drain_windows, often=False)
        self._occasion.sent()
        return True

    def flush_stats(self, timeout: float) -> None:
        """Close the window of every Stat in the callback thread, because that calls the application's event handlers.

        Args:
            timeout: Seconds. After that it waits only while further windows arrive, because a window that is not
                closed would be lost uncounted.
        """
        callback = Callback("an event handler, while Stats were flushed,", _flush_stats)
        before = -1
        if not self._callbacks.call(callback, timeout) and not self.interrupted:
            callback.run()  # CPython has refused the thread
        while callback.queued and (recorded := self._windows.queue.counts().recorded) > before:
            before = recorded
            self._callbacks.wait(callback, _PROGRESS)

    def _collect_apart(self) -> None:
        """Collect in another thread: the code that a signal has interrupted may hold the lock of an instrument."""
        thread = start_thread(self._collect, "monitel-otlp-last")
        if thread is None:
            collect = Callback("an instrument, at the end of the process,", self._collect)
            self._callbacks.call(collect, _PATIENCE)
        else:
            thread.join(_PATIENCE)

    def _collect(self) -> None:
        """Encode the values of the SDK's instruments."""
        if self._providers is None:
            return
        try:
            with self._collecting:
                collected = self._providers.collect()
        except Exception:  # of a view or a reservoir of the application
            if not self._failed:
                self._failed = True
                _log.exception("the values of instruments cannot be collected (further failures are not logged)")
            return
        for _ in self._requests.collected(collected) if collected is not None else ():
            self._encoder.pause()

    def _create_instruments(self) -> None:
        """Create the instruments of an attached pipeline itself and of the process's wait counters.

        By now the application has set its provider. A reader without any instrument would never ask for the windows. A
        process that records nothing, such as a launcher, creates no instruments.
        """
        if self._instruments is None and not self._last and self._is_used():
            meter = metrics.get_meter_provider().get_meter(*SCOPE)
            self._instruments = WaitInstruments(meter)
            self._register(meter)
        if self._instruments is not None:
            self._instruments.refresh()

    def _close_windows(self) -> None:
        """Close expired windows, which calls event handlers of the application; in the callback thread."""

        def pause() -> None:
            self._callbacks.restart_timeout()
            self._drained.clear()
            if self._providers is not None and len(self._windows) > _AHEAD:
                self._drained.wait(_AHEAD_TIMEOUT)  # a long queue of windows would keep the garbage collector busy
            else:
                yield_gil()

        monitel.close_expired_windows(pause)

    def _drain_windows(self) -> bool:
        """Encode some of the queued windows, unless a reader asks for them; return True if the round should end."""
        if self._providers is not None:
            self._encoder.drain(self._source, _AHEAD)
            self._drained.set()
        return self._encoder.superseded


def _flush_stats() -> None:
    end_if_due()
    monitel.flush()

"""The metric part of a round: expired windows are closed, and encoded with the metrics of the process."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import monitel
from monitel.os_threads import Event
from monitel.readings import counter_names, monotonic_ns, wait_keys
from monitel.run_events import end_if_due
from monitel_otlp.threads.callbacks import Callback
from monitel_otlp.threads.worker import yield_gil

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from monitel_otlp.engine.encoder import Encoder, Source
    from monitel_otlp.metrics.requests import MetricRequests
    from monitel_otlp.metrics.wait_readings import WaitReadings
    from monitel_otlp.metrics.window_queue import WindowQueue
    from monitel_otlp.threads.callbacks import CallbackThread

_LONG_NS = 5_000_000_000  # a wait that lasts longer is sent soon


class Occasion:
    """Decides in which rounds the metrics of the process are sent: self-metrics, counters and waits.

    They go with windows. Without windows they are sent once in so many seconds, and soon if:

    * an item was lost;
    * a wait has been in flight for five seconds, or such a wait has ended;
    * a counter, a wait counter or the step is there for the first time.

    Use it in one thread at a time.

    Args:
        idle_interval: Seconds between two sendings without windows; 0 for one in each round.
        lost: Returns the number of items lost so far.
        waits: Reads the wait counters.
    """

    def __init__(self, idle_interval: float, lost: Callable[[], int], waits: WaitReadings) -> None:
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
        lasting = self._waits.lasting(monotonic_ns() - _LONG_NS)
        names = len(counter_names()), len(wait_keys()), monitel.get_step() is not None
        self._now = self._lost(), lasting, names
        return self._now != self._seen

    def sent(self) -> None:
        """Note that this round sends the metrics."""
        self._seen = self._now
        self._due_ns = monotonic_ns() + self._idle_ns


_CALLBACKS = 1.5  # seconds that a round waits for callbacks of the application; each may take one second
_LAST_CALLBACKS = 0.3  # seconds of the exit's time
_AHEAD = 200  # windows that are closed or encoded at a time
_AHEAD_TIMEOUT = 0.05  # seconds that the callback thread waits for the encoder
_PROGRESS = 0.1  # seconds in which windows must arrive while Stats are flushed


class MetricRound:
    """Encodes windows and the metrics of the process, once in each round of the encoder.

    Event handlers of the application run in the callback thread, where a hang stops no telemetry.

    Args:
        encoder: The encoder that calls :meth:`run`.
        callbacks: Runs code of the application.
        queue: The queue of closed windows.
        source: The same queue as a source of the encoder.
        requests: Encodes windows and the metrics of the process.
        waits: Writes the wait counters.
        occasion: Decides whether the metrics of the process are sent without windows.

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
        waits: WaitReadings,
        occasion: Occasion,
    ) -> None:
        self._encoder = encoder
        self._windows = queue
        self._source = source
        self._requests = requests
        self._callbacks = callbacks
        self._occasion = occasion
        self._last = False
        self._drained = Event()
        self.interrupted = False
        callbacks.add(Callback("an event handler, while windows were closed,", self._close_windows, often=True))
        callbacks.add(Callback("reading the longest waits", waits.refresh_own))
        callbacks.add(Callback("a source of wait counters", waits.refresh_sources, often=True))

    def run(self, *, last: bool) -> None:
        """Close expired windows, and encode them, with the metrics of the process if these are to be sent.

        Call it in the encoder's thread.

        Args:
            last: The round is the last one.
        """
        self._last = last
        if self.interrupted:  # a signal handler waits for this thread: encode what is queued first
            self._drain_windows()
            self.flush_stats(_LAST_CALLBACKS)
            self._encode()
            self._encoder.commit()
        if self._refresh(_LAST_CALLBACKS if last else _CALLBACKS):
            self._encode()

    def _encode(self) -> None:
        self._drain_windows()
        self._requests.read()
        self._requests.flush()

    def _refresh(self, timeout: float) -> bool:
        """Run the callbacks; return False if this round sends neither windows nor the metrics of the process."""
        deadline = time.monotonic() + timeout
        whole = self._last or self._encoder.asked or self._occasion.is_due
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

    def _close_windows(self) -> None:
        """Close expired windows, which calls event handlers of the application; in the callback thread."""

        def pause() -> None:
            self._callbacks.restart_timeout()
            self._drained.clear()
            if len(self._windows) > _AHEAD:
                self._drained.wait(_AHEAD_TIMEOUT)  # a long queue of windows would keep the garbage collector busy
            else:
                yield_gil()

        monitel.close_expired_windows(pause)

    def _drain_windows(self) -> bool:
        """Encode some of the queued windows; return True if the round should end."""
        self._encoder.drain(self._source, _AHEAD)
        self._drained.set()
        return self._encoder.superseded


def _flush_stats() -> None:
    end_if_due()
    monitel.flush()

"""The thread that encodes what was queued."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from threading import Condition, Lock
from typing import TYPE_CHECKING, Any

from monitel_otlp.delivery.worker import Worker
from monitel_otlp.gil import Pace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monitel.bounded_queue import BoundedQueue
    from monitel_otlp.accounting import Accounting

_AT_ONCE = 4  # items between two looks at the clock


@dataclass(frozen=True)
class Source:
    """A queue, and what its items become.

    Attributes:
        signal: The signal of the items.
        kind: The kind of their raw form.
        queue: Where they wait.
        add: Encodes a few items into a request; never raises.
        flush: Puts the request that is being filled.
    """

    signal: str
    kind: str
    queue: BoundedQueue[Any]
    add: Callable[[list[Any]], object]
    flush: Callable[[], object]


class Encoder:
    """Encodes in rounds: a round takes at most what was queued when it began, a few items of each source in turn.

    Metrics come first, and again whenever they are due in a round that takes long: a producer that is faster than the
    encoder does not keep them back. Between slices of 0.3 ms it gives the GIL away.

    Args:
        accounting: Counts the items.
        sources: The queues.
        metrics: Encodes windows and the values of instruments; receives whether it is for the last time.
        after: Called at the end of each round; receives the same.
        interval: Seconds between two rounds.
    """

    def __init__(
        self,
        accounting: Accounting,
        sources: Sequence[Source],
        metrics: Callable[[bool], object],
        after: Callable[[bool], object],
        interval: float,
    ) -> None:
        self._accounting = accounting
        self.sources = sources
        self._metrics = metrics
        self._after = after
        self._interval = interval
        self._pace = Pace()
        self._encoding = Lock()  # of a round
        self._rounds = Condition()
        self._wanted = self._done = 0
        self._next_metrics = time.monotonic() + interval
        self._deadline: float | None = None  # of the last round
        self._is_last = False  # the round under way
        self.finished = False
        self._worker = Worker("monitel-otlp", self._turn, first=interval)

    def start(self) -> None:
        """Start the thread, unless the process ends."""
        self._worker.start()

    def wake(self) -> None:
        """Begin the next round now. Takes no lock."""
        self._worker.wake()

    @property
    def over(self) -> bool:
        """True when the time of the last round is over."""
        return self._deadline is not None and time.monotonic() >= self._deadline

    @property
    def superseded(self) -> bool:
        """True where the round should end: the last one is to begin, or the time of the last one is over."""
        return self._deadline is not None and (not self._is_last or self.over)

    def pause(self) -> None:
        """Give the GIL away if it is time to; at the end of the process nothing comes before the telemetry."""
        if self._deadline is None:
            self._pace.pause()

    def drain(self, source: Source, most: int = sys.maxsize) -> None:
        """Encode what is queued in one source now, or at most so many items of it."""
        waiting = min(len(source.queue), most)
        while waiting and not self.over:
            waiting = self._step(source, waiting)

    def encode_all(self, deadline: float) -> bool:
        """Have everything encoded that is queued now.

        Args:
            deadline: Monotonic time by which to be back.

        Returns:
            True if that is done.
        """
        with self._rounds:
            self._wanted = wanted = self._done + 2  # a round under way may have begun too early
            self._worker.wake()
            return self._rounds.wait_for(lambda: self._done >= wanted, max(0.0, deadline - time.monotonic()))

    def finish(self, deadline: float, patience: float) -> bool:
        """Make the last round, and end.

        Args:
            deadline: Monotonic time after which nothing is taken from a queue any more.
            patience: Seconds after that for the step under way.

        Returns:
            True if everything was encoded.
        """
        self._deadline = deadline
        if self._worker.started:
            self._worker.wake()
            self._worker.join(deadline + patience)
        else:
            self._turn()
        return self.finished and not any(len(source.queue) for source in self.sources)

    def encode_here(self, patience: float) -> None:
        """Encode in the caller's thread, unless a round takes longer than so many seconds."""
        if self._encoding.acquire(timeout=patience):
            try:
                self._round(last=False)
            finally:
                self._encoding.release()

    def _turn(self) -> float:
        last = self._is_last = self._deadline is not None
        with self._encoding:
            self._round(last=last)
        with self._rounds:
            self._done += 1
            self._rounds.notify_all()
            if self._done < self._wanted:
                self._worker.wake()
        if last:
            self.finished = True
            self._worker.stop()
        return max(0.0, self._next_metrics - time.monotonic())

    def _round(self, *, last: bool) -> None:
        self._encode_metrics(last=last)
        left = [(source, len(source.queue)) for source in self.sources]
        while left and not self.superseded:
            left = [(source, rest) for source, waiting in left if (rest := self._step(source, waiting))]
            if not last and time.monotonic() >= self._next_metrics:
                self._encode_metrics(last=False)
        for source in self.sources:
            source.flush()
        self._after(last)

    def _encode_metrics(self, *, last: bool) -> None:
        self._next_metrics = time.monotonic() + self._interval
        self._metrics(last)

    def _step(self, source: Source, waiting: int) -> int:
        """Encode some items of a source, and return how many are left of those that waited."""
        taken = self._accounting.take(source.signal, source.queue.take, min(_AT_ONCE, waiting))
        if taken:
            source.add(taken)
        self.pause()
        return waiting - len(taken) if taken else 0

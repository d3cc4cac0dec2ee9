"""The thread that encodes queued items, in rounds."""

from __future__ import annotations

import logging
import math
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from monitel.os_threads import Condition, Lock
from monitel_otlp.threads.worker import Pace, Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from monitel.bounded_queue import BoundedQueue
    from monitel_otlp.accounting import Accounting

_log = logging.getLogger("monitel.otlp")

_ITEMS_PER_STEP = 4  # items between two checks of the clock


@dataclass(frozen=True)
class Source:
    """A queue, and the functions that encode its items.

    Attributes:
        signal: The signal of the items.
        kind: The kind of their raw form.
        queue: The queue.
        add: Encodes a few items into a request. Never raises.
        flush: Puts the unfinished request.
    """

    signal: str
    kind: str
    queue: BoundedQueue[Any]
    add: Callable[[list[Any]], object]
    flush: Callable[[], object]


class Encoder:
    """Encodes items in rounds. A round takes the items that were queued at its start, a few of each source at a time.

    Between two rounds, whenever a cut for the black box is due, queued items are added to requests that the next round
    finishes.

    Metrics come first, and again whenever they are due during a long round, so a producer that is faster than the
    encoder does not delay them. Between slices of 0.5 ms the GIL is released.

    Args:
        accounting: Counts the items.
        sources: The queues.
        metrics: Encodes windows and the metrics of the process. Its argument is True in the last round.
        after: Called at the end of each round. Its argument is True in the last round.
        interval: Seconds between two rounds.
        commit: Called whenever no item is between a queue and a request. Its argument is True if all items are encoded
            that were queued at the start of the round.
        due: Returns the monotonic time of the next cut.

    Attributes:
        sources: The queues.
        finished: True after the last round.
        asked: The current round was asked for, by :meth:`wake` or at the end.
    """

    def __init__(
        self,
        accounting: Accounting,
        sources: Sequence[Source],
        metrics: Callable[[bool], object],
        after: Callable[[bool], object],
        interval: float,
        *,
        commit: Callable[[bool], object] = lambda _: None,
        due: Callable[[], float] = lambda: math.inf,
    ) -> None:
        self._commit = commit
        self._due = due
        self._accounting = accounting
        self.sources = sources
        self._metrics = metrics
        self._after = after
        self._interval = interval
        self._pace = Pace()
        self._encoding = Lock()  # held during a round
        self._rounds = Condition()
        self._wanted = self._done = 0
        self._next_metrics = time.monotonic() + interval
        self.asked = False
        self._woken = False  # the next round is a complete one, however early
        self._deadline: float | None = None  # of the last round
        self._is_last = False  # the current round
        self.finished = False
        self._failed = False
        self._worker = Worker("monitel-otlp", self._run, first=0.0)

    def start(self) -> None:
        """Start the thread, unless the process is ending."""
        self._worker.start()

    def wake(self) -> None:
        """Start the next round now. Takes no lock."""
        self._woken = True
        self._worker.wake()

    @property
    def rounds(self) -> int:
        """The number of complete rounds."""
        return self._done

    def cancel(self, patience: float) -> bool:
        """End without a round, unless there was one, or this one takes longer than so many seconds.

        Returns:
            True if no round has been, and none will be.
        """
        if not self._encoding.acquire(timeout=patience):
            return False
        try:
            if self._done or self._woken or self._deadline is not None:
                return False
            self._worker.stop()
            self.finished = True
            return True
        finally:
            self._encoding.release()

    @property
    def over(self) -> bool:
        """True if the time of the last round has passed."""
        return self._deadline is not None and time.monotonic() >= self._deadline

    @property
    def superseded(self) -> bool:
        """True if the round should end, because the last round must start or its time has passed."""
        return self._deadline is not None and (not self._is_last or self.over)

    def pause(self) -> None:
        """Release the GIL if the slice of work has ended. In the last round, telemetry goes first."""
        if self._deadline is None:
            self._pace.pause()

    def commit(self) -> None:
        """Hand finished requests to the senders now."""
        self._commit(False)

    def drain(self, source: Source, most: int = sys.maxsize, *, paced: bool = True) -> None:
        """Encode the items that are queued in one source now, at most ``most``.

        Args:
            source: The source.
            most: The number of items.
            paced: Release the GIL between slices of work.
        """
        waiting = min(len(source.queue), most)
        while waiting and not self.over:
            waiting = self._step(source, waiting, paced=paced)

    def encode_all(self, deadline: float) -> bool:
        """Wait until all items are encoded that are queued now.

        Args:
            deadline: Monotonic time limit.

        Returns:
            True if they are encoded.
        """
        with self._rounds:
            self._wanted = wanted = self._done + 2  # the current round may have started too early
            self.wake()
            return self._rounds.wait_for(lambda: self._done >= wanted, max(0.0, deadline - time.monotonic()))

    def finish(self, deadline: float, patience: float) -> bool:
        """Run the last round, and end.

        Args:
            deadline: Monotonic time after which no item is taken from a queue.
            patience: Seconds after that for the current step.

        Returns:
            True if everything was encoded.
        """
        self._deadline = deadline
        if self._worker.started:
            self._worker.wake()
            self._worker.join(deadline + patience)
        else:
            self._run_round()
        return self.finished and not any(len(source.queue) for source in self.sources)

    def _run(self) -> float:
        if self._woken or self._deadline is not None or time.monotonic() >= self._next_metrics:
            self._run_round()
        elif time.monotonic() >= self._due():
            with self._encoding:
                self._encode_queued(last=False)
                self._commit(True)
        return max(0.0, min(self._next_metrics, self._due()) - time.monotonic())

    def _run_round(self) -> None:
        self.asked, self._woken = self._woken or self._deadline is not None, False
        last = self._is_last = self._deadline is not None
        with self._encoding:
            self._round(last=last)
        with self._rounds:
            self._done += 1
            self._rounds.notify_all()
            if self._done < self._wanted:
                self.wake()
        if last:
            self.finished = True
            self._worker.stop()

    def _round(self, *, last: bool) -> None:
        self._encode_metrics(last=last)
        self._encode_queued(last=last)
        for source in self.sources:
            source.flush()
            self._commit(False)
        self._after(last)
        self._commit(True)

    def _encode_queued(self, *, last: bool) -> None:
        """Encode the items that are queued now."""
        left = [(source, len(source.queue)) for source in self.sources]
        while left and not self.superseded:
            left = [(source, rest) for source, waiting in left if (rest := self._step(source, waiting))]
            if not last and time.monotonic() >= self._next_metrics:
                self._encode_metrics(last=False)

    def _encode_metrics(self, *, last: bool) -> None:
        self._next_metrics = time.monotonic() + self._interval
        try:
            self._metrics(last)
        except Exception:  # the queues must be encoded even so
            if not self._failed:
                self._failed = True
                _log.exception("metrics could not be encoded in one round (further failures are not logged)")
        self._commit(False)

    def _step(self, source: Source, waiting: int, *, paced: bool = True) -> int:
        """Encode some of the waiting items of a source, and return the number of the others."""
        taken = self._accounting.take(source.signal, source.queue.take, min(_ITEMS_PER_STEP, waiting))
        if taken:
            source.add(taken)
            self._commit(False)
        if paced:
            self.pause()
        return waiting - len(taken) if taken else 0

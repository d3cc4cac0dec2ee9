"""Recording of a pipeline in its black box: every request of the encoder is in the box before it can be sent."""

from __future__ import annotations

import logging
import math
import time
from typing import TYPE_CHECKING, Any, Protocol

from monitel.open_windows import live_stats, open_windows
from monitel_otlp.black_box.cut import Cut
from monitel_otlp.threads.worker import Pace, yield_gil

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from monitel_otlp.black_box.box import BlackBox
    from monitel_otlp.black_box.window_state import WindowState
    from monitel_otlp.messages.request import FrozenRequest, UnfinishedRequest
    from monitel_otlp.metrics.readings import PlainCounter

_log = logging.getLogger("monitel.otlp")

INTERVAL = 1.0  # seconds between two cuts
_MOST_STATS = 1000  # whose open windows are in a cut: that many hold the GIL for about 1 ms
_PATIENCE = 0.3  # seconds that a cut waits for items that are queued
_SHORT, _LONG = 200, 3000  # windows in the queue that are encoded for a cut; for one that is late


class Builder(Protocol):
    """Encodes items into requests."""

    def settle(self) -> None:
        """Encode the items that are collected, to be encoded together."""

    def flush(self) -> None:
        """Finish the request under construction."""

    def unfinished(self) -> UnfinishedRequest | None:
        """Return the request under construction; None if it has no items."""


class Recorder:
    """Collects the requests of the encoder, and hands them over after the cut that includes them.

    Use it in one thread at a time, except :meth:`put`.

    Args:
        box: The box.
        windows: The state of Stats and series.
        builders: All that build requests.
        queued: Returns the number of windows that are queued now.
        drain: Encodes these windows. Its argument is True to release the GIL between slices of work.
        deliver: Receives each request with its key in the box, or None if it is not in the box.
        parts: Splits a request that is too large for backends.
        counters: Returns the counters as plain values.
        describe: Returns what the process is doing.
    """

    def __init__(
        self,
        box: BlackBox,
        windows: WindowState,
        builders: Sequence[Builder],
        *,
        queued: Callable[[], int],
        drain: Callable[[bool], object],
        deliver: Callable[[FrozenRequest, str | None], object],
        parts: Callable[[FrozenRequest], Iterable[FrozenRequest]],
        counters: Callable[[], list[PlainCounter]],
        describe: Callable[[], dict[str, Any]],
    ) -> None:
        self._box = box
        self._windows = windows
        self._builders = builders
        self._queued = queued
        self._drain = drain
        self._deliver = deliver
        self._parts = parts
        self._counters = counters
        self._describe = describe
        self._finished: list[FrozenRequest] = []
        self._requests = self._cuts = 0
        self._read: tuple[bytes, tuple[int, ...]] = (b"", ())  # the open windows of the newest cut, and their Stats
        self._recording = False
        self._warned = False
        self._pace = Pace()
        self._due = time.monotonic() + INTERVAL

    @property
    def due(self) -> float:
        """Monotonic time of the next cut; infinite if there is no box any more."""
        return math.inf if self._box.over else self._due

    def put(self, request: FrozenRequest) -> None:
        """Add a finished request, which :meth:`commit` hands over."""
        self._finished.append(request)

    def commit(self, *, complete: bool, last: bool = False) -> None:
        """Make a cut and hand the finished requests over, if there are any or if a cut is due.

        Call it when no item is between a queue and a builder.

        Args:
            complete: All items are encoded that were queued some time ago. Otherwise a cut that is due waits a little,
                so that it includes them.
            last: There is no time for a cut.
        """
        if self._recording:  # a request is finished while windows are encoded for a cut
            return
        if last or self._box.over:
            self._hand_over(self._finished_parts())
        elif self._finished or time.monotonic() >= self._due + (0.0 if complete else _PATIENCE):
            self._recording = True
            try:
                self._record()
            finally:
                self._recording = False

    def _record(self) -> None:
        self._box.beat()
        late = time.monotonic() >= self._due + _PATIENCE
        stale = self._queued() > (_LONG if late else _SHORT)
        if stale and not self._finished:
            return  # the cut is made when the windows are encoded, a little later
        kept: list[tuple[FrozenRequest, str | None]] = []
        try:
            if not stale:
                # In this order no window is lost: one that is closed after the reading is encoded before the cut is
                # written, as the state of its Stat shows. While many windows are queued, the reading of the previous
                # cut stays, because it has their samples.
                self._due = time.monotonic() + INTERVAL
                yield_gil()
                self._read = open_windows(_MOST_STATS)
                self._windows.note(self._read[1])
                self._warn_of_many()
                self._drain(not late)
            crowded, self._box.crowded = self._box.crowded, False
            for builder in self._builders:
                builder.settle()
                if crowded:
                    builder.flush()
            kept = self._finished_parts()
            for number, (request, _) in enumerate(kept):
                if not request.idle:
                    self._requests += 1
                    kept[number] = request, self._box.keep(str(self._requests), request)
            if self._read[0] or self._changed() or not all(request.idle for request, _ in kept):
                self._box.cut(self._next_cut())
        except Exception as error:
            self._box.give_up(error)
        finally:
            self._hand_over(kept or self._finished_parts())

    def _warn_of_many(self) -> None:
        if not self._warned and len(live_stats()) > _MOST_STATS:
            self._warned = True
            message = "the black box has the open windows of the oldest %s Stats; a kill loses those of the others"
            _log.warning(message, f"{_MOST_STATS:,}")

    def _next_cut(self) -> Cut:
        windows, serials = self._read
        state = self._windows.read(serials, self._pace.pause)
        parts = []
        for builder in self._builders:
            self._pace.pause()
            if (part := builder.unfinished()) is not None:
                parts.append(tuple(part))
        yield_gil()  # each step takes some microseconds, or tens of them when the caches are cold
        counters, context = self._counters(), self._describe()
        yield_gil()
        below, done = self._box.events_done()
        self._cuts += 1
        times = time.time_ns(), time.monotonic_ns()
        return Cut(self._cuts, *times, self._requests, parts, below, done, windows, state, counters, context)

    def _changed(self) -> bool:
        """Return True if an idle process has something to write: a box that exists, or an item."""
        return self._box.is_open or any(builder.unfinished() is not None for builder in self._builders)

    def _finished_parts(self) -> list[tuple[FrozenRequest, str | None]]:
        """Take the finished requests, without keys."""
        finished, self._finished = self._finished, []
        return [(part, None) for request in finished for part in self._parts(request)]

    def _hand_over(self, requests: Iterable[tuple[FrozenRequest, str | None]]) -> None:
        for request, key in requests:
            self._deliver(request, key)

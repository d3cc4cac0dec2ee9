"""The load of a job: threads that add, emit, log, count, open ranges and flush at random, and write its history.

Every sample of a series has another value. The samples of a series with one thread are 1, 2, 3 ..., so that the
windows must lie side by side: their smallest and largest samples, counts and sums leave no choice. In a series that all
threads share, the k-th sample of thread t is 2 ** (13 * t), so that one sum holds the number of samples of each thread.
"""

from __future__ import annotations

import random
import time
from threading import Event, Thread
from typing import TYPE_CHECKING

from tests.nightly.kills.history import LATE_NS

import monitel
from monitel import COUNT, HISTOGRAM, MAX, MEAN, MIN, STDDEV, SUM, VALUE, Stat
from monitel.profiler import record_function

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.nightly.kills.history import HistoryWriter

THREADS = 4  # at most, so that sums of shared series stay exact
SHARED_BITS = 13
_WINDOWS = (0.1, 0.3, 1.0, 5.0, 60.0)
TILES = 3  # Stats of a thread
_TILE = [COUNT, SUM, MIN, MAX, VALUE, MEAN]
_PAUSES = (0.002, 0.005, 0.01, 0.02, 0.05)  # seconds; two numbers of a series may not share a millisecond
_SLEEP_NS = 20_000_000


def source_names(threads: int, tiles: int = TILES) -> list[str]:
    """Return the names of the sources of a process with so many threads, each of which has so many Stats."""
    kinds = [*(f"tile{tile}" for tile in range(tiles)), "short", "shared", "event", "number", "counter", "range"]
    return [f"{kind}.{thread}" for thread in range(threads) for kind in kinds]


class Load:
    """Threads that record at random until they are stopped.

    Args:
        history: The file of this process.
        seed: Seed of this process.
        threads: Number of threads.
        tiles: Number of Stats of each thread. If there are many, a sample is added to each of them now and then.
        fork: Called now and then in one of the threads, to fork; None: never.
        busy: Record without a pause, in one thread.
        spans: Open ranges, too.
    """

    def __init__(
        self,
        history: HistoryWriter,
        seed: int,
        threads: int,
        *,
        tiles: int = TILES,
        fork: Callable[[int], object] | None = None,
        busy: bool = False,
        spans: bool = False,
    ) -> None:
        self._history = history
        self._rng = random.Random(seed)
        self._fork = fork
        self._busy = busy
        self._spans = spans
        self._stopped = Event()
        self._shared = Stat("shared", [COUNT, SUM], self._rng.choice(_WINDOWS), monotonic=self._rng.random() < 0.5)
        self._lanes = [
            _Lane(history, self._rng.randrange(1 << 30), number, self._shared, tiles) for number in range(threads)
        ]
        self._threads = [Thread(target=self._run, args=[lane], daemon=True) for lane in self._lanes]
        self._threads.append(Thread(target=self._measure_lateness, daemon=True))

    def start(self) -> None:
        """Set the first step, and start the threads."""
        self._lanes[0].next_step()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def emit(self, events: int) -> None:
        """Emit events in this thread, without a pause. Other threads must have ended."""
        for lane in self._lanes:
            lane.emit(events // len(self._lanes))

    def record(self, operations: int) -> None:
        """Record in this thread, without a pause."""
        for _ in range(operations):
            self._lanes[0].record(spans=self._spans, numbers=False)

    def _run(self, lane: _Lane) -> None:
        busy = self._busy and lane.number == 0
        while not self._stopped.is_set():
            lane.record(spans=self._spans, fork=self._fork)
            self._stopped.wait(0.002 if busy else lane.rng.choice(_PAUSES))

    def _measure_lateness(self) -> None:
        """Write the time that this thread has overslept: others will have waited as long for a processor."""
        total_ns, awake_ns = 0, time.monotonic_ns()
        self._history.set(awake_ns=awake_ns)
        while not self._stopped.wait(_SLEEP_NS / 1e9):
            due_ns, awake_ns = awake_ns + _SLEEP_NS, time.monotonic_ns()
            if (late_ns := awake_ns - due_ns) > LATE_NS:
                total_ns += late_ns
                self._history.set(lateness_ns=total_ns)
            self._history.set(awake_ns=awake_ns)


class _Lane:
    """The items of one thread."""

    def __init__(self, history: HistoryWriter, seed: int, number: int, shared: Stat, tiles: int) -> None:
        self.number = number
        self.rng = rng = random.Random(seed)
        self._history = history
        self._sources = {
            name.partition(".")[0]: history[name] for name in source_names(number + 1, tiles) if _is_of(name, number)
        }
        self._shared = shared
        self._tiles = [
            Stat(
                f"tile{tile}.{number}",
                [
                    *_TILE,
                    *([HISTOGRAM] if not tile or rng.random() < 0.5 else []),
                    *([STDDEV] if rng.random() < 0.3 else []),
                ],
                rng.choice(_WINDOWS),
                monotonic=tile == 2 or (not tile and rng.random() < 0.5),
            )
            for tile in range(tiles)
        ]
        self._counter = monitel.counter(f"counter.{number}")
        self._short_is_monotonic = rng.random() < 0.5
        self._step = 0

    def record(self, *, spans: bool, numbers: bool = True, fork: Callable[[int], object] | None = None) -> None:
        """Record one thing, or a burst of a kind.

        Args:
            spans: Open ranges, too.
            numbers: Log numbers, too: they need pauses, because one of a millisecond is kept.
            fork: Called now and then in one of the threads.
        """
        (action,) = self.rng.choices(("tile", "shared", "single", "short", "process"), (60, 10, 22, 3, 5))
        if action == "tile" and len(self._tiles) > TILES and self.rng.random() < 0.3:
            for tile in range(len(self._tiles)):
                self._add(tile, 1)
        elif action == "tile":
            self._add(self.rng.randrange(len(self._tiles)), self.rng.choice((1, 1, 2, 5, 40)))
        elif action == "shared":
            sample = 2.0 ** (SHARED_BITS * self.number)
            self._repeat("shared", self.rng.choice((1, 3)), lambda _: self._shared.add(sample))
        elif action == "single":
            self._record_single_items(spans=spans, numbers=numbers)
        elif action == "short":
            self._use_short_stat()
        elif self.rng.random() < 0.2:
            monitel.flush()
        elif self.number == 0 and fork is not None and self.rng.random() < 0.25:
            fork(self.rng.randrange(1 << 30))
        elif self.number == 0:
            self.next_step()

    def next_step(self) -> None:
        """Set the next training step."""
        self._step += 1
        monitel.set_step(self._step)
        self._history.set(step=self._step)

    def emit(self, times: int) -> None:
        """Emit events."""
        self._repeat("event", times, self._emit)

    def _add(self, tile: int, times: int) -> None:
        add = self._tiles[tile].add
        self._repeat(f"tile{tile}", times, lambda number: add(float(number)))

    def _record_single_items(self, *, spans: bool, numbers: bool) -> None:
        (kind,) = self.rng.choices(("event", "number", "counter", "range"), (10, 5 * numbers, 4, 3 * spans))
        if kind == "event":
            self._repeat(kind, self.rng.choice((1, 1, 2, 30)), self._emit)
        elif kind == "number":
            self._repeat(kind, 1, lambda number: monitel.log({f"number.{self.number}": float(number)}))
        elif kind == "counter":
            self._repeat(kind, self.rng.choice((1, 5)), lambda _: self._counter.add(1))
        else:
            self._repeat(kind, 1, self._open_range)

    def _repeat(self, kind: str, times: int, operation: Callable[[int], object]) -> None:
        source = self._sources[kind]
        for _ in range(times):
            if not source.full:
                source.do(operation)

    def _emit(self, number: int) -> None:
        monitel.emit(
            f"event.{self.number}", number=number, square=number * number, text="x" * self.rng.choice((0, 10, 900))
        )

    def _open_range(self, number: int) -> None:
        with record_function(f"range.{self.number}", {"number": number}):
            pass

    def _use_short_stat(self) -> None:
        """Make a Stat, add to it, and drop it: its window is closed, and the next Stat continues the series."""
        source = self._sources["short"]
        times = self.rng.choice((1, 4))
        stat = Stat(f"short.{self.number}", _TILE, 60.0, monotonic=self._short_is_monotonic)
        for _ in range(times):
            if not source.full:
                source.do(lambda number: stat.add(float(number)))


def _is_of(name: str, thread: int) -> bool:
    return name.endswith(f".{thread}")

"""A job that is killed: threads that add, emit, log, count, open ranges, fork and flush at random, with a history.

Every sample of a series has another value. The samples of a series with one thread are 1, 2, 3 ..., so that the
windows must lie side by side: their smallest and largest samples, counts and sums leave no choice. In a series that all
threads share, the k-th sample of thread t is 2 ** (13 * t), so that one sum holds the number of samples of each thread.
"""

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from types import FrameType
from typing import Any

from tests.nightly.kills.history import LATE_NS, SLEEP_NS, HistoryWriter

import monitel
import monitel_otlp
from monitel import COUNT, HISTOGRAM, MAX, MEAN, MIN, STDDEV, SUM, VALUE, Stat, blackbox
from monitel.blackbox import box
from monitel.process import os_threads
from monitel.profiler import record_function

THREADS = 4  # at most, so that sums of shared series stay exact
SHARED_BITS = 13
_TILES = 3  # Stats of a thread
_TILE = [COUNT, SUM, MIN, MAX, VALUE, MEAN]
_WINDOWS = (0.1, 0.3, 1.0, 5.0, 60.0)
_PAUSES = (0.002, 0.005, 0.01, 0.02, 0.05)  # seconds; two numbers of a series may not share a millisecond
_THREADS = "/proc/self/task"
_RECORD = str(Path(blackbox.__file__).parent)


@dataclass
class Job:
    folder: Path  # folder of the histories
    number: int
    seed: int  # seed of what it does
    threads: int  # number of threads
    kill_after: float  # seconds until it is killed
    life: float | None  # seconds after which it ends by itself; None: it does not
    shuts_down: bool = True  # it ends with a shutdown of the pipeline, else by the exit alone
    burst: int = 0  # number of events at its end
    forks: bool = False  # it forks children, which record and die
    busy: bool = False  # it records without a pause, in one thread
    lines: int = 0  # number of lines of the code of the record after which it is killed; 0: it is not
    disk_after_s: float = box.DISK_AFTER_S  # seconds after which items are moved to the disk
    environment: dict[str, str] = field(default_factory=dict)  # environment variables
    options: dict[str, Any] = field(default_factory=dict)  # arguments of ``configure()``

    def new_history(self, threads: int) -> HistoryWriter:
        kinds = [*(f"tile{tile}" for tile in range(_TILES)), "short", "shared", "event", "number", "counter", "range"]
        sources = [f"{kind}.{thread}" for thread in range(threads) for kind in kinds]
        return HistoryWriter(self.folder / f"{self.number}-{os.getpid()}.history", sources)

    def run(self) -> None:
        """Run until this process is killed, or until its life is over."""
        os.environ.update(self.environment)
        history = self.new_history(self.threads)
        kill_at_line(self.lines)
        box.DISK_AFTER_S = self.disk_after_s
        pipeline = monitel_otlp.configure(**self.options, resource_attributes={"job": self.number})
        _configured(history)
        rng, stopped = random.Random(self.seed), Event()
        shared = Stat("shared", [COUNT, SUM], rng.choice(_WINDOWS), monotonic=rng.random() < 0.5)
        lanes = [_Lane(self, history, rng.randrange(1 << 30), number, shared) for number in range(self.threads)]
        lanes[0].next_step()
        lanes[0].fork = (lambda seed: self._fork(pipeline, seed)) if self.forks else None
        threads = [Thread(target=lane.run, args=[stopped], daemon=True) for lane in lanes]
        for thread in (Thread(target=_measure_waits, args=[history], daemon=True), *threads):
            thread.start()
        Event().wait(self.life)
        stopped.set()
        for thread in threads:
            thread.join()
        lanes[0].repeat("event", lanes[0].emit, self.burst)
        now_ns = time.monotonic_ns()
        history.set(exiting_ns=now_ns, stopped_ns=now_ns)
        if self.shuts_down:
            pipeline.shutdown()
            history.set(ended_ns=time.monotonic_ns())

    def _fork(self, pipeline: monitel_otlp.Pipeline, seed: int) -> None:
        """Fork a child that records and dies at once, in one of three ways; reap earlier ones."""
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if os.fork():
            return
        try:
            history = self.new_history(1)
            _configured(history)
            lane = _Lane(self, history, seed, 0, Stat("shared", [COUNT, SUM], 60.0))
            for _ in range(seed % 50):
                lane.record(numbers=False)
            if seed % 3 == 0:
                history.set(exiting_ns=time.monotonic_ns())
                pipeline.shutdown()
                history.set(ended_ns=time.monotonic_ns())
            history.set(stopped_ns=time.monotonic_ns())
            if seed % 3 == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(0)


def kill_at_line(lines: int) -> None:
    """Have this process killed at some line of the code of the record, counted over all threads, unless that is 0."""
    left = [lines]

    def line(_frame: FrameType, event: str, _argument: object) -> Any:
        left[0] -= event == "line"
        if left[0] <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return line

    if lines:
        for each in (sys, threading, os_threads._threading):
            each.settrace(lambda frame, *_: line if frame.f_code.co_filename.startswith(_RECORD) else None)


def _configured(history: HistoryWriter) -> None:
    now_ns = time.monotonic_ns()
    history.set(configured_ns=now_ns)
    history.note_wait(now_ns, 0)


def _measure_waits(history: HistoryWriter) -> None:
    """Write, also during the exit, for how long this process has waited for a processor: all threads, by the kernel.

    A thread that waits may hold the GIL, so that all others wait with it.
    """
    total_ns, queued_ns, awake_ns, pause = 0, dict[str, int](), time.monotonic_ns(), Event()
    while not pause.wait(SLEEP_NS / 1e9):
        due_ns, awake_ns = awake_ns + SLEEP_NS, time.monotonic_ns()
        if (late_ns := awake_ns - due_ns) > LATE_NS:
            total_ns += late_ns
        now_ns = _queued_ns()
        total_ns += sum(each_ns - queued_ns.get(thread, 0) for thread, each_ns in now_ns.items())
        queued_ns |= now_ns
        history.note_wait(awake_ns, total_ns)


def _queued_ns() -> dict[str, int]:
    """Return for how long each thread has been ready to run and not running, as far as the kernel tells it."""
    found = {}
    with suppress(OSError):
        for thread in os.listdir(_THREADS):  # noqa: PTH208  only names are needed
            with suppress(OSError), open(f"{_THREADS}/{thread}/schedstat", "rb") as file:  # noqa: PTH123  often
                found[thread] = int(file.read().split()[1])
    return found


class _Lane:
    def __init__(self, job: Job, history: HistoryWriter, seed: int, number: int, shared: Stat) -> None:
        self.fork: Callable[[int], object] | None = None
        self._rng = rng = random.Random(seed)
        self._number = number
        self._busy = job.busy and number == 0
        self._spans = job.options["spans"]
        self._history = history
        self._shared = shared
        self._tiles = [
            Stat(
                f"tile{tile}.{number}",
                [*_TILE, *[HISTOGRAM] * (not tile or rng.random() < 0.5), *[STDDEV] * (rng.random() < 0.3)],
                rng.choice(_WINDOWS),
                monotonic=tile == 2 or (not tile and rng.random() < 0.5),
            )
            for tile in range(_TILES)
        ]
        self._counter = monitel.counter(f"counter.{number}")
        self._short_is_monotonic = rng.random() < 0.5
        self._step = 0

    def run(self, stopped: Event) -> None:
        while not stopped.is_set():
            self.record()
            stopped.wait(0.002 if self._busy else self._rng.choice(_PAUSES))

    def record(self, *, numbers: bool = True) -> None:
        """Record one thing, or a burst of a kind; numbers only if there are pauses: one of a millisecond is kept."""
        rng = self._rng
        (action,) = rng.choices(
            ("tile", "shared", "event", "number", "counter", "range", "short", "flush", "fork", "step"),
            (60, 10, 10, 5 * numbers, 4, 3 * self._spans, 3, 1, 1, 3),
        )
        if action == "flush":
            monitel.flush()
        elif action == "fork" and self.fork is not None:
            self.fork(rng.randrange(1 << 30))
        elif action == "step" and self._number == 0:
            self.next_step()
        elif action not in {"fork", "step"}:
            self._record_items(action)

    def _record_items(self, kind: str) -> None:
        rng = self._rng
        if kind == "short":  # its window is closed when it goes, and the next Stat continues the series
            stat = Stat(f"short.{self._number}", _TILE, 60.0, monotonic=self._short_is_monotonic)
            self.repeat(kind, lambda n: stat.add(float(n)), rng.choice((1, 4)))
        elif kind == "tile":
            tile = rng.randrange(_TILES)
            self.repeat(f"tile{tile}", lambda n: self._tiles[tile].add(float(n)), rng.choice((1, 1, 2, 5, 40)))
        else:
            operations: dict[str, tuple[Callable[[int], object], tuple[int, ...]]] = {
                "shared": (lambda _: self._shared.add(2.0 ** (SHARED_BITS * self._number)), (1, 3)),
                "event": (self.emit, (1, 1, 2, 30)),
                "number": (lambda n: monitel.log({f"number.{self._number}": float(n)}), (1,)),
                "counter": (lambda _: self._counter.add(1), (1, 5)),
                "range": (self._open_range, (1,)),
            }
            operation, times = operations[kind]
            self.repeat(kind, operation, rng.choice(times))

    def next_step(self) -> None:
        self._step += 1
        monitel.set_step(self._step)
        self._history.set(step=self._step)

    def repeat(self, kind: str, operation: Callable[[int], object], times: int = 1) -> None:
        self._history.do(f"{kind}.{self._number}", operation, times)

    def emit(self, number: int) -> None:
        text = "x" * self._rng.choice((0, 10, 900))
        monitel.emit(f"event.{self._number}", number=number, square=number * number, text=text)

    def _open_range(self, number: int) -> None:
        with record_function(f"range.{self._number}", {"number": number}):
            pass

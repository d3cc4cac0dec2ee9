"""Processes of the kill campaign: a job that records in several threads, and a collector of its record.

Everything that the job does is in its history, see ``tests/nightly/kills/history.py``. The samples of a series are
1, 2, 3 ..., so that windows must lie side by side; in the shared series those of thread t are ``2 ** (24 * t)``.
"""

from __future__ import annotations

import marshal
import os
import random
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from threading import Event, RLock, Thread
from typing import TYPE_CHECKING, Any

from tests.nightly.blackbox.sender import Sender, SendThread, Totals
from tests.nightly.kills.history import HistoryWriter

from monitel import COUNT, HISTOGRAM, Stat, blackbox, os_threads, window_sinks
from monitel.blackbox.box import Box
from monitel.blackbox.forms import STAT
from monitel.blackbox.record import EVENT, NUMBERS, RANGES, READING, SPANS, WINDOW
from monitel.blackbox.recovery import claim
from monitel.open_windows import forget, open_windows
from monitel.window_bytes import key

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from tests.nightly.blackbox.sender import Backend

    from monitel.window import StatDefinition, Window

THREADS = 2
KINDS = ("tile", "hist", "shared", "event", "number", "range", "step", "counter")
STATS = ("tile.0", "hist.0", "tile.1", "hist.1", "shared")
#: Series by the number of their definition.
SERIES = ("", *STATS, "counter.0", "counter.1", "number.0", "number.1")
_HERE = str(Path(blackbox.__file__).parent)


def kill_at_line(lines: int) -> Callable[..., Any]:
    """Return a trace function that kills this process at some line of the package, counted over all threads."""
    left = [lines]

    def line(frame: FrameType, event: str, argument: object) -> Any:
        left[0] -= event == "line"
        if left[0] <= 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return line

    return lambda frame, *_: line if frame.f_code.co_filename.startswith(_HERE) else None


class Recorder:
    """Records into a box, as an exporter does."""

    def __init__(self, box: Box, windows: Callable[[str], float]) -> None:
        self.box, self.counters, self._ranges, self._lock = box, {6: 0, 7: 0}, list[Any](), RLock()
        definitions: list[Any] = [(name, (STAT, name, name, "", "", False, {})) for name in SERIES[1:]]
        assert [*range(1, len(SERIES))] == box.names.define_all(definitions)
        self.stats = {
            name: Stat(name, [HISTOGRAM if name.startswith("hist") else COUNT], windows(name.partition(".")[0]))
            for name in STATS
        }
        self._names = {stat._serial: SERIES.index(name) for name, stat in self.stats.items()}
        window_sinks.add(self._store)
        box.open_windows = self._open_windows
        box.flushes += [self.flush_ranges, self.read_counters]
        box.sources["counters"] = lambda: [*self.counters.items()]

    def _store(self, definition: StatDefinition, window: Window, content: bytes) -> None:
        journal = self.box.journals["metrics"]
        with journal.lock:
            journal.append(WINDOW, marshal.dumps((SERIES.index(definition.name), content), 2))
            forget(*key(content))

    def _open_windows(self) -> tuple[bytes, tuple[int, ...]]:
        content, serials = open_windows()
        return content, tuple(self._names[serial] for serial in serials)

    def append(self, journal: str, kind: int, *values: Any) -> None:
        """Append a record with a list of values."""
        self.box.journals[journal].append(kind, marshal.dumps([*values], 2), len(values))

    def emit(self, name: str, *values: Any) -> None:
        """Record an event."""
        self.box.journals["logs"].append(EVENT, marshal.dumps((name, *values), 2))

    def add_range(self, *values: Any) -> None:
        """Record a range, which the next flush appends."""
        with self._lock:
            self._ranges.append(values)

    def flush_ranges(self) -> None:
        """Append the ranges."""
        with self._lock:
            ranges, self._ranges = self._ranges, []
            for first in range(0, len(ranges), 200):
                self.append("traces", RANGES, *ranges[first : first + 200])

    def read_counters(self) -> None:
        """Append a reading of the counters."""
        journal = self.box.journals["readings"]
        with journal.lock:  # the order of readings is that of their values
            journal.append(READING, marshal.dumps((time.monotonic_ns(), [*self.counters.items()]), 2))

    def end(self) -> None:
        """Append everything that was collected."""
        for stat in self.stats.values():
            stat.flush()
        self.flush_ranges()
        self.read_counters()


@dataclass
class Job:
    """A job.

    Attributes:
        folder: Folder of the trial, with ``boxes`` and ``arrivals``.
        spool: Folder of the spools.
        seed: Seed of what it does.
        options: Arguments of its box.
        lines: Number of lines of the package after which it is killed; 0: at a time.
        life_s: Seconds after which it ends by itself.
        pace: Share of operations with a pause after them.
    """

    folder: Path
    spool: Path
    seed: int
    options: dict[str, Any]
    lines: int
    life_s: float
    pace: float

    def run(self, backend: Backend) -> None:
        """Record until this process is killed, or its life is over."""
        sources = [f"{kind}.{thread}" for thread in range(THREADS) for kind in KINDS]
        history, rng, stopped = HistoryWriter(self.folder / "history", sources), random.Random(self.seed), Event()
        if self.lines:
            os_threads._threading.settrace(kill_at_line(self.lines))
            sys.settrace(kill_at_line(3 * self.lines))
        box = Box(self.spool, self.folder / "boxes", {"job": self.seed}, interval_s=0.1, **self.options)
        self._note_snapshots(box, history)
        windows = {"tile": (0.005, 0.02, 0.1, 5.0), "hist": (0.02, 0.1, 5.0), "shared": (0.01, 0.1)}
        recorder = Recorder(box, lambda kind: rng.choice(windows[kind]))
        senders = [SendThread(Sender(each, backend.send, box.note_position)) for each in box.journals.values()]
        box.start()
        for sender in senders:
            sender.start()
        history.set(configured_ns=time.monotonic_ns())
        threads = [Thread(target=self._work, args=[recorder, history, stopped, n]) for n in range(THREADS)]
        for thread in threads:
            thread.daemon = True
            thread.start()
        stopped.wait(self.life_s)
        stopped.set()
        for thread in threads:
            thread.join()
        history.set(exiting_ns=time.monotonic_ns())
        recorder.end()
        deadline = time.monotonic() + 0.3
        while time.monotonic() < deadline and any(each.settled < each.next - 1 for each in box.journals.values()):
            Event().wait(0.005)
        for sender in senders:
            sender.over.set()
            sender.join(2.0)
        assert box.close(10.0) or not self.spool.is_relative_to(self.folder), box.disk_problem
        history.set(ended_ns=time.monotonic_ns())

    def _note_snapshots(self, box: Box, history: HistoryWriter) -> None:
        plain = box.snapshot

        def snapshot(timeout: float = 1.0) -> None:
            now_ns = time.monotonic_ns()
            plain(timeout)
            history.set(left_out=int(any(each.left_out for each in box.journals.values())), snapshot_ns=now_ns)

        box.snapshot = snapshot  # type: ignore[method-assign]

    def _work(self, recorder: Recorder, history: HistoryWriter, stopped: Event, n: int) -> None:
        """Record at random."""
        rng, stats = random.Random(10 * self.seed + n), recorder.stats
        operations: dict[str, Callable[[int], object]] = {
            "tile": stats[f"tile.{n}"].add,
            "hist": stats[f"hist.{n}"].add,
            "shared": lambda _: stats["shared"].add(1 << 24 * n),
            "event": lambda k: recorder.emit(f"event.{n}", k, k * k, "x" * (k % 200)),
            "number": lambda k: recorder.append("metrics", NUMBERS, (f"number.{n}", k)),
            "range": lambda k: recorder.add_range(f"range.{n}", k),
            "step": lambda k: recorder.append("steps", SPANS, (f"step.{n}", k)),
            "counter": lambda k: recorder.counters.__setitem__(6 + n, k),
        }

        def do(kind: str, number: int) -> None:
            operations[kind](number)
            if any(each.left_out for each in recorder.box.journals.values()):
                history.set(left_out=1)

        while not stopped.is_set():
            kind = rng.choice(KINDS)
            history.do(f"{kind}.{n}", lambda number, kind=kind: do(kind, number))  # type: ignore[misc]
            if rng.random() < self.pace:
                Event().wait(0.001)


@dataclass
class Collector:
    """A collector of the record with a name: it ends the record, and delivers or moves it."""

    folder: Path
    spool: Path
    name: str
    lines: int = 0
    moves: bool = False

    def run(self, backend: Backend) -> None:
        """Collect; exit status 3: there was nothing to do; 4: some items were not there."""
        if self.lines:
            sys.settrace(kill_at_line(self.lines))
        dead = claim(self.folder / "boxes", self.spool, self.name)
        if dead is None:
            sys.exit(3)
        if not dead.has_ended:
            dead.end(last_records(dead))
        failed, missing = False, 0
        for journal in dead.journals.values():
            sender = Sender(journal, backend.send, dead.note_position, Totals(*dead.totals[:2]))
            sender.catch_up(dead.items(journal.name, sender.totals.number + 1))
            while not failed:
                answer = sender.send()
                if answer is None and journal.loading is None:
                    break
                failed = answer is False
                dead.tend()
            missing += journal.account().dropped.get("unreadable", 0)
        if dead.is_delivered:
            dead.remove()
        elif self.moves:
            dead.move()
        dead.close()
        sys.exit(4 if missing else 0)


def last_records(dead: Any) -> dict[str, list[tuple[int, Any]]]:
    """Return what is appended to the record of a killed process: open windows, a reading, and its death."""
    snapshot, end = dead.snapshot, {"logs": [(EVENT, ("process.died", 1))]}
    if snapshot is not None:
        end["metrics"] = [(WINDOW, each) for each in dead.open_windows()]
        if not dead.has_grown("readings"):
            end["readings"] = [(READING, (snapshot.monotonic_ns, snapshot.values["counters"]))]
    return end

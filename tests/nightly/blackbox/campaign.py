"""Jobs and collectors that are killed at random instants and lines, and a comparison of everything that arrived.

PYTHONPATH=. .venv/bin/python -m tests.nightly.blackbox.campaign --kills 1000 --seed 1

This one is about the journals alone, without OpenTelemetry, at thousands of operations a second; ``nightly/kills`` has
the whole pipeline. With ``--every N``, a collector is killed at every Nth line that it executes, in four situations.
"""

from __future__ import annotations

import argparse
import mmap
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from functools import partial
from itertools import count, pairwise, product
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from tests.nightly.blackbox.job import SERIES, STATS, THREADS, Collector, Job
from tests.nightly.blackbox.sender import MODES, Backend, by_source
from tests.nightly.kills.history import read_history

from monitel.blackbox.recovery import processes, sweep

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.nightly.kills.history import History

DEADLINE = 60.0  # seconds for what ends by itself
_NOWHERE = Path("/proc/nowhere")  # nothing can be made in it
_CROWDED = {"box_bytes": 128 << 10, "memory_bytes": 128 << 10}


def start(function: Callable[[], object]) -> int:
    """Run a function in a forked process; return its number."""
    sys.stdout.flush()
    if pid := os.fork():
        return pid
    status = 9
    try:
        function()
        status = 0
    except SystemExit as end:
        status = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def finish(pid: int, kill_after: float = DEADLINE) -> tuple[int, int]:
    """Wait for the end of a process, and kill it after so many seconds; return its status, and the time."""
    deadline, pause = time.monotonic() + kill_after, Event()
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), time.monotonic_ns()
        if time.monotonic() >= deadline:
            os.kill(pid, signal.SIGKILL)
            died_ns = time.monotonic_ns()
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), died_ns
        pause.wait(0.0005)


class Campaign:
    """Trials one after another, in a folder in memory."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._seed = folder, seed
        self._boxes, self._spool = folder / "boxes", folder / "spool"
        self._mode = mmap.mmap(-1, 4096)
        self.counts: Counter[str] = Counter()
        self.ages: list[float] = []  # of the oldest lost operation of each trial, seconds
        self.problems: list[str] = []

    def behave(self, mode: str) -> None:
        """Set what the backend does."""
        self._mode[0] = MODES.index(mode)

    def clear(self) -> Backend:
        """Begin a trial: nothing is left of the previous one."""
        shutil.rmtree(self._folder, ignore_errors=True)
        (self._folder / "arrivals").mkdir(parents=True)
        return Backend(self._folder / "arrivals", self._mode, self._seed)

    def trial(self, number: int) -> None:
        """Kill one job, and some of its collectors; then compare."""
        rng = random.Random(self._seed * 100_003 + number)
        backend, mode = self.clear(), rng.choice([*MODES, "outage then healthy"])
        options: dict[str, Any] = {
            "box_bytes": rng.choice((*[16 << 20] * 4, 200 << 10)),
            "disk_after_s": rng.choice((60.0, 60.0, 0.05)),
        }
        lines = int(10 ** rng.uniform(1.5, 4.6)) if rng.random() < 0.4 else 0
        job = Job(self._folder, self._spool, rng.randrange(1 << 30), options, lines, 9.0, rng.choice((0.02, 0.1, 0.3)))
        job.life_s = rng.choice((0.15, 0.4, 9.0, 9.0))
        if rng.random() < 0.12:  # nothing can be moved, and the oldest items are dropped
            options |= _CROWDED
            job.spool, job.pace, job.life_s, mode = _NOWHERE, 0.0, 9.0, "outage then healthy"
        self.behave(mode.partition(" ")[0])
        kill_after = rng.choice((rng.uniform(0.01, 0.9), rng.uniform(0.1, 0.6)))
        pid = start(partial(job.run, backend))
        if " " in mode:
            Event().wait(min(kill_after, rng.uniform(0.1, 0.3)) / 2)
            self.behave("healthy")
        status, died_ns = finish(pid, kill_after)
        killed = status == -signal.SIGKILL
        self.counts.update({"kills": killed, mode: 1, "dropping": job.spool == _NOWHERE})
        where = f"seed {self._seed}, trial {number}, {mode}, status {status}, {job}"
        if status and not killed:
            self.problems.append(f"{where}: the job failed")
        attempts = [int(10 ** rng.uniform(0.5, 4.2)) for _ in range(rng.choice((0, 1, 3, 8)))]
        away = 2 if mode == "outage" and rng.random() < 0.7 else 0
        collectors, missing = self._collect(backend, job.spool, attempts, away)
        history = read_history(self._folder / "history") if (self._folder / "history").exists() else None
        if history is None or not history.begun:
            return
        found = Comparison(history, backend, died_ns)
        found.compare(repeats=None if mode == "flaky" else killed + collectors, killed=killed)
        found.problems += self._left(job.spool)
        if missing and not found.crowded:
            found.problems.append("a collector has not found some items")
        self.counts.update({"collectors": collectors, "operations": found.operations, "crowded": found.crowded})
        self.counts["closed"] += bool(history.ended_ns)
        self.ages += [] if found.crowded else [found.lost_s]
        self.problems += [f"{where}: {each}" for each in found.problems[:6]]

    def _collect(self, backend: Backend, spool: Path, attempts: list[int], away: int) -> tuple[int, bool]:
        """Run collectors until nothing is left, the first ones without a backend.

        Returns:
            The number of those that were killed, and True if one has not found some items.
        """
        killed, missing = 0, False
        for lines in [*attempts, *[0] * 20]:
            sweep(self._boxes, spool)
            names = processes(self._boxes, spool)
            if not names:
                break
            self.behave("outage" if away > 0 else "healthy")
            collector = Collector(self._folder, spool, names[0], lines, moves=away > 0)
            status, _ = finish(start(partial(collector.run, backend)))
            away, killed, missing = away - 1, killed + (status == -signal.SIGKILL), missing or status == 4
            if status not in {0, 3, 4, -signal.SIGKILL}:
                self.problems.append(f"seed {self._seed}: a collector failed with {status}")
        return killed, missing

    def _left(self, spool: Path) -> list[str]:
        sweep(self._boxes, spool)
        folders = [each for each in (self._boxes, spool) if each.is_dir()]
        return [f"{each} is left" for folder in folders for each in folder.iterdir()]

    def every_line(self, step: int) -> None:
        """Kill collectors of a record at their lines 1, 1 + step, 1 + 2 * step ..., in four situations."""
        dead = self._folder.with_name("dead")
        for disk_after_s, outage in product((60.0, 0.0), (False, True)):
            backend = self.clear()
            self.behave("outage" if outage else "healthy")
            job = Job(self._folder, self._spool, 1, {"disk_after_s": disk_after_s}, 0, 9.0, 1.0)
            _, died_ns = finish(start(partial(job.run, backend)), 0.25)
            history = read_history(self._folder / "history")
            self._folder.rename(dead)
            for lines in count(1, step):
                shutil.rmtree(self._folder, ignore_errors=True)
                shutil.copytree(dead, self._folder)
                collectors, missing = self._collect(backend, self._spool, [lines], int(outage))
                found = Comparison(history, backend, died_ns)
                found.compare(repeats=1 + collectors, killed=True)
                found.problems += [*self._left(self._spool), *["some items were not found"] * missing]
                self.problems += [f"line {lines}, {disk_after_s}, outage {outage}: {each}" for each in found.problems]
                if not collectors:
                    break
                self.counts["collectors"] += 1
            shutil.rmtree(dead)


class Comparison:
    """Compares what a job did with what has arrived.

    Attributes:
        problems: Breaches of the promise.
        crowded: Some items were not safe from a kill, because there was no room in the box.
        operations: Number of operations that were done.
        lost_s: Age of the oldest operation that is lost, at the death.
    """

    def __init__(self, history: History, backend: Backend, died_ns: int) -> None:
        self.problems: list[str] = []
        self.crowded, self.operations, self.lost_s = bool(history.left_out), 0, 0.0
        self._history, self._died_ns = history, died_ns
        self._records: dict[Any, tuple[Any, ...]] = {}
        self._repeated: Counter[str] = Counter()
        for journal, sent in backend.requests():
            keys = [(journal, each[2], each[1]) for each in sent]
            self._repeated[journal] += any(key in self._records for key in keys)
            for key, each in zip(keys, sent, strict=True):
                if self._records.setdefault(key, each) != each:
                    self.problems.append(f"sent again with other values: {self._records[key]}, {each}")

    def compare(self, *, repeats: int | None, killed: bool) -> None:
        """Find problems; at most so many requests of a journal may have arrived twice, None for any number."""
        history, found = self._history, by_source(self._records.values())
        if repeats is not None and max(self._repeated.values(), default=0) > repeats:
            self.problems.append(f"requests that arrived twice after {repeats} kills: {dict(self._repeated)}")
        for name in STATS:
            self._compare_windows(name, found[SERIES.index(name)])
        shared = sum(int(each[5]) for each in found[SERIES.index("shared")])
        for n in range(THREADS):
            for kind in ("tile", "hist"):
                highs = [int(each[7]) for each in found[SERIES.index(f"{kind}.{n}")]]
                self._arrived(f"{kind}.{n}", max(highs, default=0))
            self._arrived(f"shared.{n}", shared >> 24 * n & (1 << 24) - 1)
            for kind in ("event", "number", "step", "range"):
                self._compare_items(f"{kind}.{n}", found[f"{kind}.{n}"], at_once=kind != "range")
            readings = [each[3:] for each in found[SERIES.index(f"counter.{n}")]]
            if any(a[0] > b[0] or a[1] > b[1] for a, b in pairwise(readings)):
                self.problems.append(f"counter.{n} falls: {readings}")
            self._arrived(f"counter.{n}", readings[-1][1] if readings else 0)
        deaths, must_die = len(found["process.died"]), killed and history.configured_ns and not history.exiting_ns
        if deaths > 1 or (history.ended_ns and deaths) or (must_die and not deaths):
            self.problems.append(f"{deaths} events process.died")

    def _compare_windows(self, name: str, windows: list[tuple[Any, ...]]) -> None:
        """Check that windows are whole, lie side by side, and that each total is the sum of all of them until then."""
        totals, end, shared = (0, 0.0), 0.0, name == "shared"
        if len({each[3] for each in windows}) < len(windows):
            self.problems.append(f"{name}: a window arrived twice")
        for each in windows:
            count, total, low, high, buckets, sent = each[4:]
            totals = totals[0] + count, totals[1] + total
            if sent[0] < totals[0] or (sent != totals and not self.crowded):
                self.problems.append(f"{name}: the total is {sent}, expected {totals}: {each}")
            if buckets not in {-1, count} or (
                not shared and ((low + high) / 2 * count != total or high - low + 1 != count)
            ):
                self.problems.append(f"{name}: half a window: {each}")
            if not shared and sent[0] > self._history.begun[name]:
                self.problems.append(f"{name}: the total is too high: {each}")
        for low, high in sorted(each[6:8] for each in windows if not shared):
            if low <= end or (low != end + 1 and not self.crowded):
                self.problems.append(f"{name}: {low} to {high} follows {end}")
            end = high

    def _compare_items(self, source: str, records: list[tuple[Any, ...]], *, at_once: bool) -> None:
        """Check that the numbers 1, 2, 3 ... have arrived once and whole."""
        values = sorted(each[3] for each in records)
        if len({*values}) < len(values) or (not self.crowded and [*range(1, len(values) + 1)] != values):
            self.problems.append(f"{source}: not 1, 2, 3 ..., but {values}")
        if any(each[4:] not in {(), (each[3] ** 2, "x" * (each[3] % 200))} for each in records):
            self.problems.append(f"{source} is damaged")
        self._arrived(source, len(values), at_once=at_once)

    def _arrived(self, source: str, arrived: int, *, at_once: bool = False) -> None:
        """Check that nothing is missing that was done before the last snapshot, or at all if it is safe at once."""
        history, done_ns = self._history, self._history.done_ns[source]
        self.operations += len(done_ns)
        if arrived > history.begun[source]:
            self.problems.append(f"{source}: {arrived} arrived of {history.begun[source]}")
        if arrived < len(done_ns):
            self.lost_s = max(self.lost_s, (self._died_ns - done_ns[arrived]) / 1e9)
            before_s = (history.snapshot_ns - done_ns[arrived]) / 1e9
            if history.ended_ns or (not self.crowded and (at_once or before_s > 0)):
                self.problems.append(
                    f"{source}: {arrived} of {len(done_ns)}, lost {before_s:.3f} s before the snapshot"
                )


def main() -> int:
    """Run a campaign in each of two processes, and print its outcome."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=int, default=0, help="kill a collector at every so many lines instead")
    parser.add_argument("--trial", type=int, default=0, help="run only this trial")
    given = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="monitel-journal-kills-", dir="/dev/shm"))
    began = time.monotonic()
    campaign = Campaign(root / "trial", given.seed)
    try:
        if given.every:
            campaign.every_line(given.every)
        elif given.trial:
            campaign.trial(given.trial)
        else:
            for number in count(1):
                campaign.trial(number)
                if campaign.counts["kills"] >= given.kills:
                    break
    finally:
        shutil.rmtree(root, ignore_errors=True)
    ages = sorted(campaign.ages) or [0.0]
    sys.stdout.write("\n".join(each[:1500] for each in campaign.problems[:25]))
    sys.stdout.write(
        f"\n{dict(campaign.counts)}; the oldest lost operation was {ages[len(ages) // 2]:.3f} s old in the median, "
        f"at most {ages[-1]:.3f} s; {time.monotonic() - began:.0f} s; problems: {len(campaign.problems)}\n"
    )
    return bool(campaign.problems)


if __name__ == "__main__":
    raise SystemExit(main())

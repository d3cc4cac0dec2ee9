"""A batch of jobs that are killed at random, collected by collectors that are killed as well, and compared."""

from __future__ import annotations

import random
import signal
import time
from dataclasses import dataclass, field
from queue import Empty
from typing import TYPE_CHECKING, Any

from tests.nightly.kills.arrivals import Arrived, ProcessId, decode
from tests.nightly.kills.backend import read_arrivals, running_backend
from tests.nightly.kills.checker import Verdict, compare
from tests.nightly.kills.history import read_history
from tests.nightly.kills.load import THREADS, TILES
from tests.nightly.kills.nursery import DEADLINE, Death, Nursery

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tests.nightly.kills.backend import Backend
    from tests.nightly.kills.history import History
    from tests.support.inbox import Record

LIFE = 4.0  # seconds: a job is killed at a random time before that
BATCH = 24  # jobs that live at the same time
MODES = ("healthy", "healthy", "late", "late", "refuse", "stall")  # of the backend, see .backend
_REPEATS = 2  # requests of a signal: one was being sent, and at an exit one was just written to disk
_KILLS_PER_REPEAT = 6  # jobs deliver what dead jobs have left, and a killed one was perhaps sending a request of them
_CERTAIN_NS = 1_500_000_000  # a process that was configured so long ago has a box with a cut
_TEMPORALITY = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"


@dataclass
class Compared:
    """A process of a batch: its operations, its telemetry at the backend, and the verdict.

    Attributes:
        id: The process.
        is_job: It is the process of a job, not a forked child.
        history: Its operations.
        arrived: Its telemetry at the backend.
        death: The end of its job.
        verdict: The result of the comparison.
    """

    id: ProcessId
    is_job: bool
    history: History
    arrived: Arrived
    death: Death
    verdict: Verdict

    @property
    def died_ns(self) -> int | None:
        """Time of death, monotonic ns; None if the process had shut down completely."""
        if self.history.ended_ns or (self.is_job and self.death.status == 0):
            return None
        return self.history.stopped_ns if self.history.stopped_ns and not self.is_job else self.death.at_ns

    @property
    def deaths(self) -> list[Record]:
        """Its events ``process.died``."""
        return [record for record in self.arrived.records if record.name == "process.died"]

    def compare(self, repeats: int) -> None:
        """Compare, and check the number of events ``process.died``."""
        self.verdict = compare(self.history, self.arrived, self.died_ns, repeats=repeats)
        died = len(self.deaths)
        if died > 1:
            self.verdict.problems.append(f"process.died was emitted {died} times")
        elif died and self.died_ns is None:
            self.verdict.problems.append("process.died was emitted, and the process had shut down")
        elif not died and self._has_a_box_for_certain():
            self.verdict.problems.append("process.died is missing")

    def _has_a_box_for_certain(self) -> bool:
        if not (self.is_job and self.death.status and self.history.configured_ns) or self.history.stopped_ns:
            return False
        waited_ns = self.history.lateness_at(self.death.at_ns)
        return self.death.at_ns - self.history.configured_ns - waited_ns > _CERTAIN_NS


@dataclass
class Batch:
    """The result of a batch.

    Attributes:
        seed: Its seed.
        processes: All processes that have written a history.
        deaths: The ends of the jobs, by number.
        left: Files that the collection has left.
        errors: Errors of jobs and collectors: exit statuses above zero, and tracebacks.
        collectors_killed: Number of collectors that were killed.
    """

    seed: int
    deaths: dict[int, Death]
    collectors_killed: int
    processes: list[Compared] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def job(self, number: int) -> Compared:
        """Return the process of a job."""
        (found,) = [each for each in self.processes if each.is_job and each.id.job == number]
        return found

    @property
    def kills(self) -> int:
        """Number of jobs that were killed."""
        return sum(death.status == -signal.SIGKILL for death in self.deaths.values())

    @property
    def problems(self) -> list[str]:
        """Breaches of the promise, with seed, job and process."""
        found = [f"seed {self.seed}: {each} is left after the collection" for each in self.left]
        found += [f"seed {self.seed}: {each}" for each in self.errors]
        for each in self.processes:
            found += [
                f"seed {self.seed}, job {each.id.job}, process {each.id.pid}: {one}" for one in each.verdict.problems
            ]
        return found


def run_batch(
    nursery: Nursery,
    folder: Path,
    seed: int,
    jobs: int = BATCH,
    *,
    modes: Sequence[str] = MODES,
    changes: Sequence[Mapping[str, Any]] = (),
) -> Batch:
    """Start jobs, kill them, collect their boxes, and compare.

    Args:
        nursery: The server that starts them.
        folder: A new folder on a memory file system; its folder ``boxes`` may exist.
        seed: Seed of the batch.
        jobs: Number of jobs.
        modes: Modes of the backend until all jobs are dead, which change at random.
        changes: Values of the first jobs that are not drawn, see :func:`.job.run_job`. A mapping is added to the drawn
            one.
    """
    rng = random.Random(seed)
    for each in (folder, folder / "boxes"):
        each.mkdir(mode=0o700, exist_ok=True)
    with running_backend(folder / "arrivals") as backend:
        backend.behave(rng.choice(modes))
        for number in range(jobs):
            job = draw_job(rng, number, folder, backend)
            for name, value in (changes[number] if number < len(changes) else {}).items():
                job[name] = {**job[name], **value} if isinstance(value, dict) else value
            nursery.start(**job)
        deaths = _wait_for_deaths(nursery, jobs, rng, backend, modes)
        batch = Batch(seed, deaths, _collect(nursery, rng, folder, backend))
    compare_batch(batch, folder)
    return batch


def draw_job(rng: random.Random, number: int, folder: Path, backend: Backend) -> dict[str, Any]:
    """Return a job, see :func:`.job.run_job`, with random properties."""
    ends_itself = rng.random() < 0.25
    kill_after = rng.uniform(0.0, LIFE)
    return {
        "role": "job",
        "number": number,
        "seed": rng.randrange(1 << 30),
        "log": str(folder / f"{number}.log"),
        "folder": str(folder),
        "threads": rng.randint(1, THREADS),
        "tiles": TILES if rng.random() < 0.9 else 60,
        "life": max(0.0, kill_after + rng.uniform(-0.3, 0.1)) if ends_itself else None,
        "ending": rng.choice(("shutdown", "exit")),
        "burst": rng.choice((0, 0, 0, 2000)),
        "forks": "sometimes" if rng.random() < 0.3 else "never",
        "busy": rng.random() < 0.1,
        "environment": {
            _TEMPORALITY: rng.choice(("cumulative", "delta")),
            "MONITEL_BLACK_BOX_DIR": str(folder / "boxes"),
        },
        "options": {
            "endpoint": backend.url,
            "spool_dir": str(folder / "spool"),
            "export_interval": rng.choice((0.1, 0.5, 1.0, 5.0)),
            "spans": rng.random() < 0.5,
            "distributions": "both",
        },
        "kill_after": kill_after,
        "fresh": rng.random() < 0.1,
    }


def _wait_for_deaths(
    nursery: Nursery, jobs: int, rng: random.Random, backend: Backend, modes: Sequence[str]
) -> dict[int, Death]:
    """Wait until all jobs are dead, and let the backend change meanwhile."""
    found: dict[int, Death] = {}
    deadline = time.monotonic() + DEADLINE
    change = 0.0
    while len(found) < jobs:
        assert time.monotonic() < deadline, "jobs do not end"
        if time.monotonic() >= change:
            backend.behave(rng.choice(modes))
            change = time.monotonic() + rng.uniform(0.1, 1.5)
        try:
            death = nursery.wait(max(0.001, change - time.monotonic()))
        except Empty:
            continue
        found[death.number] = death
    return found


def _collect(nursery: Nursery, rng: random.Random, folder: Path, backend: Backend) -> int:
    """Run collectors, some at once, which are killed, and a last one that is not; return the number of the others."""
    killed = rng.choice((0, 1, 1, 2, 3))
    at_once = rng.random() < 0.5
    for number in range(killed + 1):
        last = number == killed
        if last and at_once:
            for _ in range(killed):
                nursery.wait()
        backend.behave("healthy" if last else rng.choice(("healthy", "late")))
        nursery.start(
            role="collector",
            number=number,
            log=str(folder / f"collector-{number}.log"),
            way="replay" if last else rng.choice(("replay", "pipeline")),
            endpoint=backend.url,
            spool=str(folder / "spool"),
            boxes=str(folder / "boxes"),
            environment={"MONITEL_BLACK_BOX_DIR": str(folder / "boxes")},
            kill_after=DEADLINE if last else rng.uniform(0.0, 0.3),
        )
        if last or not at_once:
            nursery.wait()
    return killed


def compare_batch(batch: Batch, folder: Path) -> None:
    """Compare the operations of each process with its telemetry at the backend."""
    arrived = decode(read_arrivals(folder / "arrivals"))
    for path in sorted(folder.glob("*.history")):
        process = ProcessId(*map(int, path.stem.split("-")))
        death = batch.deaths[process.job]
        compared = Compared(process, process.pid == death.pid, read_history(path), arrived[process], death, Verdict())
        compared.compare(repeats=_REPEATS + batch.collectors_killed + batch.kills // _KILLS_PER_REPEAT)
        batch.processes.append(compared)
    batch.errors = [f"job {each.number} ended with {each.status}" for each in batch.deaths.values() if each.status > 0]
    for path in sorted(folder.glob("*.log")):
        _, traceback, text = path.read_text(encoding="utf-8", errors="replace").partition("Traceback (most recent")
        batch.errors += [f"{path.name} has a traceback:{text[-500:]}"] if traceback else []
    boxes = [each for each in (folder / "boxes").iterdir() if not each.name.startswith(".")]  # those are in the making
    batch.left = [str(each.relative_to(folder)) for each in (*boxes, *(folder / "spool").rglob("*.spool"))]

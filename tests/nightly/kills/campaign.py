"""Jobs that are killed at random, collected by collectors that are killed as well, and compared at the backend.

PYTHONPATH=. .venv/bin/python -m tests.nightly.kills.campaign --kills 100 --seed 1

One process, without threads, forks everything: a backend, jobs and collectors. Some die at a line of the code of the
record, the others at an instant. It prints breaches of the promise.
"""

import argparse
import gzip
import mmap
import os
import random
import re
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from threading import Event, Lock
from typing import NamedTuple

from tests.nightly.kills.checker import Arrival, ProcessId, compare, decode
from tests.nightly.kills.history import read_history
from tests.nightly.kills.job import THREADS, Job, kill_at_line
from tests.support.inbox import TEMPORALITY
from tests.support.receiver import MESSAGES

import monitel
import monitel_otlp
from monitel.console.main import main as command

DEADLINE = 120.0  # seconds for everything that ends by itself
_BATCH = 24  # jobs that live at the same time
_LIFE = 4.0  # seconds: a job is killed at a random time before that
#: What the backend does: it stores and acknowledges; acknowledges late, so that the sender may die in between; stores,
#: and closes the connection without an answer; finds requests too large; refuses; or reads nothing, and closes the
#: connection when that changes.
_MODES = ("healthy", "late", "lose", "small", "refuse", "stall")
_DRAWN = ("healthy", "healthy", "late", "late", "lose", "small", "refuse", "stall")
_TOO_LARGE = 32 << 10  # bytes
_REPEATS = 1  # requests of a signal: one was being sent
_KILLS_PER_REPEAT = 6  # jobs deliver what dead jobs have left, and a killed one was perhaps sending a request of them
_CERTAIN_NS = 1_500_000_000  # a process that was configured so long ago has a record for certain
_DROPPED = re.compile(r"dropped .*\bexit [0-9]")  # in the summary of an exit
_SIGNALS = (*MESSAGES,)
_HEAD = struct.Struct("=B?I")  # signal, whether it was answered, length of the body
_PROBLEMS = 100  # that are printed


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing: clients die."""


class Backend:
    """A backend in a forked process. A request arrives as a whole, by one write to a file, or not at all."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._mode = mmap.mmap(-1, 4096)
        self._storing = Lock()
        self._owner = os.getpid()
        server = _Server(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        path.touch()
        self.pid = start(lambda: server.serve_forever(0.01))
        server.server_close()

    def behave(self, mode: str) -> None:
        self._mode[0] = _MODES.index(mode)

    def arrivals(self) -> Iterator[Arrival]:
        content, at = self._path.read_bytes(), 0
        while at < len(content):
            kind, answered, length = _HEAD.unpack_from(content, at)
            at += _HEAD.size + length
            yield Arrival(_SIGNALS[kind], content[at - length : at], answered)

    def close(self) -> None:
        """End the process; a forked job, which leaves the same blocks, does not."""
        if os.getpid() == self._owner:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)

    def _store(self, kind: str, body: bytes, *, answered: bool) -> None:
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND)
        with self._storing:
            os.write(file, _HEAD.pack(_SIGNALS.index(kind), answered, len(body)) + body)
        os.close(file)

    def _handler(backend) -> type[BaseHTTPRequestHandler]:  # noqa: N805  the handler has a self
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                mode, pause = _MODES[backend._mode[0]], Event()
                length = int(self.headers["Content-Length"])
                while mode == "stall" and _MODES[backend._mode[0]] == "stall":
                    pause.wait(0.01)
                body = b"" if mode == "stall" else self.rfile.read(length)
                if len(body) < length:  # it has stalled, or the client has died
                    self.close_connection = True
                    return
                body = gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body
                status = 503 if mode == "refuse" else 413 if mode == "small" and len(body) > _TOO_LARGE else 200
                if status == 200:
                    backend._store(self.path.rpartition("/")[2], body, answered=mode != "lose")
                if mode == "late":
                    pause.wait(0.2)
                if mode == "lose":
                    self.close_connection = True
                    return
                with suppress(OSError):
                    self.send_response_only(status)
                    self.send_header("Content-Type", "application/x-protobuf")
                    self.send_header("Content-Length", "0")
                    self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Print nothing."""

        return Handler


def start(function: Callable[[], object], log: Path | None = None) -> int:
    """Run a function in a forked process, with a process group and its output in a file; return its number."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        with suppress(PermissionError):
            os.setpgid(pid, pid)  # in both processes, because either may be first
        return pid
    os.setpgid(0, 0)
    if log is not None:
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for number in (1, 2):
            os.dup2(output, number)
    try:
        function()
    except SystemExit:
        raise
    except BaseException:
        traceback.print_exc()
        os._exit(70)
    sys.exit()  # as a main program ends


def _runs(pid: int, group: int) -> bool:
    try:
        state, _, of, *_ = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return int(of) == group and state not in {"Z", "X"}


def _killed(function: Callable[[], object], lines: int) -> None:
    kill_at_line(lines)
    function()


class Death(NamedTuple):
    pid: int
    status: int
    at_ns: int


@dataclass
class Outcome:
    problems: list[str] = field(default_factory=list)  # breaches of the promise, with seed, job and process
    kills: int = 0  # number of jobs that were killed
    collectors_killed: int = 0
    processes: int = 0  # number of processes that were compared, with forked children
    done: int = 0  # number of operations that were done
    lost: int = 0  # number of those that have not arrived

    def __str__(self) -> str:
        return (
            f"{self.kills} kills of jobs and {self.collectors_killed} of collectors; {self.processes} processes did "
            f"{self.done:,} operations, of which {self.lost:,} are lost; problems: {len(self.problems)}"
        )


class Batch:
    """Jobs that live at the same time, and are killed, collected and compared."""

    def __init__(self, folder: Path, seed: int, outcome: Outcome) -> None:
        self._seed, self._rng = seed, random.Random(seed)
        self._folder, self._boxes, self._spool = folder, folder / "boxes", folder / "spool"
        self._outcome = outcome

    def run(self, jobs: int) -> None:
        self._boxes.mkdir(mode=0o700, parents=True)
        os.environ["MONITEL_BLACK_BOX_DIR"] = str(self._boxes)
        self._backend = Backend(self._folder / "arrivals")
        try:
            self._backend.behave(self._rng.choice(_DRAWN))
            deaths = self._kill([self.draw(number) for number in range(jobs)])
            self._wait_for_children(deaths)
            collectors = self._collect()
        finally:
            self._backend.close()
        kills = sum(death.status == -signal.SIGKILL for death in deaths)
        self._outcome.kills += kills
        self._outcome.collectors_killed += collectors
        self._compare(deaths, repeats=_REPEATS + collectors + kills // _KILLS_PER_REPEAT)

    def draw(self, number: int) -> Job:
        rng = self._rng
        kill_after = rng.uniform(0.0, _LIFE)
        return Job(
            self._folder,
            number,
            rng.randrange(1 << 30),
            threads=rng.randint(1, THREADS),
            kill_after=kill_after,
            life=max(0.0, kill_after + rng.uniform(-0.3, 0.1)) if rng.random() < 0.25 else None,
            shuts_down=rng.random() < 0.5,
            burst=rng.choice((0, 0, 0, 2000)),
            forks=rng.random() < 0.3,
            busy=rng.random() < 0.1,
            lines=int(10 ** rng.uniform(2.0, 5.0)) if rng.random() < 0.3 else 0,
            disk_after_s=rng.choice((60.0, 60.0, 0.05)),
            environment={TEMPORALITY: rng.choice(("cumulative", "delta"))},
            options={
                "endpoint": self._backend.url,
                "spool_dir": str(self._spool),
                "export_interval": rng.choice((0.1, 0.5, 1.0, 5.0)),
                "spans": rng.random() < 0.5,
                "distributions": "both",
            },
        )

    def _kill(self, jobs: list[Job]) -> list[Death]:
        """Start the jobs, kill each one on time with its children, and let the backend change meanwhile."""
        running = {start(job.run, self._folder / f"{job.number}.log"): job for job in jobs}
        due = {pid: time.monotonic() + job.kill_after for pid, job in running.items()}
        deaths: dict[int, Death] = {}
        change, deadline, pause = 0.0, time.monotonic() + DEADLINE, Event()
        while running:
            now = time.monotonic()
            assert now < deadline, "jobs do not end"
            if now >= change:
                self._backend.behave(self._rng.choice(_DRAWN))
                change = now + self._rng.uniform(0.1, 1.5)
            for pid, job in [*running.items()]:
                at_ns = time.monotonic_ns()
                if kills := now >= due[pid]:
                    os.killpg(pid, signal.SIGKILL)
                if kills or os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                    with suppress(ProcessLookupError):
                        os.killpg(pid, signal.SIGKILL)  # its children; it was not waited for, so the number is its own
                    deaths[job.number] = Death(pid, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), at_ns)
                    del running[pid]
            pause.wait(0.002)
        return [deaths[job.number] for job in jobs]

    def _wait_for_children(self, deaths: list[Death]) -> None:
        """Wait until killed children of jobs have ended: one that has no processor for that still locks its box."""
        deadline, pause = time.monotonic() + DEADLINE, Event()
        for path in self._folder.glob("*.history"):
            job, _, child = path.stem.partition("-")
            while _runs(int(child), deaths[int(job)].pid):
                assert time.monotonic() < deadline, f"the process {child} does not end"
                pause.wait(0.002)

    def _collect(self) -> int:
        """Run collectors that are killed, some at once, and a last one that is not; return the number of the others."""
        killed = self._rng.choice((0, 1, 1, 2, 3, 6))
        at_once = self._rng.random() < 0.5
        started: list[int] = []
        for number in range(killed):
            self._backend.behave(self._rng.choice(("healthy", "late")))
            way = self._rng.choice((self._replay, self._configure))
            lines = int(10 ** self._rng.uniform(1.5, 4.5)) if self._rng.random() < 0.5 else 0
            started.append(start(partial(_killed, way, lines), self._folder / f"collector-{number}.log"))
            if not at_once:
                self._end(started.pop(), self._rng.uniform(0.0, 0.3))
        for pid in started:
            self._end(pid, self._rng.uniform(0.0, 0.3))
        self._backend.behave("healthy")
        deadline = time.monotonic() + DEADLINE
        while True:  # again if the backend had no processor, and has not answered in time
            self._end(start(self._replay, self._folder / "collector.log"), DEADLINE)
            if not self._left() or time.monotonic() >= deadline:
                return killed

    def _left(self) -> list[str]:
        """Return what is left of boxes and spools, except hidden boxes.

        Those have been in the making, or in the removal: a collector leaves them alone for a minute.
        """
        boxes = [each for each in self._boxes.iterdir() if not each.name.startswith(".")]
        spools = [each for each in self._spool.glob("*") if each.name != "ledgers"]
        return [f"{each} is left" for each in (*boxes, *spools)]

    def _end(self, pid: int, seconds: float) -> None:
        deadline, pause = time.monotonic() + seconds, Event()
        while not os.waitpid(pid, os.WNOHANG)[0]:
            if time.monotonic() >= deadline:
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return
            pause.wait(0.002)

    def _replay(self) -> None:
        sys.exit(command(["replay", str(self._spool), "--endpoint", self._backend.url]))

    def _configure(self) -> None:
        """Collect as the next job does, until nothing is left."""
        with monitel_otlp.configure(endpoint=self._backend.url, spool_dir=str(self._spool), export_interval=0.1):
            monitel.emit("collector")
            Event().wait(1.0)

    def _compare(self, deaths: list[Death], repeats: int) -> None:
        problems, outcome = self._left(), self._outcome
        for log in self._folder.glob("*.log"):
            if "Traceback" in (text := log.read_text("utf-8", "replace")):
                problems.append(f"{log.name}: {text[-2000:]}")
        arrived = decode(self._backend.arrivals())
        for path in sorted(self._folder.glob("*.history")):
            process = ProcessId(*map(int, path.stem.split("-")))
            death, history, found = deaths[process.job], read_history(path), arrived[process]
            is_job = process.pid == death.pid
            died_ns: int | None = death.at_ns
            if history.ended_ns or (is_job and death.status == 0):
                died_ns = None
            elif history.stopped_ns and not is_job:
                died_ns = history.stopped_ns
            dropped = history.exit_had_no_time(history.ended_ns or death.at_ns)
            if dropped and died_ns is None:  # then it has said so
                dropped = bool(_DROPPED.search((self._folder / f"{process.job}.log").read_text("utf-8", "replace")))
            verdict = compare(history, found, died_ns, repeats=repeats, dropped=dropped)
            reports = [record.attributes for record in found.records if record.name == "process.died"]
            died = len(reports)
            waited_ns = history.lateness(history.configured_ns, death.at_ns) + _CERTAIN_NS
            recorded = history.configured_ns and death.at_ns - history.configured_ns > waited_ns
            if died > 1 or (died and died_ns is None):
                verdict.problems.append(f"process.died arrived {died} times; the end: {death}")
            elif not died and is_job and death.status and recorded and not history.stopped_ns:
                verdict.problems.append("process.died is missing")
            steps = {each.get("training.step") for each in reports} if is_job and history.step else set()
            steps -= {history.step, history.step + 1}  # it is written down after it is set
            if steps - (set() if recorded else {None}):  # a box that is being made has no step yet
                verdict.problems.append(f"process.died has the steps {steps}, expected {history.step}")
            problems += [f"job {process.job}, process {process.pid}: {each}" for each in verdict.problems]
            outcome.processes += 1
            outcome.done += verdict.done
            outcome.lost += verdict.lost
        outcome.problems += [f"seed {self._seed}: {each}" for each in problems]


def import_everything() -> None:
    """Import what jobs and collectors import, before the first of them is forked."""
    for package in (monitel, monitel_otlp):
        for each in walk_packages(package.__path__, f"{package.__name__}."):
            with suppress(ImportError):  # torch may be missing
                import_module(each.name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="keep the files of batches with problems")
    given = parser.parse_args()
    os.environ["MONITEL_RUN_EVENTS"] = "0"
    root = Path(tempfile.mkdtemp(prefix="monitel-kills-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
    import_everything()
    outcome, seed = Outcome(), given.seed
    while outcome.kills < given.kills:
        before = len(outcome.problems)
        Batch(root / f"{seed}", seed, outcome).run(_BATCH)
        if not given.keep or len(outcome.problems) == before:
            shutil.rmtree(root / f"{seed}")
        seed += 1
    sys.stdout.write("\n".join([*outcome.problems[:_PROBLEMS], str(outcome), ""]))
    with suppress(OSError):
        root.rmdir()
    return bool(outcome.problems)


if __name__ == "__main__":
    raise SystemExit(main())

"""The ranks of a training job, each a process with a pipeline of its own, and something to find in what they send."""

from __future__ import annotations

import io
import os
import random
import signal
import time
from contextlib import contextmanager, redirect_stderr, suppress
from dataclasses import dataclass, field
from multiprocessing import connection, forkserver, get_context
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

import monitel
from monitel.testing import ManualClock
from monitel_otlp.configuration import configure

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from monitel_otlp.pipeline import Pipeline

RANKS_A_NODE = 8
STEPS_A_WINDOW = 10  # of a healthy rank
SLOWDOWN = 2.5  # of the slow one
NAMED_STATS = 4  # loss, step.time, throughput, gradient.norm; the others are layer.gradient.norm, a layer each
_LOADING = 0.2  # of a step
_TOKENS = 4096  # a step
_END_TIMEOUT = 30.0  # all ranks of a job end at once, here on one machine


@dataclass(frozen=True)
class Simulation:
    """What is simulated, and where it goes.

    Args:
        ranks: Processes.
        stats: Stats of each rank, :data:`NAMED_STATS` at least.
        windows: Windows of each Stat.
        window: Their length in seconds, whole milliseconds; this is how long it really takes.
        seed: Same seed, same samples, the same rank slow and the same sick.
        endpoint: As for :func:`monitel_otlp.configure`, and so are the others.
        headers: Sent with each request.
        protocol: OTLP's.
        distributions: What becomes of the step times' HISTOGRAM; None: they have none.
    """

    ranks: int
    stats: int
    windows: int
    window: float
    seed: int
    endpoint: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    protocol: str | None = None
    distributions: str | None = None

    @property
    def slow_rank(self) -> int:
        """The rank whose steps take :data:`SLOWDOWN` times as long."""
        return self._found()[0]

    @property
    def sick_rank(self) -> int:
        """The rank that has a loss of NaN, once; another than the slow one, where there are two."""
        return self._found()[1]

    @property
    def nan_window(self) -> int:
        """In which of its windows, from 0."""
        return self._found()[2]

    def _found(self) -> tuple[int, int, int]:
        rng = random.Random(self.seed)  # noqa: S311  a draw, not a secret
        slow, sick = rng.sample(range(self.ranks), 2) if self.ranks > 1 else (0, 0)
        return slow, sick, rng.randrange(self.windows)


@dataclass(frozen=True)
class Report:
    """What one rank has done, and what became of it.

    Attributes:
        rank: Which one.
        windows: Windows that it closed.
        events: Events that it logged beside them.
        exported: Windows and events that the backend has acknowledged.
        dropped: What is lost, by reason.
        spooled: Requests' items on disk.
        complete: Whether all of it was acknowledged, or is on disk where no endpoint is set.
        spool_root: The folder with the spools of the ranks.
        cpu: Seconds of CPU of its telemetry's threads.
        said: What it wrote to stderr, which 64 would write all at once.
    """

    rank: int
    windows: int
    events: int
    exported: int
    dropped: dict[str, int]
    spooled: int
    complete: bool
    spool_root: Path
    cpu: float
    said: str


def simulate(simulation: Simulation) -> tuple[list[Report], bool]:
    """Run all ranks to their end; Ctrl-C has them end early, and deliver what they have.

    To be called in the main thread. Ranks are forked from a process that has imported everything and started nothing:
    each has its environment from here, as from a launcher.

    Returns:
        A report of each rank that has lived to its end, and whether Ctrl-C was pressed.

    Raises:
        ValueError: The machine does not start so many processes.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    run_id = time.strftime(f"simulate-%Y%m%d-%H%M%S-{os.getpid()}")
    going, until = context.Pipe(duplex=False)  # the ranks go on until it is closed
    ends = []
    with _ctrl_c(until):
        for rank in range(simulation.ranks):
            environment = {**os.environ, **_launch(simulation, rank, run_id)}
            try:
                ours, theirs = context.Pipe(duplex=False)
                context.Process(target=_rank, args=(simulation, rank, environment, going, theirs), daemon=True).start()
            except OSError as error:
                raise ValueError(f"rank {rank} of {simulation.ranks} cannot be started here: {error}") from error
            theirs.close()
            ends.append(ours)
        return _follow(simulation, ends), until.closed


def _launch(simulation: Simulation, rank: int, run_id: str) -> dict[str, str]:
    """What torchrun would set, on nodes of eight."""
    return {
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % RANKS_A_NODE),
        "WORLD_SIZE": str(simulation.ranks),
        "GROUP_RANK": str(rank // RANKS_A_NODE),
        "OTEL_SERVICE_NAME": os.environ.get("OTEL_SERVICE_NAME", "monitel-simulate"),
    }


@contextmanager
def _ctrl_c(until: connection.Connection) -> Iterator[None]:
    """Tell the ranks at the first Ctrl-C to come to their end; the second one ends at once.

    A terminal tells all processes of it: the server that forks the ranks is started deaf to it, and so are they.
    """

    def tell(_number: int, _frame: object) -> None:
        signal.signal(signal.SIGINT, before)
        until.close()

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        forkserver.ensure_running()
        signal.signal(signal.SIGINT, tell)
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _follow(simulation: Simulation, ends: list[connection.Connection]) -> list[Report]:
    reports = []
    with tqdm(total=simulation.ranks * simulation.windows, unit="window", desc="all ranks", disable=None) as progress:
        while ends:
            for end in connection.wait(ends):
                assert isinstance(end, connection.Connection)
                try:
                    said = end.recv()
                except EOFError:  # it has reported before, or died
                    ends.remove(end)
                    continue
                if isinstance(said, Report):
                    reports.append(said)
                else:
                    progress.update()
    return sorted(reports, key=lambda report: report.rank)


def _rank(
    simulation: Simulation,
    rank: int,
    environment: Mapping[str, str],
    going: connection.Connection,
    parent: connection.Connection,
) -> None:
    """One rank, in its process: as a training script, but that its samples are made up."""
    os.environ.clear()
    os.environ.update(environment)
    events: list[monitel.Event] = []
    with redirect_stderr(io.StringIO()) as said, monitel.register_event_handler(events.append):
        pipeline = configure(
            endpoint=simulation.endpoint,
            headers=simulation.headers or None,
            protocol=simulation.protocol,
            distributions=simulation.distributions,
        )
        with ManualClock(time.time_ns()) as clock:
            _train(simulation, rank, _Pace(clock, going, parent))
        complete = pipeline.shutdown(_END_TIMEOUT)
    with suppress(OSError):  # the parent may be gone
        parent.send(_report(rank, pipeline, events, said.getvalue(), complete=complete))


def _report(rank: int, pipeline: Pipeline, events: list[monitel.Event], said: str, *, complete: bool) -> Report:
    windows = sum(event.window is not None for event in events)
    accounts = pipeline.account()
    return Report(
        rank=rank,
        windows=windows,
        events=len(events) - windows,
        exported=accounts["metrics"].delivered + accounts["logs"].delivered,
        dropped=pipeline.dropped,
        spooled=sum(each.on_disk for each in accounts.values()),
        complete=complete,
        spool_root=Path(pipeline.spool_dir).parent,
        cpu=time.process_time() - time.thread_time(),
        said=said,
    )


class _Pace:
    """The time of the Stats: it follows the real one, never before it and always by whole steps.

    A machine that is too small for so many ranks falls behind, and yet no window is left out.
    """

    def __init__(self, clock: ManualClock, going: connection.Connection, parent: connection.Connection) -> None:
        self._clock = clock
        self._going = going
        self._parent = parent
        self._begin = time.monotonic()
        self.windows = 0  # that are over
        self.told_to_end = False

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return self._clock.monotonic_ns() / 1e9

    def go_on(self, seconds: float) -> None:
        """Let so much time pass."""
        due = self._begin + self.elapsed + seconds
        self.told_to_end = self._going.poll(max(0.0, due - time.monotonic()))
        self._clock.advance(seconds)

    def window_is_over(self) -> None:
        """Log it, and tell the parent, for its progress bar."""
        self.windows += 1
        monitel.emit("epoch", epoch=self.windows)
        with suppress(OSError):
            self._parent.send(self.windows)


def _train(simulation: Simulation, rank: int, pace: _Pace) -> None:
    rng = random.Random(f"{simulation.seed} {rank}")  # noqa: S311  samples, not secrets
    every = [monitel.VALUE, monitel.MEAN, monitel.COUNT, monitel.SUM, monitel.MAX, monitel.MIN]
    window = simulation.window
    loss = monitel.Stat("loss", every, window, attributes={"split": "train"})
    timed = [*every, monitel.HISTOGRAM] if simulation.distributions else every
    step_time = monitel.Stat("step.time", timed, window, unit="s", description="Computing one step")
    throughput = monitel.Stat("throughput", every, window, unit="{token}/s")
    gradient_norm = monitel.Stat("gradient.norm", every, window)
    layers = [
        monitel.Stat("layer.gradient.norm", every, window, attributes={"layer": layer})
        for layer in range(simulation.stats - NAMED_STATS)
    ]
    loading = monitel.WaitCounter("data.loading")
    usual = window / STEPS_A_WINDOW * (SLOWDOWN if rank == simulation.slow_rank else 1)
    step = 0
    nan_is_due = rank == simulation.sick_rank
    while True:
        length = usual * rng.uniform(0.9, 1.1)
        if pace.told_to_end:
            return
        if pace.elapsed + length >= simulation.windows * window:
            break
        step += 1
        monitel.set_step(step)
        with loading.guard():
            pace.go_on(_LOADING * length)
        with step_time.time():
            pace.go_on((1 - _LOADING) * length)
        if pace.elapsed >= (pace.windows + 1) * window:
            pace.window_is_over()
        value = 4 * step**-0.3 + rng.gauss(0, 0.02)
        if nan_is_due and pace.windows == simulation.nan_window:
            value, nan_is_due = float("nan"), False
            monitel.emit("loss.nan", severity=monitel.Severity.ERROR, rank=rank)
        loss.add(value)
        throughput.add(_TOKENS / length)
        gradient_norm.add(rng.lognormvariate(0, 0.2))
        for layer in layers:
            layer.add(rng.lognormvariate(-1, 0.2))
    pace.window_is_over()

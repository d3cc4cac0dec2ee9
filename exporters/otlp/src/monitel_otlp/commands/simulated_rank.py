"""One simulated rank: a process that records like a training script, with generated samples."""

from __future__ import annotations

import io
import os
import random
import time
from contextlib import redirect_stderr, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import monitel
from monitel.testing import ManualClock
from monitel_otlp.commands.simulation import NAMED_STATS, SHARES, SYNC, Report
from monitel_otlp.configuration import configure

if TYPE_CHECKING:
    from collections.abc import Mapping
    from multiprocessing import connection

    from monitel_otlp.commands.simulation import Simulation
    from monitel_otlp.pipeline import Pipeline

_SAMPLES_PER_STEP = 8
_TOKENS_PER_SAMPLE = 512
_SKIP_EVERY = 20  # steps; a gradient scaler tries a larger scale at such intervals, and skips the step that overflows
_HEALTHY_MFU = 0.4  # if no rank is late
_END_TIMEOUT = 30.0  # seconds; all ranks of the job end at the same time on one machine


def run_rank(
    simulation: Simulation,
    rank: int,
    environment: Mapping[str, str],
    begin_ns: int,
    *,
    running: connection.Connection,
    parent: connection.Connection,
) -> None:
    """Run one rank, in its process.

    Args:
        simulation: The job.
        rank: This rank.
        environment: All environment variables of the process.
        begin_ns: Start of the first step on all ranks, Unix ns.
        running: Becomes readable when the rank must stop.
        parent: Receives a message for each window, and then the report.
    """
    os.environ.clear()
    os.environ.update(environment)
    events: list[monitel.Event] = []
    with redirect_stderr(io.StringIO()) as stderr, monitel.register_event_handler(events.append):
        pipeline = configure(
            endpoint=simulation.endpoint,
            headers=simulation.headers or None,
            protocol=simulation.protocol,
            distributions=simulation.distributions,
            run_events=False,  # the program that simulates is not a run
        )
        with ManualClock(begin_ns) as clock:
            _train(simulation, rank, _SimulatedTime(clock, running, parent))
        complete = pipeline.shutdown(_END_TIMEOUT)
    with suppress(OSError):  # the parent may have ended
        parent.send(_report(rank, pipeline, events, stderr.getvalue(), complete=complete))


def _report(rank: int, pipeline: Pipeline, events: list[monitel.Event], stderr: str, *, complete: bool) -> Report:
    windows = sum(event.window is not None for event in events)
    accounts = pipeline.account()
    return Report(
        rank=rank,
        windows=windows,
        numbers=sum(len(event.data) for event in events if isinstance(event, monitel.LoggedNumbers)),
        events=len(events) - windows,
        exported=accounts["metrics"].delivered + accounts["logs"].delivered,
        dropped=pipeline.dropped,
        spooled=sum(each.on_disk for each in accounts.values()),
        complete=complete,
        spool_root=Path(pipeline.spool_dir).parent,
        cpu=time.process_time() - time.thread_time(),
        stderr=stderr,
    )


class _SimulatedTime:
    """The time of the Stats, the same on all ranks. It advances in whole stages, and never before the real time.

    A rank that starts late catches up. On a machine that is too small for so many ranks the time falls behind the real
    time, and no window is skipped.
    """

    def __init__(self, clock: ManualClock, running: connection.Connection, parent: connection.Connection) -> None:
        self._clock = clock
        self._running = running
        self._parent = parent
        self._begin = time.monotonic() - (time.time_ns() - clock.time_ns()) / 1e9
        self.windows = 0  # complete ones
        self.stopped = False

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return self._clock.monotonic_ns() / 1e9

    def advance(self, nanoseconds: int) -> None:
        """Wait until so much time has passed, or until the rank must stop."""
        seconds = nanoseconds / 1e9
        due = self._begin + self.elapsed + seconds
        self.stopped = self._running.poll(max(0.0, due - time.monotonic()))
        self._clock.advance(seconds)

    def complete_window(self) -> None:
        """Log the end of a window as an event, and send it to the parent, for the progress bar."""
        self.windows += 1
        monitel.emit("epoch", epoch=self.windows)
        with suppress(OSError):
            self._parent.send(self.windows)


class _Progress:
    """The counters of a rank, and the numbers that it logs at the end of each window.

    Args:
        healthy_rate: Samples per second of a rank if no rank is late.
    """

    def __init__(self, clock: _SimulatedTime, healthy_rate: float) -> None:
        self._clock = clock
        self._healthy_rate = healthy_rate
        self._steps = monitel.counter("training.steps", unit="{step}")
        self._skipped = monitel.counter("training.steps.skipped", unit="{step}")
        self._samples = monitel.counter("training.samples", unit="{sample}")
        self._tokens = monitel.counter("training.tokens", unit="{token}")
        self._logged = 0.0, 0.0  # time and samples at the last call of log()

    def count(self, step: int) -> None:
        """Count one step."""
        (self._skipped if step % _SKIP_EVERY == 0 else self._steps).add()
        self._samples.add(_SAMPLES_PER_STEP)
        self._tokens.add(_SAMPLES_PER_STEP * _TOKENS_PER_SAMPLE)

    def log(self, loss: float) -> None:
        """Log the rates since the last call, in which at least one step was counted, and the loss of an evaluation."""
        (begin, before), (now, samples) = self._logged, (self._clock.elapsed, self._samples.total)
        self._logged = now, samples
        rate = (samples - before) / (now - begin)
        monitel.log(
            {
                "training.samples.rate": rate,
                "training.tokens.rate": rate * _TOKENS_PER_SAMPLE,
                "training.mfu": _HEALTHY_MFU * rate / self._healthy_rate,
                "eval.loss": loss,
            }
        )


def _train(simulation: Simulation, rank: int, clock: _SimulatedTime) -> None:
    rng = random.Random(f"{simulation.seed} {rank}")  # noqa: S311  samples, not secrets
    every = [monitel.VALUE, monitel.MEAN, monitel.COUNT, monitel.SUM, monitel.MAX, monitel.MIN]
    window = simulation.window
    loss = monitel.Stat("loss", every, window, attributes={"split": "train"})
    timed = [*every, monitel.HISTOGRAM] if simulation.distributions else every
    step_time = monitel.Stat("step.time", timed, window, unit="s", description="One step, with the wait for the others")
    gradient_norm = monitel.Stat("gradient.norm", every, window)
    layers = [
        monitel.Stat("layer.gradient.norm", every, window, attributes={"layer": layer})
        for layer in range(simulation.stats - NAMED_STATS)
    ]
    stages = {
        stage: monitel.Stat(
            "training.stage.duration", [monitel.MEAN], window, unit="s", attributes={"training.stage": stage}
        )
        for stage in [*SHARES, *([SYNC] if simulation.ranks > 1 else [])]
    }
    loading = monitel.WaitCounter("data.loading")
    progress = _Progress(clock, _SAMPLES_PER_STEP / simulation.step)
    nan_is_due = rank == simulation.nan_rank
    for step, times in enumerate(simulation.stage_times(rank), 1):
        if clock.stopped:
            return
        length = sum(times.values()) / 1e9
        if clock.elapsed + length >= simulation.windows * window:
            break
        monitel.set_step(step)
        with step_time.time():
            clock.advance(times["optimizer"] + times["other"])
            with loading.guard(), monitel.activity("data"):
                clock.advance(times["data"])
            clock.advance(times["forward"] + times["backward"] + times.get(SYNC, 0))
        for stage, time_ns in times.items():
            stages[stage].add(time_ns / 1e9)
        progress.count(step)
        expected = 4 * step**-0.3
        if clock.elapsed >= (clock.windows + 1) * window:
            clock.complete_window()
            progress.log(expected + 0.1)
        value = expected + rng.gauss(0, 0.02)
        if nan_is_due and clock.windows == simulation.nan_window:
            value, nan_is_due = float("nan"), False
            monitel.emit("loss.nan", severity=monitel.Severity.ERROR, rank=rank)
        loss.add(value)
        gradient_norm.add(rng.lognormvariate(0, 0.2))
        for layer in layers:
            layer.add(rng.lognormvariate(-1, 0.2))
    clock.complete_window()
    progress.log(expected + 0.1)

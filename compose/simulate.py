"""Simulate a synchronous training job of many ranks, so that the stack has something to show.

Each rank is a process with a pipeline and torchrun's variables. It records as a training script does; only samples and
times are generated. One rank is late in one stage of each step, so that the others wait for it, and one rank has a loss
of NaN, once. At Ctrl-C all ranks end, and deliver what they have recorded.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import signal
import sys
import time
from multiprocessing import get_context
from typing import Any

import monitel
from monitel.testing import ManualClock
from monitel_otlp import configure

SHARES = {"optimizer": 0.1, "other": 0.05, "data": 0.1, "forward": 0.25, "backward": 0.5}  # of a step
STEPS_PER_WINDOW = 10  # if no rank is late
NAMED_STATS = 3  # loss, step.time, gradient.norm; the others are of layers


def main() -> int:
    """Run all ranks to their end, and print the outcome."""
    job = read_arguments()
    context = get_context("fork")
    job.running, job.stop = context.Pipe(duplex=False)
    signal.signal(signal.SIGINT, lambda *_: job.stop.close())  # in a rank it is closed already
    job.begin_ns, job.totals = time.time_ns(), context.Array("d", 4)
    os.environ["TORCHELASTIC_RUN_ID"] = time.strftime(f"simulate-%Y%m%d-%H%M%S-{os.getpid()}")
    ranks = [context.Process(target=run_rank, args=(job, rank), daemon=True) for rank in range(job.ranks)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    print("outcome  {:.0f} delivered, {:.0f} on disk, {:.0f} dropped, {:.3f} s of CPU".format(*list(job.totals)))
    print("late     rank {1}: {0}, {2:g} ms a step".format(*job.late))
    print(f"NaN      rank {job.nan[0]}: loss, in window {job.nan[1] + 1}")
    if failed := [rank for rank, process in enumerate(ranks) if process.exitcode]:
        print(f"not everything was delivered by the ranks {failed}", file=sys.stderr)
    return 128 + signal.SIGINT if job.stop.closed else int(bool(failed))


def read_arguments() -> argparse.Namespace:
    """Return the job that the command line describes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=8, help="number of processes (%(default)s)")
    parser.add_argument("--stats", type=int, default=10, help="Stats of each rank, without stages (%(default)s)")
    parser.add_argument("--windows", type=int, default=600, help="windows of each Stat (%(default)s)")
    parser.add_argument("--window", type=float, default=1.0, help="length of a window, seconds (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the samples, the times and both ranks (%(default)s)")
    parser.add_argument("--late", metavar="STAGE:RANK:DELAY", help=f"such as data:2:30ms; {', '.join(SHARES)}")
    parser.add_argument("--endpoint", help="base URL; default: OTEL_EXPORTER_OTLP_ENDPOINT, or the spool")
    job = parser.parse_args()
    if not min(10 * job.window, job.ranks, job.windows, job.stats - NAMED_STATS + 1) >= 1:
        parser.error(f"expected at least 1 rank, {NAMED_STATS} Stats, and 1 window of 0.1 s")
    rng = random.Random(job.seed)
    late, nan = rng.sample(range(job.ranks), 2) if job.ranks > 1 else (0, 0)
    job.nan = nan, rng.randrange(job.windows)
    text = job.late or f"{rng.choice([*SHARES])}:{late}:{300 * job.window / STEPS_PER_WINDOW:g}ms"
    found = re.fullmatch(rf"({'|'.join(SHARES)}):(\d+):(\d+(?:\.\d+)?)ms", text, re.ASCII)
    job.late = found and (found[1], int(found[2]), float(found[3]))
    if not job.late or job.late[1] >= job.ranks or job.late[2] > 500 * job.window:
        form = f"STAGE:RANK:DELAY such as data:2:30ms, a rank below {job.ranks}, and half a window at most"
        parser.error(f"--late: expected {form}; got {text}")
    return job


def run_rank(job: Any, rank: int) -> None:
    """Run one rank, in its process, until the parent closes its end of a pipe, or has ended."""
    job.stop.close()
    if rank:  # the first rank warns for all
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    os.environ.update(RANK=f"{rank}", LOCAL_RANK=f"{rank % 8}", GROUP_RANK=f"{rank // 8}", WORLD_SIZE=f"{job.ranks}")
    os.environ |= {"TORCHELASTIC_RESTART_COUNT": "0", "OTEL_SERVICE_NAME": "monitel-simulate", **os.environ}
    pipeline = configure(endpoint=job.endpoint, run_events=False)
    with ManualClock(job.begin_ns) as clock:
        train(job, rank, clock)
    complete = pipeline.shutdown(30.0)  # all ranks end at the same time on one machine
    with job.totals.get_lock():
        for account in pipeline.account().values():
            job.totals[0] += account.delivered
            job.totals[1] += account.on_disk
            job.totals[2] += sum(account.dropped.values())
        job.totals[3] += time.process_time() - time.thread_time()  # CPU of the threads that deliver
    sys.exit(not complete or pipeline.dropped != {})


def stage_times(job: Any, rank: int, rng: random.Random) -> dict[str, int]:
    """Return the nanoseconds of the stages of a rank in the next step; in ``sync`` it waits for the slowest rank."""
    (stage, late, delay), step = job.late, 1e9 * job.window / STEPS_PER_WINDOW
    ranks = [{each: round(SHARES[each] * step * rng.gauss(1, 0.03)) for each in SHARES} for _ in range(job.ranks)]
    ranks[late][stage] += round(1e6 * delay)
    sync = max(sum(times.values()) for times in ranks) - sum(ranks[rank].values())
    return ranks[rank] | ({"sync": sync} if job.ranks > 1 else {})


def train(job: Any, rank: int, clock: ManualClock) -> None:
    """Record the steps of a rank. The time of the Stats is the same on all ranks, and never ahead of the real time."""
    rng, of_all_ranks = random.Random(f"{job.seed} {rank}"), random.Random(job.seed)
    step, window, window_ns = 0, -1, round(1e9 * job.window)
    every = ["value", "mean", "count", "sum", "max", "min"]
    timed = [*every, "histogram"] if "MONITEL_DISTRIBUTIONS" in os.environ else every

    def work(*stages: str) -> None:
        seconds = sum(times.get(stage, 0) for stage in stages) / 1e9
        job.running.poll(max(0.0, clock.time_ns() / 1e9 + seconds - time.time()))
        clock.advance(seconds)

    def add(value: float, name: str, forms: list[str] = every, unit: str | None = None, **attributes: Any) -> None:
        monitel.stat(name, forms, job.window, unit=unit, attributes=attributes).add(value)

    while not job.running.poll():
        step, times = step + 1, stage_times(job, rank, of_all_ranks)
        monitel.set_step(step)
        work("optimizer", "other")
        with monitel.WaitCounter("data.loading").guard(), monitel.activity("data"):
            work("data")
        work("forward", "backward", "sync")
        seconds, expected_loss = sum(times.values()) / 1e9, 4 * step**-0.3
        begins = clock.monotonic_ns() // window_ns > window
        window += begins
        if begins and window > 0:
            monitel.emit("epoch", epoch=window)
            rates = {"training.samples.rate": 8 / seconds, "training.tokens.rate": 4096 / seconds}
            monitel.log(rates | {"training.mfu": 0.04 * job.window / seconds, "eval.loss": expected_loss + 0.1})
        if window == job.windows:
            return
        for unit, number in {"samples": 8, "tokens": 4096, "steps" if step % 20 else "steps.skipped": 1}.items():
            monitel.counter(f"training.{unit}").add(number)
        for stage, nanoseconds in times.items():
            add(nanoseconds / 1e9, "training.stage.duration", ["mean"], "s", **{"training.stage": stage})
        add(seconds, "step.time", timed, "s")
        add(rng.lognormvariate(0, 0.2), "gradient.norm")
        for layer in range(job.stats - NAMED_STATS):
            add(rng.lognormvariate(-1, 0.2), "layer.gradient.norm", layer=layer)
        add(rng.gauss(expected_loss, 0.02), "loss", split="train")
        if begins and (rank, window) == job.nan:
            add(float("nan"), "loss", split="train")
            monitel.emit("loss.nan", severity="error", rank=rank)


if __name__ == "__main__":
    sys.exit(main())

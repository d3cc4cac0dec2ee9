"""Ranks of a job that spend known times in each activity, and note them with their own clocks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.integration.conftest import DEADLINE
from tests.integration.stack.filling import Store

# The ledger is read in the last activity. The line at the end is printed after the last export.
JOB = """\
import atexit, json, sys, threading, time
found = {}
atexit.register(lambda: print(json.dumps({**found, "ended": time.time()})))
import monitel, monitel_otlp

times, first = json.loads(sys.argv[1]), int(sys.argv[2])
pause = threading.Event().wait
noted = dict.fromkeys(("data", "step", "checkpoint.save", "evaluation"), 0.0)
pipeline = monitel_otlp.configure(service_name="train", export_interval=0.25, spool_dir="spool")

def spend(name):
    begin = time.monotonic()
    pause(times[name])
    noted[name] += time.monotonic() - begin

for step in range(first, first + 20):
    with monitel.activity("data"):
        spend("data")
    monitel.set_step(step)
    spend("step")
    if step % 10 == 0 and times["checkpoint.save"]:
        with monitel.activity("checkpoint.save"):
            spend("checkpoint.save")
last = monitel.activity("evaluation")
last.__enter__()  # to the end
spend("evaluation")
found.update(noted=noted, activities=dict(monitel.ledger().activities))
"""


@dataclass(frozen=True)
class Known:
    """The times of one rank in seconds."""

    begin: float  # start of the process by the clock of the test
    noted: Mapping[str, float]  # time in each activity by the clock of the job
    activities: Mapping[str, float]  # the ledger of the process, read at the end of its last activity
    elapsed: float  # time from the start of the process, by the clock of the test, to its last export


def run(
    store: Store, folder: Path, run_id: str, ranks: Sequence[Mapping[str, float]], *, attempt: int = 0, first: int = 1
) -> list[Known]:
    """Run one process for each rank to its end, all at the same time.

    Args:
        store: Receives the metrics.
        folder: Working directory of the processes.
        run_id: The run.
        ranks: For each rank the seconds of each activity, at each time.
        attempt: Number of earlier attempts.
        first: First step of the processes.
    """
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    launcher = {
        **clean,
        "WORLD_SIZE": str(len(ranks)),
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"{store.url}/api/v1/otlp/v1/metrics",
        "OTEL_RESOURCE_ATTRIBUTES": "service.namespace=vision",
    }
    begins, jobs = [], []
    for rank, times in enumerate(ranks):
        begins.append(time.time())
        jobs.append(
            subprocess.Popen(
                [sys.executable, "-c", JOB, json.dumps(times), str(first)],
                env={**launcher, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                cwd=folder,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    found = []
    try:
        for begin, job in zip(begins, jobs, strict=True):
            stdout, stderr = job.communicate(timeout=DEADLINE)
            assert 0 == job.returncode, stderr
            printed = json.loads(stdout.splitlines()[-1])
            activities = {name: total_ns / 1e9 for name, total_ns in printed["activities"].items()}
            found.append(Known(begin, printed["noted"], activities, printed["ended"] - begin))
    finally:
        for job in jobs:
            job.kill()
            job.wait(10)
    return found

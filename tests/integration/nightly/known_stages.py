"""Ranks that record known times of their stages, with the pipeline that real ranks have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.integration.conftest import DEADLINE
from tests.integration.stack.filling import Store

# Ten cycles per second until the end of stdin.
JOB = """\
import json, sys, threading
import monitel, monitel_otlp

group = {"training.group": sys.argv[2]} if sys.argv[2] else {}
over = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
pipeline = monitel_otlp.configure(service_name="train", export_interval=0.25, spool_dir="spool")
stats = [
    (monitel.Stat(
        "training.stage.duration", {monitel.MEAN}, 1.0, unit="s", attributes={"training.stage": stage, **group}
    ), seconds)
    for stage, seconds in json.loads(sys.argv[1]).items()
]
while not over.wait(0.1):
    for stat, seconds in stats:
        stat.add(seconds)
pipeline.shutdown()
"""


@dataclass(frozen=True)
class KnownRank:
    """A rank and its times."""

    rank: int  # its number in the run
    host: str  # the name of its host
    group: str  # the ranks that it is compared with; "" for all ranks of the run
    stages: Mapping[str, float]  # seconds per stage, equal in every cycle


@contextmanager
def training(store: Store, folder: Path, run: str, ranks: Sequence[KnownRank]) -> Iterator[None]:
    """Run one process for each rank until the end of the ``with`` block.

    Args:
        store: Receives the metrics.
        folder: Working directory of the processes.
        run: The id of the run.
        ranks: All ranks of the run.
    """
    folder.mkdir()
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    processes: list[subprocess.Popen[str]] = []
    with ExitStack() as stack:
        stack.callback(_end, processes)
        for each in ranks:
            launcher = {
                "WORLD_SIZE": str(len(ranks)),
                "TORCHELASTIC_RUN_ID": run,
                "TORCHELASTIC_RESTART_COUNT": "0",
                "RANK": str(each.rank),
                "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": f"{store.url}/api/v1/otlp/v1/metrics",
                "OTEL_RESOURCE_ATTRIBUTES": (
                    f"service.namespace=vision,host.name={each.host},k8s.pod.name=pod-{each.rank}"
                ),
            }
            output = stack.enter_context((folder / f"{each.rank}.log").open("w"))
            processes.append(
                subprocess.Popen(
                    [sys.executable, "-c", JOB, json.dumps(each.stages), each.group],
                    env={**clean, **launcher},
                    cwd=folder,
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    text=True,
                )
            )
        yield


def _end(processes: Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
    for process in processes:
        try:
            process.wait(DEADLINE)
        finally:
            process.kill()
            process.wait(10)

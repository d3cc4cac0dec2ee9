"""Measurements of rows with hidden late ranks: the job that makes them, and Prometheus, to which they are sent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from tests.integration.conftest import ROOT
from tests.integration.nightly.late_rows import PAUSES, ROWS, Row

from monitel.console.lateness import Times

TIMEOUT = 400  # seconds of the longest job, where each row is measured several times


@dataclass(frozen=True)
class Measured:
    """A row and what was measured in it."""

    row: Row
    times: Times  # mean seconds of monitel's windows, by rank and stage
    counts: frozenset[int]  # numbers of samples of these windows
    # seconds of each cycle by the job's own clock, by rank and section of the loop
    sections: Mapping[int, Mapping[str, Sequence[float]]]
    seconds: float  # mean seconds of a cycle by the job's own clock
    attempts: int  # how often the row was measured
    quiet: bool  # whether the machine made no rank late, by the job's own clock, when the row was measured last

    @property
    def clocked(self) -> Times:
        """Mean seconds of the stages by the job's own clock, without the waits."""
        return {rank: {stage: fmean(of[stage]) for stage in PAUSES} for rank, of in self.sections.items()}


def measure(ranks: int, folder: Path, attempts: int = 4) -> list[Measured]:
    """Run one job, which measures all rows of a number of ranks, each at most so often until the machine is quiet."""
    folder.mkdir()
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
    command = [*torchrun, "-m", "tests.integration.nightly.jobs.late_ranks_job", str(folder), str(attempts)]
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "MONITEL_"))}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**variables, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert 0 == done.returncode, done.stderr
    written = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]
    return [
        Measured(
            row,
            {rank: each["means"] for rank, each in enumerate(found)},
            frozenset(count for each in found for count in each["counts"].values()),
            {rank: each["sections"] for rank, each in enumerate(found)},
            found[0]["seconds"],
            found[0]["attempts"],
            found[0]["quiet"],
        )
        for row, *found in zip((row for row in ROWS if row.ranks == ranks), *written, strict=True)
    ]

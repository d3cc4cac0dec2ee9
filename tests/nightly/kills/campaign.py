"""Batches of jobs that are killed, until there are enough kills.

PYTHONPATH=. .venv/bin/python -m tests.nightly.kills.campaign --kills 100 --seed 1
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from tests.nightly.kills.batch import BATCH, run_batch
from tests.nightly.kills.nursery import running_nursery

if TYPE_CHECKING:
    from tests.nightly.kills.batch import Batch

_MOST = 100  # problems that are printed


@dataclass
class Outcome:
    """The result of several batches.

    Attributes:
        problems: Breaches of the promise.
        kills: Number of jobs that were killed.
        collectors_killed: Number of collectors that were killed.
        processes: Number of processes that were compared, with forked children.
        done: Number of operations that were done.
        lost: Number of operations that were done and have not arrived.
        ages: For each process, the age of its oldest lost operation at the time of death, seconds.
        late: The longest that a process has waited for a processor, see :class:`.history.History`.
        repeated: Number of requests that arrived twice, by signal.
        reported: Number of events ``process.died``.
    """

    problems: list[str] = field(default_factory=list)
    kills: int = 0
    collectors_killed: int = 0
    processes: int = 0
    done: int = 0
    lost: int = 0
    ages: list[float] = field(default_factory=list)
    late: float = 0.0
    repeated: Counter[str] = field(default_factory=Counter)
    reported: int = 0

    def add(self, batch: Batch) -> None:
        """Add a batch."""
        self.problems += batch.problems
        self.kills += batch.kills
        self.collectors_killed += batch.collectors_killed
        for each in batch.processes:
            self.processes += 1
            self.done += each.verdict.done
            self.lost += each.verdict.lost
            self.ages.append(each.verdict.lost_s)
            self.late = max(self.late, each.history.lateness_at(each.died_ns or 0) / 1e9)
            self.repeated += each.arrived.repeated
            self.reported += len(each.deaths)

    def __str__(self) -> str:
        ages = sorted(self.ages) or [0.0]
        return (
            f"{self.kills} kills of jobs and {self.collectors_killed} of collectors; {self.processes} processes did "
            f"{self.done:,} operations, of which {self.lost:,} are lost, the oldest in the median {median(ages):.2f} s "
            f"before the death, in 99 % of processes {ages[int(0.99 * len(ages))]:.2f} s, at most {ages[-1]:.2f} s "
            f"(one has waited {self.late:.2f} s for a processor); process.died of {self.reported}; requests that "
            f"arrived twice: {self.repeated.total()}; problems: {len(self.problems)}"
        )


def run_campaign(folder: Path, seed: int, kills: int, *, keep: bool = False, **variables: str) -> Outcome:
    """Run batches until so many jobs were killed.

    Args:
        folder: A folder on a memory file system.
        seed: Seed of the first batch; the next ones have the next numbers.
        kills: Number of kills, at least.
        keep: Keep the files of batches with problems.
        variables: Environment variables of all processes.
    """
    total = Outcome()
    with running_nursery(**variables) as nursery:
        while total.kills < kills:
            batch = run_batch(nursery, folder / f"batch-{seed}", seed, min(BATCH, kills - total.kills))
            if not (keep and batch.problems):
                shutil.rmtree(folder / f"batch-{seed}")
            total.add(batch)
            seed += 1
    return total


def main() -> int:
    """Run a campaign, and print its outcome."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-box", action="store_true", help="without the black box")
    parser.add_argument("--keep", action="store_true", help="keep the files of batches with problems")
    arguments = parser.parse_args()
    variables = {"MONITEL_RUN_EVENTS": "0", **({"MONITEL_BLACK_BOX": "0"} if arguments.no_box else {})}
    folder = Path(tempfile.mkdtemp(prefix="monitel-fuzz-", dir="/dev/shm"))
    outcome = run_campaign(folder, arguments.seed, arguments.kills, keep=arguments.keep, **variables)
    sys.stdout.write("\n".join([*outcome.problems[:_MOST], str(outcome), ""]))
    if not any(folder.iterdir()):
        folder.rmdir()
    return bool(outcome.problems)


if __name__ == "__main__":
    raise SystemExit(main())

"""A ledger on a file system that does not respond."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from tests.processes.promises.recorded_runs import JOB, environment, moments
from tests.support.checks import EXIT, limit

if TYPE_CHECKING:
    from tests.support.scripts import Run

HANGING = """\
from monitel_otlp.ledger import run_ledger
def open_run(*_): time.sleep(3600)
run_ledger.open_run = open_run
"""


@pytest.mark.timed
def test_hanging_disk_delays_neither_steps_nor_the_exit(train: Run) -> None:
    """Only the thread of the ledger waits."""
    ended = train(HANGING + JOB + "print('end', time.monotonic())\n", 0, 10, 0.04, 0.5, env=environment("run-7"))
    began = [*moments(ended.stdout).values()]
    assert max(two - one for one, two in pairwise(began)) < limit(1)
    assert ended.at - float(ended.stdout.split()[-1]) < limit(EXIT)

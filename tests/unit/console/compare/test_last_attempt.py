"""The last attempt of a run among processes with one process id, as in containers, where each training has the id 1."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from tests.unit.console.compare.made_runs import SECOND

from monitel_otlp.compare.assembly import assemble
from monitel_otlp.compare.evidence import Process
from monitel_otlp.compare.run import Number
from monitel_otlp.ledger.reading import StoredRun
from monitel_otlp.ledger.run_time import RunTime
from monitel_otlp.values.run_values import Attempted, Progress, RunValues, Value

if TYPE_CHECKING:
    from typing import Any


@pytest.fixture
def now_ns() -> int:
    """Return the time of the last heartbeat."""
    return time.time_ns()


def restarted(now_ns: int) -> StoredRun:
    """Return a run whose second attempt has run for 60 s with the process id 1, up to step 30."""
    values = RunValues(
        "run-a",
        "second-1",
        time_ns=now_ns - 20 * SECOND,
        progress=Progress(10, 30),
        before=Progress(40, 39),
        values=(Value("samples", (), "", 400, now_ns - 20 * SECOND, total=True, before=320),),
    )
    spent = {"step": 100 * SECOND}
    run_time = RunTime("run-a", spent, 100 * SECOND, 2, now_ns - 100 * SECOND, now_ns, False)
    return StoredRun(run_time, Attempted("second-1", 20, 30), now_ns - 60 * SECOND, values)


def process(last_ns: int, step: int, samples: int, **changes: Any) -> Process:
    """Return a process with the id 1."""
    attributes = {"process.pid": 1, "training.run.id": "run-a", **changes.pop("attributes", {})}
    found = Process(attributes, started_ns=last_ns - 30 * SECOND, last_ns=last_ns, **changes)
    found.totals["samples", ()] = last_ns, Number(samples, "", True)
    found.add_step(step, last_ns)
    return found


def test_death_of_an_earlier_attempt_with_the_same_id_is_not_the_outcome(now_ns: int) -> None:
    """The run is running while its second attempt runs, and its steps and totals are those of that attempt."""
    first = process(now_ns - 70 * SECOND, 39, 320, death="killed by SIGKILL")
    run = assemble("run-a", "", restarted(now_ns), [first])
    assert ("running", 50, 30) == (run.outcome, run.steps, run.last_step)
    assert 400 == run.numbers["samples", ()].value


def test_last_attempt_completes_the_stored_values(now_ns: int) -> None:
    """The later of two processes with one id has the last steps and totals, and its death is the outcome."""
    first = process(now_ns - 70 * SECOND, 39, 320, death="killed by SIGKILL")
    second = process(now_ns, 33, 96, death="killed by SIGTERM")
    run = assemble("run-a", "", restarted(now_ns), [second, first])
    assert ("killed by SIGTERM", 53, 33) == (run.outcome, run.steps, run.last_step)
    assert 416 == run.numbers["samples", ()].value


def test_other_rank_with_the_same_id_is_not_the_attempt(now_ns: int) -> None:
    """In containers the other ranks have the id 1 as well: the death of one is named beside the state of rank zero."""
    other = process(now_ns, 33, 96, death="killed by SIGKILL", attributes={"training.rank": 1})
    zero = process(now_ns, 31, 88, attributes={"training.rank": 0})
    run = assemble("run-a", "", restarted(now_ns), [zero, other])
    assert ("running; rank 1 killed by SIGKILL", 31) == (run.outcome, run.last_step)
